"""Libraries that the plug-ins change, each played by a few lines: the user's call ends as the library ends it."""

from __future__ import annotations

import sys
import types

import pytest

from jupyter_dtrain.frameworks.deepspeed import engines
from jupyter_dtrain.frameworks.horovod import keras, libraries
from jupyter_dtrain.frameworks.horovod.plugin import BASICS, Horovod
from jupyter_dtrain.frameworks.lightning import LOGGED, _Logged
from jupyter_dtrain.plugins import patches
from tests.session.cells import run


@pytest.fixture
def faults(monkeypatch):
    """The faults that were reported."""
    found: list[patches.Fault] = []
    monkeypatch.setattr(patches, "_reported", set())
    patches.report_to(found.append)
    yield found
    patches.report_to(None)


@pytest.fixture
def play(monkeypatch):
    """``play(name, source)``: a module of a library."""

    def make(name, source):
        module = types.ModuleType(name)
        exec(source, vars(module))  # noqa: S102 — a library of its own for each test
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


DEEPSPEED = """
class DeepSpeedEngine:
    def __init__(self, args, model, optimizer=None, mpu=None):
        self.module, self.mpu = model, mpu
"""


class Model:
    """A model of the user's; ``cleared`` counts how often its gradients were dropped."""

    def __init__(self):
        self.cleared = 0

    def named_parameters(self):
        return []

    def zero_grad(self, *, set_to_none):
        self.cleared += set_to_none


class Strange(Model):
    """Its ``zero_grad`` takes no such argument."""

    def zero_grad(self):
        self.cleared += 1


def test_an_engine_is_made_however_it_gets_its_model(play, faults):
    """By position, as DeepSpeed's engine for generating does, or by name; also of a model that we cannot clear."""
    module = play("deepspeed.runtime.engine", DEEPSPEED)
    engines.ENGINES.replace(module.DeepSpeedEngine, "__init__", engines.make_engine)
    model, strange = Model(), Strange()
    made = [
        module.DeepSpeedEngine(None, model),
        module.DeepSpeedEngine(None, model, None, "a grid"),
        module.DeepSpeedEngine(args=None, model=model, mpu="a grid"),
        module.DeepSpeedEngine(None, strange, mpu="a grid"),
    ]

    assert [one.mpu for one in made] == [None, "a grid", "a grid", "a grid"]
    assert [one.module for one in made] == [model, model, model, strange]
    assert (model.cleared, strange.cleared) == (3, 0)
    (fault,) = faults
    assert ".__init__ of deepspeed" in fault.words


def test_an_engine_with_other_parameters_stays_as_it_is(play, faults):
    """Their order counts, since the model may come by position."""
    source = DEEPSPEED.replace("args, model,", "model, args=None,")
    module = play("deepspeed.runtime.engine", source)
    engines.ENGINES.when_imported(
        lambda module: engines.ENGINES.replace(module.DeepSpeedEngine, "__init__", engines.make_engine)
    )
    module.DeepSpeedEngine(Model())

    (fault,) = faults
    assert "DeepSpeedEngine.__init__ takes model where args was expected" in fault.words


def test_horovod_refuses_an_optimizer_of_keras_3_on_purpose(play, faults, monkeypatch):
    """That is no fault, and where we cannot judge an optimizer, Horovod takes it."""
    play("keras", "__version__ = '3.5'")
    module = play("horovod._keras", "def create_distributed_optimizer(keras, optimizer, name): return name")
    keras.KERAS.when_imported(keras.refuse_keras_3)
    of_keras_3 = type("Adam", (), {"__module__": "keras.optimizers"})()
    with pytest.raises(TypeError, match="averages no gradients of Keras 3"):
        module.create_distributed_optimizer(None, optimizer=of_keras_3, name="x")
    assert module.create_distributed_optimizer(None, object(), "x") == "x"
    assert faults == []

    monkeypatch.delattr(keras, "is_of_keras_3")
    assert module.create_distributed_optimizer(None, of_keras_3, "x") == "x"
    assert len(faults) == 1


def test_another_horovod_stays_as_it_is_and_the_user_knows_what_is_lost(play, faults):
    """Each part of it by itself."""
    basics = play("horovod.common.basics", "class HorovodBasics:\n    def init(self, ranks=None): return 'up'")
    play("horovod._keras", "")
    play("horovod.torch.optimizer", "class _DistributedOptimizer:\n    def _make_hook(self, p, group): pass")
    Horovod().prepare(types.SimpleNamespace(generation=0))

    assert basics.HorovodBasics().init() == "up"
    assert {fault.words.partition("): ")[2].partition(".")[0] for fault in faults} == {
        one.lost for one in (BASICS, keras.KERAS, libraries.OPTIMIZERS)
    }


CONNECTOR = """
class _LoggerConnector:
    def __init__(self): self.calls = []
    metrics = None
    def update_train_step_metrics(self): self.calls.append("step")
    def update_train_epoch_metrics(self): self.calls.append("epoch")
    def log_eval_end_metrics(self, metrics): self.calls.append(metrics)
"""


def test_lightning_logs_whatever_becomes_of_our_points(play, faults):
    """Its connector has no trainer here, so each of ours fails."""
    module = play("lightning.pytorch.trainer.connectors.logger_connector.logger_connector", CONNECTOR)
    logged = _Logged(None)
    logged.on = True
    logged.hook(module)
    connector = module._LoggerConnector()
    connector.update_train_step_metrics()
    connector.update_train_epoch_metrics()
    connector.log_eval_end_metrics({"a": 1})

    assert connector.calls == ["step", "epoch", {"a": 1}]
    assert {fault.words.rpartition(": ")[2] for fault in faults} == {f"{LOGGED.lost}."}
    assert len(faults) == 3


def test_the_cell_that_imports_another_version_says_once_what_is_lost(launch, tmp_path):
    """It works with the library, and later cells say nothing."""
    (tmp_path / "horovod" / "common").mkdir(parents=True)
    for name in ("horovod", "horovod/common"):
        (tmp_path / name / "__init__.py").touch()
    source = "class HorovodBasics:\n    def init(self, ranks=None): return 'up'\n    def shutdown(self): pass\n"
    (tmp_path / "horovod" / "common" / "basics.py").write_text(f"{source}    def is_initialized(self): return False\n")
    session = launch(n=1)
    first = run(session, f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport horovod.common.basics as basics")
    second = run(session, "basics.HorovodBasics().init()")
    session.stop()

    assert (
        "(HorovodBasics.init takes ranks where comm was expected): ranks that wait in Horovod are not " in first.text(0)
    )
    assert (second.text(0), second.results[0].data["text/plain"]) == ("", "'up'")
