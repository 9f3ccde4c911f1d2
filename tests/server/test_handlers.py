"""The server answers its own user alone, and bad requests in words. The tests need no world."""

from __future__ import annotations

import json
import math
import os
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qsl, quote

import pytest
from jupyter_server.auth import Authorizer
from tornado.httpclient import HTTPClientError

from jupyter_dtrain.core.processes import own_process
from jupyter_dtrain.server import monitor
from jupyter_dtrain.server.handlers import handlers
from jupyter_dtrain.store import store_file
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.wire.messages import PROTOCOL
from tests.store.conftest import FakeWorld, drain, points

ACTIONS = "interrupt|heal|restart|kill|stacks|variables|profile|answer|steer"
METHODS = ("get", "post", "put", "patch", "delete")
EXAMPLES = {
    "/dtrain/worlds": "dtrain/worlds",
    "/dtrain/worlds/([^/]+)": "dtrain/worlds/some",
    f"/dtrain/worlds/([^/]+)/({ACTIONS})": "dtrain/worlds/some/answer",
    r"/dtrain/worlds/([^/]+)/runs/(\d+)/ranks/(\d+)/output": "dtrain/worlds/some/runs/1/ranks/0/output",
    r"/dtrain/worlds/([^/]+)/runs/(\d+)/cell": "dtrain/worlds/some/runs/1/cell",
    r"/dtrain/worlds/([^/]+)/profiles/(\d+)": "dtrain/worlds/some/profiles/1",
    "/dtrain/launchers": "dtrain/launchers",
    "/dtrain/export": "dtrain/export",
    "/dtrain/runs": "dtrain/runs",
    r"/dtrain/runs/(\d+)": "dtrain/runs/1",
    "/dtrain/runs/differences": "dtrain/runs/differences",
    r"/dtrain/runs/(\d+)/page": "dtrain/runs/1/page",
    r"/dtrain/runs/(\d+)/media": "dtrain/runs/1/media",
    r"/dtrain/media/(\d+)": "dtrain/media/1",
    "/dtrain/views": "dtrain/views",
    r"/dtrain/views/([^/]+)": "dtrain/views/mine",
    r"/dtrain/runs/(\d+)/metrics": "dtrain/runs/1/metrics",
    r"/dtrain/runs/(\d+)/csv": "dtrain/runs/1/csv",
    "/dtrain/report": "dtrain/report",
    "/dtrain/report/view": "dtrain/report/view",
    "/dtrain/stream": "dtrain/stream",
}
"""An address for each pattern."""


class ReadOnly(Authorizer):
    """Lets users read, but not act."""

    def is_authorized(self, handler, user, action, resource):  # noqa: ARG002 — the base's shape
        """Allow to read our resource, and everything with all others."""
        return resource != "dtrain" or action == "read"


class Nothing(Authorizer):
    """Refuses this extension to all users."""

    def is_authorized(self, handler, user, action, resource):  # noqa: ARG002
        """All others' things."""
        return resource != "dtrain"


@pytest.fixture
def jp_server_config(jp_server_config, request):
    """A server with our extension, and the authorizer that a test names."""
    config = {**jp_server_config, "ServerApp": {"jpserver_extensions": {"jupyter_dtrain.server": True}}}
    if hasattr(request, "param"):
        config["ServerApp"]["authorizer_class"] = request.param
    return config


def endpoints():
    """Each address with each method that it has."""
    found = []
    for pattern, handler in handlers("/"):
        own = [method for method in METHODS if method in vars(handler)]
        assert own, f"{handler} has no method"
        found += [(EXAMPLES[pattern], method.upper()) for method in own]
    return [*found, ("dtrain/worlds/some/steer", "POST")]


async def status_of(fetch, address, method, **options):
    """The status of the answer to a request."""
    body = "{}" if method in ("POST", "PUT", "PATCH") else None
    try:
        answer = await fetch(*address.split("/"), method=method, body=body, **options)
    except HTTPClientError as error:
        return error.code
    return answer.code


@pytest.mark.parametrize(("address", "method"), endpoints())
async def test_clients_without_the_token_get_no_answer(jp_fetch, address, method):
    """Every address, with every method that it has."""
    status = await status_of(
        jp_fetch, address, method, headers={"Authorization": "token wrong"}, follow_redirects=False
    )

    assert status in ((302, 403) if method == "GET" and not address.endswith("stream") else (403,))


@pytest.mark.parametrize("jp_server_config", [Nothing], indirect=True)
@pytest.mark.parametrize(("address", "method"), endpoints())
async def test_users_without_permission_get_no_answer(jp_fetch, address, method):
    """Every address asks whether the user may."""
    assert await status_of(jp_fetch, address, method) == 403


@pytest.mark.parametrize("jp_server_config", [ReadOnly], indirect=True)
async def test_a_user_that_may_only_read_cannot_act(jp_fetch):
    """Reading and acting are different permissions."""
    assert await status_of(jp_fetch, "dtrain/worlds", "GET") == 200
    assert await status_of(jp_fetch, "dtrain/worlds", "POST") == 403
    assert await status_of(jp_fetch, "dtrain/worlds/some", "DELETE") == 403
    assert await status_of(jp_fetch, "dtrain/worlds/some/answer", "POST") == 403
    assert await status_of(jp_fetch, "dtrain/worlds/some/steer", "POST") == 403
    assert await status_of(jp_fetch, "dtrain/runs/1", "GET") == 404
    assert await status_of(jp_fetch, "dtrain/runs/1", "PATCH") == 403
    assert await status_of(jp_fetch, "dtrain/runs/1", "DELETE") == 403


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[]", "JSON object"),
        ('{"launcher": "moon"}', "no launcher 'moon'. There is: local, hosts"),
        ('{"launcher": "hosts"}', "Name the hosts and their ranks"),
        ('{"launcher": "local", "options": {"hosts": "gpu1:2"}}', "Hosts is for the launcher 'Hosts over ssh'"),
        ('{"options": {"n": 0}}', "Ranks must be a whole number, at least 1 and at most 1024, not 0"),
        ('{"options": {"n": true}}', "at least 1 and at most 1024, not True"),
        ('{"options": {"size": 2}}', "no option 'size'. The options are n, gpus_per_rank, name"),
        ('{"options": {"name": "a b"}}', "cannot name a world"),
        ('{"options": {"env": {"A": 1}}}', "Environment variables must be a dict that maps text to text"),
        ('{"options": {"env": {"": "1"}}}', "cannot name an environment variable"),
        ('{"options": {"torch_backend": "mpi"}}', "PyTorch's backend must be auto, nccl or gloo"),
        ('{"options": {"n": 4, "chief": "yes"}}', "Chief must be True or False, not 'yes'"),
        ('{"options": {"n": 4, "ps": -1}}', "Parameter servers must be a whole number, at least 0, not -1"),
        ('{"options": {"n": 4, "ps": 1}}', "need a chief"),
        ('{"options": {"n": 2, "chief": true, "ps": 1}}', "need 3 ranks or more, not 2"),
        ('{"options": 3}', "options must be a JSON object"),
        ('{"cwd": "../.."}', "no folder '../..'"),
        ('{"cwd": "missing"}', "no folder 'missing'"),
        ('{"cwd": "a\\u0000b"}', "no folder 'a"),
        (json.dumps({"cwd": "long" * 2000}), "no folder 'longlong"),
        ('{"cwd": 5}', "cwd must be the path of a folder, as text, not 5"),
        ('{"cwd": {}}', "cwd must be the path of a folder, as text, not {}"),
        ('{"cwd": false}', "cwd must be the path of a folder, as text, not False"),
        ('{"options": {"n": {}}}', "must be"),
        ('{"options": {"env": {"A": "\\ud800"}}}', "'A' has a character that is not Unicode text"),
        ('{"options": {"env": {"\\udfff": ""}}}', "is not Unicode text"),
        (b'{"cwd": "\xff"}', "must be JSON in UTF-8"),
    ],
)
async def test_a_bad_start_is_refused_in_words(jp_fetch, body, words):
    """Nothing is left of it."""
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("dtrain", "worlds", method="POST", body=body)

    assert caught.value.code == 400
    assert words in json.loads(caught.value.response.body)["message"]
    assert list((Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "dtrain").glob("*/")) == []


@pytest.mark.parametrize(
    "address",
    [
        "runs?limit=abc",
        "runs?limit=",
        "runs?before=x",
        f"runs/{'5' * 5000}",
        f"worlds/some/runs/{'5' * 5000}/ranks/0/output",
    ],
)
async def test_a_number_that_is_none_is_refused_in_words(jp_fetch, address):
    """Neither is a number that no run can have, however many digits it has."""
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch(
            "dtrain",
            *address.partition("?")[0].split("/"),
            params=dict(parse_qsl(address.partition("?")[2], keep_blank_values=True)),
        )

    assert caught.value.code in (400, 404)
    assert address.startswith("worlds") or "a whole number" in json.loads(caught.value.response.body)["message"]


@pytest.mark.parametrize("name", ["gone", "a%2Fb", quote("ä b?c#d", safe=""), "..", "%2e%2e%2f%2e%2e"])
async def test_a_world_that_is_not_there(jp_fetch, name):
    """A request for it fails under every name."""
    for address, method in ((f"worlds/{name}", "DELETE"), (f"worlds/{name}/stacks", "POST")):
        assert await status_of(jp_fetch, f"dtrain/{address}", method) in (404, 405)


async def test_the_answer_about_a_world_that_is_not_there_says_so(jp_fetch):
    """The page shows the words."""
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("dtrain", "worlds", "gone", method="DELETE")

    assert json.loads(caught.value.response.body) == {"message": "This world no longer exists."}


async def test_files_that_are_damaged_are_no_worlds(jp_fetch, tmp_path):
    """Half-written, empty, of another version, or of a steward that is gone."""
    folder = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "dtrain"
    gone = {"name": "a", "id": "a-1", "size": 2, "cwd": "/", "steward": 1, "created": 5.0, "connection_file": "/none"}
    for number, text in enumerate(["", '{"name": "a"', "[]", '{"name": 3}', json.dumps(gone)]):
        (folder / f"a-{number}").mkdir(parents=True)
        (folder / f"a-{number}" / "world.json").write_text(text)
    answer = await jp_fetch("dtrain", "worlds")

    assert json.loads(answer.body) == {"worlds": []}


async def test_a_world_whose_connection_file_is_damaged_is_shown_as_such(jp_fetch, monkeypatch):
    """Its process is there: it is listed, with what is wrong, and a question to it fails in words."""
    # A steward younger than this may just not be ready yet. Here the test's own process stands for the steward.
    monkeypatch.setattr(monitor, "YOUNG", 0.0)
    folder = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "dtrain" / "b-1"
    folder.mkdir(parents=True)
    (folder / "steward.json").write_text('{"shell_port": 1, "ip"')
    pid, created = own_process()
    listing = {"name": "b", "id": "b-1", "size": 2, "cwd": "/", "steward": pid, "created": created}
    listing |= {"connection_file": str(folder / "steward.json"), "protocol": PROTOCOL}
    (folder / "world.json").write_text(json.dumps(listing))
    (told,) = json.loads((await jp_fetch("dtrain", "worlds")).body)["worlds"]
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("dtrain", "worlds", "b-1", "stacks", method="POST", body="{}")

    assert (told["name"], told["state"]) == ("b", "unreachable")
    assert "connection file cannot be read" in told["words"]
    assert caught.value.code == 504
    assert "cannot be reached: its connection file" in json.loads(caught.value.response.body)["message"]


async def test_launchers_describe_their_options(jp_fetch):
    """The description is JSON Schema, with the facts of this machine."""
    local, hosts, *_ = json.loads((await jp_fetch("dtrain", "launchers")).body)["launchers"]

    assert (local["name"], local["title"]) == ("local", "This machine")
    assert "hosts" not in local["schema"]["properties"]
    assert (hosts["name"], hosts["title"], hosts["default_ranks"]) == ("hosts", "Hosts over ssh", 0)
    assert hosts["schema"]["properties"]["hosts"]["main"]
    assert hosts["schema"]["properties"]["ps"] == local["schema"]["properties"]["ps"]
    assert local["schema"]["properties"]["n"]["minimum"] == 1
    assert local["schema"]["properties"]["torch_backend"]["enum"] == ["auto", "nccl", "gloo"]
    assert local["schema"]["properties"]["ps"]["minimum"] == 0
    assert local["schema"]["properties"]["chief"]["type"] == "boolean"
    assert local["default_ranks"] == (local["gpus"] or 2)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"n": 0}, "n"),
        ({"name": "a b"}, "name"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"mpiexec": "/none"}, "mpiexec"),
        ({"n": 4, "ps": 1}, "chief"),
        ({"n": 2, "chief": True, "ps": 1}, "n"),
        ({"torch_backend": "mpi"}, "torch_backend"),
        ({"size": 2}, None),
    ],
)
async def test_a_refused_start_names_the_field(jp_fetch, options, option):
    """The dialog shows the words beside it, and they speak of no command line."""
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("dtrain", "worlds", method="POST", body=json.dumps({"options": options}))

    answer = json.loads(caught.value.response.body)
    assert answer.get("option") == option
    assert " -" not in answer["message"]


async def test_the_dialog_shows_ranks_and_name_first(jp_fetch):
    """All other options are under "More options", but for the hosts where the ranks run on hosts."""
    local, hosts, *_ = json.loads((await jp_fetch("dtrain", "launchers")).body)["launchers"]

    main = [
        [name for name, option in one["schema"]["properties"].items() if option.get("main")] for one in (local, hosts)
    ]
    assert main == [["n", "name"], ["n", "name", "hosts"]]
    assert local["schema"]["properties"]["env"]["title"] == "Environment variables"


async def test_a_store_that_is_not_there_is_empty(jp_fetch):
    """A request for a missing run gets an error that says so."""
    listed = json.loads((await jp_fetch("dtrain", "runs")).body)
    assert (listed["runs"], listed["total"], listed["trainings"], listed["views"]) == ([], 0, 0, [])
    assert await status_of(jp_fetch, "dtrain/runs/7", "GET") == 404


@pytest.fixture
def stored(jp_environ, tmp_path):
    """Three stored runs of ``world``, the newest of which goes on."""
    world = FakeWorld(tmp_path)
    with closing(open_for_writing(store_file())) as db:
        for number in (1, 2, 3):
            world.begin(number, f"import torch\nlr = 0.{number}\ntrain(lr)")
            world.say(number, 0, points("loss", [3.0, math.nan, 0.5, float(number)]))
            if number < 3:
                world.finish(number)
        drain(world.writer, db)
    world.close()


async def test_stored_runs_are_listed_page_by_page_and_by_what_is_wanted(jp_fetch, stored):
    """The total counts what the filters let through."""

    async def listed(**query):
        answer = json.loads((await jp_fetch("dtrain", "runs", params=query)).body)
        return [run["number"] for run in answer["runs"]], answer["total"]

    newest = json.loads((await jp_fetch("dtrain", "runs")).body)["runs"][0]

    assert (newest["name"], newest["outcome"], newest["tags"]) == ("train(lr)", "running", [])
    assert newest["losses"] == [{"name": "loss", "last": 3.0, "best": 0.5, "step": 3}]
    assert await listed(limit=2) == ([3, 2], 3)
    assert await listed(limit=2, offset=2) == ([1], 3)
    assert await listed(before=newest["id"] - 1) == ([1], 1)
    assert await listed(outcome="ok", world="world", search="", tag="") == ([2, 1], 2)
    assert await listed(search="lr 0.2") == ([2], 1)
    with pytest.raises(HTTPClientError) as caught:
        await listed(outcome="done")
    assert caught.value.code == 400
    assert "choose ok, error, interrupted, lost or running" in json.loads(caught.value.response.body)["message"]


async def test_a_stored_run_is_edited_kept_and_deleted(jp_fetch, stored):
    """Neither one that runs nor one that is kept is deleted."""

    async def ask(key, method, **content):
        body = json.dumps(content) if method == "PATCH" else None
        try:
            answer = await jp_fetch("dtrain", "runs", str(key), method=method, body=body)
        except HTTPClientError as error:
            return error.code, json.loads(error.response.body)["message"]
        return answer.code, json.loads(answer.body)

    code, edited = await ask(1, "PATCH", name="baseline", tags=["a", "b"], kept=True)
    assert (code, edited["name"], edited["tags"], edited["kept"]) == (200, "baseline", ["a", "b"], True)
    assert (await ask(1, "PATCH", note="good"))[1]["name"] == "baseline"
    assert (await ask(1, "PATCH", name=""))[1]["name"] == "train(lr)"
    for wrong in ({"name": 5}, {"tags": "a"}, {"tags": ["a,b"]}, {"name": "x" * 61}, {"outcome": "ok"}):
        assert (await ask(1, "PATCH", **wrong))[0] == 400
    code, words = await ask(1, "DELETE")
    assert (code, "is kept" in words) == (409, True)
    code, words = await ask(3, "DELETE")
    assert (code, "is running" in words) == (409, True)
    assert await ask(2, "DELETE") == (200, {})
    for method in ("GET", "PATCH", "DELETE"):
        assert (await ask(2, method))[0] == 404
    assert [run["number"] for run in json.loads((await jp_fetch("dtrain", "runs")).body)["runs"]] == [3, 1]


async def test_strange_words_on_the_stream_do_not_end_it(jp_ws_fetch):
    """They are logged."""
    stream = await jp_ws_fetch("dtrain", "stream")
    for words in ("", "{", "3", '{"watch": 5}', '{"dismiss": []}', '{"watch": ["none"]}', '{"dismiss": null}'):
        await stream.write_message(words)
    kinds = [json.loads(await stream.read_message())["type"] for _ in range(3)]
    stream.close()

    assert kinds == ["worlds", "attention", "attention"]
