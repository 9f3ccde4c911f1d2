"""The worlds of a user: their names, the list of them, and what they leave on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import psutil
import pytest
from msgspec import structs

from jupyter_dtrain import BadRequest, WorldLost
from jupyter_dtrain.launch import leftovers, worlds
from jupyter_dtrain.launch.worlds import Listing, open_channel
from jupyter_dtrain.wire.steward_messages import ReadState
from tests.processes import loose_segments, processes_of, wait_for_segments, wait_until_gone
from tests.steward.until import PATIENCE, runs, until, watch_of


@pytest.fixture(scope="module", autouse=True)
def own_home(tmp_path_factory):
    """Folders of this module's own: no other test's world takes a name or is listed."""
    folder = tmp_path_factory.mktemp("worlds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("JUPYTER_DATA_DIR", str(folder / "data"))
        yield folder


def age(folder: Path, days: float) -> None:
    """Make everything in ``folder`` as old as that."""
    then = time.time() - days * 86400
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (then, then))


@pytest.mark.slow
def test_several_worlds_live_side_by_side(launch, mark) -> None:
    """Each has a name, given or found; the list has the oldest first; requests to one do not reach the other."""
    first, second, third = launch(n=1), launch(n=1), launch(n=1, name="Mine.3_x")
    names = [listing.name for listing in worlds.list_worlds()]
    first.run("x = 'first'", view=None)
    second.run("x = 'second'", view=None)
    values = first["x"], second["x"]
    with pytest.raises(BadRequest, match=r"'Mine.3_x' is already running.*another name"):
        launch(n=1, name="Mine.3_x")
    first.stop()
    reused = launch(n=1)
    after = [listing.name for listing in worlds.list_worlds()]
    for session in (second, third, reused):
        session.stop()

    assert [first.name, second.name, third.name] == names == ["world", "world-2", "Mine.3_x"]
    assert values == ({0: "first"}, {0: "second"})
    assert reused.name == "world"
    assert after == ["world-2", "Mine.3_x", "world"]
    assert worlds.list_worlds() == []
    assert wait_until_gone(mark, patience=0) == []


@pytest.mark.slow
def test_worlds_that_start_at_once_take_different_names(launch, mark) -> None:
    """Two notebooks on which Run All was pressed."""
    with ThreadPoolExecutor(3) as pool:
        sessions = list(pool.map(lambda _: launch(n=1), range(3)))
    names = sorted(session.name for session in sessions)
    for session in sessions:
        session.stop()

    assert names == ["world", "world-2", "world-3"]
    assert wait_until_gone(mark, patience=0) == []


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", ".a", "a/b", "../a", "ä", "a\n", "a" * 41, "$HOME", "a;b"])
def test_an_odd_name_is_refused(launch, name, own_home) -> None:
    """Nothing is made for it."""
    with pytest.raises(BadRequest, match="cannot name a world"):
        launch(n=1, name=name)

    assert worlds.list_worlds() == []
    assert not any("a" * 41 in path.name for path in own_home.rglob("*"))


def test_the_files_of_a_dead_steward_are_no_world(own_home) -> None:
    """A listing whose process is gone, one whose process id is another's by now, and one that cannot be read."""
    folder = worlds.runtime_folder()
    for number, text in enumerate(
        [
            worlds.msgspec.json.encode(worlds.Listing("gone", "gone-1", 1, "/", 2**22 - 1, 0.0, "")),
            worlds.msgspec.json.encode(worlds.Listing("other", "other-1", 1, "/", os.getpid(), 0.0, "")),
            b"{",
        ]
    ):
        (folder / f"left-{number}").mkdir(parents=True)
        (folder / f"left-{number}" / "world.json").write_bytes(text)

    assert worlds.list_worlds() == []


@pytest.mark.slow
def test_the_next_start_removes_what_a_killed_world_left(launch, mark) -> None:
    """No process was left to clean up: ranks' children live, and folders stay. Nothing of others is touched."""
    killed = launch(n=1)
    listing = next(one for one in worlds.list_worlds() if one.name == killed.name)
    code = "import subprocess\nchildren = [subprocess.Popen(['sleep', '300'], start_new_session=own) for own in (0, 1)]"
    killed.run(f"{code}\npids = [child.pid for child in children]", view=None)
    [children] = killed.pull("pids").values()
    folders = [Path(folder) for folder in killed.request.passing_folders]
    steward = psutil.Process(listing.steward)
    family = [steward.parent(), steward, *steward.children(recursive=True)]
    for process in (*family[:2], watch_of(killed, 0)):
        process.kill()
    until(lambda: not any(runs(one) for one in family if one.pid not in children))
    left = [runs(pid) for pid in children], [folder.exists() for folder in folders]
    kept = {}
    for name, other in {"elsewhere": {"place": "another host"}, "alive": alive(), "before": {"place": ""}}.items():
        folder = worlds.runtime_folder() / name
        folder.mkdir()
        named = structs.replace(listing, id=name, folders=[str(folder)], **other)
        (folder / "world.json").write_bytes(worlds.msgspec.json.encode(named))
        kept[folder] = subprocess.Popen(["sleep", "300"], env=os.environ | {leftovers.MARK: name})
    launch(n=1).stop()
    after = [runs(pid) for pid in children], [folder.exists() for folder in folders]
    others = [(folder.exists(), runs(one.pid)) for folder, one in kept.items()]
    for folder, one in kept.items():
        one.kill()
        one.wait()
        shutil.rmtree(folder)
    killed.leave()

    assert left == ([True] * 2, [True] * 2)
    assert after == ([False] * 2, [False] * 2)
    assert others == [(True, True)] * 3
    assert wait_until_gone(mark) == []


def test_a_clock_that_was_set_makes_no_living_world_a_dead_one(launch) -> None:
    """Times of creation move with the clock; the next start still sees whose process it is."""
    session = launch(n=1)
    listing = next(one for one in worlds.list_worlds() if one.name == session.name)
    file = Path(session.request.folder) / "world.json"
    file.write_bytes(worlds.msgspec.json.encode(structs.replace(listing, created=listing.created - 3600)))
    launch(n=1).stop()

    assert session.run("1", view=None).outcome == "ok"
    session.stop()


STARTER = """
from jupyter_dtrain import Session
print("starts", flush=True)
Session.start(n=2, name="killed-early")
"""
"""A client that starts a world, and that no notebook holds."""


def folders_of_worlds() -> set[Path]:
    """What worlds have made on this machine, apart from spools."""
    return {*worlds.runtime_folder().glob("*"), *Path("/dev/shm").glob("dtrain-killed-early*")}


def kill_in_start(mark: str, moment: Callable[[psutil.Process], object]) -> bool:
    """Kill a client in its start, at a ``moment``; then the world is listed, or it is gone. Whether it was listed."""
    client = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with client:
        assert client.stdout is not None
        client.stdout.readline()
        moment(psutil.Process(client.pid))
        client.kill()
    until(lambda: worlds.list_worlds() or not processes_of(mark))
    found = worlds.list_worlds()
    for listing in found:
        worlds.stop_world(listing.name)
    assert wait_until_gone(mark, patience=PATIENCE) == []
    return bool(found)


def record_is_there(_: psutil.Process) -> None:
    """The client has made the world's folder, and has listed it."""
    until(lambda: list(worlds.runtime_folder().glob("*/world.json")))


def steward_is_there(client: psutil.Process) -> None:
    """The client has started the program that becomes the steward."""

    def found():
        # One that ends meanwhile, such as mpiexec, which is asked for its version, has no command line.
        with contextlib.suppress(psutil.Error):
            return [child for child in client.children() if "steward" in " ".join(child.cmdline())]

    until(found)


def world_is_listed(_: psutil.Process) -> None:
    """The steward has taken the listing; the ranks start."""
    until(worlds.list_worlds)


@pytest.mark.parametrize("moment", [record_is_there, steward_is_there, world_is_listed])
def test_a_start_whose_client_is_killed_ends_or_is_listed(mark, moment) -> None:
    """SIGKILL; the next start removes the folders of one that did not come so far."""
    before = folders_of_worlds()
    listed = kill_in_start(mark, moment)
    leftovers.remove_dead()

    assert listed or moment is not world_is_listed
    assert folders_of_worlds() == before


@pytest.mark.slow
def test_a_start_whose_client_is_killed_ends_or_is_listed_whenever_that_is(mark) -> None:
    """SIGKILL in every tenth of a second of a start."""
    before = folders_of_worlds()
    seen = {kill_in_start(mark, lambda _, tenths=tenths: time.sleep(tenths / 10)) for tenths in range(30)}
    leftovers.remove_dead()

    assert True in seen
    assert folders_of_worlds() == before


def test_a_stop_of_a_world_that_ends_meanwhile_is_a_stop(launch) -> None:
    """It does not say that the world does not answer: that is what was asked for."""
    session = launch(n=1)
    listing = worlds.find_world(session.name)
    os.kill(listing.steward, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as lane:
        stopped = lane.submit(worlds.stop_world, session.name)
        until(lambda: any(is_asking(frame) for frame in sys._current_frames().values()))
        os.kill(listing.steward, signal.SIGKILL)
        assert stopped.result(PATIENCE) is None


def is_asking(frame: FrameType | None) -> bool:
    """Whether a thread with this frame has begun to wait in ``stop_world``."""
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return {"stop_world", "_ask"} <= names


def alive():
    """The fields of the listing of a world whose steward is this process."""
    return {"steward": os.getpid(), "created": psutil.Process().create_time()}


@pytest.mark.slow
def test_spools_are_kept_for_days_and_those_of_living_worlds_longer(launch) -> None:
    """A start removes what is old and belongs to no world."""
    living = launch(n=1)
    living.run("print('kept')", view=None)
    ended = launch(n=1)
    run = ended.run("print('kept for days')", view=None)
    ended.stop()
    folder = worlds.spool_folder()
    young, old, living_spool = Path(ended.request.spool), folder / "old", Path(living.request.spool)
    (old / "run-1").mkdir(parents=True)
    (old / "run-1" / "rank-0.jsonl").touch()
    (folder / "a file").touch()
    age(old, 8)
    age(living_spool, 8)
    age(young, 6)
    third = launch(n=1)
    found = [path.exists() for path in (young, old, living_spool)]
    text = run.text(0)
    third.stop()
    living.stop()

    assert found == [True, False, True]
    assert text == "kept for days\n"


@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_starts_and_stops_leave_nothing(launch, mark, tmp_path, monkeypatch, times) -> None:
    """No process, folder or shared memory; this process holds no more threads and descriptors than after the first."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    me = psutil.Process()

    def cycle() -> tuple[int, int]:
        session = launch(n=2)
        session.run("print('x' * 1000)", view=None)
        session.stop()
        folders.extend(map(Path, session.request.passing_folders))
        return threading.active_count(), me.num_fds()

    folders: list[Path] = []
    before = loose_segments()
    counts = [cycle() for _ in range(times)]

    assert wait_until_gone(mark, patience=0) == []
    assert wait_for_segments(before) == set()
    assert [folder for folder in folders if folder.exists()] == []
    assert list(tmp_path.iterdir()) == []
    assert [path for path in worlds.runtime_folder().iterdir() if not path.name.startswith("left-")] == []
    assert counts[-1][0] <= counts[0][0]
    # A closed socket of ZeroMQ gives its descriptors back a moment later, from a thread of its own.
    until(lambda: me.num_fds() <= counts[0][1], patience=5)


@pytest.mark.slow
def test_a_steward_that_is_asked_without_pause_ends_all_the_same(launch) -> None:
    """ipykernel's own end hung where a request came in that moment: in three of eight ends, with as many clients."""
    for _ in range(3):
        session = launch(n=1)
        listing = session._link.listing
        clients = [threading.Thread(target=_ask_until_it_ends, args=(listing,), daemon=True) for _ in range(4)]
        for client in clients:
            client.start()
        session.stop()
        for client in clients:
            client.join(PATIENCE)
        assert wait_until_gone(listing.id) == []


def _ask_until_it_ends(listing: Listing) -> None:
    channel = open_channel(listing, 1.0)
    with contextlib.suppress(WorldLost):
        while True:
            channel.ask(ReadState())
    channel.close()
