"""``--tensorboard DIR``: what ranks log, as TensorBoard itself reads it."""

from __future__ import annotations

import math
import sys
import types

import pytest

from jupyter_dtrain import BadRequest, Session
from jupyter_dtrain.core.events import Configured, MediaLogged, Output, RunContext, Started
from jupyter_dtrain.rank.media_encoding import histogram, png, sound, table
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.store.tensorboard import POINTS, UNWANTED, TensorBoardIntake, check_folder
from tests.session.cells import run
from tests.store.conftest import points
from tests.store.test_worlds import stored

pytest.importorskip("tensorboard")


@pytest.fixture(autouse=True)
def without_tensorflow(monkeypatch):
    """TensorBoard reads its files by itself where this module of its own is there; else it imports TensorFlow."""
    name = "tensorboard.compat.notf"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    """Steps and values that TensorBoard reads in a folder, by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}


def test_runs_are_written_for_tensorboard_as_well(launch, own_data, tmp_path):
    """A folder per run and rank, beneath one for the world; the store has the same."""
    folder = tmp_path / "boards"
    with launch(n=2, tensorboard=str(folder)) as session:
        world = session.request.id
        for scale in (1, 10):
            run(
                session,
                "import os, jupyter_dtrain\n"
                f"for step in range(50): jupyter_dtrain.log(loss={scale} * step + int(os.environ['RANK']), step=step)\n"
                "print('x')",
                name="" if scale == 1 else "lr 0.1/ten: small",
            )
        kept = stored(2).metrics["loss"][1].values
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("rank-*"))

    folders = {1: "run-1", 2: "run-2-lr-0.1-ten-small"}  # the second began with a name
    assert found == [f"{world}/{folders[run]}/rank-{rank}" for run in (1, 2) for rank in (0, 1)]
    assert list(kept) == [10.0 * step + 1 for step in range(50)]
    for number, scale in ((1, 1), (2, 10)):
        for rank in (0, 1):
            read = scalars(folder / world / folders[number] / f"rank-{rank}")
            assert read == {"loss": [(step, float(scale * step + rank)) for step in range(50)]}


def test_fast_series_are_thinned_to_their_extremes(fake, tmp_path):
    """Lowest, highest and what is not finite stay; nothing of other events is read."""
    said: list[str] = []
    intake = TensorBoardIntake(tmp_path / "boards", SpoolFolder(fake.folder, UNWANTED), said.append)
    values = [math.sin(step / 100) for step in range(10_000)]
    values[5000], values[7000], values[8000] = 9.0, -9.0, math.nan
    fake.begin(1)
    fake.say(1, 0, Output("stdout", "x" * 10_000), points("loss", values))
    fake.finish(1)
    while intake.poll():
        pass
    intake.close()
    read = scalars(tmp_path / "boards" / "run-1" / "rank-0")["loss"]

    assert len(read) <= 2 * POINTS
    assert {(5000, 9.0), (7000, -9.0)} <= set(read)
    assert [step for step, value in read if math.isnan(value)] == [8000]
    assert said == []


def test_a_folder_that_goes_away_is_reported_once(fake, tmp_path):
    """A file stands in its place; nothing is raised."""
    (tmp_path / "boards").touch()
    said: list[str] = []
    intake = TensorBoardIntake(tmp_path / "boards", SpoolFolder(fake.folder, UNWANTED), said.append)
    fake.begin(1)
    for step in range(3):
        fake.say(1, 0, points("loss", [1.0], step))
        intake.poll()
    intake.close()

    assert len(said) == 1
    assert f"TensorBoard's event files in {tmp_path / 'boards'} can no longer be written" in said[0]


def test_a_start_without_the_package_says_what_to_install(own_data, tmp_path, monkeypatch):
    """It starts nothing either."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(BadRequest, match=r"pip install 'jupyter-dtrain\[tensorboard\]'"):
        Session.start(n=1, tensorboard=tmp_path / "boards")

    assert not (tmp_path / "boards").exists()
    assert not (own_data / "dtrain").exists()


def test_a_folder_that_cannot_be_made_is_refused(own_data, tmp_path):
    """It lies below a file, or is one."""
    (tmp_path / "file").touch()
    for folder in ("file", "file/boards"):
        with pytest.raises(BadRequest, match=r"The TensorBoard folder .*file.* cannot be made"):
            Session.start(n=1, tensorboard=str(tmp_path / folder))


def test_a_relative_folder_is_meant_from_here(tmp_path, monkeypatch):
    """It is relative to the notebook's folder; ~ is the home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    assert check_folder("boards") == str(tmp_path / "boards")
    assert check_folder("~/boards") == str(tmp_path / "home" / "boards")
    assert (tmp_path / "home" / "boards").is_dir()


@pytest.mark.slow
def test_the_verb_takes_the_folder(open_notebook, own_data, tmp_path):
    """A start cell that is run again keeps the world; one that names another folder is refused."""
    notebook = open_notebook()
    notebook.ok("%load_ext jupyter_dtrain")
    notebook.ok("%distributed start -n 1 --tensorboard boards")
    again = notebook.ok("%distributed start -n 1 --tensorboard boards").out
    other = notebook.run("%distributed start -n 1 --tensorboard others")
    notebook.ok("%%distributed\nimport jupyter_dtrain; jupyter_dtrain.log(loss=2.0)")
    notebook.ok("%distributed stop")
    (folder,) = (notebook.folder / "boards").glob("*/run-1/rank-0")

    assert "is already running" in again
    assert other.ename == "BadRequest"
    assert scalars(folder) == {"loss": [(0, 2.0)]}


def read_all(folder):
    """TensorBoard's own reader of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"images": 0, "audio": 0, "histograms": 0, "tensors": 0})
    read.Reload()
    return read


def test_media_and_the_configuration_are_written_under_the_runs_name(fake, tmp_path):
    """TensorBoard's reader finds each kind with its step; what it cannot show is left out, and nothing fails."""
    np = pytest.importorskip("numpy")
    said: list[str] = []
    intake = TensorBoardIntake(tmp_path / "boards", SpoolFolder(fake.folder, UNWANTED), said.append)
    picture = png(np.zeros((3, 4, 3), dtype=np.uint8))
    values = histogram(np.array([0.0, 1.0, 1.0, 5.0]), 4, 4).data
    rows = table(["a|b", "c"], [[1, "<i>x</i> | y"], [None, "*z*"]], 7).data
    context = RunContext(heading="Shapes: a CNN")
    fake.say(1, 0, Started(1, "here", "", source="x", ranks=[0], cell=4, context=context))
    fake.say(1, 0, Configured({"lr": 0.1, "layers": [1, 2]}, "cell"), Configured({"lr": 0.2}, "set"))
    for number in range(2):
        fake.say(1, 0, MediaLogged("sample", "image", 7, number, "image/png", picture, caption="a cat"))
    fake.say(1, 0, MediaLogged("weights", "histogram", 8, mime="application/json", data=values))
    fake.say(1, 0, MediaLogged("voice", "audio", 9, mime="audio/wav", data=sound(np.zeros((50, 2)), 8000, "").data))
    fake.say(1, 0, MediaLogged("answer", "text", 10, mime="text/plain", data=b"**yes**"))
    fake.say(1, 0, MediaLogged("errors", "table", 11, mime="application/json", data=rows))
    fake.say(1, 0, MediaLogged("bad", "table", 12, mime="application/json", data=b"[1"), points("loss", [1.0]))
    fake.say(1, 0, MediaLogged("bad", "audio", 12, left_out=3), MediaLogged("bad", "audio", 12, data=b"x"))
    fake.finish(1, [0])
    while intake.poll():
        pass
    intake.close()
    read = read_all(tmp_path / "boards" / "run-1-Shapes-a-CNN-4" / "rank-0")

    def text(name: str) -> list[tuple[int, str]]:
        return [(one.step, one.tensor_proto.string_val[0].decode()) for one in read.Tensors(name)]

    assert said == []
    assert {(one.step, one.width, one.height) for name in ("sample", "sample/1") for one in read.Images(name)} == {
        (7, 4, 3)
    }
    assert read.Images("sample")[0].encoded_image_string == picture
    (shown,) = read.Histograms("weights")
    told = shown.histogram_value
    assert (shown.step, told.min, told.max, told.num, told.sum) == (8, 0, 5, 4, 7)
    assert (list(told.bucket), list(told.bucket_limit)) == ([3, 0, 0, 1], [1.25, 2.5, 3.75, 5])
    (heard,) = read.Audio("voice")
    assert (heard.step, heard.sample_rate, heard.length_frames) == (9, 8000, 50)
    assert text("answer") == [(10, "**yes**")]
    assert text("errors") == [
        (11, "| a\\|b | c |\n| --- | --- |\n| 1 | &lt;i&gt;x&lt;/i&gt; \\| y |\n| null | \\*z\\* |\n\n2 of 7 rows")
    ]
    assert text("config")[-1] == (0, "| name | value |\n| --- | --- |\n| layers | \\[1,2\\] |\n| lr | 0.2 |")
    assert "bad" not in {name for names in read.Tags().values() if isinstance(names, list) for name in names}
