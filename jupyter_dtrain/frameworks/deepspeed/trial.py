"""One combination of a sweep over DeepSpeed's settings, in one rank: make the engine, train some steps, measure.

:mod:`.sweep` runs it as one cell for each combination. It reads the user's names but writes none, and restores the
random numbers afterwards. It sends its results as a display of its own type.

Under failure: any error ends the cell, and the steward releases the other ranks as from any cell. Running out of memory
raises :class:`OutOfMemory`. Model, engine and batch are freed, however the cell ends.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.rank.memory import is_out_of_memory
from jupyter_dtrain.rank.rank_context import rank_home

MEASURED = "application/vnd.jupyter-dtrain.measured+json"
"""The type of the display with the results."""
_QUIET = 1_000_000_000
"""Steps between two lines of DeepSpeed's own."""
_RESET_PEAK = "5"
"""proc(5), clear_refs: the peak resident set is what it is now."""


class OutOfMemory(Exception):
    """A combination does not fit into the memory of this rank, or of its GPU."""


def check(model: str, batch: str, config: str | dict[str, Any] | None) -> None:
    """Whether a sweep can begin. Raises :class:`BadRequest`, with what is missing."""
    if importlib.util.find_spec("deepspeed") is None:
        raise BadRequest("The ranks have no DeepSpeed, which tune measures: pip install deepspeed")
    names = _names()
    for name in (model, batch):
        if not callable(names.get(name)):
            what = "is not a function" if name in names else "is not defined"
            raise BadRequest(f"{name} {what} on the ranks: define it in a %%distributed cell.")
    _settings(config, names)


def measure(
    model: str, batch: str, config: str | dict[str, Any] | None, stage: int, micro_batch: int, steps: int, warmup: int
) -> None:
    """Train ``warmup`` steps and then ``steps`` that are measured. On all ranks.

    ``model``, ``batch``: names of functions, see :func:`.sweep.tune`. ``config``: DeepSpeed's, or the
    name of one. Raises :class:`OutOfMemory`, and what user code or DeepSpeed raises.
    """
    import torch

    names = _names()
    settings = combined(_settings(config, names), stage, micro_batch)
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    full, before = "", _alive()
    try:
        with torch.random.fork_rng(devices=devices):
            found = _train(names[model], names[batch], settings, micro_batch, steps, warmup)
    except Exception as error:
        # Its frames hold the objects that did not fit.
        traceback.clear_frames(error.__traceback__)
        home = rank_home()
        if not is_out_of_memory(error, None if home is None else home.plugins):
            raise
        full = str(error) or type(error).__name__
    finally:
        _let_go(before)
    if full:
        raise OutOfMemory(full)
    from IPython.core import display_functions

    publish: Any = display_functions.publish_display_data
    publish({MEASURED: json.dumps(found | {"config": settings}), "text/plain": f"{settings}: {found}"})


def combined(config: Mapping[str, Any], stage: int, micro_batch: int) -> dict[str, Any]:
    """Return ``config`` with this stage and micro-batch, and without the settings that contradict them."""
    made = copy.deepcopy(dict(config))
    made.pop("train_batch_size", None)  # it would have to be the product of these and the number of ranks
    made["train_micro_batch_size_per_gpu"] = micro_batch
    made.setdefault("gradient_accumulation_steps", 1)
    made["zero_optimization"] = {**made.get("zero_optimization", {}), "stage": stage}
    if "optimizer" not in made and "offload_optimizer" in made["zero_optimization"]:
        made.setdefault("zero_force_ds_cpu_optimizer", False)  # it is to take torch's, which we give it
    return made


def _names() -> dict[str, Any]:
    from IPython.core.interactiveshell import InteractiveShell

    names: dict[str, Any] = InteractiveShell.instance().user_ns
    return names


def _settings(config: str | dict[str, Any] | None, names: Mapping[str, Any]) -> dict[str, Any]:
    found = names.get(config) if isinstance(config, str) else config or {}
    if not isinstance(found, dict):
        raise BadRequest(f"{config} is not a dictionary on the ranks: config names DeepSpeed's configuration.")
    return found


def _train(
    make_model: Any, make_batch: Any, settings: dict[str, Any], micro_batch: int, steps: int, warmup: int
) -> dict[str, Any]:
    import deepspeed  # before memory is looked at
    import torch

    peak = _Peak(torch)
    module = make_model()
    options: dict[str, Any] = {"model_parameters": module.parameters()}
    if "optimizer" not in settings:
        options = {"optimizer": torch.optim.AdamW(module.parameters())}
    engine, *_ = deepspeed.initialize(
        model=module, config=copy.deepcopy(settings) | {"steps_per_print": _QUIET}, **options
    )
    batch = _to_device(make_batch(micro_batch), engine.device)
    parts = engine.gradient_accumulation_steps()
    seconds = []
    for step in range(warmup + steps):
        began = time.perf_counter()
        for _ in range(parts):
            engine.backward(_loss(_forward(engine, batch)))
            engine.step()
        if engine.device.type == "cuda":
            torch.cuda.synchronize(engine.device)
        if step >= warmup:
            seconds.append(time.perf_counter() - began)
    samples = micro_batch * parts * int(engine.dp_world_size)
    return {"seconds": seconds, "samples": samples, "memory": peak.bytes(engine.device)}


def _forward(engine: Any, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return engine(**batch)
    return engine(*batch) if isinstance(batch, (tuple, list)) else engine(batch)


def _loss(output: Any) -> Any:
    if isinstance(output, Mapping):
        return output["loss"]
    if isinstance(output, (tuple, list)):
        return output[0]
    return output if hasattr(output, "backward") else output.loss


def _to_device(value: Any, device: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_device(one, device) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_device(one, device) for one in value]
    return value.to(device) if hasattr(value, "to") else value


class _Peak:
    """The peak of memory since this object was made: the GPU's allocated bytes, or the growth of the host process."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        self._before = _resident("VmRSS")

    def bytes(self, device: Any) -> int:
        """The peak so far."""
        if device.type == "cuda":
            return int(self._torch.cuda.max_memory_allocated(device))
        return max(0, _resident("VmHWM") - self._before)


def _resident(kind: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    return 0


def _alive() -> list[Any]:
    """Find the DeepSpeed engines of this process, also unfinished ones, and their optimizers, among all objects."""
    places = {"deepspeed.runtime.engine": "DeepSpeedEngine", "deepspeed.runtime.base_optimizer": "DeepSpeedOptimizer"}
    kinds = tuple(getattr(sys.modules[module], kind) for module, kind in places.items() if module in sys.modules)
    return [one for one in gc.get_objects() if kinds and issubclass(type(one), kinds)]


def _let_go(before: list[Any]) -> None:
    """Empty all engines that are not in ``before``, so that Python can free them.

    They form cycles through hooks of autograd, which Python cannot see: Python never frees an engine that is only
    forgotten, nor one of ZeRO 3 that was destroyed. So this function empties them.
    """
    kept = {id(one) for one in before}
    new = [one for one in _alive() if id(one) not in kept]
    parts = [
        param for one in new if hasattr(one, "parameters") for param in one.parameters() if hasattr(param, "ds_id")
    ]
    for one in new:
        with suppress(Exception):
            one.destroy()
    for one in (*new, *parts):
        vars(one).clear()
    debug: Any = sys.modules.get("deepspeed.utils.debug")
    if hasattr(debug, "debug_clear_module_and_param_names"):
        debug.debug_clear_module_and_param_names()
    gc.collect()
    if (home := rank_home()) is not None:
        home.plugins.free_memory()
    with suppress(Exception):
        ctypes.CDLL(None).malloc_trim(0)
