"""The picture and the table of a flame graph."""

from __future__ import annotations

import itertools
import random
import re
from xml.etree import ElementTree as ET

import pytest

from jupyter_dtrain.core.events import Frame
from jupyter_dtrain.core.flames import Sampled, SampledStacks
from jupyter_dtrain.view.flames import MOST_BOXES, SVG_BYTES, flame_bundle, flame_svg

SVG = "{http://www.w3.org/2000/svg}"
LINE = Frame("cell [3]", 12, "", "for batch in <loader> & more:", cell=True)
OTHER = Frame("cell [3]", 14, "", "loss.backward()", cell=True)


def rank(seed: int, slow: float = 0.3, variety: int = 3) -> Sampled:
    """A rank that is at one line for a part of its time, and else below another, in ``variety`` functions."""
    chance, made = random.Random(seed), SampledStacks()  # noqa: S311 — no secret
    for _ in range(500):
        below = [
            Frame(f"lib{chance.randrange(9)}.py", 1, f"function_{chance.randrange(variety)}", "", cell=False)
            for _ in range(chance.randrange(1, 60))
        ]
        made.add([LINE] if chance.random() < slow else [OTHER, *below])
    return made.collect()


def read(svg: str) -> ET.Element:
    """The picture, parsed."""
    return ET.fromstring(svg)  # noqa: S314 — our own


def boxes(svg: str) -> list[tuple[float, float, float, str]]:
    """Left end, top, width and tooltip of each box."""
    found = []
    for group in read(svg).iter(f"{SVG}g"):
        box, title = group.find(f"{SVG}rect"), group.find(f"{SVG}title")
        if box is not None and title is not None:
            x, y, width = (float(box.get(name)) for name in ("x", "y", "width"))
            found.append((x, y, width, title.text))
    return found


@pytest.mark.parametrize("variety", [3, 1000])
@pytest.mark.parametrize("count", [1, 2, 64])
def test_a_picture_is_small_whatever_is_in_it(count, variety):
    svg = flame_svg({one: rank(one, variety=variety) for one in range(count)})
    found = boxes(svg)

    assert 3 < len(found) <= MOST_BOXES
    assert len(svg.encode()) <= SVG_BYTES
    assert all(0 <= x and 0 < width and x + width <= 1000 for x, _, width, _ in found)


def test_boxes_do_not_overlap():
    rows: dict[float, list[tuple[float, float]]] = {}
    for x, y, width, _ in boxes(flame_svg({0: rank(0)})):
        rows.setdefault(y, []).append((x, x + width))

    for row in rows.values():
        row.sort()
        assert all(end <= begin + 0.11 for (_, end), (begin, _) in itertools.pairwise(row))


def test_all_text_lies_in_a_box():
    """Its colour is that of a text on a light ground, whatever the page has."""
    svg = read(flame_svg({0: rank(0)}))
    groups = [group for group in svg.iter(f"{SVG}g") if group.find(f"{SVG}rect") is not None]
    inside = [text for group in groups for text in group.iter(f"{SVG}text")]

    assert inside
    assert len(inside) == len(list(svg.iter(f"{SVG}text")))


def test_slow_ranks_have_a_graph_of_their_own():
    titles = [title for *_, title in boxes(flame_svg({one: rank(one, 0.9 if one == 3 else 0.2) for one in range(8)}))]

    assert "ranks 0-2,4-7: mean, 500 samples each" in titles
    assert "rank 3: 500 samples" in titles
    assert "cell [3], line 12: for batch in <loader> & more:" in titles[titles.index("rank 3: 500 samples") + 1]


def test_a_table_has_a_column_for_each_of_few_ranks():
    made = SampledStacks()
    made.add([LINE], 199)
    made.add([OTHER], 1)
    made.add([])
    bundle = flame_bundle(
        {0: made.collect(), 1: made.collect("it died meanwhile"), 2: Sampled(words="dead")}, 2, ["End."]
    )

    assert bundle["text/plain"].splitlines() == [
        "Where ranks 0-1 spent 2 s, in % of the time (main thread, 100 samples a second)",
        "line                                              in  rank 0  rank 1",
        "cell [3], line 12: for batch in <loader> & more:          99      99",
        "Rank 1: the samples end early, as it died meanwhile.",
        "Rank 2: no samples: dead.",
        "End.",
    ]
    assert "&lt;loader&gt; &amp; more" in bundle["text/html"]
    assert "<loader>" not in bundle["text/html"]


def test_a_table_of_many_ranks_has_the_mean_and_both_ends():
    lines = flame_bundle({one: rank(one, 0.9 if one == 33 else 0.1) for one in range(64)}, 5, [])[
        "text/plain"
    ].splitlines()

    assert re.split(r"\s{2,}", lines[1]) == ["line", "in", "mean", "least", "on rank", "most", "on rank"]
    assert lines[2].startswith("cell [3], line 12")
    assert lines[2].split()[-1] == "33"
