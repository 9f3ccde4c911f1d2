"""What a loop logs beside numbers: copied at once within bounds, encoded on a thread, and recorded with its step."""

from __future__ import annotations

import base64
import io
import sys
import threading
import wave

import msgspec
import pytest

from jupyter_dtrain import Audio, Histogram, Image, Table, Text
from jupyter_dtrain.core.contents import PartSummary
from jupyter_dtrain.core.media import KEPT, LARGEST, LONGEST, TOGETHER
from jupyter_dtrain.rank import media
from jupyter_dtrain.rank.contents import ArrayPart
from jupyter_dtrain.rank.media import FIGURE, MediaLog
from jupyter_dtrain.rank.media_copies import CHARACTERS, ROWS, SAMPLE
from tests.steward.until import until

np = pytest.importorskip("numpy")
PATIENCE = 60.0


class Said:
    """A log of media, what it has recorded, and its lines."""

    def __init__(self, parts_of=lambda _: None) -> None:
        self.bodies = []
        self.kinds: set[str] = set()
        self.lines: list[str] = []
        self.log = MediaLog(self.bodies.append, self._complain, parts_of)
        self.log.begin()

    def _complain(self, words: str, kind: str) -> None:
        if kind not in self.kinds:
            self.kinds.add(kind)
            self.lines.append(words)

    def kept(self, name: str):
        return [body for body in self.bodies if body.name == name and body.data]

    def logged(self, name: str) -> int:
        return sum(body.left_out + bool(body.data) for body in self.bodies if body.name == name)

    def one(self, value):
        """The single thing that ``value`` comes to."""
        assert self.log.log("it", value, 7)
        assert self.log.end(PATIENCE)
        self.log.begin()
        (found,) = self.kept("it")
        self.bodies.clear()
        assert found.step == 7
        return found


@pytest.fixture
def said():
    return Said()


def pixels(body):
    """The pixels of a PNG, by Pillow."""
    return np.asarray(pytest.importorskip("PIL.Image").open(io.BytesIO(body.data)))


SQUARE = np.arange(30, dtype=np.uint8).reshape(5, 6)
COLOURED = np.arange(90, dtype=np.uint8).reshape(5, 6, 3)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (SQUARE, SQUARE),
        (SQUARE[:, :, None], SQUARE),
        (COLOURED, COLOURED),
        (COLOURED.transpose(2, 0, 1), COLOURED),
        (COLOURED[:, :, [0, 1, 2, 0]], COLOURED[:, :, [0, 1, 2, 0]]),
        (COLOURED.astype("float32") / 255, COLOURED),
        (COLOURED.astype("int64"), COLOURED),
        (SQUARE > 5, np.where(SQUARE > 5, 255, 0)),
        (COLOURED[None], COLOURED),
        (Image(COLOURED), COLOURED),
    ],
)
@pytest.mark.parametrize("with_pillow", [True, False])
def test_arrays_of_pictures_become_pngs(said, value, wanted, with_pillow, monkeypatch):
    """In each order of the axes and each type of number; with Pillow, and with nothing but zlib."""
    if not with_pillow:
        monkeypatch.setitem(sys.modules, "PIL", None)
    found = said.one(value)
    monkeypatch.undo()

    assert (found.kind, found.mime, found.note) == ("image", "image/png", "")
    assert np.array_equal(pixels(found), wanted)


@pytest.mark.parametrize("with_pillow", [True, False])
def test_large_pictures_are_reduced_and_a_note_says_so(said, with_pillow, monkeypatch):
    """Also more than was asked for, until they have fewer bytes than one thing may have."""
    if not with_pillow:
        monkeypatch.setitem(sys.modules, "PIL", None)
    wide = said.one(np.zeros((300, 3000)))
    asked = said.one(Image(np.zeros((1000, 1000)), longest=1000))
    noise = said.one(Image(np.random.default_rng(0).integers(0, 255, (1500, 1500, 3), dtype=np.uint8), longest=1500))
    monkeypatch.undo()

    assert max(pixels(wide).shape) <= LONGEST
    assert wide.note == "reduced from 3000 x 300 pixels"
    assert (pixels(asked).shape, asked.note) == ((1000, 1000), "")
    assert len(noise.data) <= LARGEST
    assert noise.note == "reduced from 1500 x 1500 pixels"


def test_brightness_that_had_to_be_scaled_is_noted(said):
    """So are values that are not finite."""
    found = said.one(np.array([[-1.0, 0.0], [1.0, np.nan]]))

    assert pixels(found).tolist() == [[0, 128], [255, 0]]
    assert found.note == "brightness scaled from -1 … 1; 1 values that are not finite are black"


def test_pillows_images_keep_their_colours(said):
    """Whatever their mode is."""
    made = pytest.importorskip("PIL.Image").new("RGB", (4, 3), (1, 2, 3))
    for mode in ("RGB", "P", "CMYK", "RGBA", "L"):
        assert pixels(said.one(made.convert(mode))).shape[:2] == (3, 4)
    assert pixels(said.one(made))[0, 0].tolist() == [1, 2, 3]


def test_several_things_of_one_step_are_counted(said):
    """From a list, or from an array with one axis more; at most some, with a line."""
    said.log.log("list", [Image(SQUARE, "a"), Image(SQUARE, "b"), SQUARE], 1)
    said.log.log("batch", np.zeros((TOGETHER + 6, 1, 5, 5)), 2)
    said.log.log("grey", np.zeros((5, 28, 28)), 3)
    said.log.end(PATIENCE)

    assert [(one.number, one.caption) for one in said.kept("list")] == [(0, "a"), (1, "b"), (2, "")]
    assert [one.number for one in said.kept("batch")] == list(range(TOGETHER))
    assert len(said.kept("grey")) == 5
    assert said.logged("batch") == TOGETHER + 6
    assert said.lines == [f"log(): of 'batch', {TOGETHER} of {TOGETHER + 6} are kept"]


def test_a_copy_is_of_the_values_at_the_call(said):
    """The loop goes on and changes them."""
    mine, many = np.zeros((3, 3), dtype=np.uint8), np.zeros(9)
    said.log.log("picture", mine, 0)
    said.log.log("values", Histogram(many), 0)
    mine[:], many[:] = 255, 1
    said.log.end(PATIENCE)

    assert pixels(said.kept("picture")[0]).max() == 0
    assert msgspec.json.decode(said.kept("values")[0].data)["highest"] == 0


def test_histograms(said):
    """Of arrays of any shape and of lists; values that are not finite are counted beside it."""
    told = msgspec.json.decode(said.one(Histogram(np.array([[0.0, 1.0], [1.0, np.inf]]), bins=2)).data)
    of_list = msgspec.json.decode(said.one(Histogram([1, 2, 3])).data)

    assert (told["counts"], told["edges"], told["total"], told["not_finite"]) == ([1, 2], [0.0, 0.5, 1.0], 4, 1)
    assert (told["lowest"], told["highest"]) == (0, 1)
    assert (of_list["mean"], len(of_list["counts"])) == (2, 64)


def test_a_histogram_of_very_many_values_is_that_of_a_sample(said):
    """Of 10^8, the copy and what is encoded are those of a million."""
    many = np.zeros(10**8, dtype=np.int8)
    many[5 * 10**7 :] = 1
    found = said.one(Histogram(many))
    told = msgspec.json.decode(found.data)

    assert found.note == "a sample of 1,000,000 of 100,000,000 values"
    assert (told["total"], told["mean"]) == (SAMPLE, 0.5)
    assert len(found.data) < 10_000


def test_text_and_tables_are_cut_with_a_note(said):
    """HTML is text like any other."""
    html = said.one("<script>alert(1)</script> ä")
    long = said.one(Text("x" * 10_000_000, caption="all"))
    rows = said.one([{"a": row, "b": "y" * 1000} for row in range(10**5)])

    assert (html.kind, html.mime, html.data.decode()) == ("text", "text/plain", "<script>alert(1)</script> ä")
    assert (len(long.data), long.caption) == (CHARACTERS, "all")
    assert long.note == "the first 100,000 of 10,000,000 characters"
    assert len(rows.data) <= LARGEST
    kept = msgspec.json.decode(rows.data)
    assert (kept["columns"], kept["total"], kept["rows"][1]) == (["a", "b"], 10**5, [1, "y" * 500 + "…"])
    assert rows.note == f"the first {len(kept['rows']):,} of 100,000 rows"


def test_secrets_are_left_out_of_text_and_tables(said, monkeypatch):
    """Those of the environment, and those of a known form; what only has the name of one is data."""
    secret, key = "zebra-lamp-of-the-environment", "sk-0123456789abcdefghij"
    monkeypatch.setenv("MY_API_KEY", secret)
    text = said.one(Text(f"token: cat, {secret}", caption=key))
    rows = said.one([{"token": "cat", "b": f"it is {key}", "c": 1}])

    assert (text.data.decode(), text.caption) == ("token: cat, [redacted]", "[redacted]")
    assert msgspec.json.decode(rows.data)["rows"] == [["cat", "it is [redacted]", 1]]


@pytest.mark.parametrize(
    "value",
    [
        [{"a": 1, "b": None}, {"a": float("inf"), "b": "x"}],
        Table({"a": [1, float("inf")], "b": [None, "x"]}),
        Table([[1, None], (float("inf"), "x")], ["a", "b"]),
    ],
)
def test_tables_of_each_form(said, value):
    """JSON has no infinity: it comes as text."""
    told = msgspec.json.decode(said.one(value).data)

    assert told == {"columns": ["a", "b"], "rows": [[1, None], ["inf", "x"]], "total": 2}


def test_data_frames_of_a_million_rows(said):
    """Only the first ones are looked at."""
    pandas = pytest.importorskip("pandas")
    found = said.one(pandas.DataFrame({"x": range(10**6), "y": "z"}))

    assert len(msgspec.json.decode(found.data)["rows"]) == ROWS
    assert found.note == "the first 5,000 of 1,000,000 rows"


def test_sound(said):
    """Of one channel or several, in either order, cut where it is long."""
    with wave.open(io.BytesIO(said.one(Audio(np.array([0.0, 1.0, -1.0]), 8000)).data)) as read:
        assert np.frombuffer(read.readframes(3), "<i2").tolist() == [0, 32767, -32767]
        assert (read.getframerate(), read.getnchannels()) == (8000, 1)
    for shape in ((50, 2), (2, 50)):
        with wave.open(io.BytesIO(said.one(Audio(np.zeros(shape), 8000)).data)) as read:
            assert (read.getnchannels(), read.getnframes()) == (2, 50)
    long = said.one(Audio(np.full(10**7, 3.0), 44100))

    assert len(long.data) < LARGEST + 100
    assert long.note == "the first 11.9 of 226.8 s; scaled down by 3"


def test_figures_are_drawn_at_once(said):
    """The user closes them, or draws on. Axes and the module itself stand for a figure."""
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots()
    for value in (figure, axes, plt):
        found = said.one(value)
        assert (found.kind, pixels(found).ndim) == ("figure", 3)
    plt.close(figure)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((2, 2, 2, 2, 2)), "an array of the shape (2, 2, 2, 2, 2) is no picture: a picture has the shape"),
        (np.zeros((5, 1)), "an array of the shape (5, 1) is no picture"),
        (np.zeros((0, 3)), "an array of the shape (0, 3) has no values"),
        (np.array([[1, None]], dtype=object), "an array of Python's objects holds no numbers"),
        (Image("x"), "str is no picture"),
        (Image(SQUARE, longest=0), "longest is a number of pixels"),
        (Histogram("abc"), "str holds no numbers"),
        (Histogram([1, "a"]), "list does not hold numbers alone"),
        (Histogram([1], bins=10**9), "a histogram has from 1 to 512 bins"),
        (Table("x"), "str is no table"),
        (Table([1, 2]), "the rows of a table are dicts"),
        (Table({"a": 1}), "it cannot be copied: TypeError"),
        (Audio([0.1], "fast"), "the rate of sound is a whole number"),
        (Audio(np.zeros((9, 9, 9)), 8000), "is no sound"),
        ([SQUARE, 3], "item 1 of it, int, is nothing that can be logged with the others"),
    ],
)
def test_bad_input_gets_one_reason(said, value, words):
    """Nothing of it is kept, and what comes next is."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 — the words follow
        said.log.log("bad", value, 0)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert said.one(SQUARE)
    with pytest.raises(ValueError, match="more than 64 bits"):
        said.log.log("bad", SQUARE, 2**70)


def test_what_cannot_be_encoded_gets_a_line(said):
    """It counts as logged; other names are kept."""
    said.log.log("bad", Histogram([float("nan")]), 0)
    said.log.log("good", SQUARE, 0)
    said.log.end(PATIENCE)

    assert said.lines == ["log(): 'bad' is left out: none of its values is finite"]
    assert (said.logged("bad"), len(said.kept("bad")), len(said.kept("good"))) == (1, 0, 1)


@pytest.mark.parametrize("value", [None, {1, 2}, [1, 2], [], object(), b"x", {"a": 1}, np.zeros(5)])
def test_other_values_are_not_taken(said, value):
    """Who asks says why they are no numbers."""
    assert not said.log.log("it", value, 0)


def test_ten_thousand_pictures_are_bounded_and_a_line_says_so(said):
    """What is kept is spread over the run, and all are counted."""
    for step in range(10_000):
        said.log.log("sample", SQUARE, step)
    said.log.end(PATIENCE)
    steps = [one.step for one in said.kept("sample")]

    assert len(steps) <= 5 * KEPT
    assert said.logged("sample") == 10_000
    assert any(9_000 <= step for step in steps)
    assert steps[0] == 0
    thinned = [line for line in said.lines if "only every 2nd time is kept" in line]
    assert len(thinned) == 1
    assert len(said.lines) <= 2


def test_a_run_that_has_used_its_bytes_keeps_less_and_less(said, monkeypatch):
    """It never fills up at once: late steps are kept, too."""
    monkeypatch.setattr(media, "MOST", 1 << 20)
    noise = np.random.default_rng(0).integers(0, 255, (300, 300), dtype=np.uint8)  # 90 kB each
    for step in range(60):
        said.log.log("sample", noise, step)
        until(lambda: not said.log._run.pending)
    said.log.end(PATIENCE)
    kept = said.kept("sample")

    assert sum(len(one.data) for one in kept) <= 1.2 * (1 << 20)
    assert said.logged("sample") == 60
    assert kept[-1].step > 30
    assert [line for line in said.lines if "so it keeps less now" in line]


def test_a_thread_that_waits_for_ever_holds_nothing_up(monkeypatch):
    """Copies are bounded meanwhile; the run ends in time and says what is missing; the next one keeps all."""
    monkeypatch.setattr(media, "WAITING", 3)
    free = threading.Event()

    class Slow(ArrayPart):
        def copy(self, _places):
            return lambda: free.wait(PATIENCE) and SQUARE

    class OnDevice:
        shape, dtype = (3, 4), "uint8"

    said = Said(lambda _: [Slow(PartSummary("value", "value", "slow", [3, 4]), lambda: SQUARE)])
    for step in range(10):
        said.log.log("device", OnDevice(), step)
    assert not said.log.end(0.05)
    said.log.begin()
    free.set()
    said.log.log("other", SQUARE, 0)
    assert said.log.end(PATIENCE)

    assert said.logged("device") == 10
    assert said.kept("device") == []
    assert len(said.kept("other")) == 1
    assert "log(): 'device' comes faster than it can be kept: some of it is left out" in said.lines
    assert "log(): 3 things that this cell has logged were not ready in time, and are left out" in said.lines


def test_pictures_that_a_cell_displays_are_kept(said):
    """Other displays are not; damaged ones get a line; nothing is raised."""
    png = said.one(SQUARE).data
    said.log.show({"text/plain": "x", "image/png": base64.b64encode(png).decode()}, lambda: 5)
    said.log.show({"text/html": "<b>x</b>"}, lambda: 6)
    said.log.show({"image/png": 3}, lambda: 6)
    said.log.show({"image/png": "!"}, lambda: 1 // 0)
    said.log.end(PATIENCE)
    said.log.show({"image/png": "!"}, lambda: 7)
    (found,) = said.kept(FIGURE)

    assert (found.kind, found.step, found.data) == ("figure", 5, png)
    assert said.lines == [
        "log(): a displayed figure is not kept: ZeroDivisionError: integer division or modulo by zero"
    ]


def test_nothing_is_kept_between_runs(said):
    """A thread of the user's may log then."""
    said.log.end(PATIENCE)

    assert said.log.log("it", SQUARE, 0)
    assert said.bodies == []
