"""Steps of optimizers: their numbers, gradient norms, learning rates and speed."""

from __future__ import annotations

import pytest

from tests.frameworks.torch_curves import curve, points, train, train_until


def test_a_second_training_in_one_cell_goes_on_with_the_numbers(torch_pair):
    """It does so even if the first one's optimizer lives on; optimizers side by side count separately."""
    code = """
noted, kept = [], []
for _ in range(2):
    model, optimizer = make()
    kept.append(optimizer)
    for _ in range(3):
        loss = lose(model)
        loss.backward()
        optimizer.step()
        noted.append(loss.item())
pairs = [make(), make(0.2)]
for _ in range(2):
    for model, opt in pairs:
        other = lose(model)
        other.backward()
        opt.step()
noted
"""
    run, noted = train(torch_pair, code)

    assert points(run, "loss") == curve(noted[0])
    assert [step for step, _ in points(run, "other")] == [0, 0, 1, 1]
    # A flush between two steps, as on a busy machine, takes the value of the first one, too.
    assert points(run, "lr/opt") in ([(1, 0.1)], [(0, 0.1), (1, 0.1)])
    assert points(run, "lr/opt-2") in ([(1, 0.2)], [(0, 0.2), (1, 0.2)])


def test_a_step_within_a_step_is_one_step(torch_pair):
    """An optimizer that calls another's step, or its base class's."""
    code = """
class Mine(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
class Around(torch.optim.Optimizer):
    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner
    def step(self, closure=None):
        return self.inner.step(closure)
model, inner = make()
around = Around(inner)
mine = Mine(model.parameters(), lr=0.3)
noted = []
for optimizer in (mine, around):
    for _ in range(3):
        loss = {'mine': lose(model)} if optimizer is mine else {'around': lose(model)}
        name = next(iter(loss))
        loss[name].backward()
        optimizer.step()
        noted.append(loss[name].item())
noted
"""
    run, noted = train(torch_pair, code)

    assert points(run, "loss[mine]") == curve(noted[0][:3])
    assert points(run, "loss[around]") == curve(noted[0][3:])
    assert {name: points(run, name)[-1] for name in run.metrics if name.startswith("lr")} == {
        "lr": (2, 0.3),
        "lr/optimizer-2": (2, 0.1),
    }


def test_an_optimizer_that_steps_within_backward_gets_the_loss(torch_pair):
    """There is one per parameter, which saves memory."""
    code = """
model, _ = make()
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
def hook(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(hook)
noted = []
for _ in range(4):
    loss = lose(model)
    loss.backward()
    noted.append(loss.item())
noted
"""
    run, noted = train(torch_pair, code)

    assert points(run, "loss") == curve(noted[0])


def test_gradient_norms_are_shown_when_asked_for(torch_pair):
    """The norm covers all kinds of gradients together: sparse and half precision ones, too."""
    code = """
emb, half = nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1).bfloat16()
optimizer = torch.optim.SGD([*emb.parameters(), *half.parameters()], lr=0.1)
noted = []
for _ in range(3):
    optimizer.zero_grad()
    loss = half(emb(torch.tensor([1, 1, 3])).bfloat16()).float().square().mean()
    loss.backward()
    grads = [emb.weight.grad.to_dense(), half.weight.grad.float(), half.bias.grad.float()]
    noted.append(sum(grad.square().sum().item() for grad in grads) ** 0.5)
    optimizer.step()
noted
"""
    run, noted = train(torch_pair, code, grad_norm=True)
    without, _ = train(torch_pair, code)

    assert points(run, "grad_norm") == curve(noted[0])
    assert "grad_norm" not in without.metrics


def test_a_step_that_a_cuda_graph_captures_is_no_step(torch_pair, snapshot_folder):
    """Nothing has happened yet, and a look would break the capture. Here torch alone says that it captures."""
    code = """
torch.manual_seed(0)
model, optimizer = make()
scaler, noted = torch.amp.GradScaler("cpu", init_scale=1.0), []
own = torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing
def step(captures):
    torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing = [lambda: True] * 2 if captures else own
    scaler.step(optimizer)
    torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing = own
    scaler.update()
for index in range(4):
    optimizer.zero_grad()
    loss = lose(model)
    scaler.scale(loss).backward()
    step(False)
    noted.append(loss.item())
    step(True)
noted
"""
    torch_pair.save("stepped", ["model"], every=1)
    try:
        run, noted = train(torch_pair, code, None, grad_norm=True, check="model", check_every=1)
    finally:
        torch_pair.stop_saving()

    assert points(run, "loss") == curve(noted[0])
    assert len(points(run, "grad_norm")) == len(noted[0])
    assert run.checked == len(noted[0])
    (saved,) = [one.step for one in torch_pair.snapshots if one.name == "stepped"]
    assert saved <= len(noted[0])


def test_learning_rates_are_those_that_steps_were_made_with(torch_pair, tmp_path):
    """There is one per group; it may be a tensor or a number."""
    code = """
one, two = nn.Linear(3, 1), nn.Linear(3, 1)
groups = [{'params': one.parameters(), 'lr': torch.tensor(0.5)}, {'params': two.parameters()}]
optimizer = torch.optim.Adam(groups, lr=1.)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda index: 1 / (1 + index))
made = 0
while goes_on():
    optimizer.zero_grad()
    loss = lose(one) + lose(two)
    loss.backward()
    optimizer.step()
    schedule.step()
    made += 1
made
"""
    run, made = train_until(torch_pair, code, lambda run: len(points(run, "lr/1")) > 1, tmp_path)
    first, second = points(run, "lr"), points(run, "lr/1")

    assert len(second) > 1
    assert second[-1][0] == made[0] - 1
    assert second == [(step, pytest.approx(1 / (1 + step))) for step, _ in second]
    assert first == [(step, pytest.approx(0.5 / (1 + step))) for step, _ in second]


def test_speed_is_shown_in_steps_and_in_samples(torch_pair, tmp_path):
    """Samples are those that a DataLoader gave out for training."""
    code = """
import time
data = torch.utils.data.DataLoader([{'x': torch.ones(3), 'name': 'y'} for _ in range(40)], batch_size=8)
model, optimizer = make()
began, steps = time.monotonic(), 0
while goes_on():
    for batch in data:
        loss = model(batch['x']).square().mean()
        loss.backward()
        optimizer.step()
        steps += 1
    with torch.no_grad():
        for batch in data: pass
steps / (time.monotonic() - began)
"""
    run, rate = train_until(torch_pair, code, lambda run: len(points(run, "steps/s")) > 1, tmp_path)
    steps, samples = points(run, "steps/s"), points(run, "samples/s")

    assert [step for step, _ in steps] == [step for step, _ in samples]
    assert len(steps) > 1
    assert samples == [(step, pytest.approx(8 * value, rel=0.05)) for step, value in steps]
    assert min(value for _, value in steps) < 1.5 * rate[0]
    assert max(value for _, value in steps) > rate[0] / 1.5
