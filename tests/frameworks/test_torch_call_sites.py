"""A value has the name that the user's call gives it."""

from __future__ import annotations

import pytest

from tests.frameworks.torch_curves import losses, points, train


def test_values_are_named_after_what_they_are_called_at_the_call(torch_pair):
    """Attributes, items, lists and calls through a library have names; other values do not."""
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
    run, noted = train(torch_pair, code)

    assert {name: points(run, name) for name in losses(run)} == {
        name: [(0, pytest.approx(value))] for name, value in noted[0].items()
    }


def test_a_call_through_a_library_is_named_at_the_users_call(torch_pair, tmp_path):
    """Such are ``backward(loss)`` of accelerate, Fabric and DeepSpeed; a trainer that does it all has ``loss``."""
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
    run, noted = train(torch_pair, code)

    assert {name: points(run, name) for name in losses(run)} == {
        name: [(0, pytest.approx(value))] for name, value in noted[0].items()
    }
