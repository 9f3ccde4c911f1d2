"""A job as its targets see it, and what a target makes of it. Plain data."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jupyter_dtrain.core.declarations import ScriptSupport, declarations
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.world import quantity

from .dependencies import Packages
from .notebook import JobWorld


class Job(NamedTuple):
    """One job."""

    name: str
    """The name of the script, without its ending."""
    path: Path
    """The file that the person named: the script, or what launches it."""
    script: str
    """The text of the script."""
    codes: list[str]
    """The Python code of the job's cells, in order."""
    world: JobWorld
    packages: Packages
    settings: dict[str, str]
    """The target's settings, each with its value."""

    @property
    def script_name(self) -> str:
        """The file of the script, beside the one that launches it."""
        return f"{self.name}.py"

    @property
    def label(self) -> str:
        """The name as Kubernetes and others want it: small letters, digits and dashes."""
        words = "".join(one if one.isascii() and one.isalnum() else "-" for one in self.name.lower())
        return words.strip("-")[:50].strip("-") or "job"

    @property
    def family(self) -> str:
        """Whose way the ranks find each other, by the first framework that knows the cells' imports."""
        found = supports(self.packages.roots)
        return found[0].family if found else "mpi"

    @property
    def command(self) -> str:
        """The file that launches it, as a word of a shell."""
        return shlex.quote(str(self.path if self.path.is_absolute() or self.path.parent.name else f"./{self.path}"))


class Made(NamedTuple):
    """The files of a job beside its script."""

    texts: dict[str, str]
    """By name, in the folder of :attr:`Job.path`. Files that begin with ``#!`` are programs."""
    command: str
    """The line that starts the job."""
    notes: tuple[str, ...] = ()
    """Things that a person must know or do."""


def supports(roots: AbstractSet[str]) -> list[ScriptSupport]:
    """The declarations of the frameworks that scripts with these imports use; with a set-up first."""
    declared = [one.scripts for one in declarations() if one.scripts is not None]
    found = [one for one in declared if not roots.isdisjoint(one.modules)]
    return sorted(found, key=lambda one: (not one.set_up, not one.end))


class Setting(msgspec.Struct, frozen=True):
    """Something about a place that no notebook knows, such as the name of a cluster."""

    name: str
    default: str
    help: str
    asked: str = ""
    """The start option that gives its default, where the world was started with it."""
    formerly: str = ""
    """The name that it had in the release before."""

    @property
    def flag(self) -> str:
        """Its option in a line, such as ``--cpus-per-task``."""
        return f"--{self.name.replace('_', '-')}"


class Target(msgspec.Struct, frozen=True):
    """One place that a job can go to."""

    name: str
    help: str
    suffix: str
    """How the name of its file ends, after that of the job."""
    make: Callable[[Job], Made]
    settings: tuple[Setting, ...] = ()
    package: str = ""
    """The package that its files import."""

    def settings_of(self, given: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
        """All settings, with those that are ``given``. Raises :class:`BadRequest` for one that it does not have.

        ``asked``: the start options of the world, of which some are defaults.
        """
        known = {one.name: asked.get(one.asked, one.default) for one in self.settings}
        former = {one.formerly: one.name for one in self.settings if one.formerly}
        given = {former.get(name, name): value for name, value in given.items()}
        for name in given:
            if name not in known:
                has = f"It has {', '.join(known)}." if known else "It has none."
                raise BadRequest(f"The target {self.name} has no setting {name!r}. {has}")
        return {**known, **given}


GPUS_OF_NODE: Final = Setting(
    "gpus_per_node",
    "",
    "GPUs of each node, such as 8 or a100:8; 0 for none (default: those of its ranks, or one for each rank if the code "
    "names CUDA)",
)


def gpus_of_node(job: Job) -> tuple[str, list[str]]:
    """The GPUs that a node needs where the setting names none, and a sentence about them: those of the world's ranks.

    Ranks without GPUs may run code that takes one where there is one, as a notebook on a laptop does. "0": none.
    """
    world = job.world
    if world.gpus_per_node:
        return str(world.gpus_per_node), []
    if any(_names_cuda(ast.parse(code)) for code in job.codes):
        why = f"The code names CUDA, so the job asks for {quantity(world.per_node, 'GPU')} on each node"
        return str(world.per_node), [f"{why}, one for each rank; --gpus-per-node 0 asks for none."]
    if job.family != "mpi":
        return "0", ["The job asks for no GPUs, as the code does not name CUDA; --gpus-per-node 8 asks for 8."]
    return "0", []


def _names_cuda(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if text == "cuda" or text.startswith("cuda:"):
                return True
            case ast.Attribute(attr="cuda" | "accelerator") | ast.keyword(arg="accelerator", value=ast.Constant("gpu")):
                return True
    return False


def number(job: Job, setting: str) -> int:
    """A setting that is a whole number above 0. Raises :class:`BadRequest`."""
    value = job.settings[setting]
    if not value.isdecimal() or not int(value):
        raise BadRequest(f"The setting {setting} must be a whole number above 0, not {value!r}.")
    return int(value)


def choice(job: Job, setting: str, choices: tuple[str, ...], otherwise: str) -> str:
    """A setting that is one of ``choices``, or else ``otherwise``. Raises :class:`BadRequest`."""
    value = job.settings[setting] or otherwise
    if value not in choices:
        raise BadRequest(f"The setting {setting} must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}.")
    return value
