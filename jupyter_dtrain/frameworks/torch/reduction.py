"""Tensors on their way between notebook and ranks, without the copies that torch's own pickles make of them.

torch saves a tensor into a file, which becomes a part of the pickle: four copies on either side. Here the numbers stay
outside the pickle, as NumPy's do. Under failure: a tensor of another kind than plain data on the host, such as one that
needs a gradient, is left to torch.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from .values import undisturbed

WORTH_IT = 1 << 20
"""Bytes from which on a tensor is taken out of the pickle."""


@undisturbed()
def reduce_tensor(tensor: Any) -> Any:
    """What rebuilds ``tensor`` elsewhere; or what torch says, for one that is no plain data. A parameter's data is."""
    torch = sys.modules["torch"]
    if (
        not tensor.is_cpu
        or tensor.layout is not torch.strided
        or tensor.requires_grad
        or tensor.is_quantized
        or tensor.numel() * tensor.element_size() < WORTH_IT
        or not tensor.is_contiguous()
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.is_inference()
        or any(getattr(tensor, "names", ()))  # only older versions have names
        or vars(tensor)
    ):
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    try:
        numbers = pickle.PickleBuffer(tensor.reshape(-1).view(torch.uint8).numpy())
    except RuntimeError:  # there is no NumPy, or one of another time
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    return rebuild_tensor, (numbers, tensor.dtype, tuple(tensor.shape))


@undisturbed()
def rebuild_tensor(numbers: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """The tensor; it keeps the memory of ``numbers``."""
    import torch

    return torch.frombuffer(numbers, dtype=torch.uint8).view(dtype).reshape(shape)
