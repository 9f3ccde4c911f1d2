"""Set-up that all tests share: a private home for worlds, the one fixture that starts them, a search for leftovers.

Another launcher runs the behaviour suite again by overriding :func:`launch` alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_dtrain import Session
from tests import devices
from tests.hosts import launching
from tests.hosts.network import Network, why_not
from tests.processes import wait_until_gone

with suppress(ImportError):  # an environment for GPUs has no hypothesis, and none of its tests needs it
    from hypothesis import HealthCheck, settings

    # How long an example takes says how busy the machine is.
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")

Launch = Callable[..., Session]
ProcessAt = Callable[..., psutil.Process]

# Programs in the background of a shell ignore SIGINT, and so would every kernel that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Those under nohup ignore SIGHUP, and a process that does so counts as one that its cell has started to stay.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of our own: no test sees the user's worlds, IPython configuration or spools.

    At the end no process that knows of it may run.
    """
    folder = tmp_path_factory.mktemp("home")
    patch = pytest.MonkeyPatch()
    patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    patch.setenv("JUPYTER_DATA_DIR", str(folder / "data"))
    patch.setenv("JUPYTER_CONFIG_DIR", str(folder / "config"))
    patch.setenv("IPYTHONDIR", str(folder / "ipython"))
    patch.setenv("JUPYTER_DTRAIN_WARM_START", "0")  # kernels of tests are many, and most of them start no world
    yield folder
    left = wait_until_gone(str(folder))
    patch.undo()
    assert left == []


@pytest.fixture(scope="module")
def long_hold() -> Iterator[None]:
    """For tests that need equal lines of the ranks merged into one each time.

    Ranks that share two processors with all the rest can be further apart than a line waits by default.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DTRAIN_OUTPUT_DELAY", "2")
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--on-hosts``: worlds of the tests run on two hosts, reached by ssh."""
    parser.addoption("--on-hosts", action="store_true", help="start the tests' worlds on two hosts over ssh")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs devices that this machine lacks, and what has no meaning on other hosts."""
    for item in items:
        wanted = [1] if item.get_closest_marker("gpu") else []
        wanted += [mark.args[0] for mark in item.iter_markers("gpus")]
        if wanted and (missing := devices.why_not(max(wanted))):
            item.add_marker(pytest.mark.skip(reason=missing))
    if not config.getoption("--on-hosts"):
        return
    for item in items:
        if mark := item.get_closest_marker("here"):
            item.add_marker(pytest.mark.skip(reason=f"on this machine only: {mark.args[0]}"))


@pytest.fixture(scope="module")
def snapshot_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of all snapshots."""
    found = tmp_path_factory.mktemp("snapshots")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTRAIN_SNAPSHOTS", str(found))
        yield found


@pytest.fixture(scope="session")
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network | None]:
    """The hosts of the tests' worlds, with ``--on-hosts``; else ``None``, which stands for this machine."""
    if not request.config.getoption("--on-hosts"):
        yield None
        return
    if reason := why_not():
        pytest.skip(reason)
    with Network(hosts=2, shared=tmp_path_factory.mktemp("shared")) as network:
        yield network


@pytest.fixture(scope="session")
def elsewhere(hosts: Network | None) -> dict[str, Any]:
    """The start options of worlds on other hosts; none by default."""
    return launching.options_on(hosts)


@pytest.fixture(scope="session")
def meetings(hosts: Network | None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Make a folder that tests and all ranks see. Nothing else that changes is on one file system."""

    def make() -> Path:
        return Path(tempfile.mkdtemp(dir=tmp_path_factory.mktemp("meeting") if hosts is None else hosts.shared))

    return make


@pytest.fixture
def meeting(meetings: Callable[[], Path]) -> Path:
    """A folder in which a test and the ranks leave each other files."""
    return meetings()


@pytest.fixture(scope="session")
def process_at(hosts: Network | None) -> ProcessAt:
    """Give the process with this id on a rank's host: ``process_at(session, rank, pid)``, by default the rank's own."""
    return partial(launching.process_at, hosts)


@pytest.fixture(scope="session")
def launch(elsewhere: dict[str, Any]) -> Iterator[Launch]:
    """Start a world: ``launch(n=2, **options) -> Session``. Worlds that tests leave running stop at the end."""
    sessions: list[Session] = []

    def start(n: int = 2, **options: Any) -> Session:
        session = Session.start(n=n, **elsewhere, **options)
        sessions.append(session)
        return session

    yield start
    for session in sessions:
        if not session.closed:
            session.stop()


@pytest.fixture(scope="module")
def world(launch: Launch) -> Iterator[Session]:
    """A world of three ranks that the tests of a module share; they leave it idle."""
    session = launch(n=3)
    yield session
    if not session.closed:
        session.stop()


@pytest.fixture
def passing_network() -> Iterator[list[str]]:
    """A further interface of this machine, faster than its own, as containers and VPNs bring; the command ends it."""
    ip = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if ip is None or os.geteuid() != 0:
        pytest.skip("an interface that comes and goes needs root and ip")
    name = f"dt{os.getpid()}"
    made = subprocess.run([ip, "link", "add", name, "type", "veth", "peer", "name", f"{name}p"], check=False)
    if made.returncode:
        pytest.skip("this kernel makes no veth interfaces")
    end = [ip, "link", "del", name]
    try:
        for words in (["addr", "add", "10.230.0.1/28", "dev", name], ["link", "set", f"{name}p", "up"]):
            subprocess.run([ip, *words], check=True)
        subprocess.run([ip, "link", "set", name, "up"], check=True)
        yield end
    finally:
        subprocess.run(end, check=False, capture_output=True)
