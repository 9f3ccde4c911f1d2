"""The hosts of a world: how a person names them, and how many ranks each gets.

Hosts come from an option (``gpu1:8,gpu2:8``), from a file in Open MPI's format, or from the batch job in which this
process runs. They are told with their slots, the most ranks that each takes, by their names as the person wrote them,
for ssh: an alias of ``~/.ssh/config``, a name or an address, perhaps with ``user@``; IPv6 in brackets. Nothing here
connects to a host.

Under failure: every function raises :class:`~jupyter_dtrain.core.errors.BadRequest`, which names the option, the place
in the text and the fix.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.world import MAX_RANKS, quantity

LARGEST_FILE: Final = 1_000_000
"""Bytes of a hostfile: a larger file is something else."""
SYNTAX: Final = "Write hosts as NAME:RANKS with commas between them, such as gpu1:8,gpu2:8."
FILE_SYNTAX: Final = "Write a host per line, such as `gpu1 slots=8`, `gpu1:8` or `gpu1`."

JOB: Final = "job"
"""The word, in place of a hostfile, for the hosts of the batch job in which this process runs."""

_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ZONE: Final = re.compile(r"[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?")
"""An IPv6 address and its zone, by the characters that they may have."""
_SLOT_KEYS: Final = ("slots", "max_slots", "max-slots")


def hosts_text(hosts: str | Iterable[str] | Mapping[str, int]) -> str:
    """``gpu1:8,gpu2:8`` for hosts as a program may give them: that text, a list, or a dict of host and ranks."""
    items = (f"{name}:{ranks}" for name, ranks in hosts.items()) if isinstance(hosts, Mapping) else hosts
    return hosts if isinstance(hosts, str) else ",".join(map(str, items))


def named_hosts(
    hosts: str | Iterable[str] | Mapping[str, int] | None, hostfile: str | os.PathLike[str] | None
) -> dict[str, int]:
    """The hosts of two options, of which at most one may be given. Raises :class:`BadRequest`."""
    if hosts is not None and hostfile is not None:
        raise BadRequest("Give either hosts or a hostfile, not both.", option="hostfile")
    if hosts is not None:
        return parse_hosts(hosts_text(hosts))
    if hostfile is None:
        return {}
    return job_hosts() if str(hostfile) == JOB else read_hostfile(os.fspath(hostfile))


def parse_hosts(text: str) -> dict[str, int]:
    """The hosts in ``gpu1:8,gpu2:8``; a name alone has one slot. Raises :class:`BadRequest` (option ``hosts``)."""
    found: dict[str, int] = {}
    for item in (part.strip() for part in text.split(",")):
        if not item:
            what = "is empty" if not text.strip() else f"has an empty item in {text!r}"
            raise BadRequest(f"The list of hosts {what}. {SYNTAX}", option="hosts")
        try:
            name, slots = _name_and_slots(item)
        except ValueError as error:
            raise BadRequest(f"{error} {SYNTAX}", option="hosts") from None
        if name in found:
            words = f"The host {name!r} is named twice. Name each host once, with all its ranks: {name}:2."
            raise BadRequest(words, option="hosts")
        found[name] = 1 if slots is None else slots
    return found


def read_hostfile(path: str | Path) -> dict[str, int]:
    """The hosts in a file, in order; of a name that stands alone on a line, each repeat adds a slot, as in Open MPI.

    A line without a number of slots has one slot, not one per core. ``#`` and ``//`` begin comments. Raises
    :class:`BadRequest` (option ``hostfile``), with the number of the line that is wrong.
    """
    found: dict[str, int] = {}
    first: dict[str, int] = {}
    numbered = set()
    for number, line in enumerate(_read(Path(path)).splitlines(), 1):
        words = re.split(r"#|//", line, maxsplit=1)[0].strip()
        if not words:
            continue
        try:
            name, slots = _parse_line(words)
        except ValueError as error:
            raise BadRequest(f"{path}, line {number}: {error} {FILE_SYNTAX}", option="hostfile") from None
        if name in numbered or (slots is not None and name in found):
            raise BadRequest(
                f"{path}, line {number}: the host {name!r} is on line {first[name]} already. Name it once, with all "
                "its slots.",
                option="hostfile",
            )
        first.setdefault(name, number)
        found[name] = found.get(name, 0) + 1 if slots is None else slots
        if slots is not None:
            numbered.add(name)
    if not found:
        raise BadRequest(f"{path} names no host: all its lines are empty or comments. {FILE_SYNTAX}", option="hostfile")
    return found


def job_hosts() -> dict[str, int]:
    """The hosts of the PBS, Grid Engine or LSF job in which this process runs, by the scheduler's own variable.

    Sources: the manuals of qsub (OpenPBS 23, Torque 6; Grid Engine 8.1) and bsub (LSF 10). Raises :class:`BadRequest`
    (option ``hostfile``) outside of a job, and where such a file cannot be read.
    """
    environ = os.environ
    if "PBS_NODEFILE" in environ:  # a line for each slot
        return read_hostfile(environ["PBS_NODEFILE"])
    if "PE_HOSTFILE" in environ:  # host, slots, queue and processors
        lines = [line.split()[:2] for line in _read(Path(environ["PE_HOSTFILE"])).splitlines() if line.strip()]
    elif "LSB_MCPU_HOSTS" in environ:  # hosts and slots in turn
        words = environ["LSB_MCPU_HOSTS"].split()
        lines = [words[place : place + 2] for place in range(0, len(words), 2)]
    else:
        raise BadRequest(
            "This notebook runs in no job of PBS, Grid Engine or LSF: none of PBS_NODEFILE, PE_HOSTFILE and "
            "LSB_MCPU_HOSTS is set. Name the hosts with --hosts, or a file that is called job as ./job.",
            option="hostfile",
        )
    found: dict[str, int] = {}
    try:
        for name, slots in lines:  # Grid Engine names a host once for each of its queues
            found[_name_and_slots(name)[0]] = found.get(name, 0) + _slots(slots, name)
    except ValueError as error:
        raise BadRequest(f"The list of the job's hosts cannot be read: {error}", option="hostfile") from None
    if not found:
        raise BadRequest("The list of the job's hosts cannot be read: it is empty.", option="hostfile")
    return found


def place(hosts: Mapping[str, int], n: int | None = None) -> dict[str, int]:
    """The ranks of each host that has any, of ``n`` in all, which fill the hosts in order. ``n``: default all slots.

    Raises :class:`BadRequest` (option ``n``) for more ranks than slots, fewer than 1, or more than a world may have.
    """
    slots = sum(hosts.values())
    if n is None:
        n = slots
    if n < 1:
        raise BadRequest(f"A world needs at least 1 rank, not {n}.", option="n")
    if n > slots:
        there = "The host has" if len(hosts) == 1 else f"The {len(hosts)} hosts have"
        raise BadRequest(
            f"{there} {quantity(slots, 'slot')}, too few for {quantity(n, 'rank')}. Ask for at most {slots}, or give a "
            "host more slots: NAME:RANKS.",
            option="n",
        )
    if n > MAX_RANKS:
        raise BadRequest(f"A world has at most {MAX_RANKS} ranks, not {n}. Ask for fewer with -n.", option="n")
    return fill(hosts, n)


def fill(slots: Mapping[str, int], size: int) -> dict[str, int]:
    """The ranks of each host that has any: ``size`` ranks fill them in order, each up to its ``slots``."""
    left, found = size, {}
    for host, number in slots.items():
        if left > 0:
            found[host] = min(number, left)
            left -= number
    return found


def _read(path: Path) -> str:
    """The text of a hostfile."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            # Reading a pipe could wait for ever.
            raise BadRequest(f"{path} is no file. Name a hostfile.", option="hostfile")
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        words = f"The hostfile {path} cannot be read: {error.strerror}. Check its path and its permissions."
        raise BadRequest(words, option="hostfile") from None
    if len(data) > LARGEST_FILE:
        raise BadRequest(f"{path} is larger than a hostfile can be. {FILE_SYNTAX}", option="hostfile")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadRequest(f"{path}, line {line}: this is no text. {FILE_SYNTAX}", option="hostfile") from None


def _parse_line(words: str) -> tuple[str, int | None]:
    """The name and the slots of a line; None where it gives no number. Raises ``ValueError``."""
    name, *fields = re.sub(r"\s*=\s*", "=", words).split()
    name, slots = _name_and_slots(name)
    values: dict[str, int] = {}
    for field in fields:
        key, equals, value = field.partition("=")
        if not equals or key not in _SLOT_KEYS:
            raise ValueError(f"{field!r} is not known here; only slots= and max_slots= are.")
        values[key.replace("-", "_")] = _slots(value, field)
    if slots is not None and "slots" in values:
        raise ValueError(f"{words!r} gives the number of slots twice.")
    slots = values.get("slots", slots)
    most = values.get("max_slots")
    if most is not None and most < (slots or 1):
        raise ValueError(f"{words!r} has max_slots below its slots.")
    return name, slots


def _name_and_slots(item: str) -> tuple[str, int | None]:
    """``user@gpu1:8`` as a name and a number, None without one. Raises ``ValueError``."""
    if item.startswith("-"):
        # ssh would read it as an option, and some of its options run programs.
        raise ValueError(f"{item!r} begins with '-', so it names no host.")
    at = item.rfind("@")
    user, rest = item[: max(at, 0)], item[at + 1 :]
    if at >= 0 and not _USER.fullmatch(user):
        raise ValueError(f"{item!r} has no user name before its '@'.")
    address, bracket, tail = rest.partition("]")
    if bracket and address.startswith("[") and tail[:1] in ("", ":"):
        try:
            ipaddress.IPv6Address(address[1:] if _ZONE.fullmatch(address[1:]) else "")
        except ValueError:
            raise ValueError(f"{rest!r} has no IPv6 address in its brackets.") from None
        name, colon, number = address + bracket, tail[:1], tail[1:]
    else:
        if rest.count(":") > 1:
            raise ValueError(f"{item!r} has several colons. An IPv6 address stands in brackets: [fd00::1]:8.")
        name, colon, number = rest.partition(":")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{item!r} does not begin with the name of a host.")
    return (f"{user}@{name}" if user else name), (_slots(number, item) if colon else None)


def _slots(number: str, where: str) -> int:
    """A number of slots. Raises ``ValueError``."""
    if not number.isascii() or not number.isdecimal():
        raise ValueError(f"{where!r} has {number!r} where a number of ranks should be.")
    if not 1 <= int(number[:9]) <= MAX_RANKS:
        raise ValueError(f"{where!r} must give a host from 1 to {MAX_RANKS} ranks; leave out a host that gets none.")
    return int(number)
