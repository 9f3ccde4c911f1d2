"""Pages of others cannot use a browser's login, and the server unpickles nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest
import websocket

OTHER = 65534
"""The id of the user ``nobody``."""


@pytest.fixture
def cookies(server):
    """The cookies that a browser with a login sends along, whichever page makes it send the request."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/api/status?token={server.token}")
    with urllib.request.urlopen(request) as answer:  # noqa: S310 — http
        found = [value.partition(";")[0] for value in answer.headers.get_all("Set-Cookie")]
    assert any(value.startswith("username-") for value in found)
    return "; ".join(found)


def test_another_origin_gets_no_stream(server, cookies):
    """The user opens a foreign page in the same browser."""
    address = f"ws://127.0.0.1:{server.port}/dtrain/stream"
    with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
        websocket.create_connection(address, cookie=cookies, origin="http://elsewhere.example")

    own = websocket.create_connection(address, cookie=cookies, origin=f"http://127.0.0.1:{server.port}")
    assert json.loads(own.recv())["type"] == "worlds"
    own.close()


def test_a_form_of_another_page_cannot_act(server, cookies):
    """It has the cookies, and not the page's XSRF token."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/dtrain/worlds", data=b"{}", headers={"Cookie": cookies}, method="POST"
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)  # noqa: S310 — http

    with caught.value as answer:
        assert answer.code == 403
        assert b"_xsrf" in answer.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's process and files")
def test_worlds_of_another_user_are_not_listed(page, home):
    """They are not listed where such a user's files lie in our folder, nor where ours name a process of that user."""
    process = subprocess.Popen(["/bin/sleep", "60"], user=OTHER, cwd="/")
    try:
        found = [(psutil.Process(process.pid), OTHER), (psutil.Process(process.pid), 0), (psutil.Process(), OTHER)]
        for number, (one, owner) in enumerate(found):
            folder = home / "runtime" / "dtrain" / f"other-{number}"
            folder.mkdir(parents=True, mode=0o700)
            listing = {"name": f"other-{number}", "id": folder.name, "size": 1, "cwd": "/", "connection_file": "/x"}
            listing |= {"steward": one.pid, "created": one.create_time()}
            (folder / "world.json").write_text(json.dumps(listing))
            os.chown(folder / "world.json", owner, owner)
        status, told = page.request("GET", "worlds")
    finally:
        process.kill()
        process.wait()
        for number in range(3):
            (home / "runtime" / "dtrain" / f"other-{number}" / "world.json").unlink()

    assert status == 200
    assert [world["name"] for world in told["worlds"] if world["name"].startswith("other")] == []


def test_the_server_loads_nothing_that_unpickles():
    """The extension imports neither ipyparallel nor cloudpickle."""
    code = (
        "import sys, jupyter_dtrain.server.handlers, jupyter_dtrain.server.monitor;"
        "print([name for name in ('ipyparallel', 'cloudpickle', 'mpi4py', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
