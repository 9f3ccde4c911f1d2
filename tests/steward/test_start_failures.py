"""A start that cannot succeed says why within 30 seconds, and leaves neither process nor folder."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import psutil
import pytest
from jupyter_core.paths import jupyter_data_dir, jupyter_runtime_dir

from jupyter_dtrain import BadRequest, Session, Settings, StartFailed
from jupyter_dtrain.launch.mpi import find_mpiexec
from jupyter_dtrain.launch.starting import MAX_SOCKET_PATH, socket_folder
from tests.processes import processes_of, wait_until_gone
from tests.steward.until import until

LIMIT = 30.0


def folders() -> list[Path]:
    """The folders that worlds have left on disk, or are using."""
    places = [Path(jupyter_runtime_dir()) / "dtrain", Path(jupyter_data_dir()) / "dtrain" / "spool"]
    return sorted(path for place in places for path in place.glob("*"))


@pytest.fixture
def fails(mark: str):
    """``fails(message, **options)``: a start with these options fails so, in time, and leaves nothing."""

    def check(message: str, kind: type[Exception] = StartFailed, **options) -> None:
        before = folders()
        name = f"fails-{uuid.uuid4().hex}"
        began = time.monotonic()
        with pytest.raises(kind, match=message):
            Session.start(**{"n": 2, "name": name} | options)
        took = time.monotonic() - began

        assert took < LIMIT
        assert folders() == before
        assert list(Path("/dev/shm").glob(f"dtrain-{name}-*")) == []
        assert wait_until_gone(mark, patience=1) == []

    return check


def path_of(folder: Path) -> dict[str, str]:
    """The variable that puts a folder first in the module search path."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}


def script(path: Path, text: str) -> str:
    """An executable of our own in place of mpiexec."""
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_an_mpiexec_that_is_not_there(fails, tmp_path) -> None:
    """A path to nothing, and one to a folder."""
    fails("mpiexec was not found at .*/none.*Check that path", mpiexec=str(tmp_path / "none"))
    fails("mpiexec was not found at .*Check that path", mpiexec=str(tmp_path))


def test_an_mpiexec_that_fails(fails, tmp_path) -> None:
    """It exits with 1 and says something."""
    fails(
        r"broken --version failed with exit code 1: a library is missing",
        mpiexec=script(tmp_path / "broken", "echo a library is missing >&2; exit 1"),
    )


def test_an_mpiexec_that_cannot_be_executed_by_the_system(fails, tmp_path) -> None:
    """A file that is marked as executable and is none."""
    path = tmp_path / "garbage"
    path.write_bytes(b"\x7fELF garbage")
    path.chmod(0o755)
    fails("garbage cannot be run", mpiexec=str(path))


@pytest.mark.slow
def test_an_mpiexec_that_nobody_may_execute_any_more(fails, tmp_path) -> None:
    """It tells its version, and cannot be started afterwards."""
    once = script(tmp_path / "once", f'chmod a-x "$0"; exec {find_mpiexec(None)} "$@"')
    fails("mpiexec cannot be started: .*Permission denied.*/once.*Name another mpiexec", mpiexec=once)


@pytest.mark.slow
def test_an_mpiexec_that_hangs(fails, tmp_path) -> None:
    """It never answers who it is, and has a child that holds its output open."""
    fails("hanging cannot be run.*timed out", mpiexec=script(tmp_path / "hanging", "sleep 300"))


def test_a_steward_that_is_killed_says_so_though_its_log_goes_with_it(fails, tmp_path) -> None:
    """The steward asks this mpiexec for its version; the guard then removes the world's folders, with all logs."""
    killer = script(tmp_path / "killer", "kill -9 $PPID")
    killed = r"The world's main process was killed \(SIGKILL\)\."
    fails(rf"(?s)The main process of world 'fails-\w+' ended\..*{killed}", mpiexec=killer)


def test_a_start_needs_no_variable_home(mark, monkeypatch) -> None:
    """Open MPI does: a service or a container may have none."""
    monkeypatch.delenv("HOME")
    with Session.start(n=1) as session:
        assert session.run("1", view=None).outcome == "ok"


def test_a_umask_that_shuts_the_owner_out(fails) -> None:
    """Root could work all the same; nobody else could."""
    before = os.umask(0o777)
    try:
        fails("umask of this process takes the rights.*os.umask")
    finally:
        os.umask(before)


def test_what_prints_while_python_starts_does_not_end_a_start(mark, tmp_path, monkeypatch) -> None:
    """A sitecustomize, or a file of an installed package; without the end of its line."""
    (tmp_path / "sitecustomize.py").write_text("print('hello', end='', flush=True)")
    monkeypatch.setenv(*next(iter(path_of(tmp_path).items())))
    with Session.start(n=1) as session:
        said = session.run("print('from a cell')", view=None).text(0)

    assert said == "from a cell\n"
    assert wait_until_gone(mark, patience=1) == []


def test_a_master_port_that_is_taken(fails) -> None:
    """Another process listens there."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        fails(f"Port {port} on 127.0.0.1 is taken.*another MASTER_PORT", env={"MASTER_PORT": str(port)})


@pytest.mark.parametrize("port", ["http", "-1", "65536", "", "29500 "])
def test_a_master_port_that_is_none(fails, port) -> None:
    """Words, and numbers that no port has."""
    fails("MASTER_PORT must be a port number", BadRequest, env={"MASTER_PORT": port})


@pytest.mark.parametrize("module", ["mpi4py", "msgspec"])
def test_an_engine_that_fails_at_import(fails, tmp_path, module) -> None:
    """A module that rank (mpi4py) or watch (msgspec) needs is broken: its own words are in the message."""
    (tmp_path / f"{module}.py").write_text("raise ImportError('this one is broken')")
    fails(r"(?s)did not start.*ImportError: this one is broken", env=path_of(tmp_path))


def test_a_full_dev_shm(fails, tmp_path) -> None:
    """As Open MPI says it, in a line that tells nothing to a person."""
    words = "PMIX ERROR: PMIX_ERR_FILE_WRITE_FAILURE in file ptl_base_listener.c at line 258"
    version = f'[ "$1" = --version ] && exec {find_mpiexec(None)} --version'
    full = script(tmp_path / "full", f"{version}\necho '{words}' >&2; exit 213")
    fails(r"MPI cannot write its files to /dev/shm.*`df -h /dev/shm`.*--shm-size", mpiexec=full)


def test_too_few_slots(fails, tmp_path) -> None:
    """An mpiexec that may not put more ranks on this machine than it has cores."""
    strict = script(
        tmp_path / "strict",
        f'[ "$1" = --version ] && exec {find_mpiexec(None)} --version\n'
        f"exec {find_mpiexec(None)} -n 999 --map-by core /bin/true",
    )
    fails("too few slots.*Ask for fewer ranks", mpiexec=strict)


@pytest.mark.slow
def test_a_rank_that_never_comes(fails, tmp_path) -> None:
    """This mpiexec starts one rank less than it should."""
    short = script(
        tmp_path / "short",
        f'[ "$1" = --version ] && exec {find_mpiexec(None)} --version\nshift 2\nexec {find_mpiexec(None)} -n 1 "$@"',
    )
    fails(
        r"1 of 2 ranks have started, and nothing has happened for \d+ s.*fewer ranks, .*JUPYTER_DTRAIN_START_TIMEOUT",
        mpiexec=short,
        settings=Settings(start_timeout=4),
    )


@pytest.mark.slow
def test_a_rank_that_hangs_while_it_starts_says_where(fails, tmp_path) -> None:
    """Its stack is in the message."""
    (tmp_path / "mpi4py.py").write_text(
        "import time\n\ndef wait_for_nothing():\n    time.sleep(300)\n\nwait_for_nothing()"
    )
    fails(
        r"(?s)0 of 2 ranks have imported MPI, and nothing has happened for \d+ s.*Rank [01] was here:"
        r".*mpi4py.py\", line 4 in wait_for_nothing",
        env=path_of(tmp_path),
        settings=Settings(start_timeout=5),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "number", "words"),
    [
        ("watch.watch", None, r"The parent process of the ranks was killed \(SIGKILL\) while the world was starting"),
        ("slot_holder", "1", "Rank 1 (ended for an unknown reason|was killed)"),
    ],
    ids=["the watch", "a slot"],
)
def test_a_process_of_ours_that_is_killed_while_the_world_starts(fails, mark, part, number, words) -> None:
    """The watch, which can report nothing then; or what holds one rank's slot, for which the others wait in MPI."""

    def kill() -> None:
        def found() -> list[psutil.Process]:
            lines = [line for line in processes_of(mark) if part in line]
            processes = [psutil.Process(int(line.split(":")[0])) for line in lines]
            return [one for one in processes if number in (None, one.environ().get("OMPI_COMM_WORLD_RANK"))]

        until(found)[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    fails(words)
    killer.join()


@pytest.mark.slow
def test_ranks_that_hang_once_are_started_again(launch, mark, tmp_path, monkeypatch) -> None:
    """No process works and no rank is ready: that start is over, and the next one works."""
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        f"once = pathlib.Path({str(tmp_path / 'once')!r})\n"
        "if any('watch.watch' in word for word in sys.orig_argv) and not once.exists():\n"
        "    once.touch()\n"
        "    time.sleep(300)\n"
    )
    session = launch(n=1, env=path_of(tmp_path))
    outcome = session.run("1", view=None).outcome
    session.stop()

    assert (tmp_path / "once").exists()
    assert outcome == "ok"
    assert wait_until_gone(mark, patience=0) == []


@pytest.mark.slow
def test_a_rank_that_works_in_vain_while_it_starts(fails, tmp_path) -> None:
    """A start may be slow, but this one's rank has worked for longer than a whole start may take."""
    (tmp_path / "mpi4py.py").write_text("while True:\n    pass\n")
    fails(
        "0 of 1 ranks have imported MPI, and a process has worked at one step for 4 s",
        n=1,
        env=path_of(tmp_path),
        settings=Settings(start_timeout=4),
    )


@pytest.mark.slow
def test_a_start_on_a_busy_machine_goes_on_and_says_so(home, mark) -> None:
    """It takes longer than the time without progress that it may take, and it makes progress."""
    busy = [
        # Each has its own session, like processes of other people: Linux shares processors between sessions.
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        for _ in range(20 * len(os.sched_getaffinity(0)))
    ]
    said: list[str] = []
    try:
        until(lambda: os.getloadavg()[0] > 4 * len(os.sched_getaffinity(0)), patience=120)
        began = time.monotonic()
        with Session.start(n=4, progress=said.append, settings=Settings(start_timeout=5)) as session:
            took = time.monotonic() - began
            outcome = session.run("1", view=None).outcome
    finally:
        for process in busy:
            process.kill()
            process.wait()

    assert outcome == "ok"
    assert took > 5, "this machine was not slow enough to tell anything"
    assert [
        line for line in said if re.search(r"[0-4] of 4 ranks have imported MPI.*; this machine is busy: load", line)
    ]
    assert wait_until_gone(mark, patience=1) == []


def test_a_runtime_folder_that_cannot_be_made(fails, tmp_path, monkeypatch) -> None:
    """It lies below a file."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "file" / "runtime"))
    fails("cannot be made: Not a directory.*JUPYTER_RUNTIME_DIR")


def test_a_working_directory_that_is_gone(fails, tmp_path, monkeypatch) -> None:
    """The notebook's folder was removed under it."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    fails("working directory", BadRequest)


def test_modules_of_the_user_that_shadow_others_break_no_start(mark, tmp_path, monkeypatch) -> None:
    """random.py, socket.py and more in the notebook's folder, each of which raises."""
    for name in ("random", "socket", "json", "typing", "subprocess", "mpi4py", "msgspec", "ipyparallel"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('the wrong {name}')")
    (tmp_path / "mine.py").write_text("answer = 42")
    monkeypatch.chdir(tmp_path)
    with Session.start(n=2) as session:
        session.run("from mine import answer", view=None)
        answers = session["answer"]

    assert answers == {0: 42, 1: 42}
    assert processes_of(mark) == []


def test_sockets_have_short_paths_where_no_folder_has(tmp_path, monkeypatch) -> None:
    """Jupyter's folder and the one for temporary files have long paths; a letter may have two bytes."""
    long = tmp_path / ("ö" * 40)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = socket_folder(long)

    assert len(bytes(folder)) < MAX_SOCKET_PATH
    assert not folder.exists()


def test_a_runtime_folder_with_a_long_path_works(mark, tmp_path, monkeypatch) -> None:
    """The path is longer than a socket's may be: the sockets lie in another folder, which goes at the end."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / ("long" * 30)))
    with Session.start(n=1) as session:
        sockets = Path(session.request.sockets)
        mode = stat.S_IMODE(sockets.stat().st_mode)
        mode = stat.S_IMODE(sockets.stat().st_mode)
        outcome = session.run("1", view=None).outcome

    assert outcome == "ok"
    assert mode == 0o700
    assert not sockets.exists()
    assert not Path(session.request.folder).exists()
    assert processes_of(mark) == []


@pytest.mark.parametrize("moment", ["steward", "ranks"])
def test_an_interrupted_start_leaves_nothing(home, mark, moment, tmp_path) -> None:
    """Ctrl-C while the steward, or its ranks, are starting."""
    sign = {"steward": "jupyter_dtrain.steward", "ranks": "jupyter_dtrain.watch.watch"}[moment]
    # The ranks stop here, so that the start cannot be over before the signal has come.
    (tmp_path / "mpi4py.py").write_text("import time\ntime.sleep(60)")
    before = folders()
    script_process = subprocess.Popen(
        [sys.executable, "-c", f"from jupyter_dtrain import Session; Session.start(n=2, env={path_of(tmp_path)!r})"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: [line for line in processes_of(mark) if sign in line])
    finally:
        script_process.send_signal(signal.SIGINT)
        _, said = script_process.communicate(timeout=120)

    assert said.splitlines()[-1] == "KeyboardInterrupt"
    assert wait_until_gone(mark, patience=3) == []
    assert folders() == before


@pytest.mark.slow
@pytest.mark.parametrize("delay", [step / 20 for step in range(1, 30)])
def test_a_start_may_be_interrupted_at_any_moment(home, mark, delay) -> None:
    """Ctrl-C after every twentieth of a second of a start."""
    before = folders()
    code = f"""
import _thread, threading
from jupyter_dtrain import Session
threading.Timer({delay}, _thread.interrupt_main).start()
try:
    Session.start(n=2)
except KeyboardInterrupt:
    print("interrupted")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert ended.stdout in ("interrupted\n", "")
    assert wait_until_gone(mark, patience=5) == []
    assert folders() == before or ended.stdout == ""
