"""Help with cells for the ranks: completion of options and of names that live there, and these names' descriptions."""

from __future__ import annotations

import time

import pytest

from jupyter_dtrain.magics.completion import offers
from jupyter_dtrain.magics.parsing import MagicParser

DEFINE = """%%distributed
import os, collections
rank = int(os.environ["RANK"])
rates = 0.1 * rank
rank_here = 2
same = {"a": 1, "b": 2, 3: 4}
class Shelf:
    "Holds layers."
    def __init__(self):
        self._modules = {"first": [1, 2]}
    def __getattr__(self, name):
        try:
            return self.__dict__["_modules"][name]
        except KeyError:
            raise AttributeError(name) from None
    def __dir__(self):
        return [*super().__dir__(), *self._modules]
    @property
    def computed(self):
        raise SystemExit("this must not be computed")
    def forward(self, x, *, scale=2):
        "Go through."
        return x * scale
    def __repr__(self):
        raise SystemExit("nor this shown")
shelf = Shelf()
"""


@pytest.fixture(scope="module")
def defined(ranks):
    """Names on the ranks; "only_there" on rank 1."""
    ranks.ok(DEFINE)
    ranks.ok("%%rank 1\nonly_there = 5")
    ranks.ok("rank_here = 1")
    ranks.complete("import o")  # jedi is slow at first
    return ranks


def settled(notebook, typed, offered):
    """The offers of Tab. On a busy machine ranks may take too long: then ask again, as a person does."""
    deadline = time.monotonic() + 15
    while True:
        found = notebook.complete(typed)
        if sorted(found) == offered or time.monotonic() > deadline:
            return found


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("%distributed st", ["stacks", "start", "status", "step", "stop", "stop-after"]),
        ("x = 1\n%distributed at", ["attach"]),
        ("%distributed start --t", ["--tensorboard", "--time", "--torch-backend", "--track"]),
        ("%distributed start --torch-backend ", ["auto", "gloo", "nccl"]),
        ("%distributed start --torch-backend=g", ["--torch-backend=gloo"]),
        ("%distributed auto o", ["off", "on"]),
        ("%%distributed --no-", ["--no-grad-norm", "--no-metrics", "--no-step-time", "--no-wait"]),
        ("%%distributed --no-wait --no-", ["--no-grad-norm", "--no-metrics", "--no-step-time"]),
        ("%%distributed -r ", ["-1", "0", "0-2", "1", "2", "all"]),
        ("%%distributed -r 0,", ["0,-1", "0,0", "0,0-2", "0,1", "0,2"]),
        ("%%rank 0", ["0", "0-2"]),
        ("%%rank --timeout 5 2", ["2"]),
        ("%%distributed -i rank_h", ["rank_here"]),
        ("%%distributed --pull sam", ["same"]),
        ("%%distributed --pull same,rate", ["same,rates"]),
        ("%distributed broadcast sh", ["shelf"]),
        ("%distributed nosuchverb --x", []),
        ("%distributed run --fr", ["--fresh"]),
        ("%distributed run train.py --no-w", []),
        ("%%distributed nosuch", []),
    ],
)
def test_lines_of_magics_are_completed(defined, typed, offered):
    """They come from the parsers that -h prints, and from the existing names."""
    assert sorted(settled(defined, typed, offered)) == offered


def test_worlds_and_stored_runs_are_offered_by_name(defined):
    """They are offered to the verbs that take them."""
    assert "world" in defined.complete("%distributed attach ")
    runs = defined.complete("%distributed show world/")
    assert runs
    assert all(name.startswith("world/") and name[6:].isdecimal() for name in runs)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("%%distributed\nprint(rate", ["print(rates"]),
        ("%%distributed\nshelf.fir", ["shelf.first"]),
        ("%%distributed\nshelf.forw", ["shelf.forward"]),
        ("\n%%rank 1\nonly_", ["only_there"]),
        ("%%rank --timeout 5 1\nonly_", ["only_there"]),
        ('%%distributed -r "0, 1"\nonly_', ["only_there"]),
        ("%%distributed -r0,2\nonly_", []),
        ("%%distributed -r 0,2\nonly_", []),
        ("only_", []),
        ("%%local\nonly_", []),
        ("%%distributed\nf().rate", []),
    ],
)
def test_names_of_the_ranks_are_completed_in_cells_that_go_there(defined, typed, offered):
    """The names come from the ranks that the cell names, and in no other cell."""
    assert settled(defined, typed, offered) == offered


def test_a_name_that_the_notebook_has_too_is_offered_once(defined):
    """The notebook offers it."""
    assert settled(defined, "%%distributed\nrank_h", ["rank_here"]) == ["rank_here"]
    assert defined.inspect("rank_here") is not None
    assert "ranks" not in defined.inspect("rank_here")


def test_plain_cells_are_completed_from_the_ranks_in_auto_mode(defined):
    """They are as long as the mode lasts."""
    defined.ok("%distributed auto on")
    try:
        assert settled(defined, "only_", ["only_there"]) == ["only_there"]
        assert defined.complete("%%local\nonly_") == []
    finally:
        defined.ok("%distributed auto off")


def test_a_name_of_the_ranks_is_described(defined):
    """Ranks that agree share a line; no code of the user's runs for it."""
    told = defined.inspect("rates")
    assert told == (
        "rates lives on all ranks, not in the notebook.\nRank 0: float 0.0\nRank 1: float 0.1\nRank 2: float 0.2"
    )
    assert defined.inspect("same") == (
        "same lives on all ranks, not in the notebook.\nType:      dict\nValue:     of 3: 'a', 'b', 3"
    )
    assert defined.inspect("only_there").startswith("only_there lives on rank 1, not in the notebook.\n")
    told = defined.inspect("shelf.forward")
    assert "Signature: shelf.forward(x, *, scale=2)" in told
    assert "Go through." in told
    assert "return x * scale" in defined.inspect("shelf.forward", detail=1)
    assert "Holds layers." in defined.inspect("shelf")
    assert "Type:      list" in defined.inspect("shelf.first")
    assert defined.inspect("shelf.computed") is None
    assert defined.inspect("nowhere") is None
    assert "Return the current process id" in (defined.inspect("os.getpid") or "")


def test_ranks_answer_while_they_work(defined):
    """The kernel is free then, and so is the rank's control thread."""
    cell = defined.send("%%distributed --no-wait\nimport time\nbusy_name = 1\ntime.sleep(1000)")
    cell.wait()
    assert settled(defined, "%%distributed\nbusy_n", ["busy_name"]) == ["busy_name"]
    assert "Value:     1" in defined.inspect("busy_name")
    defined.ok("%distributed interrupt")
    defined.ok("from jupyter_dtrain.session import current; current().last_run.wait(15)")


def test_options_and_verbs_are_offered_with_words_about_them():
    """The words are those of -h; front ends show them beside the offer."""
    parser = MagicParser()
    parser.add_argument(
        "--period", help="seconds between two looks at 100 %% of the ranks, and more words than fit here"
    )
    _, found = offers(parser, "--p")

    assert found == [
        ("--period", "seconds between two looks at 100 % of the ranks, …".replace(" ", "\N{NO-BREAK SPACE}"))
    ]
