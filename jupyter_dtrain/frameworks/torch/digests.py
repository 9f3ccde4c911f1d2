"""Digests of tensors: 64 bits that tell whether two ranks hold the same values in the same order.

Each chunk of :data:`CHUNK` words is mixed and multiplied by random weights, one for each place, and summed modulo 2^64;
so is the row of the chunks' sums. Two tensors that differ in any way, a permutation too, have the same digest by chance
alone: with a probability below 2^-32 for any one difference. An adversary could make them collide; nobody here is one.

Host and device compute the same digest. On a host each core digests some 3 GB/s: chunks stay in its cache. Nothing
bigger than one chunk is copied, except for a tensor that is not contiguous in memory.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final

from .values import NO_DATA, undisturbed

CHUNK: Final = 1 << 15
"""Words of 8 bytes. torch uses one thread for so many."""
TOGETHER: Final = 256
"""Number of chunks that a device digests at once."""
_SPREAD: Final = 64
"""Number of chunks from which on a host uses all its threads."""
_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15


def is_readable(torch: Any, tensor: Any) -> bool:
    """Whether a tensor has values here, in a layout that is strided."""
    no_data = tensor.is_meta or type(tensor).__name__ in NO_DATA
    return not no_data and tensor.layout is torch.strided and not tensor.is_quantized


@undisturbed()
def digest(torch: Any, tensor: Any) -> str:
    """The digest of a tensor's values; empty for one that holds none here, or in a layout that is not strided."""
    if not is_readable(torch, tensor):
        return ""
    with torch.no_grad():
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        if flat.storage_offset() * flat.element_size() % 8:
            flat = flat.clone()
        data = flat.view(torch.uint8)
        whole = data.numel() // 8 * 8
        words = data[:whole].view(torch.int64)
        sums = _on_host(torch, words) if words.is_cpu else _on_device(torch, words)
        rest = bytes(data[whole:].tolist())
    total = int.from_bytes(rest, "little") ^ (data.numel() * _STEP & _MASK)
    for place, one in enumerate(sums):
        total = (total + _mixed((one + place * _STEP) & _MASK)) & _MASK
    return f"{_mixed(total):016x}"


def _on_host(torch: Any, words: Any) -> list[int]:
    weights = _weights(torch, words.device)
    count = -(-words.numel() // CHUNK)
    threads = min(torch.get_num_threads(), count // _SPREAD)

    def work(first: int, last: int) -> list[int]:
        room = torch.empty(CHUNK, dtype=torch.int64, device="cpu")
        found = torch.empty(last - first, dtype=torch.int64, device="cpu")
        for place in range(first, last):
            chunk = words[place * CHUNK : (place + 1) * CHUNK]
            mixed = room[: chunk.numel()]
            torch.bitwise_right_shift(chunk, 32, out=mixed)
            mixed.bitwise_xor_(chunk)
            torch.dot(mixed, weights[: chunk.numel()], out=found[place - first])
        sums: list[int] = found.tolist()
        return sums

    if threads < 2:  # noqa: PLR2004 — one thread is this one
        return work(0, count)
    edges = [count * place // threads for place in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        return [one for sums in pool.map(work, edges, edges[1:]) for one in sums]


def _on_device(torch: Any, words: Any) -> list[int]:
    weights = _weights(torch, words.device)
    found: list[Any] = []
    for start in range(0, words.numel(), CHUNK * TOGETHER):
        chunks = words[start : start + CHUNK * TOGETHER]
        whole = chunks.numel() // CHUNK * CHUNK
        parts = [part for part in (chunks[:whole].view(-1, CHUNK), chunks[whole:].view(1, -1)) if part.numel()]
        found += [part.bitwise_xor(part >> 32).mul_(weights[: part.shape[1]]).sum(dim=1) for part in parts]
    sums: list[int] = torch.cat(found).tolist() if found else []
    return sums


@lru_cache(8)
def _weights(torch: Any, device: Any) -> Any:
    """Odd random numbers, the same on all ranks."""
    numbers = [_mixed(place * _STEP & _MASK) | 1 for place in range(1, CHUNK + 1)]
    signed = [one - (1 << 64) if one >> 63 else one for one in numbers]
    return torch.tensor(signed, dtype=torch.int64, device=device)


def _mixed(word: int) -> int:
    """The finaliser of SplitMix64."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _MASK
    return word ^ (word >> 31)
