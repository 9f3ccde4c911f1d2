"""Plans of plays: a situation, a framework, a number of ranks, a victim, and a mode with or without a client."""

from __future__ import annotations

import importlib.util
from typing import Literal, NamedTuple, get_args

from jupyter_dtrain.core.failures import situations
from tests.faults import libraries

Framework = Literal[
    "torch",
    "mpi",
    "lightning",
    "accelerate",
    "transformers",
    "deepspeed",
    "deepspeed-zero3",
    "fsdp2",
    "horovod",
    "horovod-stand-in",
    "jax",
    "tensorflow",
]
Mode = Literal["attended", "alone", "interrupted"]
"""A client watches; or it leaves before the situation comes about and one attaches afterwards; or it interrupts."""

ROWS = {row.name: row for row in situations()}
LIBRARIES: tuple[Framework, ...] = tuple(
    name for name in get_args(Framework) if name in libraries.MEET and importlib.util.find_spec(libraries.NEEDS[name])
)
"""The libraries that are installed."""
DEATHS = ("killed", "segfault", "exit-0", "exit-3", "slot-killed", "watch-killed", "types-torch", "save-killed")
"""Situations in which a rank dies: an interrupt comes at the same time."""
ELASTIC = ("elastic-killed", "elastic-new-killed")
"""Situations of cells with ``--elastic``, which wait for nobody; a client replaces the rank."""
SERVERS = ("worker-killed", "server-killed")
"""Situations of TensorFlow's parameter servers: a world of four ranks with roles of its own."""
SERVERS_SIZE = 4
CHANGES = (
    *("heal-new-killed", "heal-other-killed", "heal-mpiexec-killed", "heal-no-process"),
    *("grow-new-killed", "grow-other-killed", "grow-mpiexec-killed", "grow-no-process"),
    *("shrink-other-killed", "shrink-mpiexec-killed", "drop-other-killed", "drop-mpiexec-killed"),
    "steer-healed",
)
"""Heals and resizes in which something dies, no process can be started (see :mod:`.changes`), or a loop is steered."""
PROFILES = ("profile-raises", "profile-killed", "profile-no-disk", "profile-stopped", "profile-healed")
"""Profiles of a running loop in which something fails; see :mod:`.profile_play`."""
HERE = ("mpiexec-killed", "save-killed", "save-no-disk", *ELASTIC, *CHANGES, *PROFILES)
"""Situations that are another one where the ranks are on hosts, or that need a folder which all ranks share."""
KERNELS = ("kernel-killed", "kernel-restarted", "kernel-shut-down")
"""Situations in which the client, a notebook's kernel, ends."""

PROMPTS = ("prompt-killed", "prompt-peer-failed", "prompt-kernel-killed", "prompt-page-closed")
"""Situations in which a rank of a notebook's cell is at a prompt; see :mod:`.prompt_play`."""
STEERED = ("between-killed", "between-ends-first", "paused-killed", "paused-kernel-killed")
"""Situations in which a person steers the loop of a cell; see :mod:`.steering_play`."""


class Plan(NamedTuple):
    """A situation and the circumstances of its play."""

    situation: str
    framework: Framework
    size: int
    victim: int
    mode: Mode

    def __str__(self) -> str:
        return f"{self.situation}-{self.framework}-{self.size}-rank{self.victim}-{self.mode}"


def frameworks_of(situation: str) -> list[Framework]:
    """The frameworks in which the situation can come about."""
    if situation in PROFILES:
        return ["torch"]
    only = "" if situation in CHANGES else ROWS[situation].framework
    if only == "tensorflow":
        return ["tensorflow"] if importlib.util.find_spec("tensorflow") else []
    if situation in ELASTIC:
        return ["torch"]  # its cell calls no framework
    found: list[Framework] = [name for name in get_args(Framework)[:2] if only in ("", name)]
    return [*found, *LIBRARIES] if situation == "raises" else found


def modes_of(situation: str) -> list[Mode]:
    """The modes that make sense for the situation."""
    # A rank's death at a prompt, or in an act, frees the others at once: an interrupt would find no cell.
    if situation in (*CHANGES, *PROFILES, "prompt-killed", "between-killed"):
        return ["attended"]
    if situation in (*SERVERS, *ELASTIC, *PROMPTS, *STEERED):
        return ["attended", "interrupted"]
    if situation in KERNELS:
        return ["alone", "interrupted"] if situation != "kernel-shut-down" else ["alone"]
    if situation in ("raises-everywhere", "save-no-disk", "steward-killed", "controller-killed"):
        # There is nothing to interrupt.
        return ["attended", "alone"]
    return ["attended", "alone", "interrupted"]


def all_plans(size: int, turn: int = 0) -> list[Plan]:
    """Each situation in each framework, once; with ``turn``, counted from 0, victims and modes change."""
    plans = []
    for index, situation in enumerate([*ROWS, *CHANGES, *PROFILES]):
        if situation in SERVERS and size != SERVERS_SIZE:
            continue
        for framework in frameworks_of(situation):
            modes = modes_of(situation)
            # Six turns take each mode with the first and with the last rank as the victim.
            mode = modes[(turn + index) % len(modes)]
            victim = 0 if ((turn + index) // len(modes) + (framework != "torch")) % 2 else size - 1
            if situation in SERVERS:
                victim = victim_of(situation, turn)
            plans.append(Plan(situation, framework, size, victim, mode))
    return plans


def victim_of(situation: str, turn: int = 0) -> int:
    """The rank that dies, of a chief (rank 0), two workers and a parameter server."""
    return 1 + turn % 2 if situation == "worker-killed" else SERVERS_SIZE - 1


def in_turns(situations: list[str], size: int) -> list[Plan]:
    """Each situation once: framework, victim and mode change from one to the next."""
    plans = []
    for index, situation in enumerate(situations):
        frameworks, modes = frameworks_of(situation), modes_of(situation)
        victim = 0 if index % 4 in (0, 3) else size - 1
        plans.append(Plan(situation, frameworks[index % len(frameworks)], size, victim, modes[index % len(modes)]))
    return plans
