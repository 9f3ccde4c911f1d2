"""``%distributed profile``: while a cell runs, from a second one."""

from __future__ import annotations

import pytest

from tests.pace import slack

LOOP = """%%distributed --no-wait
import torch, torch.distributed as dist, time
dist.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
print('in', flush=True)
while True:
    opt.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    opt.step()
    time.sleep(0.02)
"""


def test_a_loop_is_profiled_from_a_second_cell(ranks):
    """Tables below that cell; the trace is in the notebook's folder, and the cell of the loop shows nothing of it."""
    pytest.importorskip("torch")
    before = ranks.run("%distributed profile").said
    ranks.ok("%%distributed\nimport torch, torch.distributed", 120 * slack())
    running = ranks.ok(LOOP)
    running.wait_for(lambda cell: "[0-2] in" in cell.out, 60 * slack())
    shown = ranks.ok("%distributed profile -n 2 -r 0,2 -o first.json")
    again = ranks.ok("%distributed profile -n 2")
    bad = ranks.run("%distributed profile -n 0").said
    ranks.ok("%distributed interrupt")
    running.wait_for(lambda cell: "interrupted" in cell.said, 60 * slack())

    assert "Nothing runs on ranks 0-2" in before
    assert "'0' is not a whole number above 0" in bad
    lines = shown.display_texts[0].splitlines()
    assert "2 steps from step " in lines[0]
    assert "ranks 0,2" in lines[0]
    assert [line.split()[0] for line in lines[1:4]] == ["rank", "0", "2"]
    assert lines[-1] == f"Open {ranks.folder / 'first.json'} on https://ui.perfetto.dev (Open trace file)."
    assert shown.displays[0]["data"]["text/html"].count("<table>") == 3
    assert "Beside the last profile" in again.display_texts[0]
    assert [file.suffixes for file in ranks.folder.glob("profile-*")] == [[".json", ".gz"]]
    assert "profiler_st" not in running.said
