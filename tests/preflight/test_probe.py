"""The probe on this machine: the facts, and leftovers of worlds that never were."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain.launch.leftovers import MARK
from jupyter_dtrain.launch.programs import ProgramAnswer, Unreached, run_here
from jupyter_dtrain.preflight import probe, software
from jupyter_dtrain.preflight.doctor import Removal
from jupyter_dtrain.preflight.facts import Facts
from jupyter_dtrain.preflight.remote import Program, ask_here, command
from jupyter_dtrain.watch import own_folders
from tests.steward.until import runs, until

FOLDER = Path(probe.__file__).parent
SMI = """#!/bin/sh
case "$*" in
*query-gpu*) echo "0, GPU-aa, NVIDIA H100, 3072, 81559, 580.65"; echo "1, GPU-bb, NVIDIA H100, 0, 81559, 580.65" ;;
*query-compute*) echo "GPU-aa, {pid}, 2048" ;;
*) echo "| NVIDIA-SMI 580.65    Driver Version: 580.65    CUDA Version: 13.0     |" ;;
esac
"""


def ask(seconds=10, python=sys.executable, **more):
    """The facts of this machine, as a host would tell them."""
    asked = {
        "task": "facts",
        "packages": software.asked(),
        "package": software.OWN,
        "mark": MARK,
        "living": [],
        "shared": None,
    }
    program = Program("probe", seconds, **{**asked, **more})
    return ask_here(program, python=python, kind=Facts, timeout=seconds + 10)


@pytest.fixture
def orphan(tmp_path):
    """Starts a process with the mark of a dead world: ``orphan(world, *argv) -> process id``. No daemon is above it."""
    started = []

    def start(world, *words):
        code = "import time; time.sleep(120)"
        launch = (
            "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], "
            "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True).pid)"
        )
        answer = subprocess.run(
            [sys.executable, "-c", launch, code, *words],
            env=os.environ | {MARK: world},
            capture_output=True,
            check=True,
            timeout=30,
            text=True,
        )
        started.append(psutil.Process(int(answer.stdout)))
        return started[-1].pid

    yield start
    for process in started:
        if runs(process):
            process.kill()


@pytest.fixture
def world():
    """An id that no world has."""
    return f"preflight-{uuid.uuid4().hex[:8]}"


def test_it_tells_what_this_machine_is():
    found = ask()

    assert found.unknown == {}
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.package.path == str(FOLDER.parent)
    assert found.packages["ipyparallel"].startswith("9.")
    assert found.cores == len(os.sched_getaffinity(0))
    assert 0 < found.memory.free <= found.memory.total <= psutil.virtual_memory().total
    assert found.shm.total > 0 < found.tmp.total
    assert set(found.limits) == {"memlock", "nofile", "nproc"}
    assert found.sent <= found.clock <= found.received
    assert found.skew == 0
    assert any(one.loopback and "127.0.0.1" in one.bare() for one in found.interfaces)


def test_an_empty_folder_of_its_name_is_no_package(bare_python, tmp_path, monkeypatch):
    """Python would import it, as a package without contents."""
    (tmp_path / software.OWN).mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert ask(python=str(bare_python)).package is None


def test_it_runs_where_nothing_is_installed(bare_python, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = ask(python=str(bare_python))

    assert (found.package, found.packages) == (None, {})


def test_a_module_in_the_working_directory_does_not_break_it(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit('this is mine')")
    (tmp_path / "socket.py").write_text("raise SystemExit('this is mine')")
    monkeypatch.chdir(tmp_path)

    assert ask().package is not None


def test_words_of_a_shell_around_the_answer_are_passed_over():
    program = Program("probe", 10, task="facts")
    answer = ProgramAnswer(f'Welcome!\n{{}}\n{program.nonce} {{"python": "3.11.2"}}\nBye', "", 0, 1.0, 2.0)

    assert program.read(answer, "python", Facts).python == "3.11.2"
    assert isinstance(program.read(ProgramAnswer("Welcome!", "", 0, 1.0, 2.0), "python", Facts), Unreached)


def test_a_python_that_is_too_old_is_told_with_its_last_words(tmp_path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\ncat > /dev/null\necho 'SyntaxError: invalid syntax' >&2\nexit 1\n")
    old.chmod(0o755)
    found = ask(python=str(old))

    assert found.kind == "failed"
    assert "could not run the check: SyntaxError: invalid syntax" in found.reason


@pytest.mark.parametrize("name", ["probe", "meeting"])
def test_it_has_no_syntax_that_python_3_7_does_not_know(name):
    """Nor needs it anything but the standard library."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text(), feature_version=(3, 7))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else one.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for one in node.names
    }

    assert {one.partition(".")[0] for one in imported} <= sys.stdlib_module_names


def test_facts_that_take_too_long_are_left_out(tmp_path, monkeypatch):
    """The driver's program hangs: the facts that came before are told, within the time."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexec sleep 60\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = ask(seconds=1)

    assert found.received - found.sent < 6
    assert found.package is not None
    assert found.nvidia is None


def test_gpus_are_told_with_their_holders_and_worlds(tmp_path, monkeypatch, orphan, world):
    """The driver's program is a stand-in that prints what the real one does."""
    pid = orphan(world)
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI.format(pid=pid))
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = ask().nvidia

    assert (found.driver, found.cuda) == ("580.65", "13.0")
    assert [(one.index, one.name, one.used >> 20, one.total >> 20) for one in found.gpus] == [
        (0, "NVIDIA H100", 3072, 81559),
        (1, "NVIDIA H100", 0, 81559),
    ]
    [holder] = found.gpus[0].held_by
    assert (holder.pid, holder.world, holder.used) == (pid, world, 2 << 30)
    assert holder.command.startswith("python")


def test_devices_are_read_with_their_ports(tmp_path):
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (tmp_path / "mlx5_0" / "device" / "net" / "ib0").mkdir(parents=True)
    for name, text in (("link_layer", "InfiniBand"), ("state", "4: ACTIVE"), ("rate", "400 Gb/sec (4X NDR)")):
        (port / name).write_text(f"{text}\n")
    down = tmp_path / "mlx5_1" / "ports" / "1"
    down.mkdir(parents=True)
    for name, text in (("link_layer", "Ethernet"), ("state", "1: DOWN"), ("rate", "")):
        (down / name).write_text(f"{text}\n")

    assert [(one["device"], one["layer"], one["active"], one["interfaces"]) for one in probe.devices(tmp_path)] == [
        ("mlx5_0", "InfiniBand", True, ["ib0"]),
        ("mlx5_1", "Ethernet", False, []),
    ]


def test_the_kernel_tells_the_same_interfaces_as_the_program_ip(monkeypatch, tmp_path):
    """It tells the first of several IPv4 addresses."""
    with_ip = {one["name"]: one for one in probe.interfaces()}
    without = {one["name"]: one for one in probe.interfaces_of_kernel()}

    assert set(with_ip) == set(without)
    for name, one in without.items():
        assert one["loopback"] == with_ip[name]["loopback"]
        assert one["up"] == with_ip[name]["up"]
        assert set(one["addresses"]) <= set(with_ip[name]["addresses"])
        assert bool(one["addresses"]) == bool(with_ip[name]["addresses"])


def leftovers_of(world, **more):
    """The ids of the leftovers of one world."""
    return [one.pid for one in ask(**more).leftovers if one.world == world]


def test_a_process_of_a_world_without_a_steward_is_a_leftover(orphan, world):
    pid = orphan(world)

    assert leftovers_of(world) == [pid]
    assert leftovers_of(world, living=[world]) == [], "a world that this machine knows to live"


def test_a_world_whose_steward_runs_has_no_leftovers(orphan, world):
    orphan(world)
    orphan(world, "jupyter_dtrain.steward.__main__")

    assert leftovers_of(world) == []


def test_a_notebook_that_was_started_from_a_rank_is_no_leftover(world, monkeypatch):
    """Nor is the probe, which has the mark from it."""
    monkeypatch.setenv(MARK, world)

    assert leftovers_of(world) == []


def test_ranks_below_a_daemon_of_another_machine_are_no_leftovers(tmp_path, world):
    """MPI's daemon keeps them for a steward elsewhere. A rank whose daemon is gone is a leftover."""
    prted = tmp_path / "prted"
    prted.symlink_to("/bin/sh")
    daemon = subprocess.Popen([prted, "-c", "sleep 120; true"], env=os.environ | {MARK: world}, start_new_session=True)
    try:
        [rank] = until(lambda: psutil.Process(daemon.pid).children())
        below = leftovers_of(world)
        daemon.kill()
        daemon.wait()

        assert below == []
        assert leftovers_of(world) == [rank.pid]
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)


def remove(found, leftovers, place=None):
    """Ask the probe to end ``leftovers``: those that ended, and those left with the reason."""
    wanted = [{"pid": one.pid, "started": one.started, "world": one.world} for one in leftovers]
    program = Program("probe", 10, task="remove", mark=MARK, living=[], place=place or found.place, leftovers=wanted)
    done = run_here(command(sys.executable), timeout=20, stdin=program.text)
    answer = next(filter(None, map(program.answer, done.output.splitlines())))
    return answer["ended"], answer["left"]


def test_a_leftover_is_ended_and_no_other_process(orphan, world):
    """A process with the same id but another start, or of another world, is not the one that was found."""
    from msgspec.structs import replace

    pid = orphan(world)
    found = ask()
    [leftover] = [one for one in found.leftovers if one.pid == pid]

    assert remove(found, [replace(leftover, started=leftover.started + 1)])[1] == {
        str(pid): "it is no leftover any more"
    }
    assert remove(found, [replace(leftover, world="other")])[1] == {str(pid): "it is no leftover any more"}
    assert "started anew" in remove(found, [leftover], place="another boot")[1][str(pid)]
    assert runs(pid)
    assert remove(found, [leftover]) == ([pid], {})
    assert not runs(pid)


@pytest.fixture
def left_folder(tmp_path):
    """Makes a folder as a killed watch leaves it: ``left_folder(world, label=True) -> path``."""
    made = []

    def make(world, *, label=True):
        made.append(Path(tempfile.mkdtemp(prefix=f"dtrain-{world}-")))
        (made[-1] / "run-1").mkdir()
        (made[-1] / "run-1" / "rank-0.jsonl").write_text("output")
        (made[-1] / "link").symlink_to(tmp_path)
        if label:
            own_folders._label(made[-1], world)
        return made[-1]

    yield make
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


def remove_folders(world, **more):
    """Ask the probe to remove the folders of a world: the paths that are gone, and those kept with the reason."""
    asked = {"mark": MARK, "living": [], "place": probe.place(), "leftovers": [], "worlds": [world]}
    program = Program("probe", 10, task="remove", **{**asked, **more})
    removal = ask_here(program, python=sys.executable, kind=Removal, timeout=20)
    return removal.removed, removal.kept


def folders_of(world, **more):
    """The folders that the probe finds, of one world."""
    return [Path(one.path) for one in ask(**more).folders if one.world == world]


def test_a_folder_of_a_dead_world_is_removed_by_its_label(left_folder, world, tmp_path):
    """Its name says nothing. Folders of other worlds stay, and what a link in it leads to."""
    (tmp_path / "kept").touch()
    mine, other, unlabelled = left_folder(world), left_folder(f"{world}-other"), left_folder(world, label=False)

    assert folders_of(world) == [mine]
    assert remove_folders(world) == ([str(mine)], {})
    assert not mine.exists()
    assert other.exists()
    assert unlabelled.exists()
    assert (tmp_path / "kept").exists()


def test_a_folder_of_a_living_world_stays(left_folder, orphan, world):
    """It lives where this machine knows it, where a watch holds the folder's lock, and while it has a process here."""
    folder = left_folder(world)
    assert folders_of(world, living=[world]) == []
    assert remove_folders(world, living=[world]) == ([], {})

    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert folders_of(world) == []
    assert remove_folders(world) == ([], {})
    os.close(lock)

    pid = orphan(world)
    assert folders_of(world) == [folder]
    assert remove_folders(world) == ([], {}), "its process comes first"
    os.kill(pid, signal.SIGKILL)
    until(lambda: not runs(pid))
    assert remove_folders(world) == ([str(folder)], {})


def test_a_label_counts_for_one_folder_of_this_user_and_boot(left_folder, world):
    """None of these counts: a copy, a link to the folder, another boot, broken text, a folder of another user."""
    source = left_folder(world)
    label = (source / own_folders.LABEL).read_text()
    copied, rebooted, broken, foreign = (left_folder(world, label=False) for _ in range(4))
    (copied / own_folders.LABEL).write_text(label)
    own_folders._label(rebooted, world)
    told = json.loads((rebooted / own_folders.LABEL).read_text())
    (rebooted / own_folders.LABEL).write_text(json.dumps({**told, "place": "another boot/pid:[1]"}))
    (broken / own_folders.LABEL).write_text("[]")
    if os.getuid() == 0:
        own_folders._label(foreign, world)
        os.chown(foreign, 65534, 65534)
    link = source.with_name(f"{source.name}-link")
    link.symlink_to(source)
    try:
        assert folders_of(world) == [source]
        assert remove_folders(world) == ([str(source)], {})
        assert all(one.exists() for one in (copied, rebooted, broken, foreign))
    finally:
        link.unlink()


def test_a_process_of_another_user_is_no_leftover(world):
    """Not even for root, who may end it."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    env = os.environ | {MARK: world}
    other = subprocess.Popen(["sleep", "120"], env=env, user=65534, start_new_session=True)
    mine = subprocess.Popen(["sleep", "120"], env=env, start_new_session=True)
    try:
        until(lambda: probe.identity(mine.pid, MARK))
        assert probe.world_of(other.pid, MARK) == world
        assert probe.identity(other.pid, MARK) is None
    finally:
        for process in (other, mine):
            process.kill()
            process.wait()


def test_a_process_that_ends_by_itself_is_no_leftover(orphan, world):
    """A world that is just ending takes a moment."""
    pid = orphan(world)
    asking = subprocess.Popen(
        [sys.executable, "-c", ENDING, str(FOLDER), MARK, world, str(pid)], stdout=subprocess.PIPE, text=True
    )
    said, _ = asking.communicate(timeout=20)

    assert said.split() == ["1", "0"]


ENDING = """
import os, signal, sys
folder, mark, world, pid = sys.argv[1:]
sys.path.insert(0, folder)
import probe
mine = lambda found: [one for one in found if one["world"] == world]
print(len(mine(probe.leftovers(mark, []))))
first = probe.leftovers

def then_it_ends(*asked):
    found = first(*asked)
    os.kill(int(pid), signal.SIGKILL)
    probe.leftovers = first
    return found

probe.leftovers = then_it_ends
print(len(mine(probe.settled(mark, []))))
"""


def test_a_file_is_seen_if_it_holds_the_nonce(tmp_path):
    file = tmp_path / "nonce"
    file.write_text("abc")
    shared = {"path": str(file), "nonce": "abc"}

    assert ask(shared=shared).shared is True
    assert ask(shared={**shared, "nonce": "other"}).shared is False
    assert ask(shared={**shared, "path": str(tmp_path / "none")}).shared is False
