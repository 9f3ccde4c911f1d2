"""How long the list of 2,000 runs takes with 40 configuration values each: ``python -m tests.store.many_runs``.

Times are told, not judged: they are those of this machine. The first of each pair reads the file, the second does not.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from contextlib import closing
from pathlib import Path

from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.core.settings import STORE_VARIABLE
from jupyter_dtrain.server.stored_runs import ListWanted, encoded_list
from jupyter_dtrain.store import losses
from jupyter_dtrain.store.schema import open_for_writing, transaction

RUNS, POINTS = 2000, 300
METRICS = ("loss", "val_acc", "lr", "steps/s", "grad_norm")
ASKED = {
    "open": {},
    "sort by a value and a metric": {"sort": ["config:lr", "-metric:loss:min"]},
    "filter": {"where": "lr>1e-4 opt:adam loss.min<0.01"},
    "words": {"where": 'train "w/1"'},
    "regular expression": {"where": "name~^x"},
    "loss at the best accuracy": {"sort": ["-metric:loss:at:val_acc:max"]},
    "group": {"group": "config:lr", "columns": ["config:lr", "metric:val_acc:max"]},
    "all runs with 30 columns": {"columns": [f"config:value_{number}" for number in range(30)], "limit": RUNS},
}


def fill(path: Path) -> None:
    """Write the runs as a steward leaves them."""
    dice = random.Random(1)  # noqa: S311
    with closing(open_for_writing(path)) as db, transaction(db):
        db.execute(
            "INSERT INTO worlds (id, key, name, size, host, spool, started, ended, steward, steward_created) "
            "VALUES (1, 'w-1', 'w', 2, 'h', '/x', 0, 1, 1, 1)"
        )
        for run in range(1, RUNS + 1):
            values = {
                f"value_{one}": dice.choice([dice.random(), f"text{one}", True, one, [1, 2]]) for one in range(38)
            }
            values |= {"lr": 10 ** -dice.randint(1, 5), "opt": dice.choice(["sgd", "adam"])}
            db.execute(
                "INSERT INTO runs (id, world, number, source, ranks, started, ended, outcome, elapsed, config, trains) "
                "VALUES (?, 1, ?, ?, '[0,1]', ?, ?, 'ok', 60, ?, 1)",
                (run, run, f"seed = {run}\n" + "x = train(model)\n" * 150, run, run + 60, json.dumps(values)),
            )
            for rank in (0, 1):
                for name in METRICS:
                    _add(db, run, rank, name, [dice.random() for _ in range(POINTS)])


def _add(db, run, rank, name, values):
    columns = Columns.empty()
    for step, value in enumerate(values):
        columns.steps.append(step)
        columns.times.append(run + step / 10)
        columns.values.append(value)
    query = "INSERT INTO series (run, kind, rank, name) VALUES (?, 'metric', ?, ?)"
    row = db.execute(query, (run, rank, name)).lastrowid
    points = pack(name, columns)
    db.execute("INSERT INTO blocks VALUES (?, 0, ?, ?, ?, ?)", (row, POINTS, points.steps, points.times, points.values))
    losses.write(db, row, [points])


def main() -> None:
    """Fill a store, and ask for its list as a page does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.sqlite"
        fill(path)
        os.environ[STORE_VARIABLE] = str(path)
        plain = {"where": "", "sort": [], "columns": [], "group": "", "limit": 50, "offset": 0, "unless": ""}
        for name, asked in ASKED.items():
            for _ in range(2):
                begun = time.perf_counter()
                answer = encoded_list(ListWanted(**{**plain, "everything": False, **asked}))
                print(f"{name:30} {time.perf_counter() - begun:.3f} s, {len(answer):,} bytes")


if __name__ == "__main__":
    main()
