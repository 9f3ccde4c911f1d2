"""Requests as no page of ours makes them: each is answered, in words, and the server's log has no traceback."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from urllib.parse import quote

import websocket
from hypothesis import example, given
from hypothesis import strategies as st

from tests.server.page import Server
from tests.test_edges import NAMES, edges

PATIENCE = 20.0
"""Seconds in which a request is answered."""
TEXTS = NAMES.filter(lambda text: len(text) < 200)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["ranks", "force", "place", "options", "launcher", "cwd", "name", "note", "tags", "kept", "watch"]
)
DEEP = b'{"a":' * 5000
"""JSON that is nested deeper than Python reads it."""
BODIES = st.one_of(
    st.dictionaries(st.one_of(FIELDS, TEXTS), VALUES, max_size=4).map(lambda body: json.dumps(body).encode()),
    VALUES.map(lambda body: json.dumps(body).encode()),
    st.binary(max_size=30),
    st.sampled_from([DEEP, b"[" * 20_000, b'{"options": {"n": 1e400}}', b"\xff{}", b'{"name": "\\ud800"}']),
)
ROADS = st.sampled_from(
    [
        *("worlds", "worlds/none", "worlds/none/interrupt", "worlds/none/kill", "worlds/none/variables", "launchers"),
        *("worlds/none/profile", "worlds/none/profiles/1"),
        *("worlds/none/runs/1/ranks/0/output", "worlds/none/runs/1/cell", "runs", "runs/1", "runs/1/metrics"),
        *("runs/1/csv", "runs/99999999999999999999", "runs/0"),
    ]
)
METHODS = st.sampled_from(["GET", "POST", "PATCH", "DELETE"])
QUESTIONS = st.dictionaries(
    st.sampled_from(["limit", "before", "world", "outcome", "search", "tag", "since", "replay", "points", "names"]),
    TEXTS,
    max_size=2,
)


def ask(server: Server, method: str, address: str, body: bytes | None) -> int:
    """The status of the answer."""
    headers = {"Authorization": f"token {server.token}", "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{server.port}/dtrain/{address}"
    request = urllib.request.Request(url, data=body, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            error.read()
            return error.code


@given(METHODS, ROADS, QUESTIONS, BODIES)
@example("PATCH", "runs/1", {}, DEEP)
@example("POST", "worlds", {}, b"[" * 20_000)
@edges
def test_a_request_is_answered_in_words(server, method, road, questions, body):
    if (method, road) == ("POST", "worlds"):
        body = b'{"options": {"no such option": 1}, "rest": 1}' if body.startswith(b"{") else body
    asked = "&".join(f"{name}={quote(value.encode('utf-8', 'replace'))}" for name, value in questions.items())
    before = len(server.log)

    status = ask(server, method, f"{road}?{asked}", None if method == "GET" else body)

    assert status < 500 or status == 504, server.log[before:]
    assert "Traceback" not in server.log[before:]


@given(st.lists(st.one_of(BODIES, NAMES.map(lambda text: text.encode("utf-8", "replace"))), min_size=1, max_size=4))
@edges
def test_a_page_may_send_what_it_likes(server, bodies):
    before = len(server.log)
    url = f"ws://127.0.0.1:{server.port}/dtrain/stream?token={server.token}"
    stream = websocket.create_connection(url, timeout=PATIENCE, suppress_origin=True)
    for body in bodies:
        stream.send(body.decode("utf-8", "replace"))
    stream.send('{"watch": []}')
    assert stream.recv()
    stream.close(timeout=1)

    assert ask(server, "GET", "runs", None) == 200
    assert "Traceback" not in server.log[before:], server.log[before:]
