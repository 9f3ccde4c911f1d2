"""Models and optimizers of PyTorch in snapshots, by ``torch.distributed.checkpoint``.

It saves each tensor once, or each shard of a DTensor on the rank that has it, and loads them into any world: of another
size, or sharded otherwise. An optimizer is saved by the names of its parameters, which a model among the user's names
gives. Ranks without a process group of the whole world have states of their own: then the engine pickles those.

torch's writer writes into memory here (:class:`MemoryFiles`). So ranks talk to each other, and copy their tensors,
before training goes on, and threads write the disk afterwards.

Under failure: :func:`misfit` compares keys and shapes before anything is loaded.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from .contents import plain

NAMED: Final = 6
"""Keys that a message names."""


class _Kept(io.BytesIO):
    """A file that stays readable: torch closes what it has written."""

    def close(self) -> None:
        """Stay open."""


class MemoryFiles:
    """The part of a file system that torch's writer uses, in memory."""

    def __init__(self) -> None:
        self.content: dict[str, io.BytesIO] = {}

    @contextmanager
    def create_stream(self, path: Any, _mode: str) -> Iterator[io.BytesIO]:
        """Write a file."""
        stream = self.content[Path(path).name] = _Kept()
        yield stream

    def concat_path(self, path: Any, suffix: str) -> Path:
        """A path below another one."""
        return Path(path) / suffix

    def rename(self, path: Any, new_path: Any) -> None:
        """Give a file another name."""
        self.content[Path(new_path).name] = self.content.pop(Path(path).name)

    def init_path(self, path: Any) -> Path:
        """A path as this class takes it."""
        return Path(path)

    def mkdir(self, path: Any) -> None:
        """There are no folders."""

    def exists(self, path: Any) -> bool:
        """Whether there is a file."""
        return Path(path).name in self.content

    def rm_file(self, path: Any) -> None:
        """Remove a file."""
        self.content.pop(Path(path).name, None)


def saves(value: Any) -> bool:
    """Whether torch's checkpoints hold the value's state."""
    torch = sys.modules["torch"]
    return isinstance(value, torch.nn.Module | torch.optim.Optimizer)


def save_values(values: Mapping[str, Any], namespace: Mapping[str, Any], size: int) -> tuple[list[str], dict[str, Any]]:
    """Copy the states of models and optimizers to memory; on all ranks together."""
    torch = sys.modules["torch"]
    chosen = {name: value for name, value in values.items() if saves(value)}
    if not chosen or not (size == 1 or _spans(torch, size)):
        return [], {}
    import torch.distributed.checkpoint as dcp

    states = _states(chosen, namespace)
    writer = dcp.FileSystemWriter("memory", sync_files=False)
    files = writer.fs = MemoryFiles()
    with _quiet():
        dcp.save(states, storage_writer=writer, no_dist=not torch.distributed.is_initialized())
    return list(chosen), {name: stream.getbuffer() for name, stream in files.content.items()}


def misfit(values: Mapping[str, Any], namespace: Mapping[str, Any], folder: Path) -> str:
    """Name the keys that differ between the saved states and those of ``values``."""
    import torch.distributed.checkpoint as dcp

    wrong = [name for name, value in values.items() if not saves(value)]
    if wrong:
        return f"{', '.join(wrong)} was a model or an optimizer, and is something else here"
    saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    here = dict(_flat(_states(values, namespace)))
    found = []
    for name in values:
        mine = {key for key in here if key.startswith(f"{name}.")}
        theirs = {key for key in saved if key.startswith(f"{name}.")}
        found += _said(f"only in the snapshot: {_few(theirs - mine)}" if theirs - mine else "")
        found += _said(f"only here: {_few(mine - theirs)}" if mine - theirs else "")
        shapes = [
            f"{key} is {tuple(here[key].shape)} here and {tuple(saved[key].size)} in the snapshot"
            for key in sorted(mine & theirs)
            if hasattr(here[key], "shape")
            and hasattr(saved[key], "size")
            and tuple(here[key].shape) != tuple(saved[key].size)
        ]
        found += shapes[:NAMED] + _said(f"{len(shapes) - NAMED} more shapes" if len(shapes) > NAMED else "")
    return f"the states do not fit: {'; '.join(found)}" if found else ""


def load_values(values: Mapping[str, Any], namespace: Mapping[str, Any], folder: Path) -> None:
    """Load the states; on all ranks together where they have a group."""
    torch = sys.modules["torch"]
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    states = _states(values, namespace)
    alone = not torch.distributed.is_initialized()
    with _quiet():
        dcp.load(states, storage_reader=dcp.FileSystemReader(folder), no_dist=alone)
    for name, value in values.items():
        if isinstance(value, torch.nn.Module):
            set_model_state_dict(value, states[name])
        else:
            set_optimizer_state_dict(_model_of(name, value, values, namespace), value, states[name])


def _states(values: Mapping[str, Any], namespace: Mapping[str, Any]) -> dict[str, Any]:
    torch = sys.modules["torch"]
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    found = {}
    with _quiet():
        for name, value in values.items():
            if isinstance(value, torch.nn.Module):
                found[name] = get_model_state_dict(value)
            else:
                found[name] = get_optimizer_state_dict(_model_of(name, value, values, namespace), value)
    return found


def _model_of(name: str, optimizer: Any, values: Mapping[str, Any], namespace: Mapping[str, Any]) -> Any:
    """The model whose parameters the optimizer steps: the largest among the user's names, saved ones first."""
    torch = sys.modules["torch"]
    for place in (values, namespace):
        fitting = []
        for label, model in list(place.items()):
            if isinstance(model, torch.nn.Module) and not label.startswith("_"):
                names = {id(parameter): plain(one) for one, parameter in model.named_parameters()}
                wanted = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
                if wanted and all(one in names for one in wanted):
                    fitting.append((len(names), model))
        if fitting:
            return max(fitting, key=lambda pair: pair[0])[1]
    raise ValueError(
        f"{name!r} steps parameters of no model among your top-level variables, so they have no names: keep the model "
        f"in a variable"
    )


def _flat(state: Any) -> Iterator[tuple[str, Any]]:
    """A nested state by the keys that torch gives its parts."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    flat, _ = flatten_state_dict(state)
    yield from flat.items()


def _spans(torch: Any, size: int) -> bool:
    dist = torch.distributed
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() == size)


def _few(keys: set[str]) -> str:
    ordered = sorted(keys)
    return ", ".join(ordered[:NAMED]) + (f" and {len(ordered) - NAMED} more" if len(ordered) > NAMED else "")


def _said(words: str) -> list[str]:
    return [words] if words else []


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out torch's remarks about how a checkpoint is made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
