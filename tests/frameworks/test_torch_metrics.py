"""What a cell's training shows without a line of logging: held against what the cell itself has noted down."""

from __future__ import annotations

import ast
import importlib.util
import re
import time

import pytest

from jupyter_dtrain import DistributedError

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

PATIENCE = 60
START = """
import os, threading, torch
from torch import nn
rank = int(os.environ['RANK'])
torch.manual_seed(rank)
torch.set_num_threads(1)
def make(lr=0.1):
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=lr)
def lose(model):
    return model(torch.randn(4, 3)).square().mean()
"""
LOOP = """
model, optimizer = make()
noted = []
for _ in range(5):
    optimizer.zero_grad()
    loss = lose(model)
    loss.backward()
    optimizer.step()
    noted.append(loss.item())
noted
"""


@pytest.fixture(scope="module")
def torch_world(launch):
    """A world of two ranks with torch imported."""
    session = launch(n=2)
    session.run(START, view=None, timeout=PATIENCE)
    yield session
    session.stop()


def train(session, code, ranks=0, **options):
    """Run a cell; the run, and the value of its last line by rank."""
    run = session.run(code, ranks, view=None, timeout=PATIENCE, **options)
    texts = {rank: re.sub(r"\binf\b", "1e999", result.data["text/plain"]) for rank, result in run.results.items()}
    return run, {rank: ast.literal_eval(text) for rank, text in texts.items()}


def points(run, name, rank=0):
    """(step, value) of each point of a series on a rank."""
    columns = run.metrics[name][rank]
    return list(zip(columns.steps, columns.values, strict=True))


def curve(values, first=0):
    """The points that a series of these values has, one a step."""
    return [(step, pytest.approx(value)) for step, value in enumerate(values, first)]


def losses(run):
    """The names of all series that are values of ``backward()``."""
    return sorted(name for name in run.metrics if not re.match("lr|steps/s|samples/s|grad_norm", name))


def test_a_plain_loop_shows_its_losses_on_every_rank(torch_world):
    run, noted = train(torch_world, LOOP, None)

    assert noted[0] != noted[1]
    assert {rank: points(run, "loss", rank) for rank in (0, 1)} == {rank: curve(noted[rank]) for rank in (0, 1)}
    assert losses(run) == ["loss"]


def test_a_cell_that_is_run_again_begins_anew_with_the_same_name(torch_world):
    step = "def step():\n    loss = lose(model)\n    loss.backward()\n    optimizer.step()\n    return loss.item()"
    train(torch_world, step)
    first, noted = train(torch_world, "model, optimizer = make()\n[step() for _ in range(3)]")
    again, noted_again = train(torch_world, "[step() for _ in range(3)]")

    assert points(first, "loss") == curve(noted[0])
    assert points(again, "loss") == curve(noted_again[0])


def test_a_loss_that_is_logged_by_hand_is_not_mixed_with_the_one_that_was_seen(torch_world):
    """The name is the user's; what was seen stands beside it."""
    code = LOOP.replace("    noted.append", "    jupyter_dtrain.log(loss=10 * loss.item())\n    noted.append")
    run, noted = train(torch_world, f"import jupyter_dtrain\n{code}")

    assert points(run, "loss") == curve([10 * value for value in noted[0]])
    assert points(run, "loss (backward)") == curve(noted[0])


def test_metrics_that_are_switched_off_show_nothing(torch_world):
    run, noted = train(torch_world, LOOP, metrics=False)
    after, _ = train(torch_world, LOOP)

    assert len(noted[0]) == 5
    assert list(run.metrics) == []
    assert len(points(after, "loss")) == 5


@pytest.mark.parametrize(
    "backward",
    ["(loss / 4).backward()", "loss = loss / 4; loss.backward()", "(0.25 * loss).backward()", "loss.backward()"],
)
def test_gradient_accumulation_shows_the_mean_of_the_true_losses(torch_world, backward):
    """However it was divided; the last accumulation, of one, comes with the end of the cell."""
    code = f"""
model, optimizer = make()
noted, true = [], []
for micro in range(13):
    loss = lose(model)
    true.append(loss.item())
    {backward}
    if micro % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
    if micro % 4 == 3 or micro == 12:
        noted.append(sum(true) / len(true))
        true.clear()
noted
"""
    run, noted = train(torch_world, code)

    assert len(noted[0]) == 4
    assert points(run, "loss") == curve(noted[0])
    assert losses(run) == ["loss"]


def test_a_weighted_loss_is_shown_as_it_is(torch_world):
    """A factor is no accumulation while there is one value a step."""
    run, noted = train(torch_world, LOOP.replace("lose(model)", "lose(model) * 0.5"))

    assert points(run, "loss") == curve(noted[0])


def test_a_scaled_loss_is_shown_unscaled_and_a_skipped_step_is_a_step(torch_world):
    """With autocast, on processors; the third step overflows."""
    code = """
model, optimizer = make()
scaler = torch.amp.GradScaler('cpu', init_scale=1000.)
noted, weights = [], []
for index in range(6):
    optimizer.zero_grad()
    with torch.autocast('cpu', torch.bfloat16):
        out = model(torch.randn(4, 3))
    loss = out.float().square().mean() * (float('inf') if index == 2 else 1)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    noted.append(loss.item())
    weights.append(model.weight.sum().item())
noted, weights
"""
    run, results = train(torch_world, code, grad_norm=True)
    noted, weights = results[0]

    assert weights[1] == weights[2]
    assert points(run, "loss") == curve(noted)
    assert points(run, "loss")[2] == (2, float("inf"))
    assert [step for step, _ in points(run, "grad_norm")] == [0, 1, 3, 4, 5]
    assert [name for name in run.metrics if name.startswith("lr")] == ["lr"]


def test_scaling_and_accumulation_go_together(torch_world):
    """Divided before the scaling, after it, and several losses scaled at once."""
    code = """
model, optimizer = make()
scaler = torch.amp.GradScaler('cpu', init_scale=1000.)
noted, true = [], []
for micro in range(8):
    loss = lose(model)
    true.append(loss.item())
    if BEFORE: scaler.scale(loss / 4).backward()
    else: (scaler.scale(loss) / 4).backward()
    if micro % 4 == 3:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        noted.append(sum(true) / 4)
        true.clear()
noted
"""
    several = """
model, optimizer = make()
first, second = lose(model), lose(model)
noted = {'first': first.item(), 'second': second.item(), 'total': first.item() + second.item()}
torch.autograd.backward(scaler.scale([first, second]), retain_graph=True)
total = sum(scaler.scale([first, second]))
total.backward()
optimizer.step()
noted
"""
    before, noted_before = train(torch_world, "BEFORE = True\n" + code)
    after, noted_after = train(torch_world, "BEFORE = False\n" + code)
    list_run, noted_list = train(torch_world, several)

    assert points(before, "loss") == curve(noted_before[0])
    assert points(after, "loss") == curve(noted_after[0])
    assert {name: points(list_run, name) for name in losses(list_run)} == {
        name: [(0, pytest.approx(value))] for name, value in noted_list[0].items()
    }


def test_the_losses_of_a_gan_go_to_the_steps_that_follow_them(torch_world):
    """The generator steps every second time, and counts its own steps."""
    code = """
D, G = nn.Linear(3, 1), nn.Linear(2, 3)
optimizerD, optimizerG = torch.optim.Adam(D.parameters(), lr=0.1), torch.optim.Adam(G.parameters(), lr=0.2)
noted = {'errD_real': [], 'errD_fake': [], 'errG': []}
for index in range(6):
    D.zero_grad()
    errD_real = D(torch.randn(4, 3)).sigmoid().mean()
    errD_real.backward()
    fake = G(torch.randn(4, 2))
    errD_fake = D(fake.detach()).sigmoid().mean()
    errD_fake.backward()
    optimizerD.step()
    noted['errD_real'].append(errD_real.item())
    noted['errD_fake'].append(errD_fake.item())
    if index % 2:
        G.zero_grad()
        errG = -D(fake).sigmoid().mean()
        errG.backward()
        optimizerG.step()
        noted['errG'].append(errG.item())
noted
"""
    run, noted = train(torch_world, code, grad_norm=True)

    assert {name: points(run, name) for name in losses(run)} == {name: curve(noted[0][name]) for name in noted[0]}
    assert points(run, "lr")[-1] == (5, 0.1)
    assert points(run, "lr/optimizerG")[-1] == (2, 0.2)
    assert len(points(run, "grad_norm")) == 6
    assert len(points(run, "grad_norm/optimizerG")) == 3


def test_a_closure_that_is_called_again_and_again_counts_once_a_step(torch_world):
    """LBFGS; and a closure that raises leaves no trace in the next step."""
    code = """
torch.manual_seed(0)
model = nn.Linear(3, 1)
data, target = torch.randn(16, 3), torch.randn(16, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
noted, calls, fail = [], 0, True
def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = (model(data) - target).square().mean()
    loss.backward()
    if fail: raise ValueError('this time')
    return loss
try: optimizer.step(closure)
except ValueError: pass
fail = False
with torch.no_grad():
    before = (model(data) - target).square().mean().item()
for _ in range(3):
    noted.append(optimizer.step(closure).item())
before, noted, calls
"""
    run, results = train(torch_world, code)
    before, noted, calls = results[0]

    assert calls > 6
    assert [value for _, value in points(run, "loss")] == pytest.approx([before, *noted])


def test_compiled_models_and_steps_are_compiled_as_without(torch_world):
    """As many graphs with as many operations, and the right losses."""
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
    plain, without = train(torch_world, code, metrics=False)
    run, with_metrics = train(torch_world, "build()")

    assert list(plain.metrics) == []
    assert with_metrics == without
    noted = with_metrics[0][2]
    assert points(run, "loss") == curve(noted[:4])
    assert points(run, "whole") == curve(noted[4:], first=4)


def test_sharded_training_shows_each_ranks_own_loss(torch_world):
    """FSDP2, whose gradients are DTensors: their norm is the local shards'."""
    code = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group('gloo')
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
noted, norms = [], []
for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.full((2, 6), rank + 1.)).square().mean()
    loss.backward()
    norms.append(sum(p.grad.to_local().square().sum().item() for p in model.parameters()) ** 0.5)
    optimizer.step()
    noted.append(loss.item())
dist.destroy_process_group()
noted, norms
"""
    run, results = train(torch_world, code, None, grad_norm=True)

    for rank, (noted, norms) in results.items():
        assert points(run, "loss", rank) == curve(noted)
        assert points(run, "grad_norm", rank) == curve(norms)
    assert results[0][0] != results[1][0]


def test_values_are_named_after_what_they_are_called_at_the_call(torch_world):
    """Attributes, items, lists, calls through a library, and what has no name."""
    code = """
class Box: pass
class Engine:
    def backward(self, value): value.backward()
model, optimizer = make()
box, tasks, many = Box(), {}, [lose(model), lose(model)]
box.first = lose(model)
tasks['a'], tasks['b'] = lose(model), lose(model)
one, two, three, x = lose(model), lose(model), lose(model), lose(model)
noted = {'first': box.first.item(), 'tasks[a]': tasks['a'].item(), 'tasks[b]': tasks['b'].item(),
         'many[0]': many[0].item(), 'many[1]': many[1].item(), 'one': one.item(), 'two': two.item(),
         'three': three.item(), 'value': x.item()}
box.first.backward()
for task in tasks:
    tasks[task].backward()
torch.autograd.backward(many)
torch.autograd.backward([one, two])
torch.autograd.backward(tensors=three)
Engine().backward(x)
unnamed = lose(model)
noted['loss'] = unnamed.item()
(lambda: unnamed)().backward()
optimizer.step()
noted
"""
    run, noted = train(torch_world, code)

    assert {name: points(run, name) for name in losses(run)} == {
        name: [(0, pytest.approx(value))] for name, value in noted[0].items()
    }


def test_a_call_through_a_library_is_named_at_the_users_call(torch_world, tmp_path):
    """As accelerate's, Fabric's and DeepSpeed's ``backward(loss)``; a trainer that does it all has ``loss``."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "someones_engine.py").write_text(
        "class Engine:\n"
        "    def backward(self, loss, **more):\n        loss = loss / 2\n        self._backward(loss)\n"
        "    def _backward(self, tensor):\n        tensor.backward()\n"
        "    def fit(self, make_loss):\n        thing = make_loss()\n        thing.backward()\n"
    )
    code = f"""
import sys
sys.path.insert(0, {str(folder)!r})
from someones_engine import Engine
engine = Engine()
model, optimizer = make()
noted = {{}}
objective, other = lose(model), lose(model)
noted['objective'], noted['other'] = objective.item() / 2, other.item() / 2
engine.backward(objective)
engine.backward(loss=other)
last = lose(model)
noted['loss'] = last.item()
engine.fit(lambda: last)
optimizer.step()
noted
"""
    run, noted = train(torch_world, code)

    assert {name: points(run, name) for name in losses(run)} == {
        name: [(0, pytest.approx(value))] for name, value in noted[0].items()
    }


def test_threads_that_train_at_once_keep_their_losses_apart(torch_world):
    """Each begins when the one before is at work."""
    code = """
noted = {}
at_work = {name: threading.Event() for name in 'abc'}
def work(name, before):
    if before is not None: before.wait()
    model, optimizer = make()
    noted[name] = []
    for _ in range(50):
        loss = {name: lose(model)}
        loss[name].backward()
        optimizer.step()
        noted[name].append(loss[name].item())
        at_work[name].set()
starts = [('a', None), ('b', at_work['a']), ('c', at_work['b'])]
threads = [threading.Thread(target=work, args=start) for start in starts]
for thread in threads: thread.start()
for thread in threads: thread.join()
noted
"""
    run, noted = train(torch_world, code)

    assert {name: points(run, f"loss[{name}]") for name in "abc"} == {name: curve(noted[0][name]) for name in "abc"}


def test_values_of_helper_threads_go_to_the_step_of_the_main_thread(torch_world):
    code = """
model, optimizer = make()
optimizer.step()
noted = []
def work():
    loss = lose(model)
    noted.append(loss.item())
    loss.backward()
for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    optimizer.step()
noted
"""
    run, noted = train(torch_world, code)

    assert points(run, "loss") == curve(noted[0], first=1)


def test_without_an_optimizer_every_value_is_shown_in_order(torch_world):
    """Parameters that are updated by hand, more often than values wait; and before the end of the cell."""
    code = """
model, optimizer = make()
noted = []
for _ in range(COUNT):
    loss = lose(model)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
    noted.append(loss.item())
noted
"""
    few, noted_few = train(torch_world, code.replace("COUNT", "7"))
    many, noted_many = train(torch_world, code.replace("COUNT", "700"))

    assert points(few, "loss") == curve(noted_few[0])
    assert points(many, "loss") == curve(noted_many[0])


def test_a_loop_by_hand_after_a_trained_one_keeps_its_values(torch_world):
    """They are not taken for an accumulation."""
    by_hand = "for _ in range(4):\n    loss = lose(model)\n    loss.backward()\n    noted.append(loss.item())\nnoted"
    run, noted = train(torch_world, LOOP + by_hand)

    assert points(run, "loss") == curve(noted[0])


def test_values_from_before_an_optimizer_was_made_are_not_for_its_steps(torch_world):
    code = """
model, _ = make()
noted = []
for index in range(4):
    if index == 3: optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lose(model)
    loss.backward()
    noted.append(loss.item())
optimizer.step()
noted
"""
    run, noted = train(torch_world, code)

    assert [value for _, value in points(run, "loss")] == pytest.approx(noted[0])


def test_an_interrupted_or_failed_loop_shows_what_there_was(torch_world):
    """The value whose step never came, too."""
    code = LOOP.replace("optimizer.step()\n", "optimizer.step() if len(noted) < 3 else 1 / 0\n")
    run = torch_world.run(code, 0, view=None, wait=False)
    run.wait(PATIENCE)
    after, noted = train(torch_world, "noted + [loss.item()]")

    assert run.outcome == "error"
    assert points(run, "loss") == curve(noted[0])
    assert list(after.metrics) == []


def test_a_second_training_in_one_cell_goes_on_with_the_numbers(torch_world):
    """Also when the first one's optimizer is kept; optimizers that stand side by side count by themselves."""
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
    run, noted = train(torch_world, code)

    assert points(run, "loss") == curve(noted[0])
    assert [step for step, _ in points(run, "other")] == [0, 0, 1, 1]
    assert points(run, "lr/opt") == [(1, 0.1)]
    assert points(run, "lr/opt-2") == [(1, 0.2)]


def test_a_step_within_a_step_is_one_step(torch_world):
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
    run, noted = train(torch_world, code)

    assert points(run, "loss[mine]") == curve(noted[0][:3])
    assert points(run, "loss[around]") == curve(noted[0][3:])
    assert {name: points(run, name)[-1] for name in run.metrics if name.startswith("lr")} == {
        "lr": (2, 0.3),
        "lr/optimizer-2": (2, 0.1),
    }


def test_an_optimizer_that_steps_within_backward_gets_the_loss(torch_world):
    """One per parameter, as saves memory."""
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
    run, noted = train(torch_world, code)

    assert points(run, "loss") == curve(noted[0])


def test_gradient_norms_are_shown_when_asked_for(torch_world):
    """Of all kinds of gradients together: sparse and half precision ones, too."""
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
    run, noted = train(torch_world, code, grad_norm=True)
    without, _ = train(torch_world, code)

    assert points(run, "grad_norm") == curve(noted[0])
    assert "grad_norm" not in without.metrics


def test_learning_rates_are_those_that_steps_were_made_with(torch_world):
    """Per group; a tensor as well as a number."""
    code = """
import time
one, two = nn.Linear(3, 1), nn.Linear(3, 1)
groups = [{'params': one.parameters(), 'lr': torch.tensor(0.5)}, {'params': two.parameters()}]
optimizer = torch.optim.Adam(groups, lr=1.)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda index: 1 / (1 + index))
made, end = 0, time.monotonic() + 0.8
while time.monotonic() < end:
    optimizer.zero_grad()
    loss = lose(one) + lose(two)
    loss.backward()
    optimizer.step()
    schedule.step()
    made += 1
made
"""
    run, made = train(torch_world, code)
    first, second = points(run, "lr"), points(run, "lr/1")

    assert len(second) > 1
    assert second[-1][0] == made[0] - 1
    assert second == [(step, pytest.approx(1 / (1 + step))) for step, _ in second]
    assert first == [(step, pytest.approx(0.5 / (1 + step))) for step, _ in second]


def test_speed_is_shown_in_steps_and_in_samples(torch_world):
    """Samples are those that a DataLoader gave out for training."""
    code = """
import time
data = torch.utils.data.DataLoader([{'x': torch.ones(3), 'name': 'y'} for _ in range(40)], batch_size=8)
model, optimizer = make()
began, steps = time.monotonic(), 0
while time.monotonic() < began + 0.8:
    for batch in data:
        loss = model(batch['x']).square().mean()
        loss.backward()
        optimizer.step()
        steps += 1
    with torch.no_grad():
        for batch in data: pass
steps / (time.monotonic() - began)
"""
    run, rate = train(torch_world, code)
    steps, samples = points(run, "steps/s"), points(run, "samples/s")

    assert [step for step, _ in steps] == [step for step, _ in samples]
    assert len(steps) > 1
    assert samples == [(step, pytest.approx(8 * value, rel=0.05)) for step, value in steps]
    assert min(value for _, value in steps) < 1.5 * rate[0]
    assert max(value for _, value in steps) > rate[0] / 1.5


def test_a_value_is_the_one_at_the_call(torch_world):
    """Whatever becomes of the tensor; and the value of any type and shape."""
    code = """
model, optimizer = make()
noted = []
for kind in (torch.float64, torch.bfloat16, torch.float16):
    for shape in ((), (1,), (1, 1)):
        loss = lose(model).to(kind).reshape(shape)
        loss.backward()
        noted.append(loss.item())
        loss.detach().fill_(9.)
        optimizer.step()
noted
"""
    run, noted = train(torch_world, code)

    assert points(run, "loss") == curve(noted[0])


def test_the_training_loop_never_waits_for_a_device(torch_world):
    """On torch's lazy device, which computes nothing before it is asked: the cell's thread asks for nothing."""
    code = """
import torch._lazy, torch._lazy.ts_backend
import jupyter_dtrain
torch._lazy.ts_backend.init()
waited, kept, true, norms = [], [], [], []
def watch(name):
    original = getattr(torch.Tensor, name)
    def call(tensor, *args, **kwargs):
        if tensor.device.type == 'lazy' and threading.current_thread() is threading.main_thread():
            waited.append(name)
        return original(tensor, *args, **kwargs)
    setattr(torch.Tensor, name, call)
    return lambda: setattr(torch.Tensor, name, original)
undo = [watch(name) for name in ('item', 'tolist', 'cpu', '__float__', '__bool__', '__int__')]
model = nn.Linear(3, 1).to('lazy')
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(12):
    loss = model(torch.randn(4, 3).to('lazy')).square().mean()
    true.append(loss.detach().clone())
    loss = loss / 4
    jupyter_dtrain.log(logged=loss)
    loss.backward()
    loss.detach().fill_(9.)
    if index % 4 == 3:
        norms.append(torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt())
        optimizer.step()
        optimizer.zero_grad()
        whole = model(torch.ones(1, 3, device='lazy')).sum()
        kept.append(whole.detach().clone())
        whole.backward()
        optimizer.step()
        optimizer.zero_grad()
found = list(waited)
for call in undo: call()
found
"""
    run, waited = train(torch_world, code, grad_norm=True)
    _, noted = train(torch_world, "[[one.item() for one in each] for each in (true, kept, norms)]")
    true, kept, norms = noted[0]

    assert waited == {0: []}
    assert points(run, "loss") == [(step, pytest.approx(sum(true[2 * step : 2 * step + 4]) / 4)) for step in (0, 2, 4)]
    assert points(run, "whole") == [(2 * index + 1, pytest.approx(value)) for index, value in enumerate(kept)]
    assert points(run, "logged") == curve([value / 4 for value in true])
    assert points(run, "grad_norm")[::2] == [(2 * index, pytest.approx(value)) for index, value in enumerate(norms)]


@pytest.mark.gpu
def test_losses_on_a_gpu_are_read_from_the_stream_that_computed_them(torch_world):
    """With the scaler, on a stream of the user's."""
    if not train(torch_world, "torch.cuda.is_available()")[1][0]:
        pytest.skip("needs a CUDA device")
    code = """
model, _ = make()
model = model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler, kept = torch.amp.GradScaler('cuda', init_scale=1024.), []
with torch.cuda.stream(torch.cuda.Stream()):
    for index in range(50):
        optimizer.zero_grad()
        with torch.autocast('cuda', torch.float16):
            loss = model(torch.randn(4, 3, device='cuda')).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        kept.append(loss.detach().clone())
        loss.detach().fill_(9.)
torch.cuda.synchronize()
[one.item() for one in kept]
"""
    run, noted = train(torch_world, code)

    assert points(run, "loss") == curve(noted[0])


def test_what_is_no_loss_is_left_out(torch_world):
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
    run = torch_world.run(code, 0, view=None, timeout=PATIENCE)

    assert losses(run) == ["out"]
    assert "scalar outputs" in run.results[0].data["text/plain"]
    assert run.text(0) == ""


def test_a_complex_loss_is_complained_about_once(torch_world):
    code = """
z = torch.ones((), dtype=torch.complex64, requires_grad=True)
for _ in range(3):
    loss = z * 2
    loss.backward(torch.ones((), dtype=torch.complex64))
"""
    run = torch_world.run(code, 0, view=None, timeout=PATIENCE)

    assert losses(run) == []
    assert run.text(0).count("'loss' is left out: it is complex") == 1


def test_errors_of_backward_show_no_frame_of_ours(torch_world):
    with pytest.raises(DistributedError) as failure:
        train(torch_world, "loss = lose(nn.Linear(3, 1))\nloss.backward()\nloss.backward()")
    text = "\n".join(failure.value._render_traceback_())

    assert "second time" in text
    assert "jupyter_dtrain" not in text


def test_no_graph_is_kept_alive(torch_world):
    """Nor an optimizer, nor a tensor of the user's."""
    code = """
import gc, weakref
model, optimizer = make()
for _ in range(3):
    loss = lose(model)
    loss.backward()
    optimizer.step()
gone = [weakref.ref(loss), weakref.ref(optimizer), weakref.ref(model)]
del loss, optimizer, model
gc.collect()
[one() is None for one in gone]
"""
    _, gone = train(torch_world, code)

    assert gone == {0: [True, True, True]}


def test_logged_tensors_are_read_later_and_odd_ones_left_out(torch_world):
    """``log()`` with tensors of all kinds: the value is that of the call."""
    code = """
import jupyter_dtrain
value = torch.tensor([[2.5]], requires_grad=True)
with torch.no_grad():
    jupyter_dtrain.log(value=value, whole=torch.tensor(3), yes=torch.tensor(True), half=torch.tensor(0.5).half())
    value.fill_(7.)
jupyter_dtrain.log(three=torch.ones(3), none=torch.ones(0), turned=torch.tensor(1j))
"""
    run = torch_world.run(code, 0, view=None, timeout=PATIENCE)

    assert {name: points(run, name)[0][1] for name in run.metrics} == {"value": 2.5, "whole": 3, "yes": 1, "half": 0.5}
    assert "'three' is left out: a tensor with 3 elements is not one number" in run.text(0)
    assert "'turned' is left out: it is complex" in run.text(0)


@pytest.mark.slow
def test_torch_is_not_imported_for_it_and_a_fresh_import_is_heard(launch):
    """The first cell that imports torch is the first that shows something: at once, while there is no optimizer."""
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
