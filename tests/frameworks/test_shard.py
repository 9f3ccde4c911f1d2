"""``jupyter_dtrain.shard`` with the frameworks' own kinds of data, in this process; and in cells and scripts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import jupyter_dtrain
from jupyter_dtrain import BadRequest
from tests.session.cells import without_log

MODES = ("even", "pad", "uneven")
EXPECTED = {"even": Counter(range(20)), "pad": Counter([*range(23), 0]), "uneven": Counter(range(23))}
"""The items of 4 ranks together, of 23."""


def all_ranks(divide, read=list, size=4):
    """The items that each rank reads."""
    return [read(divide(rank=rank, size=size)) for rank in range(size)]


def together(parts):
    return Counter(int(item) for part in parts for item in part)


@pytest.fixture(scope="module", autouse=True)
def quiet_environment():
    """JAX and TensorFlow set variables when this process imports them; ranks of later tests must not get those."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow")


def numbers(torch, count=23):
    return torch.utils.data.TensorDataset(torch.arange(count))


def flat(loader):
    return [int(item) for (batch,) in loader for item in batch.reshape(-1)]


@pytest.mark.parametrize("mode", MODES)
def test_tensors_are_divided_along_the_first_axis(torch, mode):
    tensor = torch.arange(46).reshape(23, 2)
    parts = all_ranks(partial(jupyter_dtrain.shard, tensor, mode=mode), lambda own: own)

    assert Counter(int(row) // 2 for part in parts for row in part[:, 0]) == EXPECTED[mode]
    assert parts[0].shape[1:] == (2,)
    assert mode == "pad" or parts[0].data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_dataset_becomes_a_subset_in_the_order_of_arrays(torch, mode, shuffle):
    parts = all_ranks(
        partial(jupyter_dtrain.shard, numbers(torch), mode=mode, shuffle=shuffle, seed=2), lambda own: own
    )
    arrays = all_ranks(partial(jupyter_dtrain.shard, list(range(23)), mode=mode, shuffle=shuffle, seed=2))

    assert all(type(part) is torch.utils.data.Subset for part in parts)
    assert [[int(item) for (item,) in part] for part in parts] == arrays


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_keeps_its_settings_and_reads_a_share(torch, mode, shuffle, workers):
    data = torch.utils.data

    def collate(rows):
        return data.default_collate(rows)

    loader = data.DataLoader(
        numbers(torch),
        batch_size=3,
        shuffle=shuffle,
        num_workers=workers,
        persistent_workers=bool(workers),
        collate_fn=collate,
        multiprocessing_context="fork" if workers else None,
    )
    parts = all_ranks(partial(jupyter_dtrain.shard, loader, mode=mode), lambda own: own)

    read = [flat(part) for part in parts]
    if shuffle and mode != "uneven":
        assert sum(together(read).values()) == sum(EXPECTED[mode].values())
    else:
        assert together(read) == EXPECTED[mode]
    assert read == [flat(part) for part in parts]
    for part in parts:
        assert type(part) is data.DataLoader
        assert isinstance(part.sampler, data.distributed.DistributedSampler)
        assert (part.batch_size, part.num_workers, part.collate_fn) == (3, workers, collate)
        assert part.persistent_workers == bool(workers)
        part.sampler.set_epoch(1)
    assert ([flat(part) for part in parts] != read) == shuffle
    assert len(flat(loader)) == 23


@pytest.mark.parametrize("mode", ["even", "pad"])
def test_a_loader_has_the_order_of_the_distributed_sampler(torch, mode):
    """Code that used one goes on with the same batches."""
    data = torch.utils.data
    for rank in range(4):
        theirs = data.distributed.DistributedSampler(numbers(torch), 4, rank, seed=5, drop_last=mode == "even")
        loader = data.DataLoader(numbers(torch), batch_size=2, shuffle=True)
        ours = jupyter_dtrain.shard(loader, mode=mode, seed=5, rank=rank, size=4)
        assert list(ours.sampler) == list(theirs)
        assert len(ours) == len(data.DataLoader(numbers(torch), batch_size=2, sampler=theirs))


def test_a_class_of_loaders_stays_what_it_is(torch):
    class Named(torch.utils.data.DataLoader):
        def __init__(self, name):
            self.name = name
            super().__init__(numbers(torch, 8), batch_size=2, drop_last=True)

    own = jupyter_dtrain.shard(Named("mine"), rank=1, size=2)

    assert type(own) is Named
    assert own.name == "mine"
    assert own.drop_last
    assert flat(own) == [1, 3, 5, 7]


def test_samplers_of_ones_own_are_drawn_alike_on_all_ranks(torch):
    """The process' own random numbers differ, and go on as if nothing had been drawn."""
    data = torch.utils.data
    weights = torch.ones(24)
    generator = torch.Generator()
    for sampler in (
        data.WeightedRandomSampler(weights, 24, replacement=False),
        data.WeightedRandomSampler(weights, 24, replacement=False, generator=generator),
        data.RandomSampler(numbers(torch, 24), num_samples=24, generator=generator),
        data.SubsetRandomSampler(range(24)),
    ):
        loader = data.DataLoader(numbers(torch, 24), batch_size=4, sampler=sampler)
        parts = []
        for rank in range(3):
            torch.manual_seed(rank)
            generator.manual_seed(rank)
            own = jupyter_dtrain.shard(loader, rank=rank, size=3, seed=7)
            before = torch.get_rng_state()
            parts.append(list(own.sampler))
            assert torch.equal(before, torch.get_rng_state())
        assert together(parts) == Counter(range(24))
        own.sampler.set_epoch(1)
        assert list(own.sampler) != parts[-1]


def test_batch_samplers_of_ones_own_are_divided_by_batches(torch):
    data = torch.utils.data
    batches = data.BatchSampler(data.RandomSampler(numbers(torch, 24)), batch_size=3, drop_last=False)
    loader = data.DataLoader(numbers(torch, 24), batch_sampler=batches)
    parts = all_ranks(partial(jupyter_dtrain.shard, loader), lambda own: own)

    assert [len(part) for part in parts] == [2, 2, 2, 2]
    assert together(flat(part) for part in parts) == Counter(range(24))
    assert parts[0].batch_sampler.batch_size == 3
    parts[0].batch_sampler.set_epoch(3)


def test_a_loader_without_batches_is_divided(torch):
    loader = torch.utils.data.DataLoader(numbers(torch, 8), batch_size=None)

    assert flat(jupyter_dtrain.shard(loader, rank=1, size=2)) == [1, 3, 5, 7]


class Stream:
    """The numbers from 0 on; made into a class of torch's below, so that importing this file imports no torch."""

    def __iter__(self):
        return iter(range(23))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_divided_in_each_worker(torch, mode, workers):
    kind = type("TorchStream", (Stream, torch.utils.data.IterableDataset), {"seen": 3})
    data = torch.utils.data
    own = jupyter_dtrain.shard(kind(), mode=mode, rank=0, size=4)
    loader = data.DataLoader(
        kind(), batch_size=2, num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    parts = all_ranks(
        partial(jupyter_dtrain.shard, loader, mode=mode), lambda own: [int(item) for batch in own for item in batch]
    )

    assert isinstance(own, data.IterableDataset)
    assert own.seen == 3
    times = max(1, workers)  # a stream that does not ask which worker reads it comes once in each of them
    assert together(parts) == Counter({item: times * count for item, count in EXPECTED[mode].items()})


def test_torch_data_that_cannot_be_divided_is_refused(torch):
    data = torch.utils.data
    kind = type("TorchStream", (Stream, data.IterableDataset), {})
    divided = jupyter_dtrain.shard(data.DataLoader(numbers(torch)), rank=0, size=2)
    weighted = data.DataLoader(numbers(torch), sampler=data.WeightedRandomSampler(torch.ones(23), 23))
    for loader, options, words in (
        (divided, {}, "RankSampler divides its data already"),
        (kind(), {"shuffle": True}, "shuffle where it is made"),
        (weighted, {"shuffle": True}, "WeightedRandomSampler decides on the order"),
        (data.DataLoader(numbers(torch, 1)), {}, "1 items are too few"),
    ):
        with pytest.raises(BadRequest, match=words):
            jupyter_dtrain.shard(loader, rank=0, size=2, **options)


@pytest.mark.parametrize("mode", MODES)
def test_hugging_face_datasets_are_divided(hub, mode):
    table = hub.Dataset.from_dict({"x": list(range(23)), "name": [f"n{n}" for n in range(23)]})
    parts = all_ranks(partial(jupyter_dtrain.shard, table, mode=mode, shuffle=True), lambda own: own)
    lists = all_ranks(partial(jupyter_dtrain.shard, list(range(23)), mode=mode, shuffle=True))
    splits = jupyter_dtrain.shard(hub.DatasetDict({"train": table, "test": table.select(range(8))}), rank=1, size=4)

    assert [list(part["x"]) for part in parts] == lists
    assert parts[0][0]["name"] == f"n{parts[0][0]['x']}"
    assert isinstance(splits, hub.DatasetDict)
    assert {name: len(split) for name, split in splits.items()} == {"train": 5, "test": 2}


@pytest.mark.parametrize("mode", ["even", "uneven"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_hugging_face_streams_are_divided(hub, mode, shuffle):
    table = hub.Dataset.from_dict({"x": list(range(23))})
    stream = table.to_iterable_dataset(num_shards=4 if mode == "uneven" else 3)
    parts = all_ranks(
        partial(jupyter_dtrain.shard, stream, mode=mode, shuffle=shuffle), lambda own: [row["x"] for row in own]
    )

    assert sum(together(parts).values()) == (20 if mode == "even" else 23)
    assert max(together(parts).values()) == 1
    with pytest.raises(BadRequest, match="cannot be padded"):
        jupyter_dtrain.shard(stream, mode="pad", rank=0, size=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_tensorflow_datasets_are_divided(tf, mode, shuffle):
    dataset = tf.data.Dataset.range(23).map(lambda x: {"x": x, "y": 2 * x})
    parts = all_ranks(partial(jupyter_dtrain.shard, dataset, mode=mode, shuffle=shuffle), lambda own: own)
    read = [[int(row["x"]) for row in part] for part in parts]

    assert together(read) == EXPECTED[mode]
    assert [int(part.cardinality()) for part in parts] == [len(own) for own in read]
    assert all(int(row["y"]) == 2 * int(row["x"]) for row in parts[0])


@pytest.mark.parametrize("shape", ["one", "pair", "dictionary"])
def test_tensorflow_datasets_of_unknown_length_are_divided(tf, shape):
    made = {"one": lambda x: x, "pair": lambda x: (x, 2 * x), "dictionary": lambda x: {"x": x}}[shape]
    read = {"one": int, "pair": lambda row: int(row[0]), "dictionary": lambda row: int(row["x"])}[shape]
    dataset = tf.data.Dataset.range(46).filter(lambda x: x < 23).map(made)
    parts = {
        mode: all_ranks(partial(jupyter_dtrain.shard, dataset, mode=mode), lambda own: [read(row) for row in own])
        for mode in ("even", "uneven")
    }

    assert together(parts["even"]) == EXPECTED["even"]
    assert together(parts["uneven"]) == EXPECTED["uneven"]
    with pytest.raises(BadRequest, match="assert_cardinality"):
        jupyter_dtrain.shard(dataset, mode="pad", rank=0, size=2)
    endless = jupyter_dtrain.shard(tf.data.Dataset.range(3).repeat(), rank=1, size=2)
    assert [int(item) for item in endless.take(4)] == [1, 0, 2, 1]


def test_tensors_of_tensorflow_and_jax_are_divided(tf):
    jnp = pytest.importorskip("jax.numpy")
    for mode in MODES:
        for shuffle in (False, True):
            divide = partial(jupyter_dtrain.shard, mode=mode, shuffle=shuffle)
            lists = all_ranks(partial(divide, list(range(23))))
            for array in (tf.range(23), jnp.arange(23)):
                parts = all_ranks(partial(divide, array))
                assert [[int(item) for item in part] for part in parts] == lists
    with pytest.raises(BadRequest, match="this tensor has none"):
        jupyter_dtrain.shard(tf.constant(3), rank=0, size=2)


SCRIPT = """
import json, os, jupyter_dtrain
own = jupyter_dtrain.shard(list(range(10)), shuffle=True)
os.write(1, (json.dumps(own) + "\\n").encode())
"""
DIVIDED = Counter(json.dumps(jupyter_dtrain.shard(list(range(10)), shuffle=True, rank=rank, size=2)) for rank in (0, 1))


@pytest.mark.slow
def test_a_cell_and_scripts_of_all_launchers_divide_alike(torch_pair, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = Path(sys.executable).parent
    launchers = {
        "torchrun": [str(folder / "torchrun"), "--nproc-per-node", "2", str(script)],
        "mpirun": [
            shutil.which("mpiexec", path=str(folder)),
            "--map-by",
            ":OVERSUBSCRIBE",
            "-n",
            "2",
            sys.executable,
            str(script),
        ],
    }
    allowed = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
    as_root = {name + end: "1" for name in allowed for end in ("", "_CONFIRM")}
    env = {**os.environ, **as_root, "OMP_NUM_THREADS": "1"}
    for name, command in launchers.items():
        said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True).stdout
        assert Counter(line for line in said.splitlines() if line.startswith("[")) == DIVIDED, name
    alone = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(json.loads(alone.stdout)) == list(range(10))

    run = torch_pair.run("import jupyter_dtrain\njupyter_dtrain.shard(list(range(10)), shuffle=True)", view=None)
    assert Counter(result.data["text/plain"] for result in run.results.values()) == DIVIDED


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, (1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, (0, 1)),  # a batch script, which runs once
        ({"RANK": "one", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "1"}, (0, 1)),
    ],
)
def test_a_launcher_says_which_rank_this_is(monkeypatch, variables, place):
    names = [name for name in os.environ if name.startswith(("OMPI_COMM", "PMI_", "SLURM_", "RANK", "WORLD_SIZE"))]
    for name in names:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    rank, size = place

    assert jupyter_dtrain.shard(list(range(10))) == list(range(rank, 10, size))


def test_a_group_that_a_script_made_itself_says_which_rank_this_is(tmp_path):
    """Processes of ``torch.multiprocessing`` have no variables."""
    pytest.importorskip("torch")
    script = tmp_path / "spawned.py"
    script.write_text(
        f"""
import os, torch.distributed as dist, torch.multiprocessing as mp, jupyter_dtrain
def work(rank):
    dist.init_process_group("gloo", init_method="file://{tmp_path}/meeting", rank=rank, world_size=2)
    own = jupyter_dtrain.shard(list(range(10)))
    dist.barrier()
    os.write(1, f"{{own}}\\n".encode())
    os._exit(0)
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
    )
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    said = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=120, check=True
    )

    assert sorted(without_log(said.stdout).splitlines()) == ["[0, 2, 4, 6, 8]", "[1, 3, 5, 7, 9]"]


def test_rank_and_size_come_together():
    with pytest.raises(BadRequest, match="both rank and size"):
        jupyter_dtrain.shard([1, 2], rank=0)
