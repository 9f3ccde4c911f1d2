"""Code and data for hosts without a shared file system: by rsync, to the same path, nothing deleted, nothing left."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_dtrain import BadRequest, Session, UploadFailed
from jupyter_dtrain.files.rsync import reason
from jupyter_dtrain.files.sync import Uploaded, sync
from tests.hosts.enclosure import wait_for
from tests.hosts.launching import left, start, values
from tests.hosts.network import ROOT, Host, Network
from tests.steward.until import state_of, until

ODD = ["a b", "it's", '"q"', "-dash", "new\nline", "a*b", "[x]", "$HOME", "`id`", "ü", "colon:x", "back\\slash"]


@pytest.fixture(scope="module", autouse=True)
def rsync() -> None:
    """Skip where the tests' machine, and so its hosts, lack it."""
    if shutil.which("rsync") is None:
        pytest.skip("needs rsync")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a module, in which this process works meanwhile."""
    folder = tmp_path / "note book's"
    folder.mkdir()
    (folder / "model.py").write_text("VALUE = 1\n")
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def copy(network: Network, path: object, hosts: tuple[str, ...] = ("gpu1", "gpu2"), **options: Any) -> Uploaded:
    """One sync without a world."""
    return sync(str(path), hosts, ssh_args=f"-F {network.ssh_config}", **options)


def read(host: Host, path: object) -> str:
    """A file's text on a host; empty where there is none."""
    return host.run(["cat", str(path)], check=False).stdout


def outcomes(found: Uploaded) -> list[tuple[str, int, str]]:
    """Each host, the files that it got, and its outcome."""
    return [(one.host, one.files, one.words) for one in found.hosts]


def programs(host: Host) -> list[str]:
    """The programs that run on a host."""
    found = []
    for pid in host.processes():
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(pid).name())
    return found


def here(word: str) -> list[list[str]]:
    """The commands of this machine's processes below this one in which ``word`` occurs."""
    own = Path("/proc/self/ns/pid").readlink()
    found = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError, psutil.Error):
            if Path(f"/proc/{one.pid}/ns/pid").readlink() == own and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one.cmdline())
    return [words for words in found if any(word in each for each in words)]


def test_a_folder_gets_the_same_path_and_then_changed_files_only(network: Network, folder: Path) -> None:
    """A file that only the host has stays."""
    (folder / "data").mkdir()
    (folder / "data" / "numbers").write_bytes(bytes(3_000_000))
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    gpu1, gpu2 = network.hosts
    gpu1.run(["mkdir", "-p", str(folder)])
    gpu1.run(["tee", str(folder / "of the host")], input="stays")

    first = copy(network, ".")
    again = copy(network, folder)
    (folder / "model.py").write_text("VALUE = 22\n")
    third = copy(network, "model.py")

    assert outcomes(first) == [("gpu1", 3, "copied"), ("gpu2", 3, "copied")]
    assert [one.size for one in first.hosts] == [3_000_020] * 2
    assert outcomes(again) == [("gpu1", 0, "up to date"), ("gpu2", 0, "up to date")]
    assert outcomes(third) == [("gpu1", 1, "copied"), ("gpu2", 1, "copied")]
    assert read(gpu1, folder / "model.py") == read(gpu2, folder / "model.py") == "VALUE = 22\n"
    assert gpu2.run([str(folder / "run.sh")]).returncode == 0
    assert read(gpu1, folder / "of the host") == "stays"
    text = first._repr_mimebundle_()["text/plain"].splitlines()
    assert text[1].split() == ["host", "files", "size"]
    assert text[2].split() == ["gpu1", "3", "3", "MB", "copied"]
    assert not list(folder.glob(".dtrain*"))
    assert "dtrain" not in gpu2.run(["ls", "-a", str(folder)]).stdout


def test_a_link_to_another_disk_there_stays(network: Network, folder: Path) -> None:
    """A newer rsync follows none out of the folder; then the reason has the way on. The folder itself may be a link."""
    (folder / "data").mkdir()
    (folder / "data" / "numbers").write_text("1 2 3")
    gpu1 = network["gpu1"]
    gpu1.run(["mkdir", "-p", str(folder), "/tmp/disk", "/tmp/other"])
    gpu1.run(["ln", "-s", "/tmp/disk", str(folder / "data")])
    inside = copy(network, folder, ("gpu1",)).hosts[0]
    by_itself = copy(network, "data", ("gpu1",))

    assert inside.files == 2 or ("is a link" in inside.reason and "by itself" in inside.fix)
    assert outcomes(by_itself)[0][2] in {"copied", "up to date"}
    assert read(gpu1, "/tmp/disk/numbers") == "1 2 3"
    assert gpu1.run(["readlink", str(folder / "data")]).stdout == "/tmp/disk\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_odd_names_arrive_as_they_are(network: Network, folder: Path, name: str) -> None:
    """As a folder, as a file in it, as a file by itself, and as the folder there. Nothing else appears."""
    odd = folder / name
    odd.mkdir()
    (odd / name).write_text(name)
    (odd / "axb").write_text("other")
    copies = [odd, folder / name / name]
    for path in copies:
        assert outcomes(copy(network, path, ("gpu2",)))[0][2] in {"copied", "up to date"}
    network["gpu2"].run(["mkdir", "-p", "/tmp/to/axb"])
    found = copy(network, odd / name, ("gpu2",), to=f"/tmp/to/{name}")

    assert outcomes(found) == [("gpu2", 1, "copied")]
    assert read(network["gpu2"], odd / name) == name
    assert read(network["gpu2"], f"/tmp/to/{name}/{name}") == name
    listed = network["gpu2"].run(["find", "/tmp/to", "-type", "f", "-print0"]).stdout.split("\0")
    assert f"/tmp/to/{name}/{name}" in listed
    network["gpu2"].run(["rm", f"/tmp/to/{name}/{name}"])
    assert read(network["gpu2"], f"/tmp/to/axb/{name}") == ""


def test_another_folder_there_gets_it_under_its_own_name(network: Network, folder: Path) -> None:
    """Absolute, in the home there, or relative to the folder of work; names that are left out stay out."""
    (folder / "big.ckpt").write_text("none")
    home = pwd.getpwuid(os.getuid()).pw_dir
    for to, place in (("/tmp/else", "/tmp/else"), ("~/inside", f"{home}/inside"), ("sub", f"{folder}/sub")):
        copy(network, folder, ("gpu1",), to=to, exclude=["*.ckpt"]).check()
        listed = network["gpu1"].run(["ls", f"{place}/{folder.name}"]).stdout
        assert listed == "model.py\n"


def test_a_host_that_shares_the_files_is_left_alone(network: Network) -> None:
    """The package's own folder is this machine's on all hosts; it can only be read there, so a copy would fail."""
    package = Path(sys.modules["jupyter_dtrain"].__file__ or "").parent
    found = copy(network, package / "files")

    assert [(one.shared, one.files) for one in found.hosts] == [(True, 0)] * 2
    assert outcomes(found)[0][2] == "shares this machine's files: left alone"
    assert not list((package / "files").glob(".dtrain*"))


@pytest.mark.slow
def test_each_failure_has_its_reason_and_the_other_hosts_get_their_files(network: Network, folder: Path) -> None:
    """Unreachable, no rsync there, a disk that is full or can only be read, a name that is taken."""
    gpu1, gpu2 = network.hosts
    (folder / "big").write_bytes(os.urandom(3_000_000))
    gpu1.run(["mkdir", "-p", "/tmp/full"])
    gpu1.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", "/tmp/full"])
    gpu1.run(["mkdir", "-p", "/tmp/taken/model.py/inside"])
    full = copy(network, folder, to="/tmp/full")
    read_only = copy(network, folder, ("gpu1",), to="/etc/new")
    taken = copy(network, "model.py", ("gpu1",), to="/tmp/taken")
    gpu2.cut()
    try:
        away = copy(network, folder)
    finally:
        gpu2.join()
    gpu2.replace(shutil.which("rsync") or "", "")
    gpu2.run(["chmod", "644", f"/run/replaced/{(shutil.which('rsync') or '').replace('/', '_')}"])
    lacking = copy(network, folder)
    gpu2.run(["umount", shutil.which("rsync") or ""])

    assert "The disk of gpu1 is full" in full.hosts[0].reason
    assert "Free space there" in full.hosts[0].fix
    assert (full.hosts[1].files, full.hosts[1].reason) == (2, "")
    assert "is mounted read-only" in read_only.hosts[0].reason
    assert "A file has the name of a folder" in taken.hosts[0].reason
    assert gpu1.run(["ls", "/tmp/taken/model.py"]).stdout == "inside\n"
    assert "gpu2 does not answer" in away.hosts[1].reason or "No network leads to gpu2" in away.hosts[1].reason
    assert away.hosts[0].reason == ""
    assert lacking.hosts[1].reason == f"gpu2 cannot run its rsync, {shutil.which('rsync')}: Permission denied."
    with pytest.raises(UploadFailed, match=r"on 1 of 2 hosts.\ngpu2: gpu2 cannot run its rsync"):
        lacking.diff()
    until(lambda: not programs(gpu1) and not programs(gpu2))


def test_a_user_without_the_right_to_write_is_told(network: Network, folder: Path) -> None:
    gpu1 = network["gpu1"]
    users = read(gpu1, "/etc/passwd").replace("/nonexistent:/usr/sbin/nologin", "/tmp:/bin/sh")
    if "nobody:" not in users:
        pytest.skip("needs a user named nobody")
    gpu1.replace("/etc/passwd", users)
    gpu1.run(["chmod", "644", "/run/host/authorized_keys"])
    gpu1.run(["mkdir", "-p", "-m", "755", "/tmp/of-root"])
    # The interpreter and the package of the tests may be where nobody else may look.
    gpu1.run(["mkdir", "-m", "755", "/tmp/of-all"])
    gpu1.run(["cp", "-r", str(ROOT / "jupyter_dtrain"), "/tmp/of-all"])
    gpu1.run(["tee", "/tmp/of-all/python"], input='#!/bin/sh\nPYTHONPATH=/tmp/of-all exec /usr/bin/python3 "$@"\n')
    gpu1.run(["chmod", "-R", "a+rX,a+x", "/tmp/of-all"])
    try:
        found = copy(network, folder, ("nobody@gpu1",), to="/tmp/of-root", python="/tmp/of-all/python")
        well = copy(network, folder, ("nobody@gpu1",), to="/tmp/of-nobody", python="/tmp/of-all/python")
    finally:
        gpu1.run(["umount", "/etc/passwd"])

    assert "This user may not write there" in found.hosts[0].reason
    assert outcomes(well) == [("nobody@gpu1", 1, "copied")]


def test_a_machine_without_rsync_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose rsync is no program that runs."""
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(UploadFailed, match=r"This machine has no rsync.*install it"):
        sync(".", ["gpu1"])
    (folder / "rsync").write_text("#!/no/such/interpreter\n")
    (folder / "rsync").chmod(0o755)
    with pytest.raises(UploadFailed, match=r"This machine cannot run its rsync, .*interpreter is missing.*install it"):
        sync(".", ["gpu1"])


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("#!/no/such/interpreter\n", "cannot run its rsync, {path}: its interpreter is missing"),
        ("no program\n\0", "cannot run its rsync, {path}: Exec format error"),
        ("#!/bin/sh\nexit 7\n", "cannot run its rsync, {path}: `rsync --version` ends with exit code 7, and prints"),
        ("#!/bin/sh\nexec no-such-program\n", "cannot run its rsync, {path}: it answers `rsync --version` with "),
        ("#!/bin/sh\necho Welcome\n", "cannot run its rsync, {path}: it answers `rsync --version` with 'Welcome'"),
        ("#!/bin/sh\necho Welcome to gpu2 and its rsync\ncat > /dev/null\n", "prints other text before the answer of"),
        ("#!/bin/sh\n[ $1 = --version ] && echo rsync\n", "rsync on gpu2 ended: "),
    ],
)
def test_a_host_whose_rsync_does_not_run_is_named_with_what_failed_there(
    network: Network, folder: Path, program: str, words: str
) -> None:
    """The host that works gets its file, and nothing is said of a connection."""
    path = shutil.which("rsync") or ""
    network["gpu2"].replace(path, program)
    try:
        well, broken = copy(network, folder).hosts
    finally:
        # Programs that a shell there has started may still end.
        network["gpu2"].run(["umount", "--lazy", path])

    assert well.reason == ""
    assert "gpu2" in broken.reason
    assert words.format(path=path) in broken.reason
    assert "connection to" not in broken.reason
    assert broken.fix


@pytest.mark.parametrize("path", ["", "/", "~", "/no/such/file", "/dev/null", "a\0b"])
def test_a_path_that_makes_no_sense_is_refused(path: str) -> None:
    """The home is refused, too: keys in it would take the place of the host's."""
    with pytest.raises(BadRequest):
        sync(path, ["gpu1"])


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "deadline"])
def test_a_copy_that_ends_early_leaves_no_process_and_no_half_file(network: Network, folder: Path, end: str) -> None:
    """By Stop, or by its deadline. The next copy completes it."""
    (folder / "big").write_bytes(os.urandom(60_000_000))
    for host in network.hosts:
        host.impair(delay=0.1)
    seen: list[str] = []
    try:
        if end == "stop":
            main = threading.Thread(target=_stop_when, args=(lambda: any(" 0 %" not in words for words in seen),))
            main.start()
            with pytest.raises(KeyboardInterrupt):
                copy(network, "big", progress=seen.append)
            main.join()
        else:
            found = copy(network, "big", progress=seen.append, timeout=4)
            assert {one.reason for one in found.hosts} == {"The copy was not complete at its deadline."}
            assert "--timeout" in found.hosts[0].fix
    finally:
        remaining = here("rsync") + here("ssh_config")
        for host in network.hosts:
            host.restore()

    assert remaining == []
    assert any(words.startswith("Copying: gpu1 ") for words in seen)
    for host in network.hosts:
        wait_for(lambda host=host: not programs(host), "A program stays on the host")
        assert host.run(["ls", "-A", str(folder)], check=False).stdout == ""
    copy(network, "big").check()
    size = network["gpu1"].run(["stat", "-c", "%s", str(folder / "big")]).stdout
    assert size == "60000000\n"


def _stop_when(condition: Any) -> None:
    wait_for(condition, "The copy does not begin")
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_a_host_that_is_lost_while_it_copies_is_named(network: Network, folder: Path) -> None:
    (folder / "big").write_bytes(os.urandom(60_000_000))
    network["gpu2"].impair(delay=0.1)

    def cut(words: str) -> None:
        if "gpu2" in words and "gpu2 0 %" not in words:
            network["gpu2"].impair(loss=1.0)

    try:
        found = copy(network, "big", progress=cut)
    finally:
        network["gpu2"].restore()

    assert outcomes(found)[0] == ("gpu1", 1, "copied")
    assert "gpu2 does not answer" in found.hosts[1].reason
    wait_for(lambda: not programs(network["gpu2"]), "A program stays on the host", 90)


@pytest.mark.slow
def test_a_world_gives_its_hosts_its_ssh_and_its_folder(network: Network, folder: Path) -> None:
    """The ranks' folder was missing: the result says that a restart moves them, and then they import what came."""
    session = start(network, "gpu1:1,gpu2:1")
    try:
        os.chdir("/")
        [notice] = [words for words in state_of(session).notices if "is missing on" in words]
        found = session.upload(folder)
        (folder / "more").write_text("more")
        relative = session.upload(folder / "more", to="below")
        session.restart()
        seen = values(session.run("import os, model\nos.getcwd(), model.VALUE, open('below/more').read()", view=None))
    finally:
        session.stop()

    assert outcomes(found) == [("gpu1", 1, "copied"), ("gpu2", 1, "copied")]
    assert f"The notebook's folder {folder} is missing on gpu1, gpu2, so the ranks there work in /root." in notice
    assert "%distributed upload . copies it" in notice
    assert "missing on gpu1, gpu2" in str(found)
    assert "%distributed restart" in str(found)
    assert "restart" not in str(relative)
    assert seen == {rank: (str(folder), 1, "more") for rank in range(2)}
    until(lambda: [one for one in left(network) if "process" in one] == [])


@pytest.mark.slow
def test_no_option_lets_rsync_delete(network: Network, folder: Path) -> None:
    """The commands here while a copy runs."""
    (folder / "big").write_bytes(os.urandom(30_000_000))
    network["gpu1"].impair(delay=0.05)
    commands: list[list[str]] = []
    try:
        copy(network, folder, ("gpu1",), progress=lambda _: commands.extend(here("rsync")))
    finally:
        network["gpu1"].restore()

    options = {word.partition("=")[0] for command in commands for word in command if word.startswith("--")}
    assert "--rsync-path" in options
    assert not [word for word in options if "delete" in word or "remove" in word or "inplace" in word]


def test_a_world_on_this_machine_needs_no_copy(folder: Path) -> None:
    with Session.start(n=1) as session:
        found = session.upload("model.py")
        with pytest.raises(BadRequest, match="has no file or folder"):
            session.upload("none")

    assert (found.hosts, str(found)) == (
        [],
        "The ranks of this world run on this machine and read the same files: nothing needs copying.",
    )


@pytest.mark.slow
def test_a_full_disk_is_named_each_time(network: Network, folder: Path) -> None:
    """Also when rsync ends before the words of its other end arrive, as it does every third time."""
    (folder / "big").write_bytes(os.urandom(3_000_000))
    network["gpu1"].run(["mkdir", "-p", "/tmp/small"])
    network["gpu1"].run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", "/tmp/small"])
    found = [copy(network, folder, ("gpu1",), to="/tmp/small").hosts[0].reason for _ in range(8)]

    assert [words for words in found if "The disk of gpu1 is full" not in words] == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('rsync: [sender] send_files failed to open "/a": Permission denied (13)', "A file here cannot be read"),
        ('rsync: send_files failed to open "/a": Permission denied (13)', "A file here cannot be read"),
        ('rsync: [receiver] mkstemp "/a" failed: Permission denied (13)', "This user may not write there"),
        ('rsync: [receiver] write failed on "/a": Disk quota exceeded (122)', "The disk of gpu1 is full"),
        ("rsync: --info=x: unknown option", "rsync failed: rsync: --info=x: unknown option"),
        ("protocol version mismatch -- is your shell clean?", "gpu1 prints other text before the answer of rsync"),
        ("srun: a warning\nrsync: connection lost", "rsync failed: rsync: connection lost"),
        ("", "rsync failed: it said nothing"),
    ],
)
def test_words_of_rsync_become_a_reason_and_a_fix(said: str, words: str) -> None:
    why, fix = reason(said, "gpu1")

    assert why.startswith(words)
    assert fix
