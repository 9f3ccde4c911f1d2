"""Reports that a server gives: as a file, and as a page for others who may read and nothing else."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from jupyter_server.auth import Authorizer
from tornado.httpclient import HTTPClientError

from jupyter_dtrain.store import Store
from jupyter_dtrain.store.report_page import POLICY
from jupyter_dtrain.store.schema import open_for_writing
from tests.store.conftest import FakeWorld, drain, points


class OthersRead(Authorizer):
    """Lets users read what this extension has, and nothing else."""

    def is_authorized(self, handler, user, action, resource):  # noqa: ARG002 — the base's shape
        """See the docstring of ``jupyter_dtrain.server.report``."""
        return action == "read" and resource == "dtrain"


@pytest.fixture
def jp_server_config(jp_server_config):
    """A server that others may read."""
    extensions = {"jupyter_dtrain.server": True}
    return {**jp_server_config, "ServerApp": {"jpserver_extensions": extensions, "authorizer_class": OthersRead}}


@pytest.fixture
def ids(jp_environ, tmp_path):
    """The ids of two stored runs, the older first."""
    world = FakeWorld(tmp_path)
    for number in (1, 2):
        world.begin(number, f"lr = 0.{number}\n<script>alert(1)</script>")
        world.say(number, 0, points("loss", [3.0, 1.0 / number]))
        world.finish(number)
    store = Store.open()
    with closing(open_for_writing(store.path)) as db:
        drain(world.writer, db)
    world.close()
    store.run("world/2").name = "<b>second</b>"
    return [store.run("world/1").id, store.run("world/2").id]


def listed(ids):
    """As a request has them."""
    return ",".join(map(str, ids))


@pytest.mark.parametrize(("form", "kind"), [("html", "text/html"), ("md", "text/markdown"), ("csv", "text/csv")])
async def test_a_report_is_a_file_to_keep(jp_fetch, ids, form, kind):
    answer = await jp_fetch("dtrain", "report", params={"ids": listed(ids), "format": form, "notes": "# Two <i>runs"})
    text = answer.body.decode()

    assert answer.headers["Content-Type"] == f"{kind}; charset=utf-8"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="report-{ids[0]}-{ids[1]}.{form}"'
    assert "world/1" in text
    assert "world/2" in text
    assert ("Two &lt;i&gt;runs" in text) == (form != "csv")


async def test_others_read_a_page_that_cannot_run_anything(jp_fetch, ids):
    """They may do nothing else."""
    answer = await jp_fetch("dtrain", "report", "view", params={"ids": listed(ids)})
    text, policy = answer.body.decode(), answer.headers["Content-Security-Policy"]

    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "Content-Disposition" not in answer.headers
    assert policy == f"{POLICY}; frame-ancestors 'none'; sandbox"
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "&lt;b&gt;second&lt;/b&gt;" in text
    assert "<script" not in text
    assert "<b>" not in text
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("dtrain", "runs", str(ids[0]), method="PATCH", body='{"name": "mine"}')
    assert caught.value.code == 403
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("api", "kernels")
    assert caught.value.code == 403


async def test_a_person_without_a_login_is_asked_for_one(jp_fetch, ids):
    """A link that somebody has sent leads to the login, and not to an error."""
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch(
            *("dtrain", "report", "view"),
            params={"ids": listed(ids)},
            headers={"Authorization": "token wrong"},
            follow_redirects=False,
        )

    assert caught.value.code == 302
    assert "/login?next=" in caught.value.response.headers["Location"]


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({}, 400, "Name the runs of the report by their ids"),
        ({"ids": "1,x"}, 400, "The id of a run must be a whole number"),
        ({"ids": "9" * 5000}, 400, "whole number"),
        ({"ids": ",".join(map(str, range(51)))}, 400, "A report may have 50 runs, not 51"),
        ({"ids": "12345"}, 404, "Run 12345 is no longer kept."),
    ],
)
async def test_what_is_wrong_is_said_in_words(jp_fetch, ids, asked, code, words):
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("dtrain", "report", params=asked)
    assert caught.value.code == code
    assert words in json.loads(caught.value.response.body)["message"]

    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("dtrain", "report", "view", params=asked)
    assert caught.value.code == code
    assert words in caught.value.response.body.decode()
    assert caught.value.response.headers["Content-Type"] == "text/html; charset=utf-8"


async def test_an_unknown_form_is_refused(jp_fetch, ids):
    with pytest.raises(HTTPClientError) as caught:
        await jp_fetch("dtrain", "report", params={"ids": listed(ids), "format": "<b>"})

    assert caught.value.code == 400
    assert json.loads(caught.value.response.body)["message"] == "A report is html, md or csv, and not '<b>'."
