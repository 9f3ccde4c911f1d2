"""Runs are told apart by the name that a person gave them, or by the telling line of their cell."""

from __future__ import annotations

import re
import sys

import pytest

from jupyter_dtrain.core.run_names import WIDTH, telling_line
from jupyter_dtrain.store import RunList
from jupyter_dtrain.view.stored import comparison, listing
from tests.store.conftest import drain, points


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time, torch\nfrom x import (\n    a,\n    b,\n)\n# c\n%matplotlib inline\nlr = 0.1\nrun()", "run()"),
        ("model = Net()\nfor step in range(9):\n    train(model)\n", "train(model)"),
        ("model.train()\ntrainer = Trainer(model)\ntrainer.fit()", "trainer = Trainer(model)"),
        ('"""A cell\nof two lines."""\nlr = 0.1', "lr = 0.1"),
        ("rank = int(os.environ['RANK'])\ndist.init_process_group()\ntorch.manual_seed(0)\nlog(loss=1)", "log(loss=1)"),
        ('if __name__ == "__main__":\n    main()', "main()"),
        ("def f():\n    return 1", "return 1"),
        ("lr: float = 3", "lr: float = 3"),
        ("import os\n# only\n", ""),
        ("", ""),
        ("x" * 5000, "x" * (WIDTH - 1) + "…"),
    ],
)
def test_the_telling_line_of_a_cell(source, name):
    """A line that trains, else one that calls, else any; no import."""
    assert telling_line(source) == name


def test_a_list_of_runs_becomes_a_data_frame(store, db, fake, monkeypatch):
    """A row for each run, a column for each loss; the list itself is a table in a notebook."""
    for number in (1, 2):
        fake.begin(number, f"train({number})")
        fake.say(number, 1, points("loss", [3.0, 1.0, 2.0]))
        fake.say(number, 0, points("loss (backward)", [9.0]), points("val_loss", [4.0]), points("accuracy", [0.5]))
        fake.finish(number)
    drain(fake.writer, db)
    store.run(2).tags = ["a"]
    found = store.runs(tag="a")
    frame = store.runs().frame()

    assert [run.label for run in found] == ["world/2"]
    assert store.count(tag="a") == 1
    assert list(frame["run"]) == ["world/2", "world/1"]
    assert list(frame["name"]) == ["train(2)", "train(1)"]
    assert frame.loc[0, ["last loss", "best loss", "last val_loss"]].to_list() == [2.0, 1.0, 4.0]
    assert "last accuracy" not in frame
    assert "last loss (backward)" not in frame
    assert "train(2)" in found._repr_html_()
    assert RunList().frame().empty
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        found.frame()


def test_a_list_and_a_comparison_show_the_same_last_and_best_loss(store, db, fake):
    """The mean over the ranks that have come as far as any, and the lowest on whichever rank.

    Rank 1 may have been killed after its first step. A loss that is no number on one rank is none.
    """
    others = {1: [5.0, 4.0], 2: [5.0, float("nan")], 3: [2.1]}
    for number, other in others.items():
        fake.begin(number)
        fake.say(number, 0, points("loss", [3.0, 8e-5]))
        fake.say(number, 1, points("loss", other))
        fake.finish(number)
    drain(fake.writer, db)
    found = {number: store.run(number).losses[0] for number in others}
    runs = [store.run(number) for number in others]
    listed = re.findall(r"^(world/\d) .* (\S+) +(\S+) +1\.5 s ", listing(runs)["text/plain"], re.MULTILINE)
    compared = re.findall(r"^loss +(world/\d) +(\S+) +(\S+) +\S+$", comparison(runs)["text/plain"], re.MULTILINE)

    assert [(one.last, one.best) for one in found.values()] == [(2.00004, 8e-5), (None, 8e-5), (8e-5, 8e-5)]
    assert listed == compared == [("world/1", "2", "8e-05"), ("world/2", "NaN", "8e-05"), ("world/3", "8e-05", "8e-05")]
