"""Cells that a client refuses before it sends them, because of what it knows of the world.

Under failure: nothing here waits or asks. News that has not come yet refuses nothing; the ranks refuse such a cell
themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jupyter_dtrain.core.errors import RanksBusy, RanksDead

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import World
    from jupyter_dtrain.wire.steward_messages import WorldNews


def check_still(news: WorldNews | None) -> None:
    """Raise :class:`RanksBusy` while a heal or a resize goes on: the world would change under a cell."""
    if news is not None and news.changing:
        raise RanksBusy(f"{news.changing}: run the cell when this has ended.")


def check_living(world: World, ranks: Sequence[int]) -> None:
    """Raise :class:`RanksDead`, with the ways on, when one of ``ranks`` is dead."""
    dead = [rank for rank in world.dead if rank.rank in ranks]
    if not dead:
        return
    living = [rank.rank for rank in world.ranks if rank.state != "dead"]
    words = "; ".join(rank.words for rank in dead)
    cure = "%distributed restart starts fresh ranks"
    if living:
        run_on = f"-r {','.join(map(str, living))} runs the cell on the others"
        cure = f"%distributed heal replaces what is dead, {cure}, and {run_on}"
    raise RanksDead(f"{words[0].upper()}{words[1:]}. {cure}.")
