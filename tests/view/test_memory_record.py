"""The sentences, the tables and the picture of recorded memory: devices, many ranks, and what has no line."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import msgspec
import pytest

from jupyter_dtrain.core.events import Frame
from jupyter_dtrain.core.memory_record import POINTS, Growth, KindsSeen, MemoryCourse, Place, RecordedMemory
from jupyter_dtrain.core.world import Rank, World
from jupyter_dtrain.view.memory_record import PANELS, RANKS, record_bundle

SVG = "{http://www.w3.org/2000/svg}"
FORWARD = Frame("cell [5]", 9, "", "y = model(<x> & more)", cell=True)
BACKWARD = Frame("cell [5]", 12, "", "loss.backward()", cell=True)
BOTH = Place(FORWARD, BACKWARD)
MEGA = 1_000_000
KINDS = [
    KindsSeen(0.05, {"parameter": 40 * MEGA}, {}),
    KindsSeen(2.0, {"parameter": 40 * MEGA, "optimizer state": 80 * MEGA}, {"value": 5 * MEGA}),
]


def world(size: int) -> World:
    """A world of so many ranks, all alive."""
    return World("world", "an-id", [Rank(rank, 0, "here", rank, "cpu", 100 + rank) for rank in range(size)])


def course(peak: int, place: Place, device: str = "cpu", begin: int = 300, points: int = 20) -> MemoryCourse:
    """A course with its peak in the middle; sizes in MB."""
    sizes = [begin * MEGA + (peak - begin) * MEGA * min(at, points - at) * 2 // points for at in range(points)]
    reserved = [] if device == "cpu" else [size + MEGA for size in sizes]
    grown = [Growth(place, (peak - begin) * MEGA, peak * MEGA)] if peak > begin + 1 else []
    return MemoryCourse(device, begin * MEGA, sizes[-1], peak * MEGA, 2.5, place, grown, sizes, reserved)


def recorded(*courses: MemoryCourse, points: int = 20, **changes) -> RecordedMemory:
    """The record of a rank over 5 s."""
    made = RecordedMemory(7, 5.0, True, 500, [at * 5 / points for at in range(points)], list(courses), KINDS, False)
    return msgspec.structs.replace(made, **changes)


def shown(found, last=None):
    """The text as lines, and the picture."""
    bundle = record_bundle(world(len(found)), 7, found, last or {})
    html = bundle["text/html"]
    picture = html[html.index("<svg") : html.index("</svg>") + 6]
    return bundle["text/plain"].splitlines(), ET.fromstring(picture)  # noqa: S314 — our own


def test_the_highest_peak_has_a_sentence_with_its_line():
    """And one with what names held then, which were looked at before."""
    lines, _ = shown({0: recorded(course(500, Place(BACKWARD, BACKWARD))), 1: recorded(course(900, BOTH))})

    assert lines[0] == (
        "The resident memory of rank 1 was highest at 900 MB (600 MB more than when the cell began), after 2.5 s, "
        "between cell [5], line 9: y = model(<x> & more) and cell [5], line 12: loss.backward()."
    )
    assert lines[1].endswith(": 40 MB of parameters, 80 MB of optimizer state.")
    assert lines[3] == "Resident memory over run 7, 5 s"
    assert lines[4].split() == [
        "rank",
        "at",
        "first",
        "peak",
        "at",
        "last",
        "peak",
        "after",
        "where",
        "the",
        "cell",
        "was",
    ]
    assert lines[5].endswith("2.50 s      cell [5], line 12: loss.backward()")
    assert lines[-1].startswith("Between two lines: ")


def test_a_line_on_several_ranks_has_one_row():
    """With the most of them."""
    place = Place(BACKWARD, BACKWARD)
    lines, _ = shown(
        {0: recorded(course(500, place)), 1: recorded(course(700, place)), 2: recorded(course(300, Place()))}
    )
    row = lines[-1].split()

    assert lines[-2].split()[:2] == ["rise", "highest"]
    assert row[:4] == ["400", "MB", "700", "MB"]
    assert row[-1] == "0-1"
    assert "in" not in lines[7].split("MB")[-1]


def test_a_gpu_comes_first_and_has_what_is_reserved():
    """Its categories are its own."""
    cuda = course(600, Place(BACKWARD, BACKWARD), "cuda:0", 0)
    lines, picture = shown({0: recorded(course(320, BOTH), cuda)})
    words = [text.text for text in picture.iter(f"{SVG}text")]
    (legend,) = [line for line in picture.iter(f"{SVG}line") if line.get("stroke-dasharray")]

    assert lines[0].startswith("The GPU memory of rank 0 was highest at 600 MB (600 MB more than when")
    assert lines[1].endswith("looked at: 5 MB of other values.")
    assert lines[2].startswith("The resident memory of rank 0 was highest at 320 MB")
    assert "reserved" in lines[6]
    assert lines[8].split()[1] == "cuda:0"
    assert "601 MB" in lines[8]
    assert legend is not None
    assert [word for word in words if word.startswith("Rank 0, cuda:0: 600 MB in cell [5], line 12: loss.ba")]
    assert {"parameters", "optimizer state", "other values", "reserved by the framework"} <= {*words}


@pytest.mark.parametrize("count", [1, 3, 64, 500])
def test_a_picture_is_small_and_stays_within_its_frame(count):
    """However many ranks and points there are."""
    ranks = {rank: recorded(course(400 + rank, BOTH, points=POINTS), points=POINTS) for rank in range(count)}
    lines, picture = shown(ranks)
    _, _, width, height = (float(number) for number in picture.get("viewBox").split())
    corners = [point.split(",") for shape in picture.iter(f"{SVG}polygon") for point in shape.get("points").split()]

    assert len(ET.tostring(picture)) < 120_000
    assert len(list(picture.iter(f"{SVG}polyline"))) == min(count, PANELS)
    assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in corners)
    assert len(lines) < RANKS + 30
    if count > RANKS:
        assert f"The first table has the lowest {RANKS} of {count} ranks; -r chooses others." in lines
    if count > PANELS:
        assert f"The picture has the {PANELS} highest of {count} courses; -r chooses ranks." in lines


def test_memory_that_hardly_rises_is_no_peak_of_a_line():
    """As in a cell that does nothing."""
    lines, picture = shown({0: recorded(course(300, Place()))})

    assert lines[0] == "The resident memory of rank 0 was highest at 300 MB, and hardly rose in this cell."
    assert not list(picture.iter(f"{SVG}circle"))
    assert not [line for line in lines if "Where memory rose" in line]


def test_ranks_without_a_record_are_named():
    """A dead one with its last sample."""
    found = {0: recorded(course(500, BOTH), over=False, cut=True), 1: None, 2: None}
    dead = msgspec.structs.replace(world(3).ranks[1], state="dead")
    here = msgspec.structs.replace(world(3), ranks=[world(3).ranks[0], dead, world(3).ranks[2]])
    lines = record_bundle(here, 7, found, {1: 3_200 * MEGA})["text/plain"].splitlines()

    assert "Rank 0: the cell goes on; this is its memory so far." in lines
    assert "Rank 0: too many objects to look at all names." in lines
    assert lines[-2].endswith(
        "record with it. When it was last heard of in this run, it had 3.2 GB of resident memory."
    )
    assert lines[-1] == "Rank 2: no record of run 7, or no answer."


def test_a_cell_too_short_for_a_look_is_shown():
    """It has one point, and no line."""
    place = Place(None, None)
    lines, picture = shown({0: recorded(course(500, place, points=1), points=1, times=[0.0], seconds=0.004)})

    assert lines[0].endswith("after 2.5 s, between the beginning and the end.")
    assert "the beginning … the end" in lines[-1]
    assert len(list(picture.iter(f"{SVG}polyline"))) == 1
