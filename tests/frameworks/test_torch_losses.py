"""Values of ``backward()`` wait for a step and become its points; each is compared with what the cell has noted."""

from __future__ import annotations

import pytest

from tests.frameworks.torch_curves import LOOP, PATIENCE, curve, losses, points, train


def test_a_loss_that_is_logged_by_hand_is_not_mixed_with_the_one_that_was_seen(torch_pair):
    """The name is the user's; what was seen stands beside it."""
    code = LOOP.replace("    noted.append", "    jupyter_dtrain.log(loss=10 * loss.item())\n    noted.append")
    run, noted = train(torch_pair, f"import jupyter_dtrain\n{code}")

    assert points(run, "loss") == curve([10 * value for value in noted[0]])
    assert points(run, "loss (backward)") == curve(noted[0])


@pytest.mark.parametrize(
    "backward",
    ["(loss / 4).backward()", "loss = loss / 4; loss.backward()", "(0.25 * loss).backward()", "loss.backward()"],
)
def test_gradient_accumulation_shows_the_mean_of_the_true_losses(torch_pair, backward):
    """The way of the division does not matter; the last accumulation, of one value, comes with the end of the cell."""
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
    run, noted = train(torch_pair, code)

    assert len(noted[0]) == 4
    assert points(run, "loss") == curve(noted[0])
    assert losses(run) == ["loss"]


def test_a_weighted_loss_is_shown_as_it_is(torch_pair):
    """A factor is no accumulation while there is one value a step."""
    run, noted = train(torch_pair, LOOP.replace("lose(model)", "lose(model) * 0.5"))

    assert points(run, "loss") == curve(noted[0])


def test_a_scaled_loss_is_shown_unscaled_and_a_skipped_step_is_a_step(torch_pair):
    """The loop uses autocast on processors; its third step overflows."""
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
    run, results = train(torch_pair, code, grad_norm=True)
    noted, weights = results[0]

    assert weights[1] == weights[2]
    assert points(run, "loss") == curve(noted)
    assert points(run, "loss")[2] == (2, float("inf"))
    assert [step for step, _ in points(run, "grad_norm")] == [0, 1, 3, 4, 5]
    assert [name for name in run.metrics if name.startswith("lr")] == ["lr"]


def test_scaling_and_accumulation_go_together(torch_pair):
    """The loss is divided before the scaling or after it, or several losses are scaled at once."""
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
    before, noted_before = train(torch_pair, "BEFORE = True\n" + code)
    after, noted_after = train(torch_pair, "BEFORE = False\n" + code)
    list_run, noted_list = train(torch_pair, several)

    assert points(before, "loss") == curve(noted_before[0])
    assert points(after, "loss") == curve(noted_after[0])
    assert {name: points(list_run, name) for name in losses(list_run)} == {
        name: [(0, pytest.approx(value))] for name, value in noted_list[0].items()
    }


def test_the_losses_of_a_gan_go_to_the_steps_that_follow_them(torch_pair):
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
    run, noted = train(torch_pair, code, grad_norm=True)

    assert {name: points(run, name) for name in losses(run)} == {name: curve(noted[0][name]) for name in noted[0]}
    assert points(run, "lr")[-1] == (5, 0.1)
    assert points(run, "lr/optimizerG")[-1] == (2, 0.2)
    assert len(points(run, "grad_norm")) == 6
    assert len(points(run, "grad_norm/optimizerG")) == 3


def test_a_closure_that_is_called_again_and_again_counts_once_a_step(torch_pair):
    """The optimizer is LBFGS; a closure that raises leaves no trace in the next step."""
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
    run, results = train(torch_pair, code)
    before, noted, calls = results[0]

    assert calls > 6
    assert [value for _, value in points(run, "loss")] == pytest.approx([before, *noted])


def test_threads_that_train_at_once_keep_their_losses_apart(torch_pair):
    """Each thread begins when the one before is at work."""
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
    run, noted = train(torch_pair, code)

    assert {name: points(run, f"loss[{name}]") for name in "abc"} == {name: curve(noted[0][name]) for name in "abc"}


def test_values_of_helper_threads_go_to_the_step_of_the_main_thread(torch_pair):
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
    run, noted = train(torch_pair, code)

    assert points(run, "loss") == curve(noted[0], first=1)


def test_without_an_optimizer_every_value_is_shown_in_order(torch_pair):
    """The cell updates parameters by hand, more often than values may wait."""
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
    few, noted_few = train(torch_pair, code.replace("COUNT", "7"))
    many, noted_many = train(torch_pair, code.replace("COUNT", "700"))

    assert points(few, "loss") == curve(noted_few[0])
    assert points(many, "loss") == curve(noted_many[0])


def test_a_loop_by_hand_after_a_trained_one_keeps_its_values(torch_pair):
    """They are not taken for an accumulation."""
    by_hand = "for _ in range(4):\n    loss = lose(model)\n    loss.backward()\n    noted.append(loss.item())\nnoted"
    run, noted = train(torch_pair, LOOP + by_hand)

    assert points(run, "loss") == curve(noted[0])


def test_values_from_before_an_optimizer_was_made_are_not_for_its_steps(torch_pair):
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
    run, noted = train(torch_pair, code)

    assert [value for _, value in points(run, "loss")] == pytest.approx(noted[0])


def test_an_interrupted_or_failed_loop_shows_what_there_was(torch_pair):
    """The value whose step never came is shown, too."""
    code = LOOP.replace("optimizer.step()\n", "optimizer.step() if len(noted) < 3 else 1 / 0\n")
    run = torch_pair.run(code, 0, view=None, wait=False)
    run.wait(PATIENCE)
    after, noted = train(torch_pair, "noted + [loss.item()]")

    assert run.outcome == "error"
    assert points(run, "loss") == curve(noted[0])
    assert list(after.metrics) == []
