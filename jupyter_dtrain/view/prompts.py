"""What a run waits for while its ranks ask a person, in one sentence, which every place shows.

A pure function: it fails on nothing that ranks may have sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyter_dtrain.core.world import count_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jupyter_dtrain.core.events import PromptOpened, Sample

STILL: Final = 1.5
"""Seconds without a move after which a rank beside a prompt counts as waiting for it; ranks tell once a second."""
_PLACE: Final = 200
"""Characters of the place that asks."""


def prompt_words(
    prompts: Mapping[int, PromptOpened], samples: Mapping[int, Sample], unfinished: Iterable[int] = ()
) -> str:
    """Which ranks are at a prompt, and which wait for that; empty where none asks.

    ``Rank 1 is at a prompt (cell [3], line 12 in train); ranks 0,2-3 wait for it.`` Both mappings are by rank;
    ``unfinished``: the ranks that have not ended the run.
    """
    if not prompts:
        return ""
    ranks, places = sorted(prompts), {one.place for one in prompts.values()}
    where = places.pop() if len(places) == 1 else ""
    waiting = sorted(rank for rank in unfinished if rank not in prompts and _stands_still(samples.get(rank)))
    named = count_ranks(ranks)
    words = f"{named[:1].upper()}{named[1:]} {'is' if len(ranks) == 1 else 'are'} at a prompt"
    words += f" ({where[:_PLACE]})" if where else ""
    return words + (f"; {count_ranks(waiting)} wait{'s' if len(waiting) == 1 else ''} for it." if waiting else ".")


def _stands_still(sample: Sample | None) -> bool:
    return sample is not None and sample.still >= STILL
