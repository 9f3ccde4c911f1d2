"""One reading of a run: its cell, panel, sidebar, ``show``, ``runs``, ``compare`` and the Runs tab show the same."""

from __future__ import annotations

import importlib.util
import re
import threading

import pytest

from jupyter_dtrain import DistributedError, DistributedInterrupt, Store, compare
from jupyter_dtrain.server.follower import SKIPPED, Follower
from jupyter_dtrain.server.stored_runs import summary
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.view import stored
from jupyter_dtrain.view.document import MIME
from jupyter_dtrain.view.labels import ending_of, number, took
from jupyter_dtrain.view.panel import Panel
from tests.pace import slack
from tests.session.cells import until
from tests.view.conftest import Recorder

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

SETUP = """
import os, signal, time, torch
from jupyter_dtrain import log
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
def train(steps, batch=4, every=1, pause=0.005, workers=0):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), 0.01)
    data = torch.utils.data.TensorDataset(torch.randn(batch * every * steps, 2), torch.randn(batch * every * steps, 1))
    for place, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch, num_workers=workers), 1):
        loss = ((model(x) - y) ** 2).mean() / every
        loss.backward()
        if place % every == 0:
            opt.step(); opt.zero_grad()
            time.sleep(pause)
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
WAIT = "time.sleep(600)"
RUNS = {
    "log() alone": "for step in range(60): log(loss=1 / (step + 1), acc=step); time.sleep(0.005)",
    "training": "train(60)",
    "accumulation": "train(20, every=4)",
    "validation": "for epoch in range(3):\n    train(20)\n    log(val_accuracy=epoch / 3, val_loss=1.0)",
    "NaN": "train(20)\nlog(accuracy=float('nan') if rank else 1.0)",
    "workers": "train(40, workers=2)",
    "clock jump": "train(20)\nreal = time.time\ntime.time = lambda: real() + 3600\ntrain(20)\ntime.time = real",
    "error": "train(20 + 5 * rank)\nif rank: raise ValueError('no')",
    "interrupted": f"train(20)\n{WAIT}",
    "killed rank": f"if rank: log(loss=2.1); time.sleep(0.3); {KILL}\n"
    "for step in range(80): log(loss=1 / (step + 1) ** 2); time.sleep(0.01)",
    "replaced rank": SETUP + "train(15)",
}
TRUE = {
    "log() alone": (59, "ok"),
    "training": (59, "ok"),
    "accumulation": (19, "ok"),
    "validation": (59, "ok"),
    "NaN": (19, "ok"),
    "workers": (39, "ok"),
    "clock jump": (39, "ok"),
    "error": (24, "error"),
    "interrupted": (19, "interrupted"),
    "killed rank": (79, "lost"),
    "replaced rank": (14, "ok"),
}
"""The step and the outcome of each."""


@pytest.fixture(scope="module")
def world(launch, tmp_path_factory):
    """A world of two ranks that has run :data:`SETUP`, with a store of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DTRAIN_STORE", str(tmp_path_factory.mktemp("store") / "runs.sqlite"))
        with launch(n=2) as session:
            session.run(SETUP, view=None)
            yield session


def play(session, cell):
    """Run a cell under a panel; the run, and what the panel leaves in the notebook."""
    painter, number = Recorder(live=False), session.last_run.number + 1
    panel = Panel(painter, number, [0, 1], 2, display_id="panel", with_svg=False)

    def stop():
        def trained():
            run = session.last_run
            losses = run.metrics.get("loss", {}) if run.number == number else {}
            return len(losses) == 2 and all(
                len(columns.values) == TRUE["interrupted"][0] + 1 for columns in losses.values()
            )

        until(trained)
        session.interrupt()

    stopping = threading.Thread(target=stop if WAIT in cell else lambda: None)
    stopping.start()
    try:
        run = session.run(cell, view=panel)
    except (DistributedError, DistributedInterrupt) as failed:
        run = failed.run
    stopping.join()
    return run, painter.shown["panel"]


def sidebar(session, number):
    """The document that the server makes from the spools."""
    follower = Follower(SpoolFolder(session.request.spool, SKIPPED), 2)
    until(lambda: not follower.poll([number]) and not follower.runs[number].fold.unfinished)
    return follower.runs[number].document()


def figures(content, text=""):
    """Those of a document, as a page draws it, and of its text."""
    by_rank = {row[0]: [*row, *[None] * 10] for row in content["ranks"]}
    found = {
        "outcome": content["outcome"],
        "took": took(content["elapsed"]),
        "step": content.get("step"),
        "steps/s": number(content.get("steps_per_second")),
        "samples/s": number(content.get("samples_per_second")),
        "steps of ranks": str({rank: row[3] for rank, row in by_rank.items()}),
        "seconds of their steps": str({rank: row[9] for rank, row in by_rank.items()}),
    }
    if text:
        head = re.fullmatch(r"Run \d+ on ranks 0-1: (.*?), ([\d.]+ s)(?:, step (\d+))?(.*)", text.splitlines()[0])
        found |= {"ending": head[1], "took in text": head[2], "table": text[text.index("  last value") :]}
        speeds = dict(reversed(part.split()) for part in head[4].split(", ")[1:])
        assert found["took"] == head[2]
        assert str(found["step"]) == str(head[3] and int(head[3]))
        assert {name: found[name] for name in ("steps/s", "samples/s")} == {"steps/s": "-", "samples/s": "-"} | speeds
    return found


@pytest.mark.parametrize("kind", RUNS)
def test_all_readers_of_a_run_show_the_same(world, kind):
    """Steps, steps/s, samples/s, elapsed, last, best and outcome; those of the store right after the cell."""
    if kind == "replaced rank":
        world.replace()
    earlier = world.last_run
    run, panel = play(world, RUNS[kind])
    row, before = Store.open().runs(2)
    listed = re.split(" {2,}", stored.listing([row])["text/plain"].splitlines()[-1])
    compared = compare(run, before if earlier.number > 1 else earlier)
    lines = re.findall(r"^(loss|steps/s, mean|samples/s, mean) +(\S+) +\S+ +(\S+) ", repr(compared), re.MULTILINE)
    of = {name.removesuffix(", mean"): (last, low) for name, last, low in lines}
    shown, tab = stored.chart(row), summary(row)
    (loss, *_) = row.losses
    readers = {
        "cell": {"outcome": run.outcome, "ending": ending_of(run), "took": took(run.elapsed)},
        "panel": figures(panel[MIME], panel["text/plain"]),
        "sidebar": figures(sidebar(world, run.number)),
        "show": figures(shown[MIME], shown["text/plain"]),
        "runs": {"ending": listed[2], "last": listed[3], "best": listed[4], "took": listed[5]},
        "compare": {"last": of["loss"][0], "best": of["loss"][1]},
        "speeds of compare": {name: of[name][0] for name in ("steps/s", "samples/s") if name in of},
        "Runs tab": {
            "outcome": tab.outcome,
            "ending": tab.ending,
            "took": took(tab.elapsed),
            "last": number(tab.losses[0].last),
            "best": number(tab.losses[0].best),
        },
        "store": {"outcome": row.outcome, "took": took(row.elapsed), "last": number(loss.last)},
    }

    assert row.number == run.number
    for name in {name for reading in readers.values() for name in reading}:
        said = {reader: reading[name] for reader, reading in readers.items() if name in reading}
        assert len(set(said.values())) == 1, (name, said)
    expect(kind, readers["panel"])


def expect(kind, said):
    """That these are also the true ones, where the cell determines them."""
    steps, outcome = TRUE[kind]
    assert (said["step"], said["outcome"]) == (steps, outcome)
    if kind == "NaN":
        assert said["ending"] == "ok, but NaN"
    if kind == "clock jump":
        assert float(said["took"].removesuffix(" s")) < 600
    if "train" in RUNS[kind] and kind != "error":
        batch = 16 if kind == "accumulation" else 4
        slowest = max(map(float, re.findall(r"\d: ([\d.]+)", said["seconds of their steps"])))
        # The slowest rank's newest steps against the mean of all: a busy machine holds up some steps and not others.
        mean = 2 * batch / float(said["samples/s"])
        assert abs(mean - slowest) * (steps + 1) <= 0.25 * slowest * (steps + 1) + slack()
