"""Worlds that are started and stopped without a notebook."""

from __future__ import annotations

import os
import time

from jupyter_dtrain import Session
from tests.processes import wait_until_gone


def test_a_start_that_fails_stays_in_the_list_until_it_is_read_or_tried_again(page, tmp_path):
    """Its card has the reason, the fix and the log; a start of the same name takes its place."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise RuntimeError('no network here')\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    broken = {"options": {"n": 2, "name": "poor", "env": {"PYTHONPATH": path}}}

    status, _ = page.request("POST", "worlds", broken)
    failed = page.until(lambda: page.world("poor").get("failure") and page.world("poor"))
    alarm = page.until(lambda: [item for item in page.items("start") if item["world"] == failed["id"]])
    again, _ = page.request("POST", "worlds", {"options": {"n": 1, "name": "poor"}})
    up = page.until(lambda: page.world("poor").get("state") == "running" and page.world("poor"))
    settled = page.until(lambda: not page.items("start"))
    page.act(up["id"], method="DELETE")

    assert (status, again) == (202, 202)
    assert "RuntimeError: no network here" in failed["failure"]["reason"]
    assert failed["failure"]["fix"].startswith("The log shows where")
    assert "no network here" in failed["failure"]["log"]
    assert alarm
    assert settled
    assert up["failure"] is None
    assert page.until(lambda: not page.world("poor"))


def test_a_world_is_started_and_stopped_without_a_notebook(page, server, home):
    """No client drives it until one attaches; its folder is the one in the request."""
    (server.folder / "some where").mkdir()
    status, made = page.request(
        "POST", "worlds", {"options": {"n": 2, "name": "made", "env": {"MADE": "1"}}, "cwd": "some where"}
    )
    began = page.until(lambda: page.world("made").get("state") == "starting")
    up = page.until(lambda: page.world("made").get("state") == "running")
    told = page.world("made")
    with Session.attach("made") as session:
        run = session.run("import os; print(os.getcwd(), os.environ['MADE'])", view=None)
        driven = page.until(lambda: page.world("made")["driver"] and page.world("made")["driver"]["there"])
        lines = {rank: run.text(rank) for rank in range(2)}
    orphaned = page.until(lambda: page.world("made")["lease_end"])
    spool = session.request.folder
    stopped = page.act(made["id"], method="DELETE")

    assert status == 202
    assert began
    assert up
    assert (told["size"], told["ready"], told["nodes"], told["driver"]) == (2, 2, 1, None)
    assert told["lease_end"] > time.time()
    assert lines == dict.fromkeys(range(2), f"{server.folder / 'some where'} 1\n")
    assert driven
    assert orphaned
    assert stopped[0] == 202
    assert page.until(lambda: not page.world("made"))
    assert wait_until_gone(spool) == []
    assert page.items("ended") == []
