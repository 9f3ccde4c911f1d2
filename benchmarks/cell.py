"""The cost of an empty cell on 4 ranks, compared with a blocking ``%%px`` on 4 engines, through one kernel."""

from __future__ import annotations

import statistics
import time

from .notebook import kernel
from .report import Measurement, summary

ROUNDS = 150

SET_UP = """
import ipyparallel
cluster = ipyparallel.Cluster(n=4, log_level=40)
view = cluster.start_and_connect_sync(activate=True)[:]
view.activate()
%load_ext jupyter_dtrain
%distributed start -n 4
"""


def measure(rounds: int = ROUNDS) -> Measurement:
    """Alternate the two, both clusters alive."""
    ours, theirs = [], []
    with kernel() as notebook:
        notebook.execute(SET_UP)
        for warm in range(10):
            notebook.execute(f"%%distributed\n{warm}")
            notebook.execute(f"%%px --block\n{warm}")
        for _ in range(rounds):
            for cells, code in ((ours, "%%distributed\npass"), (theirs, "%%px --block\npass")):
                began = time.perf_counter()
                notebook.execute(code)
                cells.append(time.perf_counter() - began)
        notebook.execute("%distributed stop\ncluster.stop_cluster_sync()")
    found = Measurement({"%%distributed, ms": summary(ours, 1000), "%%px --block, ms": summary(theirs, 1000)})
    found.promise("empty cell / blocking %%px", statistics.median(ours) / statistics.median(theirs), 1.0)
    return found
