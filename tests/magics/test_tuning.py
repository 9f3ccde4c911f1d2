"""``%distributed deepspeed-tune`` in a notebook."""

from __future__ import annotations

import importlib.util
import re

import pytest

PATIENCE = 240
MODELS = """%%distributed
import os
os.environ["CXX"] = "no-such-compiler"
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x).square().mean()

def make_batch(n):
    if n == 4:
        print("it waits", flush=True)
        while True:
            pass
    return torch.randn(n, 4)
"""


def test_lists_of_numbers_are_asked_for_in_words(notebook):
    """The error comes before any request to a world."""
    missing = notebook.run("%distributed deepspeed-tune --model Model")
    wrong = notebook.run("%distributed deepspeed-tune --model Model --batch make_batch --stages one")

    assert "the following arguments are required: --batch" in missing.said
    assert "'one' is not a list of whole numbers, such as 1,2,4" in wrong.said


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="no deepspeed")
def test_a_table_grows_and_the_best_configuration_can_be_pasted(notebook):
    notebook.ok("%distributed start -n 2")
    notebook.ok(MODELS, PATIENCE)
    tune = "%distributed deepspeed-tune --model Model --batch make_batch -o table --stages 0,1 --steps 1 --warmup 0"
    whole = notebook.ok(f"{tune} --micro-batches 1,2", PATIENCE)
    pasted = notebook.ok(whole.out[whole.out.index("config = ") :])
    stopped = notebook.send(f"{tune} --micro-batches 2,4")
    stopped.wait_for(lambda cell: any("now ZeRO 0, micro-batch 4" in text for text in cell.display_texts), PATIENCE)
    notebook.interrupt()
    stopped.wait(PATIENCE)
    notebook.ok("%distributed stop")

    (table,) = whole.display_texts
    lines = table.splitlines()
    assert lines[0] == "4 of 4 combinations"
    assert lines[1].split() == ["ZeRO", "micro-batch", "samples/s", "ms/step", "memory"]
    assert all(re.search(r"[0-9] (?:[kMGT]B|bytes)( |$)", line) for line in lines[2:])
    assert [line.endswith("best") for line in lines[2:]] == [True, False, False, False]
    best = lines[2].split()
    assert f"The fastest is ZeRO {best[0]} with micro-batches of {best[1]}:\n" in whole.out
    assert len(whole.of("update_display_data")) >= 4
    assert pasted.reply["status"] == "ok"
    assert notebook.value("config['train_micro_batch_size_per_gpu']") == int(best[1])
    # The latter if it fell before the run began.
    assert stopped.ename in ("DistributedInterrupt", "KeyboardInterrupt")
    assert re.match("1 of 4 combinations; interrupted\n", stopped.display_texts[0])
    assert notebook.value("[(trial.stage, trial.micro_batch, trial.outcome) for trial in table.trials]") == [
        (0, 2, "ok")
    ]
