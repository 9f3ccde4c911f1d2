"""What PyTorch knows of the training in a cell: its optimizers' settings, and its batches."""

from __future__ import annotations

from tests.frameworks.torch_curves import PATIENCE
from tests.session.cells import Told


def tell(session, code):
    """What a cell tells of what made its run, without what is not known to the library."""
    view = Told()
    session.run(code, 0, view=view, timeout=PATIENCE)
    return {name: value for name, value in view.values.items() if view.origins[name] == "library"}


def test_the_settings_of_an_optimizer(torch_pair):
    """Of each group, as they are before a schedule changes them; the optimizer may be gone at the end."""
    code = """
def fit():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.5, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=float("0.25"), betas=tuple(map(float, ("0.5", "0.75"))))
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    for _ in range(3):
        lose(model).backward()
        optimizer.step()
        warm.step()
fit()
"""
    assert tell(torch_pair, code) == {
        "optimizer": "AdamW",
        "lr": 0.25,
        "betas": [0.5, 0.75],
        "eps": 1e-8,
        "weight_decay": 0.01,
        "lr/1": 0.5,
        "weight_decay/1": 0.0,
        "world_size": 1,
    }


def test_several_optimizers_have_their_names(torch_pair):
    """Where their settings differ from those of the first."""
    code = """
model = nn.Linear(3, 1)
first = torch.optim.SGD(model.parameters(), lr=float("0.5"), momentum=float("0.5"))
other = torch.optim.SGD(model.parameters(), lr=float("0.25"), momentum=float("0.5"))
for _ in range(2):
    lose(model).backward()
    first.step()
    other.step()
"""
    told = tell(torch_pair, code)

    assert (told["optimizer"], told["lr"], told["momentum"]) == ("SGD", 0.5, 0.5)
    assert told["other.lr"] == 0.25
    assert "other.momentum" not in told


def test_batches(torch_pair):
    """That of a rank, and what is accumulated."""
    code = """
data = torch.utils.data.TensorDataset(torch.randn(64, 3))
loader = torch.utils.data.DataLoader(data, int("4"))
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for place, (x,) in enumerate(loader):
    model(x).mean().backward()
    if place % 2:
        optimizer.step()
"""
    told = tell(torch_pair, code)

    assert (told["batch_size"], told["accumulation"]) == (4, 2)


def test_an_optimizer_with_odd_groups_trains_on(torch_pair):
    """What is no setting is left out."""
    code = """
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.5))
optimizer.param_groups[0].update({"odd": object(), 3: 4, "tensor": torch.zeros(3), "api_key": "blue"})
lose(model).backward()
optimizer.step()
"""
    told = tell(torch_pair, code)

    assert told["lr"] == 0.5
    assert told["api_key"] == "[redacted]"
    assert not {"odd", "tensor"} & told.keys()
