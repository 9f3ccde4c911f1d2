"""Snapshots on disk: their folders, their manifests, and the codes that tell our own files from others.

::

    ROOT/NAME/12/manifest.json     names every file with its size and its code; written last
    ROOT/NAME/12/rank-0.pickle …   what ranks have written
    ROOT/NAME/.12-TOKEN.part/      a snapshot that is being written, or that nobody will finish

A snapshot is written beside the ones before it and takes its number by one rename; then older ones go, of which as many
stay as the save asked for. So whatever dies, and whenever, the newest folder with a number is whole. Each file carries
an HMAC under a key of this user, and so does the manifest.

Under failure: a folder without a manifest that can be read is no snapshot. :func:`verify` and :func:`verify_file` raise
:class:`SnapshotRefused` for a file that is not what was saved here.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import shutil
import stat
import time
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from .errors import BadRequest, RequestError
from .structs import UNREADABLE, readable

MANIFEST: Final = "manifest.json"
VERSION: Final = 1
PART: Final = ".part"
STALE: Final = 3600.0
"""Seconds without a change after which a snapshot that is being written counts as given up."""
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_PIECE: Final = 8 << 20
_KEY_BYTES: Final = 32
_LONGEST: Final = 100


ANSWER: Final = "application/vnd.jupyter-dtrain.snapshot+json"
"""The type of the display in which a rank sends an :class:`SnapshotAnswer`."""
KEY: Final = "_dtrain_snapshot_key"
"""The variable in which a rank gets the key, for a moment."""


class SnapshotRefused(RequestError):
    """A snapshot is not loaded: it is damaged, or it was not saved here."""


class FileFacts(msgspec.Struct, frozen=True):
    """The size and the code of one file of a snapshot."""

    size: int
    code: str
    """HMAC-SHA256 of its name and content, in hexadecimal digits."""


class _Contents(msgspec.Struct, frozen=True):
    """What the manifests of all versions have."""

    name: str
    saved: float
    """When the snapshot was saved, in seconds since the epoch."""
    world: str
    size: int
    """How many ranks saved the snapshot."""
    held: dict[str, str]
    """The variables, each with the part that saved it: a framework's name, ``state`` or ``value``."""
    step: int | None
    """The step after which it was saved, in the middle of a cell."""
    files: dict[str, FileFacts]
    version: int = VERSION
    code: str = ""
    """HMAC-SHA256 of all other fields of the manifest, in hexadecimal digits."""


class Manifest(_Contents, frozen=True):
    """The contents of a snapshot."""

    run: int = 0
    """The number of the run that has trained what was saved; 0 where none has, as in snapshots of earlier versions."""
    next_step: int = 0
    """The step of that run's metrics that comes next."""


class SnapshotOrder(msgspec.Struct, frozen=True):
    """An order to save variables: which ones, under what name, and where."""

    name: str
    names: list[str]
    root: str
    key: bytes
    world: str
    keep: int = 1
    """How many of this name stay."""
    run: int = 0
    """As :attr:`Manifest.run`, and so :attr:`next_step`."""
    next_step: int = 0


class SnapshotAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ranks' answer about a snapshot."""

    names: list[str]
    """The names of the variables that were saved, or loaded."""
    waiting: list[str] = []
    """Variables whose objects are not there yet."""
    notes: list[str] = []
    bytes: int = 0
    seconds: float = 0.0


class Snapshot(msgspec.Struct, frozen=True):
    """One snapshot in a list."""

    name: str
    folder: str
    bytes: int
    saved: float
    ranks: int
    held: dict[str, str]
    ours: bool
    """Whether it carries this user's code; another one needs ``--trust``."""
    step: int | None = None
    world: str = ""
    """The name of the world that saved it."""
    number: int = 0
    """Its number among those of its name: higher is newer."""
    newest: bool = True
    """Whether it is the newest one of its name, which the name alone means."""

    @property
    def reference(self) -> str:
        """What ``load`` takes for it: ``NAME``, or ``NAME:NUMBER`` for an older one."""
        return self.name if self.newest else f"{self.name}:{self.number}"

    @property
    def age(self) -> float:
        """Seconds since it was saved."""
        return max(0.0, time.time() - self.saved)

    def delete(self) -> None:
        """Delete it from the disk; others of its name stay. Raises :class:`BadRequest` with the reason if that fails.

        A world that saves one of this name automatically goes on to do so.
        """
        remove(Path(self.folder))


def check_snapshot_name(name: str) -> str:
    """``name``, if it can name a snapshot. Raises :class:`BadRequest`."""
    plain = isinstance(name, str) and name.replace("-", "").replace("_", "").replace(".", "").isalnum()
    if isinstance(name, str) and (len(name) > _LONGEST or len(name.encode(errors="replace")) > 2 * _LONGEST):
        raise BadRequest(f"{name[:20] + '…'!r} is too long to name a snapshot: use at most {_LONGEST} characters.")
    if not plain or name[:1] in ".-":
        raise BadRequest(
            f"{name!r} cannot name a snapshot: use letters, digits, dots, dashes and underscores, such as epoch-3."
        )
    return name


def parse_every(every: str | float) -> tuple[int, float]:
    """``100`` as steps, ``10m`` as seconds: (steps, seconds), one of which is 0. Raises :class:`BadRequest`."""
    text = str(every).strip()
    number, unit = (text[:-1], text[-1:]) if text[-1:] in UNITS else (text, "")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf") or (not unit and value != int(value)):
        raise BadRequest(
            f"{text!r} is no distance between snapshots: write steps, such as 100, or a time, such as 10m."
        )
    return (0, value * UNITS[unit]) if unit else (int(value), 0.0)


def split_every(wanted: str) -> tuple[str, list[str]]:
    """``10m model opt`` as the distance and the variables. Raises :class:`BadRequest`."""
    every, *names = wanted.replace(",", " ").split() or [""]
    parse_every(every)
    if not names or not all(name.isidentifier() for name in names):
        raise BadRequest(
            f"{wanted!r} must be a distance and variables, such as '10m model opt'.", option="snapshot_every"
        )
    return every, names


def snapshot_key(folder: Path, *, make: bool = True) -> bytes:
    """The key of this user, in ``folder``: made at the first use, readable by this user alone.

    ``make``: if False, a user without a key has an empty one, which has signed nothing.
    """
    file = folder / "snapshot-key"
    try:
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError):
                key = file.read_bytes()
                if len(key) == _KEY_BYTES and not file.stat().st_mode & 0o077:
                    return key
                raise BadRequest(f"{file} is no key that only you can read: remove it, and save your snapshots again.")
            if not make:
                return b""
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f".snapshot-key-{secrets.token_hex(8)}"
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(secrets.token_bytes(_KEY_BYTES))
                out.flush()
                os.fsync(out.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(draft, file)  # another process may have made one a moment ago: that one counts
            draft.unlink()
        return file.read_bytes()
    except OSError as error:
        raise BadRequest(
            f"The key that signs your snapshots cannot be kept in {folder} ({error.strerror or error}): set "
            f"JUPYTER_DATA_DIR to a folder that you can write."
        ) from None


def code_of(key: bytes, name: str, content: Any) -> str:
    """The code of a file's name and content."""
    found = hmac.new(key, f"{len(name)}:{name}:".encode(), "sha256")
    view = memoryview(content).cast("B") if len(content) else memoryview(b"")
    for start in range(0, len(view), _PIECE):
        found.update(view[start : start + _PIECE])
    return found.hexdigest()


def signed(key: bytes, manifest: Manifest) -> Manifest:
    """``manifest`` with the code that ``key`` gives it."""
    return msgspec.structs.replace(manifest, code=_manifest_code(key, manifest))


def _manifest_code(key: bytes, manifest: Manifest) -> str:
    blank: _Contents = msgspec.structs.replace(manifest, code="")
    if not manifest.run:  # as earlier versions have signed it
        blank = _Contents(**{name: getattr(blank, name) for name in _Contents.__struct_fields__})
    return code_of(key, MANIFEST, msgspec.json.encode(blank, order="deterministic"))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a snapshot. Raises :class:`SnapshotRefused`."""
    try:
        with open_regular(folder / MANIFEST) as file:
            found = msgspec.json.decode(file.read(), type=readable(Manifest))
    except (OSError, *UNREADABLE) as error:
        raise SnapshotRefused(f"{folder} holds no whole snapshot: its manifest cannot be read ({error}).") from None
    if found.version > VERSION:
        raise SnapshotRefused(f"{folder} was saved by a newer jupyter-dtrain: update the package to load it.")
    return found


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises :class:`OSError` for a link, a pipe or a device, which might be read for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file")
    return os.fdopen(handle, "rb")


def is_ours(key: bytes, manifest: Manifest) -> bool:
    """Whether the manifest carries this user's code."""
    return hmac.compare_digest(_manifest_code(key, manifest), manifest.code)


def verify(key: bytes, folder: Path, manifest: Manifest) -> None:
    """Raise :class:`SnapshotRefused` unless the manifest is this user's."""
    if not is_ours(key, manifest):
        raise SnapshotRefused(
            f"Nothing was loaded. {folder} is not signed with your key: it was changed, or saved by another user or on "
            f"another machine. Loading it can run its code; --trust loads it all the same."
        )


def verify_file(key: bytes, folder: Path, name: str, facts: FileFacts) -> str:
    """Say what is wrong with a file of a snapshot; empty where it is the one that was saved."""
    try:
        found = hmac.new(key, f"{len(name)}:{name}:".encode(), "sha256")
        with open_regular(folder / name) as file:
            size = os.fstat(file.fileno()).st_size
            left = facts.size if size == facts.size else 0  # one that grows meanwhile has an end, too
            while left and (piece := file.read(min(_PIECE, left))):
                found.update(piece)
                left -= len(piece)
    except OSError as error:
        return f"{name} cannot be read ({'it is a link' if error.errno == errno.ELOOP else error.strerror})"
    if size != facts.size:
        return f"{name} has {size} bytes, not {facts.size}, so it was changed"
    return "" if hmac.compare_digest(found.hexdigest(), facts.code) else f"{name} was changed"


class Reference(NamedTuple):
    """A snapshot as a person names it."""

    root: Path
    name: str
    number: int | None
    """Its number; None for the newest."""

    def find(self) -> Path:
        """Its folder, as it is now. Raises :class:`BadRequest` where there is no such snapshot."""
        home = self.root / self.name
        if self.number is None:
            return newest(self.root, self.name)
        if not (home / str(self.number) / MANIFEST).exists():
            there = [f"{self.name}:{number}" for number in numbers(home)]
            have = f"only {', '.join(there)}" if there else "and none of that name"
            raise BadRequest(f"There is no snapshot {self.name}:{self.number} in {self.root}, {have}.")
        return home / str(self.number)


def expanded(path: str | os.PathLike[str]) -> Path:
    """``path``, with a ``~`` at its beginning as a home. Raises :class:`BadRequest` where nobody has that name."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise BadRequest(f"{os.fspath(path)!r} begins with the name of no user of this machine.") from None


def parse_reference(text: str, root: Path) -> Reference:
    """``NAME``, ``NAME:NUMBER``, or either in a folder of its own as ``DIR/NAME``. ``root``: where a name alone is.

    Raises :class:`BadRequest`.
    """
    text = os.fspath(text) if isinstance(text, os.PathLike) else text
    if not isinstance(text, str) or "/" not in text:
        folder, last = root, text
    else:
        before, _, last = text.rpartition("/")
        folder = expanded(before or "/").absolute()
    name, colon, number = last.rpartition(":") if isinstance(last, str) and ":" in last else (last, "", "")
    if colon and not (number.isascii() and number.isdecimal()):
        raise BadRequest(f"{last!r} names no snapshot: write NAME, or NAME:NUMBER for an older one.")
    return Reference(folder, check_snapshot_name(name), int(number) if colon else None)


def newest(root: Path, name: str) -> Path:
    """The folder of the newest whole snapshot of that name. Raises :class:`BadRequest` where there is none."""
    for number in reversed(numbers(root / name)):
        if (root / name / str(number) / MANIFEST).exists():
            return root / name / str(number)
    others = ", ".join(one.name for one in sorted(root.glob("*/")) if numbers(one)) if root.exists() else ""
    raise BadRequest(
        f"There is no snapshot {name!r} in {root}"
        + (f", only {others}." if others else ": %distributed save makes one.")
    )


def numbers(folder: Path) -> list[int]:
    """The numbers of the snapshots of one name, in order."""
    try:
        return sorted(int(one.name) for one in folder.iterdir() if one.name.isdecimal())
    except OSError:
        return []


def list_snapshots(root: Path, key: bytes) -> list[Snapshot]:
    """All snapshots, newest first. It leaves out those that cannot be read.

    Raises :class:`BadRequest` for a folder that cannot be read.
    """
    found: list[Snapshot] = []
    try:
        homes = list(root.iterdir()) if root.exists() else []
    except OSError as error:
        raise BadRequest(f"{root} cannot be listed: {error.strerror or error}.") from None
    for home in homes:
        for number in numbers(home):
            with contextlib.suppress(RequestError):
                found.append(read_snapshot(home / str(number), key))
    return sorted(found, key=lambda one: (-one.saved, one.name, -one.number))


def read_snapshot(folder: Path, key: bytes) -> Snapshot:
    """The snapshot in ``folder``, by its manifest alone. Raises :class:`SnapshotRefused` where that cannot be read."""
    manifest, number = read_manifest(folder), int(folder.name)
    return Snapshot(
        folder.parent.name,
        str(folder),
        sum(facts.size for facts in manifest.files.values()),
        manifest.saved,
        manifest.size,
        manifest.held,
        is_ours(key, manifest),
        manifest.step,
        manifest.world,
        number,
        number == max(numbers(folder.parent), default=number),
    )


def remove(folder: Path) -> None:
    """Remove a snapshot, and the folder of its name where it was the last one. Raises :class:`BadRequest`."""
    try:
        (folder / MANIFEST).unlink(missing_ok=True)  # from here on it is no snapshot any more
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass  # somebody else has just deleted it
    except OSError as error:
        raise BadRequest(f"{folder} cannot be deleted: {error.strerror or error}.") from None
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def begin(root: Path, name: str) -> Path:
    """A fresh folder to write a snapshot in; what others have given up is removed. Raises :class:`OSError`."""
    home = root / name
    for folder in (root, home):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in home.glob(f".*{PART}"):
        with contextlib.suppress(OSError):
            if time.time() - max(one.stat().st_mtime for one in (old, *old.iterdir())) > STALE:
                shutil.rmtree(old, ignore_errors=True)
    part = home / f".{(numbers(home) or [0])[-1] + 1}-{secrets.token_hex(6)}{PART}"
    part.mkdir(mode=0o700)
    return part


def write_file(folder: Path, name: str, content: Any) -> None:
    """Write one file, to the disk itself. Raises :class:`OSError`."""
    path = folder / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def publish(part: Path, key: bytes, manifest: Manifest, keep: int = 1) -> Path:
    """Write the manifest, give the snapshot its number, and remove all of its name but the newest ``keep``.

    Raises :class:`OSError`.
    """
    write_file(part, MANIFEST, msgspec.json.encode(signed(key, manifest)))
    _settle(part)
    home = part.parent
    number = (numbers(home) or [0])[-1] + 1
    while True:
        place = home / str(number)
        try:
            part.rename(place)  # fails where another world has just taken the number: its folder is not empty
            break
        except OSError:
            if not place.exists():
                raise
            number += 1
    _settle(home)
    for old in [one for one in numbers(home) if one <= number][:-keep]:
        with contextlib.suppress(BadRequest):
            remove(home / str(old))
    return place


def explain_no_room(part: Path, size: int, keep: int) -> tuple[str, str]:
    """What is wrong where ``size`` bytes do not fit beside the snapshots that are there, and what to say before that.

    ``part``: the folder that gets them; ``keep``: how many snapshots of this name stay. Both are empty where there is
    room, or where nobody knows how much.
    """
    try:
        free, there = shutil.disk_usage(part).free, len(numbers(part.parent))
    except OSError:
        return "", ""
    root, fix = part.parent.parent, "--to DIR saves in another folder, and %distributed snapshots delete makes room"
    if free < size:
        return f"{root} has {free / 1e6:,.0f} MB left, and this takes {size / 1e6:,.0f} MB; {fix}", ""
    # Each is written before the oldest goes, so there is one more for a moment.
    more = max(keep - there - 1, 0) + 1
    if free - size + size * (there >= keep) >= more * size:
        return "", ""
    what = "the next one" if more == 1 else f"{keep} of them"
    return "", f"{root} will soon be full: it has no room for {what} ({size / 1e6:,.0f} MB each). {fix}."


def _settle(folder: Path) -> None:
    """Have the system write the names in ``folder`` to the disk itself (fsync)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
