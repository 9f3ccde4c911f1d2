"""A world outlives an upgrade: what its steward and a newer client can still say to each other."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from jupyter_dtrain import DtrainError, OtherVersion, Refused, Session
from jupyter_dtrain.core.world import Client
from jupyter_dtrain.launch import worlds
from jupyter_dtrain.wire import messages
from jupyter_dtrain.wire.messages import PROTOCOL, Done, StewardRequest
from jupyter_dtrain.wire.steward_messages import Join, ReadState, ReadStatus, ReleaseRun
from tests.steward.until import until


def listing_file(session: Session) -> Path:
    """The file by which other clients find the session's world."""
    return Path(session.request.folder) / "world.json"


def test_a_world_of_another_protocol_can_be_listed_interrupted_and_stopped_but_not_joined(launch, monkeypatch) -> None:
    """The client speaks the next number: one sentence says so, and names the three that work."""
    session = launch(n=1, name="older")
    run = session.run("import time; time.sleep(1000)", wait=False, view=None)
    until(lambda: 0 in run.logs)
    session.leave()
    monkeypatch.setattr(messages, "PROTOCOL", PROTOCOL + 1)

    with pytest.raises(OtherVersion) as caught:
        Session.attach("older")
    print(caught.value)
    assert str(caught.value) == (
        f"World 'older' was started by an older version of jupyter-dtrain ({session._link.listing.version}): it speaks "
        f"protocol {PROTOCOL}, and this one {PROTOCOL + 1}, so it cannot be joined from here. %distributed worlds "
        f"shows it, %distributed interrupt older interrupts its cell, %distributed stop older ends it."
    )
    listing = worlds.find_world("older")
    channel = worlds.open_channel(listing, 10)
    try:
        status = channel.ask(ReadStatus())
        assert (status.phase, status.protocol, status.driven) == ("running", PROTOCOL, False)
        assert run.number == worlds.interrupt_world("older")
        # Nothing runs any more: the spool of the run has its last event.
        assert until(lambda: '"type":"finished"' in Path(run.logs[0]).read_text())
    finally:
        channel.close()
    worlds.stop_world("older")
    assert not worlds.is_alive(listing)


def test_a_world_without_a_number_is_older_than_the_first(launch) -> None:
    """Its world.json has neither number nor version."""
    with launch(n=1, name="unnumbered") as session:
        file = listing_file(session)
        content = json.loads(file.read_text())
        assert (content.pop("protocol"), bool(content.pop("version"))) == (PROTOCOL, True)
        file.write_text(json.dumps(content))

        assert "unnumbered" in [one.name for one in worlds.list_worlds()]
        with pytest.raises(OtherVersion, match=r"an older version of jupyter-dtrain: it speaks protocol 0, and"):
            Session.attach("unnumbered")
        assert session.controls


UPGRADE = """
import pathlib, sys

if pathlib.Path({marker!r}).exists() and any("watch.watch" in word for word in sys.orig_argv):
    from jupyter_dtrain.wire import messages
    messages.PROTOCOL += 1
"""
"""Ranks that start while the file is there find a package that speaks the next number."""


def test_ranks_of_another_version_are_not_started_under_an_older_steward(launch, monkeypatch, tmp_path) -> None:
    """A restart after an upgrade says in one sentence what to do."""
    marker = tmp_path / "upgraded"
    (tmp_path / "sitecustomize.py").write_text(UPGRADE.format(marker=str(marker)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    session = launch(n=1)
    marker.touch()

    with pytest.raises(DtrainError) as caught:
        session.restart()
    print(caught.value)
    assert "Another version of jupyter-dtrain has been installed since this world was started" in str(caught.value)
    assert "Traceback" not in str(caught.value)


class Dance(StewardRequest[Done], frozen=True, tag="dance"):
    """A request of a protocol that is to come."""


def test_a_steward_answers_what_it_cannot_read_and_goes_on(launch) -> None:
    """An operation that it does not know, a field of another type, a client that speaks another number."""
    with launch(n=1) as session:
        client = Client("a", 1, 0.0, "a client of tomorrow")

        with pytest.raises(Refused, match="dance"):
            session._link.ask(Dance())
        with pytest.raises(Refused, match=r"Expected `int`, got `str` - at `\$.run`"):
            session._link.ask(ReleaseRun("first"))
        with pytest.raises(Refused, match=f"speaks protocol {PROTOCOL}, and this client {PROTOCOL + 1}"):
            session._link.ask(Join(client, take_over=True, protocol=PROTOCOL + 1))
        assert session.controls
        assert session._link.ask(ReadState()).phase == "running"


def test_messages_of_every_protocol_are_part_of_this_one() -> None:
    """ReadStatus reads the answer to ReadState."""
    answer = {field.name: field.type for field in msgspec.structs.fields(ReadState.__orig_bases__[0].__args__[0])}
    status = msgspec.structs.fields(ReadStatus.__orig_bases__[0].__args__[0])

    assert {field.name for field in status} <= answer.keys()
    assert all(not field.required for field in status)
    assert ReadState.__struct_config__.tag == ReadStatus.__struct_config__.tag == "state"
