"""The processors that Linux allows, and a rank's part of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_dtrain.core.processors import (
    Processors,
    describe_processors,
    read_processors,
    thread_variables,
    threads,
)


def bound_to(*cores: int, quota: float | None = None) -> Processors:
    """A process that may run on these cores, each of which is one processor."""
    return Processors(list(cores), list(cores), quota)


def system(folder: Path, files: dict[str, str]) -> Path:
    """A folder with files as Linux shows them."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("mates", "expected"),
    [
        ([bound_to(*range(8))] * 4, [2, 2, 2, 2]),
        ([bound_to(*range(8))] * 3, [2, 2, 2]),
        ([bound_to(0, 1)] * 2, [1, 1]),
        ([bound_to(0, 1)] * 5, [1] * 5),
        ([bound_to(*range(6))] * 1, [6]),
        # A launcher has bound them: each to its own, two to one half, and in part to the same.
        ([bound_to(0, 1, 2), bound_to(3)], [3, 1]),
        ([bound_to(0, 1, 2, 3)] * 2 + [bound_to(4, 5, 6, 7)] * 2, [2, 2, 2, 2]),
        ([bound_to(0, 1, 2, 3), bound_to(2, 3)], [3, 1]),
        # A container with the time of 3 processors on a host of 16.
        ([bound_to(*range(16), quota=3.0)] * 2, [1, 1]),
        ([bound_to(*range(16), quota=9.5)] * 2, [4, 4]),
        ([bound_to(*range(16), quota=0.5)] * 2, [1, 1]),
    ],
)
def test_the_ranks_of_a_host_divide_what_they_may_use(mates, expected):
    """Each core among the ranks that may use it, and the quota among all; nobody gets less than one thread."""
    assert [threads(own, mates) for own in mates] == expected


def test_six_parts_of_a_third_are_two():
    """The sum is exact, as no sum of floating point numbers would be."""
    assert threads(bound_to(*range(6)), [bound_to(*range(6))] * 3) == 2


def test_a_rank_alone_on_its_host_gets_no_variable():
    """As under torchrun: libraries choose as in any other program."""
    assert thread_variables(bound_to(0, 1), [bound_to(0, 1)]) == {}


@pytest.mark.parametrize(
    ("mates", "value", "why"),
    [
        ([bound_to(*range(8))] * 2, "4", "8 cores, shared by 2 ranks of this host"),
        ([bound_to(3), bound_to(4)], "1", "1 core, for this rank alone"),
        ([bound_to(0, 1, 2, quota=2.5)] * 2, "1", "3 cores and a quota of 2.5 processors, shared by 2 ranks"),
    ],
)
def test_the_variable_says_why(mates, value, why):
    """The limits, and the ranks that share them."""
    [(name, variable)] = thread_variables(mates[0], mates).items()

    assert (name, variable.value) == ("OMP_NUM_THREADS", value)
    assert why in variable.why


def test_this_process_has_the_processors_that_linux_says():
    """Those of its main thread; a process that does not exist has none."""
    found = read_processors(os.getpid())

    assert found.numbers == sorted(os.sched_getaffinity(0))
    assert set(found.cores) <= set(range(os.cpu_count() or 1))
    assert 1 <= len(found.cores) <= len(found.numbers)
    with pytest.raises(OSError, match="No such process"):
        read_processors(2**22 + 1)


@pytest.mark.parametrize("siblings", [("0-1", "0-1"), ("0,64", "0,64")])
def test_processors_of_one_core_count_once(tmp_path, siblings):
    """Linux writes the processors of a core in one of two ways."""
    numbers = sorted(os.sched_getaffinity(0))
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    found = read_processors(system=system(tmp_path, {folder.format(number): siblings[0] for number in numbers}))

    assert (found.numbers, found.cores) == (numbers, [0])


def test_without_facts_each_processor_is_a_core(tmp_path):
    """Some sandboxes show neither cores nor control groups."""
    numbers = sorted(os.sched_getaffinity(0))

    assert read_processors(system=tmp_path) == Processors(numbers, numbers, None)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            # The group around it has less.
            {
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/step/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/job/cpu.max": "400000 100000\n",
            },
            4.0,
        ),
        (
            # A container that sees its group at the root, and knows it by the host's name.
            {
                "proc/self/cgroup": "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n0::/../..\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "strange\n"}, None),
    ],
)
def test_the_quota_is_the_smallest_of_all_groups_around_the_process(tmp_path, files, quota):
    """In both versions of control groups."""
    assert read_processors(system=system(tmp_path, files)).quota == quota


def test_processors_are_written_as_linux_writes_them():
    """With their cores, and the quota where there is one."""
    hyper = Processors([0, 1, 2, 8, 10, 11], [0, 2, 8, 10], 2.5)

    assert describe_processors(hyper) == (
        "0-2,8,10-11",
        "4 cores on which this rank may run, with a quota of 2.5 processors",
    )
    assert describe_processors(bound_to(5)) == ("5", "1 core on which this rank may run")
