"""Copies a file or a folder to hosts that do not share this machine's files, side by side, changed files only.

A copy lies under the same path there as the original here: ranks work in the notebook's folder, on every host that has
it. ``to`` chooses another folder, which then gets the file or folder under its own name.

Under failure: see :mod:`jupyter_dtrain.files`. A request that makes no sense raises before any host is asked.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest, StartFailed, UploadFailed
from jupyter_dtrain.launch.hostlist import named_hosts
from jupyter_dtrain.launch.programs import Unreached
from jupyter_dtrain.preflight.reach import MARGIN, Program, ask_all
from jupyter_dtrain.preflight.shared_file import shared_file
from jupyter_dtrain.view.labels import human
from jupyter_dtrain.view.tables import table
from jupyter_dtrain.wire.requests import LOCAL, WorldRequest
from jupyter_dtrain.wire.steward_messages import Lent

from .receiver import fault_of_rsync
from .rsync import INSTALL, Copied, copy, reason
from .transports import OverSrun, OverSsh, Way

TIMEOUT: Final = 600.0
"""Seconds that copies may take by default."""
ASKING: Final = 15.0
"""Seconds that the hosts have to get ready."""
SIDE_BY_SIDE: Final = 16
"""The most copies at a time."""
SLURM: Final = "slurm"
"""The name of the launcher whose hosts srun reaches."""
PACE: Final = 0.3
"""Seconds between two reports of progress."""


class HostCopy(msgspec.Struct, frozen=True):
    """The end of one host's copy."""

    host: str
    files: int = 0
    """The files that were new or had changed."""
    size: int = 0
    """Their bytes."""
    shared: bool = False
    """Whether the host sees the original itself, so that nothing was copied."""
    lacked: bool = False
    """Whether the host had no folder of the world before, so that its ranks work in another one."""
    reason: str = ""
    """Why the copy is not complete; empty if it is."""
    fix: str = ""

    @property
    def words(self) -> str:
        """The outcome in words, such as how many files were copied."""
        if self.reason:
            return f"{self.reason} {self.fix}"
        if self.shared:
            return "shares this machine's files: left alone"
        return "copied" if self.files else "up to date"


class Uploaded(msgspec.Struct, frozen=True):
    """The result of a copy to all hosts."""

    source: str
    """The file or folder here."""
    hosts: list[HostCopy]
    """Empty for a world on this machine."""
    seconds: float = 0.0

    @property
    def failed(self) -> list[HostCopy]:
        """The hosts whose copies are not complete."""
        return [one for one in self.hosts if one.reason]

    def check(self) -> None:
        """Raise :class:`UploadFailed` with the reason and the fix of each host whose copy is not complete."""
        if self.failed:
            words = "\n".join(f"{one.host}: {one.words}" for one in self.failed)
            raise UploadFailed(
                f"{self.source} is not complete on {len(self.failed)} of {len(self.hosts)} hosts.\n{words}", self
            )

    def __str__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        if not self.hosts:
            words = "The ranks of this world run on this machine and read the same files: nothing needs copying."
            return {"text/plain": words}
        rows = [[one.host, one.files, human(one.size), one.words] for one in self.hosts]
        found = table(f"{self.source} ({self.seconds:.1f} s)", ["host", "files", "size", ""], rows)
        if lacking := [one.host for one in self.hosts if one.lacked and not one.reason]:
            words = (
                f"The notebook's folder was missing on {', '.join(lacking)} when the world started, so the ranks there "
                "work in another folder: %distributed restart moves them."
            )
            found = {
                "text/plain": f"{found['text/plain']}\n{words}",
                "text/html": f"{found['text/html']}<p>{words}</p>",
            }
        return found


class _Place(msgspec.Struct, frozen=True):
    """What a host answers before a copy, see :func:`.receiver.receive`."""

    folder: str
    no_rsync: str = ""
    lacked: bool = False
    shared: bool = False
    failure: str = ""


def upload(
    path: str | os.PathLike[str],
    hosts: str | Iterable[str] | Mapping[str, int] | None = None,
    *,
    hostfile: str | os.PathLike[str] | None = None,
    ssh_args: str = "",
    python: str | None = None,
    to: str | os.PathLike[str] | None = None,
    exclude: Sequence[str] = (),
    timeout: float = TIMEOUT,
    progress: Callable[[str], None] | None = None,
) -> Uploaded:
    """Copy the file or folder ``path`` to hosts before a world starts there; :meth:`.Session.upload` has those of one.

    ``hosts``: as for :meth:`.Session.start`; or ``hostfile``, a file in Open MPI's format. ``ssh_args``: options for
    ssh. ``python``: the interpreter there (default: the path of this one). The others as for :meth:`.Session.upload`,
    and what is raised; ``to`` is relative to this process's folder.
    """
    named = named_hosts(hosts, hostfile)
    if not named:
        raise BadRequest("Name the hosts that get the files.", option="hosts")
    found = sync(
        path,
        list(named),
        to=to,
        exclude=exclude,
        ssh_args=ssh_args,
        python=python,
        timeout=timeout,
        progress=progress,
    )
    found.check()
    return found


def sync(
    path: str | os.PathLike[str],
    hosts: Sequence[str],
    *,
    to: str | os.PathLike[str] | None = None,
    exclude: Sequence[str] = (),
    ssh_args: str = "",
    python: str | None = None,
    timeout: float = TIMEOUT,
    cwd: str = "",
    progress: Callable[[str], None] | None = None,
) -> Uploaded:
    """Copy the file or folder ``path`` to ``hosts``, as ssh knows them.

    ``to``: the folder there that gets it (default: the one that has it here); ``~`` is the home there. ``exclude``:
    patterns of rsync for names to leave out. ``ssh_args``: options for ssh. ``python``: the interpreter there (default:
    the path of this one). ``timeout``: seconds for all copies. ``cwd``: the world's folder, to which ``to`` is relative
    (default: this process's). ``progress`` gets a line of text now and then.

    Raises :class:`BadRequest`, and :class:`UploadFailed` where this machine has no rsync. A host that fails does not
    raise: see :meth:`Uploaded.check`.
    """
    way = OverSsh(ssh_args, python)
    return sync_by(_source(path), hosts, way, to=to, exclude=exclude, timeout=timeout, cwd=cwd, progress=progress)


def sync_by(
    source: Path,
    hosts: Sequence[str],
    way: Way,
    *,
    to: str | os.PathLike[str] | None = None,
    exclude: Sequence[str] = (),
    timeout: float = TIMEOUT,
    cwd: str = "",
    progress: Callable[[str], None] | None = None,
) -> Uploaded:
    """As :func:`sync`, by ``way``; ``source`` is absolute, and a file or folder of this machine."""
    began = time.monotonic()
    is_folder = source.is_dir()
    base = cwd or os.getcwd()  # noqa: PTH109 — text, as the host needs it
    folder = str(source.parent) if to is None else os.fspath(to)
    target = os.path.join(folder if folder[:1] == "~" else os.path.join(base, folder), source.name)  # noqa: PTH118
    if fault := fault_of_rsync():
        raise UploadFailed(
            f"This machine {fault}. rsync copies the files: install it, so that `rsync --version` works here "
            "(Debian: apt install rsync)."
        )
    with shared_file(source if is_folder else source.parent) as shared:
        asked = {"target": target, "is_folder": is_folder, "cwd": cwd, "shared": shared}
        program = Program("jupyter_dtrain.files.receiver", ASKING + MARGIN, **asked)
        places = ask_all(dict.fromkeys(hosts, program), way, kind=_Place, timeout=ASKING)

    done: dict[str, int] = {}
    stop = threading.Event()

    def copy_to(host: str) -> HostCopy:
        place: _Place | Unreached = places[host]
        if isinstance(place, Unreached):
            place = way.unreached(place)
            return HostCopy(host, reason=place.reason, fix=place.fix)
        if place.shared:
            return HostCopy(host, shared=True)
        if place.no_rsync:
            return HostCopy(host, reason=f"{host} {place.no_rsync}.", fix=INSTALL)
        if place.failure:
            why, fix = reason(place.failure, host)
            return HostCopy(host, reason=why, fix=fix)
        found = copy(
            f"{source}/" if is_folder else str(source),
            host,
            place.folder,
            way=way,
            exclude=exclude,
            deadline=began + timeout,
            stop=stop,
            progress=lambda per_cent: done.__setitem__(host, per_cent),
        )
        if isinstance(found, Copied):
            return HostCopy(host, found.files, found.size, lacked=place.lacked)
        return HostCopy(host, reason=found.reason, fix=found.fix)

    pool = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="sync")
    try:
        copies = [pool.submit(copy_to, host) for host in hosts]
        _report(copies, done, hosts, progress)
        return Uploaded(_shown(source), [one.result() for one in copies], time.monotonic() - began)
    finally:
        stop.set()  # a person may have pressed Stop
        pool.shutdown(cancel_futures=True)


def sync_world(request: WorldRequest, lent: Lent, path: str | os.PathLike[str], **options: Any) -> Uploaded:
    """Copy ``path`` to the hosts of a world: by srun in a job of Slurm, else by the world's ssh.

    ``lent``: the nodes that a scheduler has lent to it. ``options``: as for :func:`sync`, which raises.
    """
    source = _source(path)
    if request.launcher == LOCAL:
        return Uploaded(_shown(source), [])
    hosts = list(request.hosts) or lent.hosts
    if not hosts:
        raise BadRequest(
            "A scheduler has chosen the hosts of this world, and it does not say which; most clusters have one file "
            "system. Where yours does not, name the hosts: %distributed upload PATH --hosts NAME,NAME.",
            option="hosts",
        )
    if request.launcher == SLURM:
        return sync_by(source, hosts, _over_srun(lent.job), cwd=request.cwd, **options)
    launched = request.launcher_options
    way = OverSsh(launched.get("ssh_args") or "", launched.get("python"))
    return sync_by(source, hosts, way, cwd=request.cwd, **options)


def _over_srun(job: str) -> Way:
    try:
        return OverSrun(job)
    except StartFailed as error:
        raise UploadFailed(f"{error.reason} {error.fix}") from None


def _report(
    copies: Sequence[Future[HostCopy]],
    done: dict[str, int],
    hosts: Sequence[str],
    progress: Callable[[str], None] | None,
) -> None:
    """Report the copies' progress until all have ended, each by its own deadline."""
    said = ""
    while not all(one.done() for one in copies):
        going = [f"{host} {done.get(host, 0)} %" for host, one in zip(hosts, copies, strict=True) if not one.done()]
        words = f"Copying: {', '.join(going[:SIDE_BY_SIDE])}"
        if progress is not None and words != said:
            progress(words)
        said = words
        wait(copies, PACE)


def _source(path: str | os.PathLike[str]) -> Path:
    """The file or folder here; its links are not followed. Raises :class:`BadRequest`."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise BadRequest("Name a file or a folder of this machine.")
    found = Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100 — a Path would follow links
    if not found.exists():
        raise BadRequest(f"This machine has no file or folder {_shown(found)}.")
    if not found.is_dir() and not found.is_file():
        raise BadRequest(f"{_shown(found)} is neither a file nor a folder.")
    home = Path.home()
    if found.resolve() in {home.resolve(), *home.resolve().parents}:
        raise BadRequest(
            f"{_shown(found)} is or contains your home folder, with keys and settings that each host has its own of. "
            "Name the folder that the ranks need."
        )
    return found


def _shown(path: Path) -> str:
    """A path for people, on one line, also where it is no UTF-8."""
    return str(path) if str(path).isprintable() else ascii(str(path))
