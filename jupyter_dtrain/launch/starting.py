"""Starting a world: its name, folders and steward; and their removal after a failed start or a world's end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import psutil
from jupyter_client.connect import write_connection_file

from jupyter_dtrain.core.errors import BadRequest, StartFailed, package_gone
from jupyter_dtrain.core.processes import own_process, this_place
from jupyter_dtrain.core.settings import TRACK_VARIABLE, Settings
from jupyter_dtrain.core.start_failures import AGAIN, MEND, relevant
from jupyter_dtrain.store.schema import store_file
from jupyter_dtrain.store.tensorboard import check_folder
from jupyter_dtrain.trackers.starting import check_targets
from jupyter_dtrain.wire.messages import PROTOCOL
from jupyter_dtrain.wire.requests import WorldOptions, WorldRequest

from . import local, prepared
from .launcher import WorldPlan
from .leftovers import MEMORY, remove_dead
from .mpi import find_mpiexec
from .options import Asked, assign_roles, check
from .worlds import Listing, list_worlds, runtime_folder, spool_folder, write_listing

MAX_SOCKET_PATH = 90
"""A unix socket's path may have 107 bytes; the channels add a few, such as ``/c1:18``."""
TURN_PATIENCE = 45.0
"""Seconds that a start waits for other starts of this user."""
END_PATIENCE = 15.0
"""Seconds that a steward that no client can reach yet may take to end."""


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let other starts of this user wait: two at the same time would take the same name.

    The start goes on after :data:`TURN_PATIENCE` seconds, or where locks do not work.
    """
    try:
        runtime_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = runtime_folder().with_name("dtrain.lock")
        file = open(os.open(lock, os.O_CREAT | os.O_WRONLY, 0o600), "wb")  # noqa: SIM115 — closed below, with its lock
    except OSError:
        yield  # the start itself will say what is wrong with that folder
        return
    with file:
        deadline = time.monotonic() + TURN_PATIENCE
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break
        yield


def choose_name(wanted: str | None) -> str:
    """``wanted`` if it is free, or the first free one of ``world``, ``world-2`` and so on.

    Raises :class:`BadRequest` for a name that is taken.
    """
    taken = {listing.name for listing in list_worlds()}
    if wanted is not None:
        if wanted in taken:
            raise BadRequest(
                f"A world named {wanted!r} is already running: stop it, or choose another name.", option="name"
            )
        return wanted
    names = itertools.chain(["world"], (f"world-{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


def new_id(name: str) -> str:
    """A new id for a world of this name."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def make_folders(request: WorldRequest) -> WorldRequest:
    """List a new world under the name of this process, make its folders, and return the request with its spool.

    The listing comes first: if this process is killed from here on, the next start finds what is left. Where Jupyter's
    data folder is not writable (a read-only home), the spool lies in the run-time folder and ends with it. Raises
    :class:`StartFailed` where a folder cannot be made, and leaves none.
    """
    runtime = Path(request.folder)
    try:
        _make_private(runtime)
        _check_umask(runtime)
        write_listing(runtime, _starting(request))
        for part in ("logs", "profile", "ipython"):
            (runtime / part).mkdir(mode=0o700)
        for folder in request.passing_folders[:-1]:
            Path(folder).mkdir(mode=0o700)
        try:
            _make_private(Path(request.spool))
        except OSError:
            request = msgspec.structs.replace(request, spool=str(runtime / "spool"))
            _make_private(Path(request.spool))
    except BaseException as error:
        _remove_folders(request)
        if not isinstance(error, OSError):
            raise
        fix = "Set JUPYTER_RUNTIME_DIR to a writable folder."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = f"Remove files that nobody needs there: `df -h {Path(str(error.filename)).parent}` shows the room."
        raise StartFailed(f"{error.filename} cannot be made: {error.strerror}.", fix) from error
    return request


def _starting(request: WorldRequest) -> Listing:
    """The listing of a world whose steward does not exist yet."""
    pid, created = own_process()
    return Listing(
        request.name,
        request.id,
        request.size,
        request.cwd,
        pid,
        created,
        str(Path(request.folder) / "steward.json"),
        PROTOCOL,
        version("jupyter-dtrain"),
        this_place(),
        request.passing_folders,
        starting=True,
    )


def _make_private(folder: Path) -> None:
    folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700)


def _check_umask(folder: Path) -> None:
    """Raise :class:`StartFailed` where a new ``folder`` is not open to its owner."""
    if ~folder.stat().st_mode & stat.S_IRWXU:
        raise StartFailed(
            "The umask of this process takes the rights on new files from their owner.",
            "os.umask(0o022) in a cell mends that.",
        )


def explain_spool(request: WorldRequest) -> str:
    """A warning where the spool is not in its usual place; else empty."""
    if not request.spool.startswith(request.folder):
        return ""
    return (
        f"{spool_folder()} is not writable: the output of runs is kept only until their world ends. Set "
        f"JUPYTER_DATA_DIR to a writable folder."
    )


def socket_folder(runtime: Path) -> Path:
    """The folder for the world's sockets: the run-time folder, or a new one where that path is too long."""
    if len(os.fsencode(runtime)) <= MAX_SOCKET_PATH:
        return runtime
    where = tempfile.gettempdir()
    if len(os.fsencode(where)) > MAX_SOCKET_PATH - len("/dtrain-0123456789abcdef"):
        where = "/tmp"  # noqa: S108 — the world makes a private folder in it
    return Path(where, f"dtrain-{secrets.token_hex(8)}")


def scratch_folder(world_id: str) -> Path:
    """A folder that no other world uses, in ``/dev/shm`` where there is one, else among the temporary files.

    Never in the home: it may lie on a network, and ranks map the files that MPI keeps here.
    """
    memory = Path(MEMORY)
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    return (memory if usable else Path(tempfile.gettempdir())) / f"dtrain-{world_id}-{secrets.token_hex(8)}"


def launch(
    values: Mapping[str, Any],
    launcher: str | None = None,
    *,
    settings: Settings,
    cwd: Path | None = None,
    titled: bool = False,
) -> tuple[Listing, WorldRequest]:
    """Start the steward of a new world, which starts the ranks.

    ``values``, ``launcher`` and ``titled``: as :func:`.options.check` takes them. ``cwd``: the ranks' folder, default
    this process's. Nothing is made before each option has been checked, the ranks have their places, and the launcher
    has examined those, which may take some seconds. Raises as :meth:`.Session.start`; then nothing is left behind.
    """
    asked = check(values, launcher, folder=cwd, titled=titled).share_gpus()
    plan = asked.place()
    if asked.launcher.examination is not None:
        plan = asked.launcher.examination(asked.launcher_options, plan)
    with one_at_a_time():
        request = _make_request(asked, plan, settings, cwd)
        try:
            return _launch_steward(request), request
        except BaseException:
            _remove_folders(request)
            raise


def abandon(listing: Listing, request: WorldRequest) -> None:
    """End a launched world that no client can reach, and remove its folders."""
    with contextlib.suppress(OSError):
        _end_steward(os.getpgid(listing.steward))
    _remove_folders(request)


def find_paths(options: WorldOptions) -> WorldOptions:
    """``options`` with absolute paths: ``mpiexec``, found where none was named, and ``tensorboard``, which is made.

    ``track`` is complete then, too. Raises :class:`BadRequest` and :class:`StartFailed` with the fix.
    """
    wanted = os.environ.get(TRACK_VARIABLE) if options.track is None else options.track
    track, tensorboard = check_targets(wanted, options.tensorboard)
    return msgspec.structs.replace(
        options,
        mpiexec=find_mpiexec(options.mpiexec),
        tensorboard=None if tensorboard is None else check_folder(tensorboard),
        track=track,
    )


def _make_request(asked: Asked, plan: WorldPlan, settings: Settings, cwd: Path | None) -> WorldRequest:
    """Complete the checked options by what is free and what is there on this machine, and make the world's folders."""
    roles = assign_roles(asked, plan.size)
    try:
        folder = str(cwd or Path.cwd())
    except OSError as error:
        raise BadRequest(
            "The working directory no longer exists, and the ranks would run in it: change to another one."
        ) from error
    chosen = choose_name(asked.world.name)
    options = find_paths(msgspec.structs.replace(asked.world, n=plan.size, name=chosen))
    remove_dead()
    prune_spools(settings.log_days)
    world_id = new_id(chosen)
    runtime = runtime_folder() / world_id
    request = WorldRequest(
        id=world_id,
        options=options,
        frameworks=asked.framework_values,
        folder=str(runtime),
        sockets=str(socket_folder(runtime)),
        scratch=str(scratch_folder(world_id)),
        spool=str(spool_folder() / world_id),
        cwd=folder,
        path=[str(Path(path).absolute()) for path in sys.path if path],
        settings=settings,
        store=str(store_file()),
        roles=roles,
        launcher=asked.launcher.name,
        launcher_options=asked.launcher_values,
        hosts=plan.hosts,
        slots=plan.slots,
        threads=plan.threads,
        address=plan.address,
        cells=asked.cells,
        profile_file=asked.profile_file,
    )
    return make_folders(request)


def _remove_folders(request: WorldRequest) -> None:
    """Remove all folders of a world that did not start."""
    remove_runtime(request)
    shutil.rmtree(request.spool, ignore_errors=True)


def remove_runtime(request: WorldRequest) -> None:
    """Remove the run-time folders of a world whose steward ended without removing them."""
    for folder in request.passing_folders:
        shutil.rmtree(folder, ignore_errors=True)


def prune_spools(days: float) -> None:
    """Remove the spools of worlds that have ended and were last written to more than ``days`` ago."""
    alive = {listing.id for listing in list_worlds()}
    limit = time.time() - days * 86400
    for folder in spool_folder().glob("*/"):
        with contextlib.suppress(OSError):
            if folder.name not in alive and _last_change(folder) < limit:
                shutil.rmtree(folder, ignore_errors=True)


def _last_change(folder: Path) -> float:
    return max((path.stat().st_mtime for path in [folder, *folder.iterdir()]), default=0.0)


def _launch_steward(request: WorldRequest) -> Listing:
    """Start the steward of a new world, detached from this process; it starts the ranks.

    Returns as soon as the steward's process exists, and the listing names it. The request goes over a pipe: it may hold
    secrets.
    """
    folder = Path(request.folder)
    connection_file, _ = write_connection_file(
        str(folder / "steward.json"),
        ip=f"{request.sockets}/s",
        transport="ipc",
        key=secrets.token_hex(32).encode(),
        shell_port=1,
        iopub_port=2,
        stdin_port=3,
        hb_port=4,
        control_port=5,
    )
    env = prepared.steward_environment(request.id)
    log_file = folder / "logs" / "steward.log"
    log_file.touch(mode=0o600)
    order = prepared.StartOrder([connection_file], request.id, env, str(folder), str(log_file))
    data = msgspec.json.encode(request)
    with open(log_file, "a+b") as log:
        if (waiting := prepared.take(order)) is not None:
            try:
                return _hand_over(request, waiting, order.to_bytes() + prepared.part(data), log)
            except StartFailed:
                if not folder.exists():  # it had begun, and its guard has cleaned up
                    raise
        process = subprocess.Popen(
            [*local.program(prepared.STEWARD), connection_file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
        return _hand_over(request, process, data, log)


def _hand_over(request: WorldRequest, process: subprocess.Popen[bytes], data: bytes, log: BinaryIO) -> Listing:
    """Send ``data`` to the new steward's ``process``; the world's listing, once that has taken it.

    Where it does not, this ends it, and raises :class:`StartFailed` with the words in its ``log``.
    """
    try:
        patience = max(request.settings.request_timeout, request.settings.start_timeout)
        answer, _ = process.communicate(data, timeout=patience)
        own_id = request.id.encode()
        # Other lines are of whatever prints while Python starts: a sitecustomize, a file of an installed package.
        [steward] = [int(line[1]) for line in map(bytes.split, answer.splitlines()) if line[:1] == [own_id]]
        return msgspec.structs.replace(
            _starting(request), steward=steward, created=psutil.Process(steward).create_time(), starting=False
        )
    except BaseException as error:
        _end_steward(process.pid)
        process.wait()
        if not isinstance(error, (subprocess.TimeoutExpired, ValueError, psutil.Error)):
            raise
        log.seek(0)  # the log itself has gone with the world's folder
        words = relevant(log.read().decode(errors="replace"))
        raise StartFailed(
            "The world's main process did not start.", package_gone() or (MEND if words else AGAIN), words
        ) from error


def _end_steward(group: int) -> None:
    """End a steward that no client can reach yet, by the process group that it began in, and wait for its end."""
    deadline = time.monotonic() + END_PATIENCE
    with contextlib.suppress(OSError):
        # Not SIGKILL: mpiexec is in that group, and ends its ranks only when it gets a SIGTERM.
        os.killpg(group, signal.SIGTERM)
        while any(_in_group(process, group) for process in psutil.process_iter()):
            if time.monotonic() > deadline:
                os.killpg(group, signal.SIGKILL)
                return
            time.sleep(0.02)


def _in_group(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False
