"""The list of worlds that a server keeps, and its questions to a world, under crossing requests."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading

import pytest
import zmq
import zmq.asyncio

from jupyter_dtrain.launch import worlds
from jupyter_dtrain.launch.worlds import Listing
from jupyter_dtrain.server.observatory import Observatory
from jupyter_dtrain.server.steward import Silent, Steward
from jupyter_dtrain.wire.steward_messages import ReadState, Stop


def listing(folder, control=1, key="world-1"):
    """A world whose steward is reached at that port."""
    ports = dict.fromkeys(("shell_port", "iopub_port", "stdin_port", "hb_port"), 1)
    kernel = {"transport": "tcp", "ip": "127.0.0.1", "key": "", "signature_scheme": "hmac-sha256"}
    file = folder / "steward.json"
    file.write_text(json.dumps({**kernel, **ports, "control_port": control}))
    return Listing("name", key, 1, str(folder), os.getpid(), 0.0, str(file))


async def test_an_older_look_at_the_list_does_not_end_a_world_that_a_newer_one_has_found(tmp_path, monkeypatch):
    """A look that takes long would otherwise bring a list without the newest world, which would count as ended."""
    there, held = [], threading.Event()
    begun = threading.Event()

    def look():
        found = list(there)
        if not begun.is_set():
            begun.set()
            held.wait(10)
        return found

    monkeypatch.setattr(worlds, "list_worlds", look)
    observatory = Observatory(logging.getLogger("test"))
    slow = asyncio.create_task(observatory.look())
    await asyncio.to_thread(begun.wait, 10)
    there.append(listing(tmp_path))
    quick = asyncio.create_task(observatory.find("world-1"))
    await asyncio.wait([quick], timeout=0.5)
    held.set()
    await slow
    found = await quick
    known = list(observatory._monitors)
    for key in known:
        observatory._forget(key)

    assert found is not None
    assert known == ["world-1"]


async def test_a_question_that_waited_until_its_deadline_is_never_sent(tmp_path, monkeypatch):
    """A person was told that the steward does not answer: a stop must not come later."""
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        steward = Steward(listing(tmp_path, port))
        monkeypatch.setattr("jupyter_dtrain.server.steward.PATIENCE", 1.0)
        first = asyncio.create_task(steward.ask(ReadState()))
        await asyncio.sleep(0)  # it takes its turn
        monkeypatch.setattr("jupyter_dtrain.server.steward.PATIENCE", 0.5)
        with pytest.raises(Silent):
            await steward.ask(Stop())
        with pytest.raises(Silent):
            await first
        steward.close()
        kinds = set()
        while await silent.poll(200):
            parts = await silent.recv_multipart()
            kinds.add(json.loads(parts[-1])["op"])

    assert kinds == {"state"}
