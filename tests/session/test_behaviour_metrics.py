"""A run has the metrics that ranks log, and the progress of their loops."""

from __future__ import annotations

import math

import pytest

from jupyter_dtrain.core.events import Metrics
from tests.session.cells import begin, run, same, until, values

LOG = "from jupyter_dtrain import log, progress\nimport os\nrank = int(os.environ['RANK'])\n"


def points(cell, name, rank=0):
    """Steps and values of a series."""
    columns = cell.metrics[name][rank]
    return list(zip(columns.steps, columns.values, strict=True))


def test_metrics_that_ranks_log_are_in_the_run(world):
    """Every rank's own values; steps are counted for each name, or named."""
    cell = run(
        world, LOG + "for k in range(3): log(loss=k + rank, acc=0.5, step=None)\nlog(acc=1, step=10)\nlog(acc=2)"
    )

    assert sorted(cell.metrics) == ["acc", "loss"]
    assert {rank: points(cell, "loss", rank) for rank in cell.ranks} == {
        rank: [(k, k + rank) for k in range(3)] for rank in cell.ranks
    }
    assert points(cell, "acc") == [(0, 0.5), (1, 0.5), (2, 0.5), (10, 1.0), (11, 2.0)]


def test_steps_begin_anew_with_every_cell(world):
    """A run is a run."""
    run(world, LOG + "log(loss=1)")

    assert points(run(world, LOG + "log(loss=2)"), "loss") == [(0, 2.0)]


def test_a_run_without_metrics_has_none(world):
    """Empty, and a clear error for a name."""
    metrics = run(world, "1").metrics

    assert list(metrics) == []
    with pytest.raises(KeyError):
        metrics["loss"]


def test_metrics_are_seen_while_the_cell_runs(world):
    """They come within the quarter of a second for which ranks gather them."""
    cell = begin(world, LOG + "import time\nlog(loss=1)\nwhile not os.path.exists('/nowhere'): time.sleep(0.01)")
    seen = until(lambda: sorted(cell.metrics.get("loss", {})) == cell.ranks)
    world.interrupt()
    ended = cell.wait(20)

    assert seen
    assert ended


def test_metrics_from_before_an_error_are_kept(world):
    """The last points come with the end of the cell."""
    cell = world.run(LOG + "log(loss=1)\n1 / 0", wait=False, view=None)
    until(lambda: cell.done)

    assert cell.outcomes == same("error")
    assert points(cell, "loss", 2) == [(0, 1.0)]


def test_tensors_and_numpy_numbers_are_logged(world):
    """Read when the points are gathered: what happens to the tensor afterwards does not matter."""
    pytest.importorskip("torch")
    cell = run(
        world,
        LOG
        + "import torch, numpy as np\nt = torch.ones(1, requires_grad=True) * 3\nlog(a=t, b=np.float16(2), c=True)\n"
        "with torch.no_grad(): t *= 100\nlog(a=t)",
    )

    assert points(cell, "a") == [(0, 3.0), (1, 300.0)]
    assert points(cell, "b") == [(0, 2.0)]
    assert points(cell, "c") == [(0, 1.0)]


def test_infinities_and_nan_are_values(world):
    """NaN and the infinities are what one looks for."""
    cell = run(world, LOG + "for x in ('nan', 'inf', '-inf'): log(loss=float(x))")
    seen = [value for _, value in points(cell, "loss")]

    assert math.isnan(seen[0])
    assert seen[1:] == [math.inf, -math.inf]


BAD = """
import torch
log(text='high', raw=b'high', three=torch.ones(3), nothing=None, listed=[1, 2], good=1)
log(raw=b'higher')
log({'two\\nlines\\t and more': 1, '': 2, 'x' * 5000: 3, 7: 4})
log(good=2, step='soon')
'went on'
"""


def test_a_value_that_is_no_number_is_left_out_with_one_warning(world):
    """The rest is kept, names are cleaned, and the cell goes on."""
    pytest.importorskip("torch")
    cell = run(world, LOG + BAD)
    said = cell.text(0, "stderr")

    assert values(cell) == same("went on")
    assert points(cell, "good") == [(0, 1.0), (1, 2.0)]
    assert set(cell.metrics) == {"good", "two lines and more", "value", "x" * 200, "7"}
    assert said.count("'raw' is left out: b'high' is text, not a number") == 1
    assert "'text'" not in said  # it is kept beside the numbers
    assert "'three' is left out: a tensor with 3 elements is not one number" in said
    assert "'nothing' is left out: NoneType is not one number" in said
    assert "a step must be a whole number, not 'soon'" in said


def test_points_that_cannot_be_recorded_cost_no_others(world):
    """A name that is no UTF-8 is made one; a step of more than 64 bits is left out, and the cell says so."""
    cell = run(world, f"{LOG}log(**{{'\\ud800': 1.0}}, step=0)\nlog(loss=1.0, step=2**70)\nlog(acc=0.5)\n'went on'")

    assert values(cell) == same("went on")
    assert {name: sorted(cell.metrics[name]) for name in cell.metrics} == {"?": [0, 1, 2], "acc": [0, 1, 2]}
    left_out = "[jupyter-dtrain] a point of 'loss' is left out: its step needs more than 64 bits\n"
    assert {rank: cell.text(rank, "stderr") for rank in cell.ranks} == same(left_out)


def test_ten_thousand_names_are_a_thousand_and_a_word(world):
    """A name for every step is a mistake, and must not cost the training anything."""
    cell = run(world, LOG + "for k in range(10_000): log({f'loss{k}': k})\n'went on'", ranks=0)

    assert values(cell) == {0: "went on"}
    assert len(cell.metrics) == 1000
    assert cell.text(0, "stderr").count("more than 1000 metrics in one run") == 1


def test_a_flood_of_points_is_whole_in_the_run(world):
    """Points that the wire does not take come from the spool, in order. A slow machine may announce all of them."""
    count = 100_000
    cell = run(world, LOG + f"for k in range({count}): log(loss=k * (rank + 1))")
    metrics = cell.metrics
    announced = sum(len(columns.values) for columns in cell._metrics["loss"].values())

    for rank in cell.ranks:
        assert list(metrics["loss"][rank].steps) == list(range(count))
        assert list(metrics["loss"][rank].values) == [float(k * (rank + 1)) for k in range(count)]
    assert announced <= 3 * count


def test_a_flood_comes_in_few_events(world):
    """The points are in columns: an event for each would cost a hundred times as much."""
    cell = run(world, LOG + "for k in range(20_000): log(loss=k)", ranks=0)
    events = [event for event in world._requests.read_events(cell, 0) if isinstance(event.body, Metrics)]

    assert 1 <= len(events) <= 100


def test_user_threads_log_at_once(world):
    """No point is lost, whichever thread it came from."""
    cell = run(
        world,
        LOG + "import threading\n"
        "def work(n):\n    for k in range(2000): log({f'loss{n}': k, 'all': k})\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]",
        ranks=0,
    )

    assert [len(cell.metrics[f"loss{n}"][0].values) for n in range(4)] == [2000] * 4
    assert list(cell.metrics["loss3"][0].values) == list(map(float, range(2000)))
    assert list(cell.metrics["all"][0].steps) == list(range(8000))


def test_progress_is_in_the_run(world):
    """The last state of each loop, whether it came to its end or not."""
    cell = run(
        world,
        LOG + "assert list(progress(range(4), name='four')) == [0, 1, 2, 3]\n"
        "for x in progress(iter('abc')):\n    if x == 'b': break",
    )
    four, abc = cell.progress[1]

    assert (four.name, four.done, four.total, four.ended) == ("four", 4.0, 4.0, True)
    assert (abc.name, abc.done, abc.total, abc.ended) == ("", 1.0, None, True)
    assert cell.text(1) == ""


@pytest.mark.parametrize("flavour", ["tqdm", "tqdm.auto", "tqdm.notebook", "tqdm.std", "tqdm.autonotebook"])
def test_tqdm_of_any_flavour_is_progress(world, flavour):
    """Nested bars too; tqdm.write prints a line, and nothing is drawn."""
    pytest.importorskip("tqdm")
    cell = run(
        world,
        "import warnings\n"
        "with warnings.catch_warnings():\n"
        "    warnings.simplefilter('ignore')\n"
        f"    from {flavour} import tqdm, trange\n"
        "    for epoch in tqdm(range(2), desc='epoch'):\n"
        "        for step in trange(5, leave=False): pass\n"
        "        tqdm.write(f'epoch {epoch}')",
    )
    first = cell.progress[0][0]

    assert (first.name, first.done, first.total, first.ended) == ("epoch", 2.0, 2.0, True)
    assert first.text.startswith("epoch: 100%|██████████| 2/2")
    assert {rank: cell.text(rank) for rank in cell.ranks} == same("epoch 0\nepoch 1\n")
    assert [bar.ended for bar in cell.progress[2]] == [True] * 3


def test_a_bar_with_a_file_of_its_own_is_left_alone(world, meeting):
    """The user said where it goes."""
    pytest.importorskip("tqdm")
    cell = run(
        world,
        "from tqdm import tqdm\n"
        f"with open({str(meeting / 'bar')!r}, 'w') as file:\n    list(tqdm(range(3), file=file))",
        ranks=0,
    )

    assert cell.progress == {}
    assert "3/3" in (meeting / "bar").read_text()


def test_bars_of_one_loop_have_one_number_on_all_ranks(world):
    """Though one rank has had more loops before."""
    run(world, LOG + "list(progress(range(3))); list(progress(range(3)))", ranks=1)
    cell = run(world, LOG + "list(progress(range(3), name='all'))")

    assert {rank: [bar.bar for bar in bars] for rank, bars in cell.progress.items()} == same([1])


def test_a_cell_that_takes_a_while_has_samples(world):
    """Processor and memory of each rank."""
    cell = begin(world, "import time\nwhile True: time.sleep(0.05)")
    seen = until(lambda: sorted(cell.samples) == cell.ranks)
    world.interrupt()
    cell.wait(20)

    assert seen
    assert all(sample.rss > 10 << 20 for sample in cell.samples.values())


def test_the_processes_that_a_cell_starts_count(world):
    """Such as the workers of a DataLoader: they look idle else. A service of multiprocessing is no worker."""
    code = """
import multiprocessing.resource_tracker, subprocess, sys, time
multiprocessing.resource_tracker.ensure_running()
many = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
while True: time.sleep(0.05)
"""
    cell = begin(world, code, ranks=0)
    # At first there may be three: the service is a copy of the rank before it is a program of its own.
    sample = until(lambda: (one := cell.samples.get(0)) and one.workers == 2 and one.cpu > 10 and one)
    world.interrupt()
    cell.wait(20)

    assert sample.workers_rss > 1 << 20
