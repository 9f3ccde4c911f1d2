"""A rank's part in snapshots: all ranks stage their variables in memory, write them side by side, and load them again.

Ranks talk to each other only while they stage: after that each writes its files by itself, so training can go on. When
all ranks have written theirs, rank 0 writes the manifest and gives the snapshot its number (:mod:`.core.snapshots`).
Frameworks save what they know (``Snapshots``). Anything else is pickled on each rank, an object with a state as its
state.

All ranks must call :func:`save` and :func:`load` together. Under failure: an obstacle on one rank raises on all ranks,
and nothing was saved, or changed; an obstacle in the middle of a load may leave some variables loaded. A rank that dies
while files are written leaves a folder without a manifest, which nobody loads and a later snapshot removes; rank 0
gives up after :data:`PATIENCE` seconds and says so.
"""

from __future__ import annotations

import contextlib
import pickle
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import msgspec

from jupyter_dtrain.core.errors import TransferFailed
from jupyter_dtrain.core.snapshots import (
    FileFacts,
    Manifest,
    SnapshotOrder,
    SnapshotRefused,
    begin,
    code_of,
    explain_no_room,
    open_regular,
    publish,
    read_manifest,
    verify,
    verify_file,
    write_file,
)
from jupyter_dtrain.core.structs import UNREADABLE, readable
from jupyter_dtrain.core.world import format_ranks

from .contents import has_state
from .resync import agree
from .user_text import words_of

if TYPE_CHECKING:
    from .plugins import Plugins

PATIENCE: Final = 600.0
"""Seconds that rank 0 waits for the files of the others after its own."""
PERIOD: Final = 0.1
DONE: Final = "rank-{}.done"
STATE: Final = "state"
VALUE: Final = "value"


class Written(msgspec.Struct, frozen=True):
    """The files that one rank has written, or why it could not."""

    files: dict[str, FileFacts]
    problem: str = ""


class Saving:
    """One snapshot on its way to the disk, on one rank."""

    def __init__(
        self,
        order: SnapshotOrder,
        part: Path,
        rank: int,
        size: int,
        held: dict[str, str],
        files: dict[str, Any],
        step: int | None,
        notes: list[str],
    ) -> None:
        """``files``: this rank's, in memory, by name. ``held``: all variables, each with what saves it."""
        self.notes = notes
        self._order, self._part, self._rank, self._size, self._held = order, part, rank, size, held
        self._files, self._step = files, step
        self.bytes = sum(len(content) for content in files.values())
        self.done = threading.Event()
        """Set when this rank has nothing more to do."""
        self.problem = ""

    def write(self) -> Written:
        """Write this rank's files."""
        found: dict[str, FileFacts] = {}
        try:
            for name in list(self._files):
                content = self._files.pop(name)
                write_file(self._part, name, content)
                found[name] = FileFacts(len(content), code_of(self._order.key, name, content))
        except OSError as error:
            return Written({}, f"{self._part.parent} cannot be written: {error.strerror or error}")
        return Written(found)

    def publish(self, written: list[Written]) -> str:
        """On rank 0, when all ranks have written: make the folder a snapshot. Return what is wrong, or nothing."""
        problems = [f"rank {rank}: {one.problem}" for rank, one in enumerate(written) if one.problem]
        if problems:
            self.drop()
            return "; ".join(problems)
        files = {name: facts for one in written for name, facts in one.files.items()}
        order = self._order
        facts = (order.name, time.time(), order.world, self._size, self._held, self._step, files)
        try:
            publish(self._part, order.key, Manifest(*facts, run=order.run, next_step=order.next_step), order.keep)
        except OSError as error:
            self.drop()
            return f"{self._part.parent} cannot be written: {error.strerror or error}"
        return ""

    def drop(self) -> None:
        """Remove what was written so far."""
        shutil.rmtree(self._part, ignore_errors=True)

    def go_on(self, say: Callable[[str], object]) -> None:
        """Write in a thread of its own. ``say`` gets a sentence if that fails."""
        threading.Thread(target=self._alone, args=(say,), name="dtrain-snapshot", daemon=True).start()

    def _alone(self, say: Callable[[str], object]) -> None:
        try:
            written = self.write()
            if self._rank:
                with contextlib.suppress(OSError):
                    _leave(self._part, self._rank, written)
                self.problem = written.problem
                return
            deadline = time.monotonic() + PATIENCE
            found: dict[int, Written] = {0: written}
            while len(found) < self._size and time.monotonic() < deadline:
                for rank in range(1, self._size):
                    if rank not in found and (one := _take(self._part, rank)) is not None:
                        found[rank] = one
                time.sleep(PERIOD)
            if len(found) < self._size:
                late = format_ranks([rank for rank in range(self._size) if rank not in found])
                self.problem = f"rank {late} did not write its part within {PATIENCE:g} s"
                self.drop()
            else:
                self.problem = self.publish([found[rank] for rank in range(self._size)])
        except Exception as error:  # noqa: BLE001 — a thread of ours has nobody above it
            self.problem = words_of(error)
        finally:
            self.done.set()
            if self.problem:
                say(f"Snapshot {self._order.name!r} was not saved: {self.problem}. The one before it stays.")


def _leave(part: Path, rank: int, written: Written) -> None:
    """Report to rank 0, by a file that appears whole."""
    draft = part / f".{DONE.format(rank)}"
    draft.write_bytes(msgspec.json.encode(written))
    draft.rename(part / DONE.format(rank))


def _take(part: Path, rank: int) -> Written | None:
    file = part / DONE.format(rank)
    try:
        found = msgspec.json.decode(file.read_bytes(), type=readable(Written))
        file.unlink()
    except (OSError, *UNREADABLE):
        return None
    return found


def stage(order: SnapshotOrder, namespace: Mapping[str, Any], plugins: Plugins, step: int | None = None) -> Saving:
    """Copy what is to be saved into memory, on all ranks together. Raises :class:`TransferFailed` on all of them."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    missing = [name for name in order.names if name not in namespace]
    savers = comm.allgather(plugins.savers())
    lacking = sorted({one for others in savers for one in others} - set(savers[rank]))
    problem = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not defined" if missing else ""
    problem = problem or (f"the plug-in of {', '.join(lacking)} does not work" if lacking else "")
    agree(comm, problem, "Nothing was saved.")
    values = {name: namespace[name] for name in order.names}
    part = _begun(comm, order)
    try:
        unseen = "" if part.is_dir() else f"this host does not see {order.root}"
        agree(comm, unseen, "Nothing was saved: DTRAIN_SNAPSHOTS must name a folder that all hosts share.")
        held: dict[str, str] = {}
        files: dict[str, Any] = {}
        notes: list[str] = []
        try:
            for plugin, names, made, more in plugins.save_values(values, namespace, size):
                notes += more
                held |= dict.fromkeys(names, plugin)
                files |= {f"{plugin}/{name}": content for name, content in made.items()}
            for name in order.names:
                if name not in held:
                    held[name], files[f"rank-{rank}/{name}.pickle"] = _pickled(name, values[name], plugins)
        except Exception as error:  # noqa: BLE001 — a user's class may raise anything, and all ranks go on together
            problem = words_of(error)
        agree(comm, problem, "Nothing was saved.")
        _match(comm, held, files)
        taken = comm.allreduce(sum(len(content) for content in files.values()))
        problem, note = explain_no_room(part, taken, order.keep) if rank == 0 else ("", "")
        agree(comm, problem, "Nothing was saved.")
        notes += [note] if note else []
    except BaseException:
        if rank == 0:
            shutil.rmtree(part, ignore_errors=True)
            with contextlib.suppress(OSError):
                part.parent.rmdir()  # of its first snapshot
        raise
    return Saving(order, part, rank, size, held, files, step, notes)


def save(order: SnapshotOrder, namespace: Mapping[str, Any], plugins: Plugins) -> tuple[int, float, list[str]]:
    """Save, and return when the snapshot is on disk: the bytes of all ranks, the seconds that it took, and notes.

    Raises :class:`TransferFailed` on all ranks; then the snapshot before it is still there.
    """
    from mpi4py import MPI

    comm, began = MPI.COMM_WORLD, time.monotonic()
    saving = stage(order, namespace, plugins)
    size = comm.allreduce(saving.bytes)
    written = comm.gather(saving.write(), root=0)
    problem = comm.bcast(saving.publish(written) if written is not None else None, root=0)
    if problem:
        raise TransferFailed(f"Nothing was saved: {problem}.")
    return size, time.monotonic() - began, saving.notes


def load(
    folder: Path, names: list[str], key: bytes, namespace: dict[str, Any], plugins: Plugins, *, trust: bool, ready: bool
) -> tuple[list[str], list[str], list[str]]:
    """Load ``names`` (empty for all) from a snapshot, on all ranks together: those loaded, those that wait, and notes.

    ``ready``: skip what needs an object that is not there yet; it waits for that. Raises :class:`SnapshotRefused` for a
    snapshot that is damaged or not ours, and :class:`TransferFailed` for what does not fit; then nothing has changed.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    manifest = _checked(comm, folder, key, trust=trust)
    unknown = [name for name in names if name not in manifest.held]
    problem = f"{', '.join(unknown)} not in the snapshot, which has {', '.join(manifest.held)}" if unknown else ""
    agree(comm, problem, "Nothing was loaded.")
    wanted = {name: how for name, how in manifest.held.items() if not names or name in names}
    absent = {name for name, how in wanted.items() if how != VALUE and name not in namespace}
    absent = set().union(*comm.allgather(absent))
    if absent and not ready:
        names_there = ", ".join(sorted(absent))
        agree(
            comm,
            f"make {names_there} first, as it was when it was saved: a snapshot has its state alone",
            "Nothing was loaded.",
        )
    wanted = {name: how for name, how in wanted.items() if name not in absent}
    by_plugin: dict[str, dict[str, Any]] = {}
    for name, how in wanted.items():
        if how not in (STATE, VALUE):
            by_plugin.setdefault(how, {})[name] = namespace[name]
    notes: list[str] = []
    problem, values = "", dict[str, Any]()
    try:
        for plugin, objects in by_plugin.items():
            problem = problem or plugins.misfit(plugin, objects, namespace, folder / plugin)
        if not problem:
            plain = [name for name, how in wanted.items() if how in (STATE, VALUE)]
            values, notes = _unpickled(folder, plain, manifest, rank, size)
            problem = _stateless(wanted, values, namespace)
    except Exception as error:  # noqa: BLE001 — unpickling may raise anything, and all ranks go on together
        problem = words_of(error)
    agree(comm, problem, "Nothing was loaded.")
    pickled = {name: (wanted[name], value) for name, value in values.items()}
    problem, more = _hand_over(by_plugin, pickled, namespace, plugins, folder)
    agree(comm, problem, "The load ended in the middle, so load again or make the variables anew.")
    return list(wanted), sorted(absent), notes + more


def _hand_over(
    by_plugin: Mapping[str, dict[str, Any]],
    pickled: Mapping[str, tuple[str, Any]],
    namespace: dict[str, Any],
    plugins: Plugins,
    folder: Path,
) -> tuple[str, list[str]]:
    """Give all variables what was saved of them; ``pickled``: how, and what. Returns what went wrong, and notes."""
    notes: list[str] = []
    try:
        for plugin, objects in by_plugin.items():
            notes += plugins.load_values(plugin, objects, namespace, folder / plugin)
        for name, (how, value) in pickled.items():
            if how == STATE:
                namespace[name].load_state_dict(value)
            else:
                namespace[name] = value
    except Exception as error:  # noqa: BLE001 — a user's class may raise anything, and all ranks go on together
        return words_of(error), notes
    return "", notes


def _checked(comm: Any, folder: Path, key: bytes, *, trust: bool) -> Manifest:
    """The manifest, once each file was found to be the one that was saved. Raises :class:`SnapshotRefused` on all."""
    rank, size = comm.Get_rank(), comm.Get_size()
    manifest, problem = None, ""
    try:
        manifest = read_manifest(folder)
        if not trust:
            verify(key, folder, manifest)
        for place, (name, facts) in enumerate(sorted(manifest.files.items())):
            if place % size == rank and (found := _refused(key, folder, name, facts, trust=trust)):
                problem = problem or found
    except SnapshotRefused as error:
        problem = str(error)
    problems = [words for words in comm.allgather(problem) if words]
    if problems or manifest is None:
        raise SnapshotRefused(f"Nothing was loaded: {problems[0]}.")
    return manifest


def _refused(key: bytes, folder: Path, name: str, facts: FileFacts, *, trust: bool) -> str:
    """Why a file is not read; empty where it is the one that was saved, or any file that has an end and is trusted."""
    if not trust:
        found = verify_file(key, folder, name, facts)
        return f"{found} since it was saved; --trust loads it all the same" if found else ""
    try:
        open_regular(folder / name).close()
    except FileNotFoundError:
        return ""  # only what belongs to it cannot be loaded
    except OSError as error:
        return f"{name} is no regular file ({error.strerror})"
    return ""


def _unpickled(
    folder: Path, names: list[str], manifest: Manifest, rank: int, size: int
) -> tuple[dict[str, Any], list[str]]:
    """The values that this rank gets of what was pickled, and notes.

    A rank that was not there gets what all ranks that saved had in common.
    """
    found: dict[str, Any] = {}
    own: list[str] = []
    for name in names:
        files = [folder / f"rank-{saved}" / f"{name}.pickle" for saved in range(manifest.size)]
        data = files[rank].read_bytes() if rank < manifest.size else None
        if size != manifest.size:
            all_of_them = {file.read_bytes() for file in files}
            if len(all_of_them) == 1:
                data = next(iter(all_of_them))
            else:
                own.append(name)
        if data is not None:
            found[name] = pickle.loads(data)  # noqa: S301 — its code was checked, or the user trusts it
    notes = []
    if size != manifest.size and rank == 0 and own:
        more = size > manifest.size
        notes.append(
            f"{', '.join(own)} differed between the {manifest.size} ranks that saved: "
            + (
                f"ranks from {manifest.size} on got none."
                if more
                else f"the values of ranks from {size} on are unused."
            )
        )
    return found, notes


def _stateless(wanted: Mapping[str, str], values: Mapping[str, Any], namespace: Mapping[str, Any]) -> str:
    bad = [name for name in values if wanted[name] == STATE and not has_state(namespace[name])]
    return f"{', '.join(bad)} here cannot take a state: there is no load_state_dict" if bad else ""


def _pickled(name: str, value: Any, plugins: Plugins) -> tuple[str, bytes]:
    try:
        how, content = (STATE, value.state_dict()) if has_state(value) else (VALUE, value)
        return how, cloudpickle.dumps(plugins.on_host(content), protocol=5)
    except Exception as error:  # noqa: BLE001 — a user's __reduce__ may raise anything
        raise TransferFailed(f"{name!r} cannot be saved: {words_of(error)}") from None


def _begun(comm: Any, order: SnapshotOrder) -> Path:
    """The folder to write in, which rank 0 has made. Raises :class:`TransferFailed` on all ranks."""
    part, problem = "", ""
    if comm.Get_rank() == 0:
        try:
            part = str(begin(Path(order.root), order.name))
        except OSError as error:
            problem = f"{order.root} cannot be written: {error.strerror or error}"
    part, problem = comm.bcast((part, problem), root=0)
    if problem:
        raise TransferFailed(f"Nothing was saved: {problem}.")
    return Path(part)


def _match(comm: Any, held: Mapping[str, str], files: dict[str, Any]) -> None:
    """Take away the files that a lower rank has as well.

    Raises :class:`TransferFailed` on all ranks where they differ, or where a framework saves a variable of some ranks
    only.
    """
    gathered = comm.allgather((held, list(files)))
    ways = {name: {how[name] for how, _ in gathered} for name in held}
    apart = [name for name, found in ways.items() if len(found) > 1 and not found <= {STATE, VALUE}]
    if apart:
        raise TransferFailed(f"Nothing was saved: {', '.join(apart)} must be of one kind on all ranks.")
    counts = Counter(name for _, names in gathered for name in names)
    if not any(count > 1 for count in counts.values()):
        return
    shared = {name: code_of(b"", name, files[name]) for name in files if counts[name] > 1}
    codes = comm.allgather(shared)
    different = sorted({Path(name).stem for name in counts if len({one[name] for one in codes if name in one}) > 1})
    if different:
        raise TransferFailed(
            f"Nothing was saved: {', '.join(different)} differs between ranks in its shapes, its types, or in a part "
            f"that each rank has whole."
        )
    for name in shared:
        if any(name in one for one in codes[: comm.Get_rank()]):
            del files[name]
