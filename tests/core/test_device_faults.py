"""A fault after which a rank can use its GPU no more is recognised in an error; the run says what brings it back."""

from __future__ import annotations

import re

import pytest

from jupyter_dtrain.core.causes import blocks
from jupyter_dtrain.core.events import Error
from jupyter_dtrain.core.gpus import fault_in, fault_lines

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"
ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (ILLEGAL, "an illegal memory access was encountered"),
        (ASSERT, "device-side assert triggered"),
        ("HIP error: unspecified launch failure", "unspecified launch failure"),
        ("INTERNAL: CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address", "misaligned address"),
        ("cudaErrorECCUncorrectable: uncorrectable ECC error encountered", "uncorrectable ECC error encountered"),
        ("CUDA out of memory. Tried to allocate 20.00 GiB", ""),
        ("CUDA error: operation not permitted when stream is capturing", ""),
        ("CUDA error: invalid device ordinal", ""),
        ("the address is a misaligned address", ""),
        ("", ""),
    ],
)
def test_faults_that_last_are_told_from_other_errors(text, fault):
    """Frameworks report them with the driver's words, each in its own sentence."""
    assert fault_in(text) == fault


def plain(run) -> list[str]:
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(blocks(run)))
    return re.sub(r"\s*^What this means: \S+$", "", text, flags=re.MULTILINE).splitlines()


def test_the_rank_is_named_with_what_replaces_it(ended_run):
    lines = plain(ended_run(3, {1: Error("AcceleratorError", ILLEGAL, [])}))

    assert "\n".join(lines[-3:]) == (
        "Rank 1 has lost the GPU (an illegal memory access was encountered): tensors there are gone, and every later "
        "call on the GPU fails in that process.\n"
        "The other ranks keep theirs. %distributed restart -r 1 replaces it; %distributed restart replaces all ranks.\n"
        "A GPU reports such a fault late, so the line above may be a later one: a world that is started with "
        "--env CUDA_LAUNCH_BLOCKING=1 stops at the right one."
    )


def test_several_ranks_and_all_ranks():
    """Where all ranks have lost it, nothing is gained by replacing them one by one."""
    some = fault_lines({0: "misaligned address", 2: "misaligned address"}, range(4))
    every = fault_lines({0: "misaligned address"}, range(1))

    assert some[0].startswith("Ranks 0,2 have lost the GPU (misaligned address): ")
    assert "%distributed restart -r 0,2 replaces them;" in some[1]
    assert every[1] == "%distributed restart replaces all ranks."


def test_a_fault_in_the_cause_or_in_a_group_counts(ended_run):
    """Code may catch it and raise something else; the GPU is lost all the same."""
    wrapped = Error("ValueError", "no loss", [], cause=f"AcceleratorError: {ILLEGAL}")
    grouped = Error("ExceptionGroup", "two", [], members=[Error("AcceleratorError", ASSERT, [])])

    assert any(line.startswith("Rank 0 has lost the GPU (an illegal") for line in plain(ended_run(2, {0: wrapped})))
    assert any(line.startswith("Rank 1 has lost the GPU (device-side") for line in plain(ended_run(2, {1: grouped})))


def test_other_errors_say_nothing_of_it(ended_run):
    told = plain(ended_run(2, {0: Error("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB", [])}))

    assert not [line for line in told if "GPU" in line]


def test_two_ranks_on_one_gpu_learn_how_each_gets_its_own(ended_run):
    """NCCL refuses them in the first collective; the sentence stands there once."""
    said = "NCCL error in: it\nLast error:\nDuplicate GPU detected : rank {} and rank {} both on CUDA device 9"
    run = ended_run(2, {rank: Error("DistBackendError", said.format(rank, 1 - rank), []) for rank in range(2)})
    told = [line for line in plain(run) if "set_device" in line]

    assert len(told) == 1
    assert told[0].startswith('NCCL needs one GPU for each rank: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))')
