"""Why a run's steps are slow, from made-up reports of its ranks: each rule, and each reason to say nothing."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dtrain.core import step_time
from jupyter_dtrain.core.events import CodeLine, Event, Gpu, Metrics, Sample, StepParts
from jupyter_dtrain.core.fold import RunFold
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.core.pipelines import Timeline
from jupyter_dtrain.core.step_time import COMPUTING, EARLY, KEPT, PARTS, RECENT, RankTime, StepTimes, join, shares_of

LOOKS = 40
"""Looks at a rank in a second."""
HEALTHY = {"data": 0.02, "forward": 0.35, "backward": 0.5, "optimizer": 0.08, "communication": 0.05}
WAITING = {"data": 0.05, "forward": 0.3, "backward": 0.4, "optimizer": 0.05, "communication": 0.2}


def window(shares, seconds=1.0, *, step=None, lines=(), **more):
    """A report; what ``shares`` leave is other code. Delays are given as shares, too."""
    parts = {part: share * seconds for part, share in shares.items()}
    parts["other"] = parts.get("other", 0.0) + max(0.0, seconds - sum(parts.values()))
    calls = {"all_reduce": parts.get("communication", 0.0)}
    rows = [CodeLine("cell [1]", line, part, parts.get(part, 0.0)) for line, part in lines]
    more = {"looks": round(LOOKS * seconds), **more, "delayed": more.get("delayed", 0.0) * seconds}
    return StepParts(seconds, parts, calls, rows, step=step, **more)


def train(times, rank, shares, *, windows=RECENT, steps=10, first=0, sample=None, **more):
    """The reports of a loop that makes ``steps`` in each second."""
    for index in range(windows + 1):
        if sample is not None:
            times.take(rank, sample)
        times.take(rank, window(shares, step=first + steps * index, **more))


def world(*ranks, steps=10, **more):
    """Ranks that train together; each is its shares, or those and what else it reports."""
    times = StepTimes()
    for rank, one in enumerate(ranks):
        shares, own = one if isinstance(one, tuple) else (one, {})
        train(times, rank, shares, **{"steps": steps, **more, **own})
    return times


def shifted(part, share, base=HEALTHY):
    """What a rank does that spends ``share`` more of a step in ``part``, and the less in all the rest."""
    shares = {name: value * (1 - share) for name, value in base.items()}
    return shares | {part: shares.get(part, 0.0) + share}


def straggle(part, size, slow, share=0.3, **more):
    """A world in which ranks do ``part`` longer, while the others wait for them."""
    return world(
        *((shifted(part, share), more) if rank in slow else shifted("communication", share) for rank in range(size))
    )


def only(times, size, **more):
    """The one finding."""
    found = times.findings(range(size), **more)
    assert len(found) == 1, found
    return found[0]


SIZES = pytest.mark.parametrize(("size", "slow"), [(2, [1]), (4, [2]), (4, [0]), (8, [3, 5])], ids=str)


@SIZES
@pytest.mark.parametrize(
    ("part", "kind", "words"),
    [
        ("data", "slow loader", "loading data without worker processes"),
        ("forward", "slow rank", "the forward pass"),
        ("backward", "slow rank", "the backward pass"),
        ("optimizer", "slow rank", "the optimizer"),
        ("compiled", "slow rank", "the compiled step"),
        ("other", "slow rank", "other code"),
        ("checkpoint", "saving", "saving checkpoints"),
        ("logging", "logging", "logging"),
        ("device", "reading", "waiting for the device"),
        ("copy", "copies", "copying to the device"),
    ],
)
def test_what_a_slow_rank_does_longer_is_the_cause(size, slow, part, kind, words):
    """It waits least; the others wait for it, and are named as those."""
    found = only(straggle(part, size, slow, lines=[(7, part)]), size)

    assert (found.kind, found.ranks) == (kind, slow)
    assert words in found.words
    assert "(cell [1], line 7)" in found.words
    assert "other rank" in found.words
    assert "in all_reduce" in found.words
    assert found.share == pytest.approx(0.3, abs=0.05)
    assert str(found) == f"{found.words} {found.advice}"


def test_a_slow_rank_has_the_name_and_number_of_one_or_of_several():
    one, two, pair = (
        only(straggle("data", size, slow), size).words for size, slow in ((4, [2]), (8, [3, 5]), (2, [1]))
    )

    assert one.startswith("Rank 2 spends ")
    assert "meanwhile the other ranks wait for it in" in one
    assert two.startswith("Ranks 3,5 spend ")
    assert "wait for them in" in two
    assert "meanwhile the other rank waits for it in" in pair


@pytest.mark.parametrize(
    ("workers", "words", "advice"),
    [
        (0, "without worker processes", "num_workers=2"),
        (1, "with 1 worker", "num_workers=2"),
        (2, "with 2 workers", "num_workers=4"),
    ],
)
def test_a_slow_loader_has_so_many_workers(workers, words, advice):
    found = only(straggle("data", 4, [2], sample=Sample(100.0, 1, workers=workers)), 4)

    assert (found.kind, found.ranks) == ("slow loader", [2])
    assert words in found.words
    assert advice in found.advice


def loaders(workers, others, *, data=0.0):
    """Rank 1 of 3 waits for data from so many ``workers``; the others have ``others``, and wait so for theirs."""
    waits = shifted("data", data, shifted("communication", 0.3))
    mine, theirs = ({"sample": Sample(1.0, 1, workers=count)} for count in (workers, others))
    return only(world((waits, theirs), (shifted("data", 0.3 + data), mine), (waits, theirs)), 3)


@pytest.mark.parametrize(("workers", "others", "alike"), [(0, 0, True), (2, 2, True), (1, 4, False), (0, 1, False)])
def test_more_workers_are_for_all_ranks_where_all_have_as_many(workers, others, alike):
    """Quicker loaders read ahead, and hide that they are hardly quicker."""
    found = loaders(workers, others)

    assert (found.kind, found.ranks) == ("slow loader", [1])
    assert ("on all ranks" in found.advice) == (alike and workers > 0)


def test_one_worker_on_each_rank_is_too_few_for_all_though_only_the_slowest_waits():
    """The others' loaders may be a thousandth quicker, and read ahead; the rank that shows it is named all the same."""
    found = loaders(1, 1)

    assert (found.kind, found.ranks) == ("data", [0, 1, 2])
    assert found.words.startswith("Rank 1 spends 31 % of a step in loading data from one worker process, as many")
    assert "meanwhile the other ranks wait for it in all_reduce" in found.words
    assert found.advice.startswith("Try DataLoader(..., num_workers=2) on all ranks")


def test_one_worker_on_each_rank_is_too_few_though_some_ranks_do_not_wait_for_it():
    """Most do; so those that make the others wait cannot be told from those."""
    told = [
        world(*[shifted("data", 0.4)] * 3, shifted("communication", 0.4), sample=Sample(1.0, 1, workers=workers))
        for workers in (1, 2)
    ]
    found = only(told[0], 4)

    assert (found.kind, found.ranks) == ("data", [0, 1, 2, 3])
    assert found.words == "On average, ranks spend 31 % of a step in loading data, from one worker process each."
    assert told[1].findings(range(4)) == []


def test_loaders_without_workers_that_are_all_too_slow_are_so_on_all_ranks():
    """Nothing reads ahead there: each rank shows what its loader takes."""
    found = loaders(0, 0, data=0.3)

    assert (found.kind, found.ranks) == ("data", [0, 1, 2])
    assert found.words.startswith("All ranks spend ")
    assert "num_workers=2" in found.advice


@SIZES
def test_a_rank_that_waits_for_a_processor_is_on_a_busy_core(size, slow):
    """Whatever it waits in, it is not its code."""
    found = only(straggle("forward", size, slow, delayed=0.28), size)

    assert (found.kind, found.ranks) == ("busy processor", slow)
    assert "28 % of a step for a processor" in found.words


def test_a_rank_that_is_delayed_a_little_is_slow_by_its_code():
    assert only(straggle("forward", 4, [1], delayed=0.04), 4).kind == "slow rank"


@SIZES
def test_a_rank_with_more_samples_has_unequal_batches(size, slow):
    times = straggle("forward", size, slow)
    batches = {rank: 48 if rank in slow else 16 for rank in range(size)}
    found = only(times, size, batches=batches)

    assert (found.kind, found.ranks) == ("unequal batches", slow)
    assert "48 samples a step, others on 16" in found.words


@pytest.mark.parametrize("batches", [{}, {0: 16}, {0: 16, 1: 16}, {0: 16, 1: 17}, {0: 48, 1: 16}])
def test_equal_or_unknown_batches_are_no_cause(batches):
    assert only(straggle("forward", 2, [1]), 2, batches=batches).kind == "slow rank"


def test_a_slow_loader_is_told_before_its_larger_batches():
    """They are read longer because the loader is slow for each."""
    assert only(straggle("data", 2, [1]), 2, batches={0: 16, 1: 48}).kind == "slow loader"


def test_a_rank_that_is_slower_in_everything_is_a_slow_rank():
    parts = ("data", "forward", "backward", "optimizer")
    waits = shifted("communication", 0.3, dict.fromkeys(parts, 0.2))
    found = only(world(dict.fromkeys(parts, 0.24), waits), 2)

    assert found.kind == "slow rank"
    assert "slower than the others in all parts" in found.words


@given(
    st.integers(2, 5),
    st.randoms(use_true_random=False),
    st.sampled_from([part for part in PARTS if part != "communication"]),
    st.floats(0.05, 0.6),
)
def test_a_rank_that_waits_longest_is_never_the_slow_one(size, chance, part, share):
    """Whatever ranks do and however long: whoever is named alone waits least, and no finding raises."""
    slow = chance.randrange(size)
    times = StepTimes()
    for rank in range(size):
        for index in range(RECENT + 1):
            noise = {name: value * chance.uniform(0.8, 1.2) for name, value in HEALTHY.items()}
            times.take(
                rank,
                window(shifted(part if rank == slow else "communication", share, noise), step=10 * index),
            )
    for whole in (False, True):
        for found in times.findings(range(size), whole=whole):
            assert found.words.endswith(".")
            assert found.advice.endswith(".")
            assert 0 <= found.share <= 1
            if "meanwhile" in found.words:
                assert found.ranks == [slow]


@pytest.mark.parametrize("size", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("windows", [2, 4, RECENT])
def test_healthy_ranks_get_no_sentence(size, windows):
    """Each look is a draw, as in a rank: what only chance makes unequal is not told, in many runs."""
    names, weights = list(WAITING), list(WAITING.values())
    chance = random.Random(size)  # noqa: S311 — for no secret
    for _ in range(400 // size):
        times = StepTimes()
        for rank in range(size):
            for index in range(windows + 1):
                drawn = chance.choices(names, weights, k=LOOKS // 2)
                shares = {name: drawn.count(name) / len(drawn) for name in names}
                times.take(rank, window(shares, step=10 * index, looks=len(drawn)))
        assert times.findings(range(size)) == []


@pytest.mark.parametrize(
    ("workers", "words", "advice"),
    [
        (0, "without worker processes", "num_workers=2"),
        (1, "from one worker process each", "num_workers=2"),
        (2, "from 2 workers each", "num_workers=4"),
    ],
)
def test_all_ranks_that_wait_for_data_are_bound_by_it(workers, words, advice):
    found = only(world(*[shifted("data", 0.4)] * 2, sample=Sample(100.0, 1, workers=workers)), 2)

    assert (found.kind, found.ranks) == ("data", [0, 1])
    assert found.words.startswith("All ranks spend 41 % of a step in loading data, ")
    assert words in found.words
    assert advice in found.advice


def test_one_rank_alone_can_be_bound_by_data():
    assert only(world(shifted("data", 0.4)), 1).words.startswith("Rank 0 spends 41 % of a step in loading data")


def test_workers_that_are_gone_after_the_loop_were_there_in_it():
    """The sentence of a run that has ended tells of its steps."""
    times = world(shifted("data", 0.4), sample=Sample(100.0, 1, workers=1))
    for _ in range(3):
        times.take(0, Sample(100.0, 1))
        times.take(0, window(HEALTHY, step=10 * RECENT))

    assert "from one worker process" in only(times, 1, whole=True).words


def test_ranks_that_save_are_named():
    """One that saves while the others compute; all of them."""
    alone = only(world(shifted("checkpoint", 0.11), shifted("communication", 0.08)), 2)
    both = only(world(*[shifted("checkpoint", 0.2)] * 2, lines=[(9, "checkpoint")]), 2)

    assert (alone.kind, alone.ranks) == ("saving", [0])
    assert (both.kind, both.ranks) == ("saving", [0, 1])
    assert "20 % of the time in saving checkpoints (cell [1], line 9)" in both.words


def gpu(busy):
    return Sample(100.0, 1, gpu=Gpu(0, busy, 1, 2, reserved=1))


def test_a_line_that_waits_for_the_device_while_it_is_idle_is_named():
    """As .item() in each step does. A GPU without a pause loses nothing by it, and without GPUs nothing is known."""
    reads = [shifted("device", 0.4)] * 2
    found = only(world(*reads, lines=[(5, "device")], sample=gpu(50.0)), 2)

    assert (found.kind, found.ranks) == ("reading", [0, 1])
    assert "(cell [1], line 5); the GPUs are idle 50 % of it" in found.words
    assert world(*reads, lines=[(5, "device")], sample=gpu(97.0)).findings([0, 1]) == []
    assert world(*reads, lines=[(5, "device")], sample=gpu(None)).findings([0, 1]) == []
    assert world(*reads, lines=[(5, "device")]).findings([0, 1]) == []
    assert world(*reads, sample=gpu(50.0)).findings([0, 1]) == []


def test_a_gpu_that_waits_for_python_is_idle():
    found = only(world(HEALTHY, HEALTHY, sample=gpu(20.0)), 2)

    assert (found.kind, found.share) == ("idle device", pytest.approx(0.8))
    assert "busy 20 % of the time" in found.words
    assert world(HEALTHY, HEALTHY, sample=gpu(60.0)).findings([0, 1]) == []
    assert world(HEALTHY, (HEALTHY, {"sample": Sample(1.0, 1)}), sample=gpu(20.0)).findings([0, 1]) == []


def test_how_busy_a_gpu_was_is_a_mean_of_several_looks():
    """The last one may fall between two steps."""
    times = world(HEALTHY, sample=gpu(90.0))
    times.take(0, gpu(0.0))
    times.take(0, window(HEALTHY, step=1000))

    assert times.findings([0]) == []


def test_logging_of_all_ranks_is_told_with_its_line():
    found = only(world(*[shifted("logging", 0.2)] * 4, lines=[(3, "logging")]), 4)

    assert (found.kind, found.ranks) == ("logging", [0, 1, 2, 3])
    assert "20 % of a step in logging (cell [1], line 3)" in found.words


def test_communication_of_all_ranks_is_told_with_its_call():
    found = only(world(*[shifted("communication", 0.5)] * 4), 4)

    assert (found.kind, found.ranks) == ("communication", [0, 1, 2, 3])
    assert "53 % of a step (53 ms) in all_reduce" in found.words


def test_communication_is_nothing_where_it_takes_milliseconds_or_ranks_wait_for_processors():
    sends = [shifted("communication", 0.5)] * 2

    assert world(*sends, steps=100).findings([0, 1]) == []
    assert [one.kind for one in world(*sends, delayed=0.4).findings([0, 1])] == ["processors"]
    assert world(shifted("communication", 0.5)).findings([0]) == []  # with whom?


def test_ranks_that_all_wait_for_processors_are_too_many():
    found = only(world(*[HEALTHY] * 4, delayed=0.5), 4)

    assert (found.kind, found.ranks) == ("processors", [0, 1, 2, 3])
    assert world(*[(HEALTHY, {"delayed": 0.5})] * 3, HEALTHY).findings(range(4)) == []


def test_several_causes_come_with_the_costliest_first():
    both = shifted("data", 0.3, shifted("logging", 0.3))
    found = world(both, both).findings([0, 1])

    assert [one.kind for one in found] == ["data", "logging"]


def slowing(*, after, ranks=1, grown="forward", steps=100):
    """Steps of 0.1 s that take ``after`` s from the first half on."""
    times = StepTimes()
    for rank in range(ranks):
        step = 0
        for index in range(steps):
            seconds = 0.1 if index < steps / 2 else after
            less = {part: share * 0.1 / seconds for part, share in HEALTHY.items()}
            shares = less | {grown: less[grown] + 1 - 0.1 / seconds}
            times.take(rank, window(shares, seconds * 10, step=step))
            step += 10
    return times


def test_steps_that_take_longer_than_at_the_beginning_are_told():
    found = only(slowing(after=0.15), 1)

    assert (found.kind, found.ranks) == ("slower than before", [0])
    assert "A step of rank 0 takes 150 ms; in the first seconds of this run it took 100 ms." in found.words
    assert "the forward pass" in found.words
    assert slowing(after=0.12).findings([0]) == []
    assert slowing(after=0.15, steps=40).findings([0]) == []  # too soon to say


def test_ranks_that_slow_down_together_get_one_sentence():
    assert only(slowing(after=0.15, ranks=4), 4).ranks == [0, 1, 2, 3]


def test_a_validation_between_two_epochs_does_not_slow_the_steps():
    """No step is made meanwhile, so the next report has all its time."""
    times = world(HEALTHY, HEALTHY, windows=100)
    for rank in (0, 1):
        train(times, rank, HEALTHY, windows=3, first=1000)
        for _ in range(40):
            times.take(rank, window({"forward": 0.9}, step=1030))
        train(times, rank, HEALTHY, windows=4, first=1040)

    assert times.findings([0, 1]) == []


@pytest.mark.parametrize("part", ["checkpoint", "data"])
def test_one_stall_does_not_count(part):
    """A checkpoint each half an hour, or the workers of an epoch that start, take most of some seconds."""
    times = world(HEALTHY, HEALTHY, windows=100)
    for rank in (0, 1):
        for _ in range(6):
            times.take(rank, window({part if rank == 0 else "communication": 1.0}, step=1000))
        train(times, rank, HEALTHY, windows=3, first=1010)

    assert times.findings([0, 1]) == []
    assert times.findings([0, 1], whole=True) == []


def test_a_checkpoint_after_each_few_steps_is_no_stall():
    times = StepTimes()
    for index in range(20):
        shares = {"checkpoint": 0.6, "forward": 0.4} if index % 2 else HEALTHY
        times.take(0, window(shares, step=3 * index))

    assert only(times, 1).kind == "saving"


def timeline(bubble, theory=0.2):
    return Timeline("1F1B", 3, 2, 4, 1.0, 0.9, bubble, theory, on_host=False, lanes={1: [], 0: []})


def test_a_pipeline_that_idles_is_told_with_what_its_schedule_leaves():
    times = world(*[shifted("communication", 0.4)] * 2)
    stages = only(times, 2, pipelines=[timeline(0.5)])
    schedule = only(times, 2, pipelines=[timeline(0.43, theory=0.43)])

    assert (stages.kind, stages.ranks) == ("pipeline", [0, 1])
    assert "compute nothing in 50 % of a step (the schedule alone leaves 20 %)" in stages.words
    assert "stages that take the same time" in stages.advice
    assert "more micro-batches" in schedule.advice
    assert "more micro-batches" in only(times, 2, pipelines=[timeline(0.43, theory=None)]).advice
    assert world(HEALTHY, HEALTHY).findings([0, 1], pipelines=[timeline(0.1)]) == []


def growing(each, *, steps=10, windows=RECENT, noise=0.0, reads=4, start=10**9, seed=1):
    """A rank whose memory grows by ``each`` bytes with a step."""
    chance, times, held = random.Random(seed), StepTimes(), float(start)  # noqa: S311 — for no secret
    for index in range(windows + 1):
        memory = []
        for _ in range(reads):
            held += each * steps / reads
            memory.append(int(held + noise * chance.uniform(-1, 1)))
        times.take(0, window(HEALTHY, step=index * steps, memory=memory))
    return times


@pytest.mark.parametrize("each", [1e6, 5e6, 5e5])
def test_memory_that_grows_with_each_step_is_told(each):
    found = only(growing(each, noise=each), 1)
    told = float(found.words.partition("grows by ")[2].partition(" MB a step")[0])

    assert (found.kind, found.ranks, found.share) == ("memory", [0], 0.0)
    assert told == pytest.approx(each / 1e6, rel=0.05)


@pytest.mark.parametrize(
    "times",
    [
        growing(0.0),
        growing(1e4),  # little
        growing(-1e6),
        growing(1e6, noise=5e7),  # up and down
        growing(1e6, steps=1),  # too few steps
        growing(1e6, reads=0),
        growing(1e6, windows=1),
    ],
    ids=["constant", "little", "shrinks", "noise", "few steps", "unknown", "soon"],
)
def test_memory_of_other_kinds_is_not(times):
    assert times.findings([0]) == []


def test_a_cache_that_fills_once_is_no_leak():
    """As of an allocator: it grows for some steps, and then stays."""
    times = StepTimes()
    for index in range(RECENT + 1):
        times.take(0, window(HEALTHY, step=10 * index, memory=[10**9 + 5 * 10**7 * min(index, 4)] * 4))

    assert times.findings([0]) == []


def test_memory_of_several_ranks_is_one_finding_beside_the_others():
    times = growing(1e6)
    for rank, one in {1: shifted("data", 0.4), 2: HEALTHY}.items():
        train(times, rank, one)
    times.ranks[1] = times.ranks[0]

    assert only(times, 3).ranks == [0, 1]
    assert only(times, 3, whole=True).kind == "memory"


@pytest.mark.parametrize("size", [2, 4])
def test_nothing_is_said_where_the_evidence_is_thin(size):
    """Of ranks that would have a sentence, were there more of it."""
    slow, waits = shifted("data", 0.4), shifted("communication", 0.4)
    ranks = [slow, *[waits] * (size - 1)]

    assert only(world(*ranks), size).kind == "slow loader"
    assert world(*ranks, windows=0).findings(range(size)) == []
    assert world(*ranks, windows=1).findings(range(size)) == []  # a second
    assert world(*ranks, windows=RECENT, steps=0).findings(range(size)) == []
    assert world(*ranks, windows=4, steps=2).findings(range(size)) == []  # eight steps
    assert world(*ranks, steps=1000).findings(range(size)) == []  # a millisecond each
    assert world(*ranks).findings(range(size + 1)) == []  # one has said nothing
    assert world(*ranks[:-1], (waits, {"windows": 0})).findings(range(size)) == []
    assert world(*ranks[:-1], (waits, {"steps": 14})).findings(range(size)) == []  # their loops do not meet
    assert StepTimes().findings(range(size)) == []


def test_a_few_looks_are_no_evidence():
    """A window of seconds in which a thread could look three times."""
    times = StepTimes()
    for rank, part in enumerate(("data", "communication")):
        for index in range(4):
            report = window(shifted(part, 0.3), step=10 * index)
            times.take(rank, StepParts(report.seconds, report.parts, report.calls, step=report.step, looks=1))

    assert times.findings([0, 1]) == []


def test_set_up_before_the_first_step_does_not_count():
    """Seconds of reading data and of broadcasts."""
    times = StepTimes()
    for rank in (0, 1):
        for _ in range(30):
            times.take(rank, window({"data": 1.0}))
        train(times, rank, HEALTHY, windows=5)

    assert times.findings([0, 1], whole=True) == []
    assert times.shares(whole=True)[1]["data"] == pytest.approx(0.02)


def test_what_follows_the_last_step_does_not_count():
    times = world(HEALTHY, HEALTHY)
    for rank in (0, 1):
        for _ in range(1000):
            times.take(rank, window({"checkpoint": 1.0}, step=10 * RECENT))

    assert times.findings([0, 1]) == times.findings([0, 1], whole=True) == []
    assert all(len(one._waiting) <= KEPT + 1 for one in times.ranks.values())


def test_shares_are_of_the_newest_seconds_or_of_the_whole_run():
    times = world(HEALTHY, windows=30)
    train(times, 0, shifted("data", 0.5), windows=RECENT, first=310)

    assert times.shares()[0]["data"] == pytest.approx(0.51)
    assert times.shares(whole=True)[0]["data"] == pytest.approx((30 * 0.02 + 11 * 0.51) / 41)
    assert sum(times.shares()[0].values()) == pytest.approx(1)
    assert list(times.shares()[0]) == [part for part in PARTS if part in {*HEALTHY, "data"}]
    assert StepTimes().shares() == {}
    assert not StepTimes()
    assert times


def test_communication_is_told_apart_by_call():
    """As shares of a step, of the newest seconds or of the whole run."""
    times = StepTimes()
    for step in range(31):
        calls = {"all_gather": 0.1, "reduce_scatter": 0.2} if step > 30 - RECENT else {"all_reduce": 0.3}
        report = StepParts(1.0, {"communication": 0.3, "forward": 0.7}, calls, step=step)
        times.take(0, report)

    assert list(times.calls()[0].items()) == [
        ("reduce_scatter", pytest.approx(0.2)),
        ("all_gather", pytest.approx(0.1)),
    ]
    whole = times.calls(whole=True)[0]
    assert list(whole) == ["all_reduce", "reduce_scatter", "all_gather"]
    assert sum(whole.values()) == pytest.approx(times.shares(whole=True)[0]["communication"])
    assert StepTimes().calls() == {}


@pytest.mark.parametrize("windows", [1, EARLY, 2 * KEPT, 2 * KEPT + 1, 1500])
@pytest.mark.parametrize("steps", [1, 5])
def test_a_long_run_is_kept_in_bounds_and_whole(windows, steps):
    """Older reports are joined, and no second and no step gets lost."""
    one = RankTime()
    for index in range(windows + 1):
        one.take(window(HEALTHY, step=index * steps))

    assert len(one.windows) <= 2 * KEPT + 1
    assert len(one.early) <= EARLY
    assert sum(each.seconds for each in one.windows) == pytest.approx(windows)
    assert one.whole.seconds == pytest.approx(windows)
    assert sum(each.step for each in one.windows) == one.whole.step == windows * steps
    assert one.newest[-1].seconds == 1


@given(st.lists(st.floats(0.1, 5), min_size=1, max_size=5))
def test_a_sum_of_reports_has_all_their_time(seconds):
    joined = join([window(HEALTHY, one, lines=[(1, "data")], memory=[1, 2]) for one in seconds], 3)

    assert joined.seconds == pytest.approx(sum(seconds))
    assert sum(joined.parts.values()) == pytest.approx(sum(seconds))
    assert sum(shares_of(joined).values()) == pytest.approx(1)
    assert len(joined.lines) == 1
    assert len(joined.memory) == 2 * len(seconds)


def test_all_parts_have_words_and_the_computing_ones_are_parts():
    assert set(COMPUTING) <= set(PARTS)
    assert all(words == words.lower() for words in PARTS.values())
    assert step_time.SHORT * step_time.STEPS < step_time.SECONDS


def logged(fold, rank, seq, *points):
    """The rank logs these: name, step, value."""
    series = [
        pack(name, Columns(array("q", [step]), array("d", [seq]), array("d", [value]))) for name, step, value in points
    ]
    fold.take(Event(1, rank, seq, float(seq), Metrics(series)))


def test_a_second_metric_with_a_counter_of_its_own_makes_no_steps():
    """The validation of each epoch is logged by the number of the epoch."""
    fold = RunFold([0])
    for second in range(12):
        logged(fold, 0, 3 * second, ("loss", 20 * second, 1.0))
        logged(fold, 0, 3 * second + 1, ("accuracy", second, 0.5))
        report = window(HEALTHY, step=second if second % 2 else 20 * second)
        fold.take(Event(1, 0, 3 * second + 2, float(second), report))

    assert fold.step_times.ranks[0].whole.step == 20 * 11


def test_a_rank_that_has_ended_is_compared_no_more_while_others_go_on():
    """An elastic run goes on without it: its last seconds say nothing about the others' next ones."""
    fold = RunFold([0, 1])
    for second in range(RECENT + 2):
        for rank, shares in enumerate((shifted("data", 0.5), WAITING | {"communication": 0.6, "forward": 0.0})):
            fold.take(Event(1, rank, second, float(second), window(shares, step=10 * second)))

    assert [one.ranks for one in fold.slow] == [[0]]
    fold.lose(0, "killed")
    assert fold.slow_steps(whole=False) == []


def test_a_gpu_that_no_framework_uses_is_not_idle():
    """A program on processors, on a host with GPUs."""
    unused = Sample(100.0, 1, gpu=Gpu(0, 0.0, 1, 2))

    assert world(HEALTHY, sample=unused).findings([0]) == []


@pytest.mark.parametrize("ranks", [1, 1024])
def test_reports_of_days_are_kept_in_little_memory(ranks):
    """Only the newest have their lines and readings of memory; of many ranks, less is kept of each."""
    times = StepTimes(ranks)
    train(times, 0, HEALTHY, windows=2000, lines=[(3, "forward")], memory=[1, 2, 3, 4])
    kept = times.ranks[0].windows

    assert len(kept) <= (2 * KEPT if ranks == 1 else 4 * RECENT)
    assert sum(bool(one.lines or one.memory or one.calls) for one in kept) <= RECENT
    assert times.ranks[0].whole.step == 20_000
