"""A cell's training shows its curves without a line of logging."""

from __future__ import annotations

import importlib.util
import time

import pytest

from jupyter_dtrain import DistributedError
from tests.frameworks.torch_curves import LOOP, PATIENCE, START, curve, losses, points, train


def test_a_plain_loop_shows_its_losses_on_every_rank(torch_pair):
    run, noted = train(torch_pair, f"torch.manual_seed(rank)\n{LOOP}", None)

    assert noted[0] != noted[1]
    assert {rank: points(run, "loss", rank) for rank in (0, 1)} == {rank: curve(noted[rank]) for rank in (0, 1)}
    assert losses(run) == ["loss"]


def test_a_cell_that_is_run_again_begins_anew_with_the_same_name(torch_pair):
    step = "def step():\n    loss = lose(model)\n    loss.backward()\n    optimizer.step()\n    return loss.item()"
    train(torch_pair, step)
    first, noted = train(torch_pair, "model, optimizer = make()\n[step() for _ in range(3)]")
    again, noted_again = train(torch_pair, "[step() for _ in range(3)]")

    assert points(first, "loss") == curve(noted[0])
    assert points(again, "loss") == curve(noted_again[0])


TRAIN = """
import jupyter_dtrain
def step():
    loss = lose(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
for lr in (0.1, 0.2):
    model, optimizer = make()
    for epoch in range(2):
        for _ in range(5):
            jupyter_dtrain.log(early=1)
            step()
            jupyter_dtrain.log(late=1)
        jupyter_dtrain.log(val_accuracy=0.5)
"""


def test_what_a_cell_logs_without_a_step_lies_over_the_losses_also_where_it_goes_on_with_another_run(torch_pair):
    """A second training of the cell counts on; so does a run that resumes, whose speed is no other for that."""
    first = torch_pair.run(TRAIN, view=None)
    second = torch_pair.run(TRAIN, view=None, resume=first.number)

    for run, begins in ((first, 0), (second, 20)):
        steps = {name: [step for step, _ in points(run, name)] for name in ("loss", "early", "late", "val_accuracy")}
        every = list(range(begins, begins + 20))
        assert steps == {"loss": every, "early": every, "late": every, "val_accuracy": every[4::5]}
        assert [step for step, _ in points(run, "lr")][-1] == every[-1]
        # Readings may end before the last step; those of a run that resumes must not count the steps before it.
        assert run.fold.steps[0].made in (None, *range(20))
        assert run.fold.steps[0].step == every[-1]
    assert second.steps == first.steps


def test_what_a_cell_logs_in_a_second_training_goes_on_where_the_first_has_ended(torch_pair):
    """Also with an optimizer that was there before; two that step in turn are one training."""
    begin = (
        START
        + """
import jupyter_dtrain
def go(*chosen):
    nn.Linear(3, 1)
    for optimizer in chosen:
        optimizer.zero_grad()
        optimizer.step()
    jupyter_dtrain.log(it=1)
one, other = (torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1) for _ in range(2))
"""
    )
    anew, _ = train(torch_pair, begin + "for _ in range(9): go(one)\nfor _ in range(9): go(other)")
    turns, _ = train(torch_pair, begin + "for turn in range(9): go(*[one, other][turn % 3 > 0:])")
    steps = [step for step, _ in points(anew, "it")]

    assert steps[:9] == list(range(9))
    assert (sorted(steps), steps[-6:]) == (steps, list(range(9, 15)))
    assert [step for step, _ in points(turns, "it")] == list(range(9))


def test_metrics_that_are_switched_off_show_nothing(torch_pair):
    run, noted = train(torch_pair, LOOP, metrics=False)
    after, _ = train(torch_pair, LOOP)

    assert len(noted[0]) == 5
    assert list(run.metrics) == []
    assert len(points(after, "loss")) == 5


def test_compiled_models_and_steps_are_compiled_as_without(torch_pair):
    """There are as many graphs with as many operations, and the losses are right."""
    code = """
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend
def build():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend('aot_eager')
    torch.manual_seed(1)
    model, optimizer = make()
    noted = []
    @torch.compile(backend=counter)
    def step(data):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        return loss
    for _ in range(4):
        noted.append(step(torch.ones(4, 3)).item())
    compiled = torch.compile(model, backend=counter)
    advance = torch.compile(optimizer.step, backend=counter)
    for _ in range(3):
        optimizer.zero_grad()
        whole = compiled(torch.ones(4, 3)).square().mean()
        whole.backward()
        advance()
        noted.append(whole.item())
    return counter.frame_count, counter.op_count, noted
build()
"""
    plain, without = train(torch_pair, code, metrics=False)
    run, with_metrics = train(torch_pair, "build()")

    assert list(plain.metrics) == []
    assert with_metrics == without
    noted = with_metrics[0][2]
    assert points(run, "loss") == curve(noted[:4])
    assert points(run, "whole") == curve(noted[4:], first=4)


def test_a_value_that_is_no_loss_is_left_out(torch_pair):
    """Backward passes with given gradients, graph edges, gradients of gradients; the cell goes on as ever."""
    code = """
model, optimizer = make()
out = model(torch.ones(4, 3))
out.backward(torch.ones(4, 1), retain_graph=True)
torch.autograd.backward([out.sum()], retain_graph=True, inputs=[model.weight])
torch.autograd.backward([torch.autograd.graph.get_gradient_edge(out)], [torch.ones(4, 1)])
torch.autograd.grad(lose(model), [model.weight])
torch.func.grad(lambda w: (w ** 2).sum())(torch.ones(3))
# As a checkpoint's own backward pass on a thread of autograd's: nobody's code calls it.
thread = threading.Thread(target=model(torch.ones(4, 3)).sum().backward, args=(torch.tensor(1.),))
thread.start()
thread.join()
try: model(torch.ones(4, 3)).backward()
except RuntimeError as error: text = str(error)
optimizer.step()
text
"""
    run = torch_pair.run(code, 0, view=None, timeout=PATIENCE)

    assert losses(run) == ["out"]
    assert "scalar outputs" in run.results[0].data["text/plain"]
    assert run.text(0) == ""


def test_errors_of_backward_show_no_frame_of_ours(torch_pair):
    with pytest.raises(DistributedError) as failure:
        train(torch_pair, "loss = lose(nn.Linear(3, 1))\nloss.backward()\nloss.backward()")
    text = "\n".join(failure.value._render_traceback_())

    assert "second time" in text
    assert "jupyter_dtrain" not in text


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_metrics_do_not_import_torch_and_notice_a_fresh_import(launch):
    """The first cell that imports torch shows a loss: at once, while there is no optimizer."""
    session = launch(n=1)
    loaded, before = train(session, "import sys\n'torch' in sys.modules")
    by_hand = START + "import time\nloss = nn.Linear(3, 1)(torch.ones(4, 3)).mean()\nloss.backward()\n"
    live = session.run(by_hand + "while True: time.sleep(0.01)", view=None, wait=False)
    deadline = time.monotonic() + PATIENCE
    while "loss" not in live.metrics and time.monotonic() < deadline:
        time.sleep(0.02)
    shown = live.outcome == "running" and "loss" in live.metrics
    session.interrupt()
    live.wait(PATIENCE)
    run, noted = train(session, START + LOOP)
    session.stop()

    assert before == {0: False}
    assert list(loaded.metrics) == []
    assert shown
    assert [step for step, _ in points(live, "loss")] == [0]
    assert points(run, "loss") == curve(noted[0])
