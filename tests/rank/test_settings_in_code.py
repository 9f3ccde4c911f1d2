"""Which names of a cell are hyper-parameters, and what its calls are given."""

from __future__ import annotations

import pytest

from jupyter_dtrain.rank.settings_in_code import CODE, CodeSettings


def settings(code, before="", **options):
    """What the settings are after ``before`` and ``code`` have run, those of calls as ``function:name``."""
    namespace = {"__name__": "__main__"}
    exec(before, namespace)  # noqa: S102 — of this test
    exec(code, namespace)  # noqa: S102
    found = CodeSettings(code).settings(namespace, definitions=CodeSettings(before).definitions, **options)
    return {f"{one.function}:{one.name}" if one.function else one.name: one.value for one in found}


def test_what_the_top_level_assigns():
    """Literals, and what is computed from them alone."""
    code = """
lr, wd = 1e-3, 0.1
batch: int = 4 * 16
half = batch // 2
name, amp, nothing = "big" + str(batch), True, None
if batch > 3:
    widths = [32, 64]
"""
    assert settings(code) == {
        "lr": 1e-3,
        "wd": 0.1,
        "batch": 64,
        "half": 32,
        "name": "big64",
        "amp": True,
        "nothing": None,
        "widths": [32, 64],
    }


@pytest.mark.parametrize(
    "code",
    [
        "import math\nfrom os import path",
        "_private = 1",
        "rank = 3; local_rank = 0; world_size = 2",
        "step = 0\nwhile step < 3:\n    step += 1",
        "for i in range(3):\n    last = i * 2",
        "total = 0.0\nfor x in [object()]:\n    total += 1",
        "losses = []\nlosses.append(3)",
        "best_acc = 0.5; val_loss = 3.0; t0 = 5",
        "n = len([1, 2])",
        "import os\nhome = os.environ.get('HOME')",
        "text = 'x' * 1000",
        "many = list(range(1000))",
        "model = object(); function = lambda: 3; kind = int",
        "hits = 0\ndef hit():\n    global hits\n    hits += 1",
        "print('a', end='')",
    ],
)
def test_what_is_no_setting(code):
    """Results, counters, and what is too large."""
    assert settings(code) == {}


def test_loops_over_settings_count_with_their_last_values():
    """Those over data and steps do not."""
    code = """
for lr in (1e-3, 1e-2):
    warm = lr / 10
    for epoch in range(2):
        seen = epoch
"""
    assert settings(code) == {"lr": 1e-2, "warm": 1e-3}
    found = CodeSettings(code).settings({"lr": 1, "warm": 2})
    assert all(one.again for one in found)
    assert settings("for seed in range(3):\n    pass") == {"seed": 2}
    assert settings("import itertools\nfor a, b in itertools.product([1], [2, 3]):\n    pass") == {"a": 1, "b": 3}


def test_calls_of_the_users_functions():
    """Arguments by position and by name, defaults, and the arguments of classes."""
    before = """
class Net:
    def __init__(self, width, depth=3): pass
def train(net, lr, epochs=2, *, amp=False, data=None): pass
DATA = object()
LR = 0.5
"""
    found = settings("train(Net(32), LR, amp=True, data=DATA)", before)
    assert found == {"train:lr": 0.5, "train:epochs": 2, "train:amp": True, "Net:width": 32}


def test_calls_of_libraries():
    """Their named literals; nothing of what prints, or says how tensors are kept."""
    code = "import argparse, json\nargparse.HelpFormatter('x', width=80)\njson.dumps({}, indent=3)"
    assert settings(code) == {"HelpFormatter:width": 80}


def test_settings_of_earlier_cells_count_where_they_are_read():
    """Directly, or in a function that is called."""
    before = "EPOCHS = 3; WIDTH = 8; OTHER = 5\ndef train(n):\n    return inner()\ndef inner():\n    return WIDTH"
    assert settings("train(EPOCHS)", before, known=["WIDTH", "OTHER"]) == {"WIDTH": 8, "train:n": 3}


def test_what_functions_assign_to_literals():
    """Their variables are gone when they have ended."""
    code = """
def main():
    depth = 4
    wide = depth * 2
    size = len("abc")
    inner(wide)
def inner(wide):
    scale = 0.5
main()
"""
    assert settings(code) == {"main:depth": 4, "main:wide": 8, "inner:wide": 8, "inner:scale": 0.5}


def test_configurations_are_taken_apart():
    """Dictionaries, dataclasses, and the namespaces of argparse."""
    code = """
import argparse
from dataclasses import dataclass
@dataclass
class Config:
    lr: float = 0.1
    inner: object = None
config = Config(lr=0.2, inner=object())
more = {"a": {"b": 1}, "size": len("abc")}
also = dict(c=2, size=len("abc"))
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=3)
args = parser.parse_args([])
"""
    assert settings(code) == {"config.lr": 0.2, "more.a.b": 1, "also.c": 2, "width": 3}


def test_what_holds_itself_is_followed_for_a_while():
    """The rest is taken as ever."""
    found = settings("config = {'a': 1}\nconfig['self'] = config\nlr = 0.5")

    assert (found["lr"], found["config.a"], found["config.self.a"]) == (0.5, 1, 1)
    assert len(found) < 10


def test_nobodys_code_is_run():
    """Neither to compute a value nor to look at one."""
    before = """
class Loud:
    def __getattr__(self, name): raise SystemExit(name)
    def __float__(self): raise SystemExit
    __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __repr__ = __float__
loud = Loud()
def train(x): pass
"""
    assert settings("x = loud\nlr = 0.1\ny = -lr\ntrain(loud)\ntrain(2 ** 4)", before) == {
        "lr": 0.1,
        "y": -0.1,
        "train:x": 16,
    }
    assert settings("def f(x): pass\nf(9 ** 9 if 0 else 1)") == {}


@pytest.mark.parametrize("code", ["%%time\nlr = 3", "!true\nlr = 3", "%matplotlib inline\nlr = 3"])
def test_magics_change_nothing(code):
    """They are left out."""
    assert [one.name for one in CodeSettings(code).settings({"lr": 3})] == ["lr"]


@pytest.mark.parametrize("code", ["lr = (", "(" * 5000, "\0", ""])
def test_code_that_cannot_be_read_has_no_settings(code):
    """The cell itself says so."""
    assert list(CodeSettings(code).settings({"lr": 3})) == []


def test_code_that_is_too_long_is_not_read():
    """The training loop waits while it is read, so a cell that is mostly data has no settings."""
    long = "lr = 3\ntext = '" + "x" * CODE + "'"

    assert list(CodeSettings(long).settings({"lr": 3})) == []
