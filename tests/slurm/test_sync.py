"""Code and data for the nodes of a world in a real Slurm: by rsync over srun, sealed, nothing deleted, nothing left."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain import BadRequest, Session, UploadFailed
from jupyter_dtrain.files.sync import Uploaded, sync_world
from tests.hosts.enclosure import wait_for
from tests.hosts.network import Host
from tests.slurm.launching import start, values
from tests.slurm.site import Site
from tests.steward.until import until

BIG = 60_000_000
"""Bytes that take some seconds on a cable with a delay."""
PATIENCE = 40.0


@pytest.fixture(scope="module", autouse=True)
def rsync() -> None:
    """Skip where the tests' machine, and so its nodes, lack it."""
    if shutil.which("rsync") is None:
        pytest.skip("needs rsync")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the world starts: no node has it, and a blank and a quote are in its name."""
    home = tmp_path_factory.mktemp("slurm") / "note book's"
    home.mkdir()
    return home


@pytest.fixture(scope="module")
def world(site: Site, home: Path) -> Iterator[Session]:
    """One rank on each node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("SECRET", "zebra-variable")
        session = start(ntasks_per_node=1)
    yield session
    session.stop()
    for node in site.network.hosts:
        node.run(["sh", "-c", f"cd /tmp && rm -rf to {str(home.parents[1].relative_to('/tmp')).split('/')[0]}"])
    site.check_empty()


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new folder with a module, in which this process works meanwhile."""
    folder = home / "code"
    folder.mkdir()
    (folder / "model.py").write_text("VALUE = 1\n")
    monkeypatch.chdir(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def nothing_left(site: Site, request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves a program or a step of a copy, nor a copy."""
    yield
    until(lambda: [name for node in site.network.hosts for name in programs(node) if "rsync" in name] == [], PATIENCE)
    steps = ["squeue", "--noheader", "--steps", "--format=%j"]
    until(lambda: "dtrain-sync" not in subprocess.run(steps, capture_output=True, text=True, check=True).stdout)
    if "home" in request.fixturenames:
        home = request.getfixturevalue("home")
        for node in site.network.hosts:
            node.run(["rm", "-rf", str(home), "/tmp/to"])


def copy(world: Session, path: object, **options: object) -> Uploaded:
    """A sync that raises for no node."""
    return sync_world(world.request, world._lent, str(path), **options)


def read(node: Host, path: object) -> str:
    """A file's text on a node; empty where there is none."""
    return node.run(["cat", str(path)], check=False).stdout


def outcomes(found: Uploaded) -> list[tuple[str, int, str]]:
    """Each node, the files that it got, and its outcome."""
    return [(one.host, one.files, one.words) for one in found.hosts]


def programs(node: Host) -> list[str]:
    """The commands of a node's processes."""
    found = []
    for pid in node.processes():
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(psutil.Process(pid).cmdline()))
    return found


def here() -> list[str]:
    """The commands of this machine that copy: rsync, gates and srun."""
    own = Path("/proc/self/ns/pid").readlink()
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            words = " ".join(one.cmdline())
            copies = words.startswith("rsync ") or "slurm.shell" in words or "--job-name=dtrain-sync" in words
            if copies and Path(f"/proc/{one.pid}/ns/pid").readlink() == own:
                found.append(words)
    return found


def test_nodes_get_changed_files_and_ranks_import_them(world: Session, site: Site, folder: Path, home: Path) -> None:
    """At the same path, or in another folder; bytes of all kinds arrive as they are; a file of the node's own stays."""
    everything = os.urandom(300_000) + bytes(range(256)) * 300 + b"\r\n\x04\x1a" * 50
    (folder / "numbers").write_bytes(everything)
    gpu1, gpu2 = site.network.hosts

    first = world.upload(".")
    gpu1.run(["tee", str(folder / "of the node")], input="stays")
    again = world.upload(folder)
    (folder / "model.py").write_text("VALUE = 22\n")
    third = world.upload("model.py", to="/tmp/to/the 're")

    assert outcomes(first) == [("gpu1", 2, "copied"), ("gpu2", 2, "copied")]
    assert outcomes(again) == [("gpu1", 0, "up to date"), ("gpu2", 0, "up to date")]
    assert outcomes(third) == [("gpu1", 1, "copied"), ("gpu2", 1, "copied")]
    assert "missing on gpu1, gpu2" in str(first)
    assert read(gpu2, "/tmp/to/the 're/model.py") == "VALUE = 22\n"
    assert read(gpu1, folder / "of the node") == "stays"
    code = f"import sys, hashlib; sys.path.insert(0, {str(folder)!r}); import model\n"
    code += f"model.VALUE, hashlib.sha256(open({str(folder / 'numbers')!r}, 'rb').read()).hexdigest()"

    assert set(values(world.run(code, view=None)).values()) == {(1, hashlib.sha256(everything).hexdigest())}


@pytest.mark.slow
def test_a_node_that_shares_the_files_is_left_alone(world: Session) -> None:
    """The package's own folder is this machine's on all nodes; it can only be read there, so a copy would fail."""
    package = Path(sys.modules["jupyter_dtrain"].__file__ or "").parent
    found = copy(world, package / "files")

    assert [(one.shared, one.files) for one in found.hosts] == [(True, 0)] * 2
    assert outcomes(found)[0][2] == "shares this machine's files: left alone"
    assert not list((package / "files").glob(".dtrain*"))


@pytest.mark.slow
def test_nothing_crosses_the_network_in_clear(world: Session, site: Site, folder: Path, tmp_path: Path) -> None:
    """No content, no name of a file or a folder, no variable: looked for in all frames of a node's cable."""
    (folder / "zebra-name").write_text("zebra-content\n" * 2000)
    path = tmp_path / "frames"
    with site.network["gpu2"].captured(path):
        found = copy(world, folder, to="/tmp/to/zebra-folder", exclude=["zebra-pattern"])
    frames = path.read_bytes()

    assert outcomes(found)[1] == ("gpu2", 2, "copied")
    assert len(frames) > 10_000
    assert re.findall(rb"zebra[-\w]*|model\.py", frames) == []


@pytest.mark.slow
def test_each_failure_has_its_reason_and_the_other_nodes_get_their_files(
    world: Session, site: Site, folder: Path
) -> None:
    """No rsync there, a disk that is full or can only be read, a name that is taken."""
    gpu1, gpu2 = site.network.hosts
    rsync = shutil.which("rsync") or ""
    (folder / "big").write_bytes(os.urandom(3_000_000))
    gpu1.run(["mkdir", "-p", "/tmp/to/full", "/tmp/to/taken/model.py/inside"])
    gpu1.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", "/tmp/to/full"])
    try:
        full = [copy(world, folder, to="/tmp/to/full") for _ in range(3)]
    finally:
        gpu1.run(["umount", "/tmp/to/full"])
    read_only = copy(world, folder, to="/etc/new")
    taken = copy(world, "model.py", to="/tmp/to/taken")
    gpu2.replace(rsync, "")
    gpu2.run(["chmod", "644", f"/run/replaced/{rsync.replace('/', '_')}"])
    try:
        lacking = copy(world, folder)
    finally:
        gpu2.run(["umount", rsync])

    assert [one.hosts[0].reason for one in full if "The disk of gpu1 is full" not in one.hosts[0].reason] == []
    assert "Free space there" in full[0].hosts[0].fix
    assert (full[0].hosts[1].files, full[0].hosts[1].reason) == (2, "")
    assert "can only be read" in read_only.hosts[0].reason
    assert "A file and a folder have one name" in taken.hosts[0].reason
    assert gpu1.run(["ls", "/tmp/to/taken/model.py"]).stdout == "inside\n"
    assert outcomes(lacking) == [
        ("gpu1", 2, "copied"),
        ("gpu2", 0, "gpu2 has no rsync. Install it there (Debian: apt install rsync)."),
    ]
    with pytest.raises(UploadFailed, match=r"on 1 of 2 hosts.\ngpu2: gpu2 has no rsync"):
        lacking.diff()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "deadline"])
def test_a_copy_that_ends_early_leaves_no_process_and_no_half_file(
    world: Session, site: Site, folder: Path, end: str
) -> None:
    """By Stop, or by its deadline. The next copy completes it."""
    (folder / "big").write_bytes(os.urandom(BIG))
    for node in site.network.hosts:
        node.impair(delay=0.1)
    seen: list[str] = []
    try:
        if end == "stop":
            stopper = threading.Thread(target=_stop_when, args=(lambda: any(goes_on(words) for words in seen),))
            stopper.start()
            with pytest.raises(KeyboardInterrupt):
                copy(world, "big", progress=seen.append)
            stopper.join()
        else:
            found = copy(world, "big", progress=seen.append, timeout=5)
            assert {one.reason for one in found.hosts} == {"The copy was not complete at its deadline."}
            assert "--timeout" in found.hosts[0].fix
        remaining = here()
    finally:
        for node in site.network.hosts:
            node.restore()

    assert remaining == []
    for node in site.network.hosts:
        wait_for(lambda node=node: "rsync" not in " ".join(programs(node)), "A program stays on the node")
        assert node.run(["ls", "-A", str(folder)], check=False).stdout == ""
    copy(world, "big").check()
    assert site.network["gpu1"].run(["stat", "-c", "%s", str(folder / "big")]).stdout == f"{BIG}\n"


@pytest.mark.slow
def test_a_path_that_makes_no_sense_is_refused(world: Session) -> None:
    """As over ssh: before any node is asked."""
    with pytest.raises(BadRequest, match="has no file or folder"):
        world.upload("/no/such/file")
    with pytest.raises(BadRequest, match="is or contains your home folder"):
        world.upload("~")


def goes_on(words: str) -> bool:
    """Whether a line of progress shows a copy in its middle."""
    return re.search(r" [1-9]\d? %", words) is not None


def _stop_when(condition: object) -> None:
    wait_for(condition, "The copy does not begin", PATIENCE)  # type: ignore[arg-type]
    os.kill(os.getpid(), signal.SIGINT)


KILLED = """
import sys
from pathlib import Path
from jupyter_dtrain.files.sync import sync_by
from jupyter_dtrain.files.transports import OverSrun

sync_by(Path(sys.argv[1]), ["gpu1", "gpu2"], OverSrun(sys.argv[2]), progress=lambda words: print(words, flush=True))
"""
"""A copy in a process of its own, as a notebook's kernel makes it."""


@pytest.mark.slow
def test_a_kernel_that_is_killed_leaves_no_copy_behind(world: Session, site: Site, folder: Path) -> None:
    """Neither a process here or on a node, nor half a file; rsync may complete the one that it has begun."""
    (folder / "big").write_bytes(os.urandom(BIG))
    for node in site.network.hosts:
        node.impair(delay=0.1)
    words = [sys.executable, "-c", KILLED, str(folder / "big"), world._lent.job]
    try:
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert any(goes_on(line) for line in process.stdout)
            process.kill()
        until(lambda: here() == [], PATIENCE)
    finally:
        for node in site.network.hosts:
            node.restore()
    for node in site.network.hosts:
        until(lambda node=node: "rsync" not in " ".join(programs(node)), PATIENCE)
        listed = node.run(["find", str(folder), "-type", "f", "-printf", "%f %s\n"]).stdout
        assert listed in {"", f"big {BIG}\n"}


@pytest.mark.slow
def test_an_rsync_that_is_killed_on_a_node_is_named(world: Session, site: Site, folder: Path) -> None:
    """As where its memory is gone: neither the job nor the node is to blame."""
    (folder / "big").write_bytes(os.urandom(BIG))
    gpu2 = site.network["gpu2"]
    gpu2.impair(delay=0.1)

    def kill(words: str) -> None:
        if goes_on(words.partition("gpu2")[2]):
            gpu2.run(["pkill", "-KILL", "-x", "rsync"], check=False)

    try:
        found = copy(world, "big", progress=kill)
    finally:
        gpu2.restore()

    assert outcomes(found)[0] == ("gpu1", 1, "copied")
    assert found.hosts[1].reason.startswith("The connection to gpu2 broke: rsync: ")
    assert found.hosts[1].fix == "See whether `sinfo -R` names gpu2, then sync again."
