"""A run in a world says what made it, and no secret goes along."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from jupyter_dtrain import DistributedError, Store
from jupyter_dtrain.core.configuration import MAX_NAME
from jupyter_dtrain.core.events import Started
from jupyter_dtrain.core.secrets import REDACTED
from jupyter_dtrain.rank.configuration import LONG
from jupyter_dtrain.wire.spool import read_file
from tests.steward.until import until

from .cells import Told

PATIENCE = 60
SECRET = "hunter2horse-in-the-environment"  # noqa: S105 — of this test
KEY = "sk-0123456789abcdefghij"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The file of the world's store."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("store") / "runs.sqlite"
        patch.setenv("JUPYTER_DTRAIN_STORE", str(path))
        patch.setenv("MY_API_KEY", SECRET)
        yield path


@pytest.fixture(scope="module")
def world(store, launch):
    """A world of two ranks."""
    return launch(n=2)


def tell(world, code, **options):
    """Run a cell; what it has told, and its run."""
    view = Told()
    run = world.run(code, view=view, timeout=PATIENCE, **options)
    assert run.outcome == "ok", run.errors
    return view, run


def test_a_run_tells_what_made_it(world):
    """From the cell, from what was sent, and from config(), which counts most; once from each rank its environment."""
    tell(
        world,
        "import jupyter_dtrain\nWIDTH = 32\ndef train(lr, depth, epochs=2):\n    jupyter_dtrain.log(loss=lr * WIDTH)",
    )
    told, _ = tell(
        world,
        "batch = 16\nfor lr in (1e-3, 1e-2):\n    train(lr, depth)\njupyter_dtrain.config(batch=8, note=scale)",
        inputs={"depth": 4, "scale": np.float32(0.5), "data": object},
    )

    assert told.values == {
        "lr": 1e-2,
        "depth": 4,
        "scale": 0.5,
        "epochs": 2,
        "WIDTH": 32,
        "batch": told.values["batch"],
        "note": 0.5,
        "world_size": 2,
    }
    assert told.origins["lr"] == told.origins["WIDTH"] == "cell"
    assert told.origins["depth"] == "sent"
    assert told.origins["note"] == "set"
    assert told.environments.keys() == {0, 1}
    assert told.environments[1].packages["psutil"]
    assert told.environments[1].python == ".".join(map(str, sys.version_info[:3]))


def test_the_arguments_of_functions_that_run_count(world, tmp_path):
    """Also where the cell computes them, and where another function of the user's passes them on."""
    code = f"""
import os, time
def train(rate, net):
    jupyter_dtrain.log(loss=1)
    ends = time.monotonic() + {PATIENCE}
    while not os.path.exists({str(tmp_path / "end")!r}) and time.monotonic() < ends:
        time.sleep(0.01)
(lambda: train(float("0.125"), object()))()
"""
    view = Told()
    run = world.run(code, view=view, wait=False)
    until(lambda: "rate" in view.values)
    (tmp_path / "end").touch()
    run.wait(PATIENCE)

    assert view.values == {"rate": 0.125, "world_size": 2}


def test_the_store_keeps_what_counts_most(world, store):
    """Whichever event came last."""
    _, run = tell(world, "batch, rate = 16, 0.5\njupyter_dtrain.config(batch=8)\njupyter_dtrain.log(loss=1)")

    def stored():
        found = [one for one in Store(store).runs() if one.number == run.number and one.environments]
        return found[0] if found and "rate" in found[0].config else None

    until(stored)
    assert stored().config == {"batch": 8, "rate": 0.5, "world_size": 2}
    assert stored().origins == {"batch": "set", "rate": "cell", "world_size": "library"}
    assert sorted(stored().environments) == [0, 1]


def test_short_cells_without_points_tell_nothing(world):
    """They are no trainings."""
    told, run = tell(world, "lr = 3")

    assert run.elapsed > LONG / 2 or not (told.values or told.environments)


def test_a_script_tells_its_arguments(world, tmp_path):
    """Those that argparse has found, and its command; a secret among them is left out."""
    script = tmp_path / "train.py"
    script.write_text("""
import argparse
import jupyter_dtrain
WARM = 10
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--hub-token")
    args = parser.parse_args()
    depth = 3
    jupyter_dtrain.log(loss=args.lr)
if __name__ == "__main__":
    main()
""")
    view = Told()
    run = world.run_script(script, ["--lr", "0.5", "--hub-token", "horse"], view=view, timeout=PATIENCE)

    assert view.values == {"WARM": 10, "lr": 0.5, "width": 8, "hub_token": REDACTED, "depth": 3, "world_size": 2}
    assert view.environments[0].command == [str(script), "--lr", "0.5", "--hub-token", REDACTED]
    assert "horse" not in str([view.values, view.environments, view.all])
    assert "horse" not in str([list(read_file(spool)) for spool in view.spools])
    assert run.outcome == "ok"


def test_no_secret_arrives(world, store):
    """Neither one of the environment nor one of the cell, in no event, no spool and not in the store."""
    code = f"""
import os
api_key = "{KEY}"
mine = os.environ["MY_API_KEY"]
config = {{"token": api_key, "own": mine, "url": "https://me:{SECRET}@example.org", "lr": 0.5}}
def train(key): pass
train(mine)
jupyter_dtrain.config(secret=mine, note=f"it is {{mine}}", more=["{KEY}"])
jupyter_dtrain.log(loss=1, said=f"it is {{mine}}", rows=[{{"a": mine, "b": "{KEY}"}}])
try:
    raise KeyError(mine)
except KeyError:
    raise ValueError(f"no way to {{mine}} with {KEY}")
"""
    told = Told()
    with pytest.raises(DistributedError, match=r"no way to \[redacted\] with \[redacted\]"):
        world.run(code, view=told, timeout=PATIENCE, name=f"with {KEY}"[:60], group=SECRET)
    run = world.last_run
    until(lambda: any(one.number == run.number and one.config for one in Store(store).runs()))

    assert told.values["config.lr"] == 0.5
    assert told.values["api_key"] == told.values["secret"] == told.values["config.token"] == REDACTED
    assert told.values["note"] == f"it is {REDACTED}"
    assert "config.own" not in told.values
    assert REDACTED in next(one.source for one in told.all if isinstance(one, Started) and one.source)
    kept = [*store.parent.glob("*"), *told.spools]
    assert store in kept
    assert len(told.spools) == 2
    for secret in (SECRET, KEY):
        assert secret not in str(told.all)
        assert secret not in str([list(read_file(spool)) for spool in told.spools])
        for path in kept:
            assert secret.encode() not in path.read_bytes(), path


def test_what_cannot_be_stored_is_said_once(world):
    """In one line each, and nothing else is lost."""
    code = "jupyter_dtrain.config({'n' * 10_000: 1, 'html': '<script>'}, bad=object(), big='x' * 10_000, lr=0.5)"
    told, run = tell(world, f"for _ in range(3):\n    {code}")
    (long,) = [name for name in told.values if name.startswith("nnn")]

    assert len(long) <= MAX_NAME
    told_here = {name: value for name, value in told.values.items() if told.origins[name] == "set"}
    assert told_here == {long: 1, "html": "<script>", "lr": 0.5}
    said = run.text(0).splitlines()
    assert len(said) == 3
    assert all(line.startswith("[jupyter-dtrain] config(): ") for line in said)
    assert any("'bad' is left out: object is no number" in line for line in said)
    assert any("'big' is left out: it is longer than 8 kB" in line for line in said)
    assert max(map(len, said)) < 200
