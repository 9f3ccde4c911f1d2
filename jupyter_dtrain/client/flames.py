"""``flame``: where the ranks' time goes, from samples of their stacks, as a picture and as a file for speedscope.

Under failure: a rank without samples is named with the reason, and the others are shown. Where no rank has any,
:func:`take_flame` raises. Where the file cannot be written, the picture is shown all the same, and says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest, TransferFailed
from jupyter_dtrain.core.flames import Sampled, speedscope
from jupyter_dtrain.view.flames import flame_bundle, reasons

from .sampling import sample_ranks

if TYPE_CHECKING:
    from .sampling import Bound

SHORTEST: Final = 0.5
LONGEST: Final = 60.0
OPEN: Final = (
    "All samples are in {}: drop it on https://www.speedscope.app, which keeps it in the browser, or open it with "
    "npx speedscope where there is no network."
)


class Flame:
    """Where the time of ranks went. Shows itself as a flame graph, with a table of the places where they were most."""

    def __init__(self, ranks: Mapping[int, Sampled], seconds: float, path: Path | None, note: str) -> None:
        self.ranks: dict[int, Sampled] = dict(ranks)
        """Each rank's samples; a rank without any has ``words`` that say why."""
        self.seconds = seconds
        """How long the ranks were sampled."""
        self.path = path
        """The file with all samples, one profile for each rank, for speedscope; None where it could not be written."""
        self._note = note

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return flame_bundle(self.ranks, self.seconds, [self._note])

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]


def take_flame(bound: Bound, ranks: list[int], seconds: float, file: str | Path | None, run: int | None) -> Flame:
    """As :meth:`.Session.flame`. ``run``: the number of the newest run, after which the file is called."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not SHORTEST <= seconds <= LONGEST:
        raise BadRequest(f"Ranks can be sampled for {SHORTEST:g} to {LONGEST:g} seconds, not for {seconds!r}.")
    found = sample_ranks(bound, ranks, seconds)
    if not any(one.samples for one in found.values()):
        raise TransferFailed(" ".join(reasons(found)))
    name = "flame" if run is None else f"flame-{run}"
    data = msgspec.json.encode(speedscope(found, name))
    try:
        with _open(name) if file is None else Path(file).expanduser().open("wb") as opened:
            opened.write(data)
        path = Path(opened.name)
    except OSError as error:
        where = file or f"{name}.speedscope.json"
        return Flame(found, seconds, None, f"The file {where} could not be written: {error.strerror}.")
    return Flame(found, seconds, path, OPEN.format(path))


def _open(name: str) -> BinaryIO:
    """A new file in the notebook's folder. An earlier one of the same run stays. Raises ``OSError``."""
    for number in itertools.count(1):
        with_number = name if number == 1 else f"{name}-{number}"
        try:
            return Path(f"{with_number}.speedscope.json").open("xb")
        except FileExistsError:
            continue
    raise AssertionError
