"""Snapshots of JAX's arrays that are spread over ranks: kept by Orbax, loaded with the shardings that are there."""

from __future__ import annotations

import ast
import importlib.util

import pytest

from jupyter_dtrain import DistributedError
from jupyter_dtrain.core.snapshots import newest, read_manifest
from tests.session.cells import load_soon

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed"),
    pytest.mark.here("the snapshots' folder must be shared"),
]

PATIENCE = 120
BEGIN = """
import os
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if size > 1: jax.distributed.initialize()
mesh = jax.make_mesh((size,), ("ranks",))
def whole(*shape, scale): return scale * np.arange(float(np.prod(shape)), dtype=np.float32).reshape(shape)
def array(host, *cut):
    return jax.make_array_from_callback(host.shape, NamedSharding(mesh, P(*cut)), lambda at: host[at])
def make(scale):
    global w, params, keys
    w = array(whole(8, 3, scale=scale), "ranks")
    params = {
        "layer/1": [array(whole(4, 4, scale=scale + 1), None, "ranks"), array(whole(3, scale=scale + 2))],
        "half": w.astype(jnp.bfloat16),
        "steps": jnp.int32(scale),
        "host": np.full(2, scale),
        "rate": float(scale),
    }
    data = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(int(scale)), 4)))
    keys = jax.random.wrap_key_data(array(data, "ranks"))
def shown(one):
    if not isinstance(one, jax.Array): return type(one), np.asarray(one).tolist()
    data = jax.random.key_data(one) if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key) else one
    shards = [np.asarray(shard.data).tolist() for shard in data.addressable_shards]
    return one.sharding, one.committed, one.dtype, shards
def held(): return [shown(one) for one in jax.tree.leaves((w, params, keys))]
def is_made(scale):
    found = held()
    make(scale)
    return found == held()
"""
NAMES = ["w", "params", "keys"]
ALL = {0: True, 1: True}


def play(session, code):
    """Run a cell; the value of its last line, by rank."""
    run = session.run(code, view=None, timeout=PATIENCE)
    return {rank: ast.literal_eval(result.data["text/plain"]) for rank, result in run.results.items()}


@pytest.fixture(scope="module")
def pair(launch, snapshot_folder):
    """Two ranks that have met, and the snapshot ``three`` of them."""
    session = launch(n=2, env={"JAX_PLATFORMS": "cpu"})
    session.run(BEGIN, view=None, timeout=PATIENCE)
    if importlib.util.find_spec("orbax") is not None:
        session.run("make(3)", view=None, timeout=PATIENCE)
        session.save("three", NAMES)
    yield session
    session.stop()


needs_orbax = pytest.mark.skipif(importlib.util.find_spec("orbax") is None, reason="orbax-checkpoint is not installed")


@needs_orbax
def test_they_come_back_after_a_restart_with_their_shardings(pair, snapshot_folder):
    """Spread arrays by Orbax, and with them what is in the same tree; each leaf is of the kind that it was."""
    assert read_manifest(newest(snapshot_folder, "three")).held == dict.fromkeys(NAMES, "jax")
    pair.restart()
    pair.run(BEGIN + "make(0)", view=None, timeout=PATIENCE)

    assert pair.load("three").names == NAMES

    assert play(pair, "is_made(3)") == ALL


@needs_orbax
def test_a_load_takes_the_sharding_that_is_there(pair):
    """Whole on each rank, described alone, or of an array that was donated; other variables stay."""
    play(pair, "make(0)\nw = array(whole(8, 3, scale=0))\nNone")
    pair.load("three", ["w"])
    assert play(pair, "w.is_fully_replicated and bool((np.asarray(w) == whole(8, 3, scale=3)).all())") == ALL
    play(pair, "w = jax.ShapeDtypeStruct((8, 3), np.float32, sharding=NamedSharding(mesh, P('ranks')))\nNone")
    pair.load("three", ["w"])
    assert play(pair, "w.addressable_shards[0].data.tolist()[0][1]") == {0: 3.0, 1: 39.0}
    play(pair, "w.delete()\nNone")
    pair.load("three", ["w"])
    assert play(pair, "mine, w = w, None\nparams['rate'], mine.addressable_shards[0].data.tolist()[0][1]") == {
        0: (0.0, 3.0),
        1: (0.0, 39.0),
    }


@needs_orbax
@pytest.mark.parametrize("size", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_two_ranks_are_loaded_in_one_and_in_four(pair, launch, size):
    """Each with its own mesh; one rank has all of it."""
    play(pair, "make(3)\nNone")
    pair.save("three", NAMES)
    with launch(n=size, env={"JAX_PLATFORMS": "cpu"}) as other:
        other.run(BEGIN + "make(0)", view=None, timeout=PATIENCE)
        assert other.load("three").notes == []
        assert play(other, "is_made(3)") == dict.fromkeys(range(size), True)


@needs_orbax
def test_a_training_goes_on_from_parameters_and_optimizer(pair):
    """Optax's state is a tuple of named tuples; its fresh one counts no step yet, and neither does a number's."""
    if importlib.util.find_spec("optax") is None:  # an import here would set the log level of all worlds to come
        pytest.skip("optax is not installed")
    begin = """
import optax
tx = optax.adamw(0.1)
def build():
    global params, opt, steps
    params = {"w": array(whole(8, 3, scale=1), "ranks"), "b": array(whole(3, scale=1))}
    opt, steps = tx.init(params), {"count": 0, "last": params["w"]}
@jax.jit
def step(params, opt):
    loss, grads = jax.value_and_grad(lambda p: (p["w"] ** 2).sum() + (p["b"] ** 2).sum())(params)
    updates, opt = tx.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, loss
def train():
    global params, opt, steps
    with jax.set_mesh(mesh): params, opt, loss = step(params, opt)
    steps = {"count": jnp.asarray(steps["count"], jnp.int32) + 1, "last": params["w"]}
    return float(loss), int(steps["count"])
build()
"""
    play(pair, begin + "for _ in range(3): train()\nNone")
    pair.save("training", ["params", "opt", "steps"])
    wanted = play(pair, "[train() for _ in range(3)]")
    play(pair, "build()\nNone")
    pair.load("training")
    assert play(pair, "type(opt[0]).__name__ == 'ScaleByAdamState' and type(steps['count']) is int") == ALL
    assert play(pair, "[train() for _ in range(3)]") == wanted
    assert wanted[0][0][1] == 4


@needs_orbax
def test_another_tree_is_refused_with_the_leaves_that_differ(pair):
    """Other names, shapes and types; nothing has changed."""
    play(pair, "make(0)\nparams['more'] = params.pop('rate')\nparams['half'] = w\nparams['host'] = np.zeros(5)\nNone")
    with pytest.raises(DistributedError) as caught:
        pair.load("three")
    words = caught.value.run.errors[0].evalue
    assert "only in the snapshot: params.rate; only here: params.more" in words
    assert "params.half is float32 (8, 3) here and bfloat16 (8, 3) in the snapshot" in words
    assert "params.host is float64 (5,) here and" in words
    assert play(pair, "{float(one.addressable_shards[0].data.sum()) for one in (w, params['half'])}")[0] == {0.0}


@needs_orbax
def test_ranks_whose_parts_do_not_belong_together_save_nothing(pair):
    """One of another shape, one that is whole on one rank, and a part that each rank has for itself."""
    for change, words in (
        ("if rank: w = array(whole(4, 3, scale=3), 'ranks')", "w differs between ranks"),
        ("if rank: w = whole(8, 3, scale=3)", "w must be of one kind on all ranks"),
        ("params['host'] = rank", "params differs between ranks"),
        ("params['host'] = 'a name'", "params.host is a str"),
        ("if rank: w.delete()", "has been deleted"),
    ):
        play(pair, f"make(4)\n{change}\nNone")
        with pytest.raises(DistributedError) as caught:
            pair.save("three", NAMES)
        assert words in caught.value.run.errors[0].evalue
    play(pair, "make(0)\nNone")
    pair.load("three")
    assert play(pair, "is_made(3)") == ALL


@needs_orbax
def test_a_rank_that_is_killed_in_a_save_leaves_the_snapshot_before_it(pair, snapshot_folder):
    """The other rank is freed; after a restart the earlier one loads."""
    before = newest(snapshot_folder, "three")
    play(
        pair,
        "make(5)\nclass Bomb:\n    def __reduce__(self):\n        if rank: os.kill(os.getpid(), 9)\n"
        "        return (Bomb, ())\nbomb = Bomb()\nNone",
    )
    with pytest.raises(DistributedError):
        pair.save("three", [*NAMES, "bomb"])
    pair.restart()
    pair.run(BEGIN + "make(0)", view=None, timeout=PATIENCE)
    assert newest(snapshot_folder, "three") == before
    pair.load("three")
    assert play(pair, "is_made(3)") == ALL


@needs_orbax
def test_a_file_that_is_gone_fails_on_all_ranks_and_holds_none_up(pair, snapshot_folder):
    """One rank alone needs it; the next load is as good as any."""
    play(pair, "make(6)\nNone")
    pair.save("torn", ["w"])
    gone = newest(snapshot_folder, "torn") / "jax" / "w" / "1.0"
    content = gone.read_bytes()
    gone.unlink()
    with pytest.raises(DistributedError) as caught:
        load_soon(pair, "torn", trust=True)
    words = {error.evalue for error in caught.value.run.errors.values()}
    assert len(words) == 1
    assert "The load ended in the middle" in words.pop()
    gone.write_bytes(content)
    play(pair, "make(0)\nNone")
    pair.load("torn")
    assert play(pair, "made, w = w, None\nmake(6)\nshown(made) == shown(w)") == ALL


@needs_orbax
def test_orbax_itself_reads_a_snapshot(pair, snapshot_folder):
    """Its files are a checkpoint of Orbax's, so they are of use without us."""
    place = newest(snapshot_folder, "three") / "jax"
    read = f"import orbax.checkpoint as ocp\nocp.PyTreeCheckpointer().restore({str(place)!r})['params.steps'].item()"
    with_one = "import os\nos.environ['JAX_PLATFORMS'] = 'cpu'\n" + read
    assert play(pair, with_one) == {0: 3, 1: 3}


def test_without_orbax_a_save_says_what_to_install(pair, snapshot_folder):
    """Nothing is saved; arrays that each rank has whole need no Orbax."""
    hide = (
        "import sys\nclass Hidden:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'orbax': raise ModuleNotFoundError(name)\n"
        "for name in [one for one in sys.modules if one.partition('.')[0] == 'orbax']: del sys.modules[name]\n"
        "sys.meta_path.insert(0, Hidden())\nmake(1)\nb = array(whole(3, scale=1))\n"
    )
    play(pair, hide + "None")
    with pytest.raises(DistributedError, match=r"w, params, keys: .* need Orbax: pip install orbax-checkpoint"):
        pair.save("none", NAMES)
    assert not list((snapshot_folder / "none").glob("*/manifest.json"))
    pair.save("whole", ["b"])
    if importlib.util.find_spec("orbax") is not None:
        with pytest.raises(DistributedError, match=r"Orbax, which is not installed here: pip install orbax-checkpoint"):
            pair.load("three")
    play(pair, "sys.meta_path.pop(0)\nNone")
