"""Snapshots: variables of all ranks on disk, saved and loaded by runs of their own, and listed by their manifests.

A snapshot lies below ``DTRAIN_SNAPSHOTS``, or else in Jupyter's data folder; with ranks on other hosts that must be a
folder that all of them share. The key that signs it stays in Jupyter's data folder, and goes to ranks with each order,
on the way that values take.

Under failure: a save that fails raises, and the snapshot before it is still there. A load that does not fit raises
before anything has changed. A snapshot that is due after a cell and cannot be saved fails no cell: the session says
why, and tries again when as much time has passed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from jupyter_core.paths import jupyter_data_dir

from jupyter_dtrain.core.causes import DistributedError
from jupyter_dtrain.core.errors import BadRequest, DtrainError, TransferFailed
from jupyter_dtrain.core.run_names import cut_name
from jupyter_dtrain.core.snapshots import (
    ANSWER,
    KEY,
    Snapshot,
    SnapshotAnswer,
    SnapshotOrder,
    check_snapshot_name,
    expanded,
    list_snapshots,
    numbers,
    parse_every,
    parse_reference,
    read_manifest,
    read_snapshot,
    snapshot_key,
    split_every,
    verify,
)
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.wire.values import check_variable

from .rank_names import RankNames
from .variables import CALL

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.core.world import AddressedWorld
    from jupyter_dtrain.wire.requests import WorldRequest

    from .notices import Notices
    from .rank_requests import RankRequests
    from .resuming import Resuming

FOLDER_VARIABLE: Final = "DTRAIN_SNAPSHOTS"
"""Environment variable: the folder of all snapshots."""


def data_folder() -> Path:
    """Our folder in Jupyter's data folder."""
    return Path(jupyter_data_dir()) / "dtrain"


def snapshots_folder() -> Path:
    """The folder of all snapshots."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    return expanded(chosen).absolute() if chosen else data_folder() / "snapshots"


def key() -> bytes:
    """The key of this user."""
    return snapshot_key(data_folder())


def snapshots(folder: str | os.PathLike[str] | None = None) -> list[Snapshot]:
    """Your snapshots, newest first, in ``folder`` (default: where they are saved without ``to``)."""
    root = snapshots_folder() if folder is None else expanded(folder).absolute()
    return list_snapshots(root, snapshot_key(data_folder(), make=False))


def find_snapshot(reference: str) -> Snapshot:
    """The snapshot ``NAME``, ``NAME:NUMBER`` or ``DIR/NAME``. Raises :class:`BadRequest` where there is none."""
    place = parse_reference(reference, snapshots_folder())
    return read_snapshot(place.find(), snapshot_key(data_folder(), make=False))


def snapshot_folders(reference: str) -> list[Path]:
    """The folder of the snapshot with a number, or those of all with a name, also of what cannot be read.

    Raises :class:`BadRequest` where there is none.
    """
    place = parse_reference(reference, snapshots_folder())
    found, home = place.find(), place.root / place.name
    return [found] if place.number is not None else [home / str(number) for number in numbers(home)]


class _Standing(NamedTuple):
    """What ranks save by themselves."""

    names: list[str]
    """The variables."""
    every: str
    """The distance, as a person gave it."""
    root: str
    """The folder of snapshots that gets it."""
    keep: int
    """How many of its name stay."""


class SessionSnapshots:
    """The snapshots of one session: it saves and loads them, and knows which are saved by themselves."""

    def __init__(
        self,
        request: WorldRequest,
        requests: RankRequests,
        notices: Notices,
        world: Callable[[], AddressedWorld],
        run: Callable[..., Run],
        trainings: Resuming,
    ) -> None:
        """``request``: what the world was asked to be; ``world``: the world as it is now.

        ``run`` runs a cell, as :meth:`.Session.run`; ``trainings``: which run has trained what the ranks hold.
        """
        self._trainings = trainings
        self._request = request
        self._requests = requests
        self._notices = notices
        self._world = world
        self._run = run
        self._orders: dict[str, _Standing] = {}
        """The snapshots that ranks save by themselves, by name."""
        self._ordered: set[str] = set()
        """The engines that have these orders."""
        self._saved: dict[str, float] = {}
        """When each of them was placed or was saved between cells last, by ``time.monotonic``."""
        self._ordering = False
        """Whether this session runs a cell for snapshots."""

    def save(
        self, name: str, names: Sequence[str], *, every: str | int | None, to: str | None = None, keep: int = 1
    ) -> SnapshotAnswer:
        """As :meth:`.Session.save`."""
        place = self._place_of(name, names, to, keep)
        if every is None:
            return self._order("run_save", place, self._trained(), f"save {name}")
        steps, seconds = parse_every(every)
        answer = self._order("run_order", place, {"steps": steps, "seconds": seconds}, f"save {name} --every {every}")
        _, names, root, _, _ = place
        self._orders[name], self._saved[name] = _Standing(names, str(every), root, keep), time.monotonic()
        self._ordered = self._engines()
        return answer

    def order(self, name: str, names: Sequence[str], to: str | None, keep: int) -> SnapshotOrder:
        """What :meth:`save` would save, for ranks that do so in the middle of a cell. Raises :class:`BadRequest`."""
        name, names, root, world, keep = self._place_of(name, names, to, keep)
        return SnapshotOrder(name, names, root, key(), world, keep)

    def _trained(self) -> dict[str, Any]:
        """The run that has trained what the ranks hold, for the manifest: of a world of this name, as the number is."""
        held = self._trainings.held
        if held is None or held.world != self._request.name:
            return {}
        return {"run": held.number, "next_step": held.next_step}

    def _place_of(
        self, name: str, names: Sequence[str], to: str | None, keep: int
    ) -> tuple[str, list[str], str, str, int]:
        check_snapshot_name(name)
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise BadRequest(f"keep must be a whole number above 0, not {keep!r}.")
        names = list(dict.fromkeys(names))
        if not names:
            raise BadRequest("Name the variables to save: %distributed save NAME model opt")
        for one in names:
            check_variable(one)
        root = str(snapshots_folder() if to is None else expanded(to).absolute())
        return name, names, root, self._request.name, keep

    def stop_saving(self, name: str) -> list[str]:
        """As :meth:`.Session.stop_saving`."""
        self._orders = {one: order for one, order in self._orders.items() if name not in ("", one)}
        return self._order("run_cancel", (name,), {}, "save --stop").names

    def load(self, name: str, names: Sequence[str], *, trust: bool, ready: bool) -> SnapshotAnswer:
        """As :meth:`.Session.load`."""
        place = parse_reference(name, snapshots_folder())
        for one in names:
            check_variable(one)
        while True:
            folder = place.find()
            manifest = read_manifest(folder)
            if not trust:
                verify(key(), folder, manifest)
            wanted = (str(folder), list(names))
            try:
                answer = self._order("run_load", wanted, {"trust": trust, "ready": ready}, f"load {name}")
            except DistributedError:
                # A save that ended meanwhile may have put a newer one in its place.
                if place.find() == folder:
                    raise
            else:
                if answer.names:
                    self._trainings.loaded(manifest)
                return answer

    def place_orders(self) -> None:
        """Give fresh ranks the standing orders: that of the start, and those of this session."""
        wanted = dict(self._orders)
        if self._request.options.snapshot_every:
            every, names = split_every(self._request.options.snapshot_every)
            standing = _Standing(names, every, str(snapshots_folder()), 1)
            wanted.setdefault(f"auto-{self._request.name}", standing)
        self._place(wanted)

    def renew_orders(self) -> None:
        """Give ranks that a heal or a resize has started since the standing orders, before the next cell of all ranks.

        The others would wait for them between two steps.
        """
        if self._orders and not self._engines() <= self._ordered and not self._world().dead:
            self._place(dict(self._orders))

    def _place(self, orders: Mapping[str, _Standing]) -> None:
        # At once: each of the cells that place them would look for ranks without them.
        self._ordered = self._engines()
        for name, one in orders.items():
            self.save(name, one.names, every=one.every, to=one.root, keep=one.keep)

    def _engines(self) -> set[str]:
        return {rank.engine for rank in self._world().ranks}

    def save_due(self, run: Run) -> None:
        """Save what is due by its time, after ``run`` has ended well on all ranks. Where a step was seen, ranks do."""
        if self._ordering or any(sum(steps.values()) for steps in run.steps.values()):
            return
        for name, standing in list(self._orders.items()):
            _, seconds = parse_every(standing.every)
            now = time.monotonic()
            if not seconds or now < self._saved[name] + seconds:
                continue
            known = RankNames(self._requests, self._world)
            if not all(known.defined_on(one, 0) for one in standing.names):
                continue
            self._saved[name] = now
            try:
                place = (name, standing.names, standing.root, self._request.name, standing.keep)
                self._order("run_save", place, self._trained(), f"save {name}")
            except DtrainError as error:
                self._notices.hear(f"Snapshot {name!r} was not saved after run {run.number}: {error}")
                self._notices.show()

    def _order(self, function: str, values: tuple[Any, ...], options: Mapping[str, Any], label: str) -> SnapshotAnswer:
        code = CALL.format("snapshot_cells", function, values, dict(options))
        inputs = {} if function == "run_cancel" else {KEY: key()}
        self._ordering = True
        try:
            run = self._run(code, view=None, inputs=inputs, metrics=False, name=cut_name(label))
        finally:
            self._ordering = False
        for displays in run.outputs.values():
            for display in displays:
                if ANSWER in display.data:
                    return msgspec.json.decode(str(display.data[ANSWER]), type=readable(SnapshotAnswer))
        raise TransferFailed("The ranks have sent no answer.")
