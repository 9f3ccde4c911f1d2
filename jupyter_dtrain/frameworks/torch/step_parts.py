"""What torch's functions do in a step of training, for those who look at the stack of a rank.

Functions are known by their file in torch and their name. Under failure: a function that a version of torch calls
otherwise says nothing, and its time counts for what calls it.
"""

from __future__ import annotations

import ast
import re
import sys
from types import CodeType, FrameType
from typing import Any, Final

from jupyter_dtrain.plugins.framework import Doing, value_of
from jupyter_dtrain.plugins.libraries import file_in
from jupyter_dtrain.plugins.patches import Patch

INTERNALS = Patch(
    "torch",
    reads=(
        *("_call_impl", "_engine_run_backward", "_sync_buffers", "_sync_module_buffers"),
        *("_default_broadcast_coalesced", "_distributed_broadcast_coalesced", "_wait_for_post_backward"),
        *("_all_gather_flat_param", "_reduce_grad", "_wait_batch_p2p"),
    ),
    why="Only the names of the functions on its stack tell what a rank does in a step.",
    lost="more of a step's time is shown as other",
)

_COLLECTIVES: Final = re.compile(
    r"(all_)?(reduce|gather|to_all)(_\w+)?|(reduce_scatter|broadcast|scatter|send|recv)(_\w+)?|i(send|recv)|\w*barrier|"
    r"batch_isend_irecv"
)
_FORMS: Final = re.compile(r"(_(into|single|tensor|coalesced|object|list|uneven|inplace|autograd))+$")
"""What the names of a collective's many functions have behind its own."""
_GATHER, _SCATTER = Doing("communication", "all_gather"), Doing("communication", "reduce_scatter")
_BROADCAST, _WAIT = Doing("communication", "broadcast"), Doing("communication", "wait")
_BY_NAME: Final[dict[str, dict[str, Doing]]] = {
    "nn/modules/module.py": {"_call_impl": Doing("forward")},
    "autograd/graph.py": {"_engine_run_backward": Doing("backward")},
    "optim/optimizer.py": {"wrapper": Doing("optimizer"), "zero_grad": Doing("optimizer")},
    "optim/lr_scheduler.py": {"step": Doing("optimizer")},
    "amp/grad_scaler.py": dict.fromkeys(("step", "update", "unscale_"), Doing("optimizer")),
    "utils/data/dataloader.py": dict.fromkeys(("__next__", "__iter__"), Doing("data")),
    "serialization.py": dict.fromkeys(("save", "load"), Doing("checkpoint")),
    "cuda/__init__.py": {"synchronize": Doing("device")},
    "cuda/streams.py": {"synchronize": Doing("device")},
    "nn/parallel/distributed.py": dict.fromkeys(
        ("_sync_buffers", "_sync_module_buffers", "_default_broadcast_coalesced", "_distributed_broadcast_coalesced"),
        _BROADCAST,
    ),
    "distributed/_functional_collectives.py": {"wait_tensor": _WAIT},
    "distributed/fsdp/_fully_shard/_fsdp_param_group.py": {
        **dict.fromkeys(("unshard", "wait_for_unshard"), _GATHER),
        **dict.fromkeys(("_wait_for_post_backward", "finalize_backward"), _SCATTER),
    },
    "distributed/fsdp/_fully_shard/_fsdp_collectives.py": {
        **dict.fromkeys(("foreach_all_gather", "foreach_all_gather_copy_out"), _GATHER),
        "foreach_reduce": _SCATTER,
    },
    "distributed/fsdp/_flat_param.py": {"_all_gather_flat_param": _GATHER},
    "distributed/fsdp/_runtime_utils.py": {"_reduce_grad": _SCATTER},
    "distributed/pipelining/schedules.py": {"_wait_batch_p2p": Doing("communication", "recv")},
    "nn/utils/clip_grad.py": dict.fromkeys(("clip_grad_norm_", "clip_grad_value_"), Doing("optimizer")),
}
_COMMUNICATING: Final = ("distributed/distributed_c10d.py", "distributed/_functional_collectives.py")
_SAVING: Final = "distributed/checkpoint/"
_COPIES: Final = frozenset({"to", "cuda", "copy_", "pin_memory"})
_READS: Final = frozenset({"item", "tolist", "cpu", "numpy", "synchronize", "float", "int", "bool"})
"""Calls that wait for a device where their tensor is on one."""


def part_of(code: CodeType) -> Doing | None:
    """As :meth:`.Framework.part_of`."""
    file, name = file_in("torch", code.co_filename), code.co_name
    if not file:
        return None
    if file.startswith(_SAVING):
        return Doing("checkpoint")
    if file in _COMMUNICATING and _COLLECTIVES.fullmatch(name):
        return Doing("communication", _FORMS.sub("", name))
    return _BY_NAME.get(file, {}).get(name)


def part_at(frame: FrameType, call: ast.Call | None) -> Doing | None:
    """As :meth:`.Framework.part_at`: a wait for other ranks or for a device, or a copy to one."""
    if call is None or "torch" not in sys.modules:
        return None
    if isinstance(call.func, ast.Name):
        name, owner = call.func.id, value_of(frame, call.args[0]) if call.args else None
    elif isinstance(call.func, ast.Attribute):
        name, owner = call.func.attr, value_of(frame, call.func.value)
    else:
        return None
    if name == "wait":
        return _WAIT if owner is None or type(owner).__module__.startswith("torch") else None
    if name in _READS and _is_on_device(owner):
        return Doing("device")
    return Doing("copy") if name in _COPIES and _copies(owner) else None


def _is_on_device(owner: Any) -> bool:
    torch = sys.modules["torch"]
    return isinstance(owner, torch.Tensor) and owner.device.type not in ("cpu", "meta")


def _copies(owner: Any) -> bool:
    """Whether to move ``owner`` costs a copy between host and device: there is a device in use."""
    torch = sys.modules["torch"]
    in_use = hasattr(torch, "cuda") and torch.cuda.is_initialized()
    return bool(in_use and (owner is None or isinstance(owner, (torch.Tensor, torch.nn.Module))))
