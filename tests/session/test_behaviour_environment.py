"""The surroundings of a rank: variables, folder, modules, interpreter."""

from __future__ import annotations

import math
import os
import sys

import psutil
import pytest

from jupyter_dtrain.launch.worlds import runtime_folder, spool_folder
from tests.session.cells import fail, pids, run, same, texts, until, values

FRESH_WORLD = True
"""It is looked at before anything is imported."""
SECRET = "tell-nobody-5f2c"  # noqa: S105 — looked for where it must not be


@pytest.fixture(scope="module")
def home_of_notebook(meetings):
    """A folder with a module, and another one on sys.path."""
    folder, extra = meetings(), meetings()
    (folder / "my_module.py").write_text("def fails():\n    raise ValueError('in my module')\n")
    (folder / "random.py").write_text("raise RuntimeError('a user has a file of this name')\n")
    (extra / "from_extra.py").write_text("word = 'extra'\n")
    return folder, extra


@pytest.fixture(scope="module")
def odd(launch, home_of_notebook):
    """A world with a name, variables and a folder of its own."""
    folder, extra = home_of_notebook
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(extra))
        session = launch(n=2, name="My.world_2-x", env={"MY_SECRET": SECRET, "OMP_NUM_THREADS": "3"})
    yield session
    if not session.closed:
        session.stop()


def test_every_variable_of_torchrun_is_there(world):
    """They are there before the import of torch."""
    cell = run(
        world,
        "import os, sys\n"
        "names = '''RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK GROUP_WORLD_SIZE ROLE_RANK\n"
        "ROLE_WORLD_SIZE ROLE_NAME MASTER_ADDR TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS'''.split()\n"
        "({name: os.environ.get(name) for name in names}, 'torch' in sys.modules)",
    )
    node = {place.rank: place for place in world.world.ranks}

    for rank, (found, torch_imported) in values(cell).items():
        local = len(world.world.nodes[node[rank].node].ranks)
        assert {
            "RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_RANK": str(node[rank].local_rank),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": str(node[rank].node),
            "NODE_RANK": str(node[rank].node),
            "GROUP_WORLD_SIZE": str(len(world.world.nodes)),
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": "3",
            "ROLE_NAME": "default",
            "MASTER_ADDR": found["MASTER_ADDR"],
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        } == found
        assert found["MASTER_ADDR"]
        assert not torch_imported


def test_garbage_is_collected(world):
    """A rank starts without; what it has imported by then no collection looks at again."""
    cell = run(world, "import gc\n(gc.isenabled(), gc.get_freeze_count() > 10_000)")

    assert set(values(cell).values()) == {(True, True)}


def test_a_rank_imports_no_debugger_and_a_cell_may(world):
    """ipykernel would import one into each rank, which has no use for it."""
    cell = run(world, "import sys\n'pydevd' in sys.modules")
    later = run(world, "import debugpy, debugpy.server.api\ncallable(debugpy.listen)")

    assert set(values(cell).values()) == {False}
    assert set(values(later).values()) == {True}


def test_each_rank_draws_random_numbers_of_its_own(world):
    """One process has imported for all of them and was forked: no generator may go on from a state that they share."""
    code = "import random, uuid, numpy, tempfile\n"
    code += "(random.random(), numpy.random.rand(), str(uuid.uuid4()), next(tempfile._get_candidate_names()))"
    drawn = values(run(world, code)).values()

    assert all(len(set(one)) == len(drawn) for one in zip(*drawn, strict=True))


def test_all_ranks_agree_on_the_rendezvous(world):
    """One address, one port that is a port, one id: the world's."""
    cell = run(world, "(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), os.environ['TORCHELASTIC_RUN_ID'])")
    found = set(values(cell).values())

    assert len(found) == 1
    _, port, run_id = found.pop()
    assert 0 < port < 65536
    assert run_id == world.world.id


def test_a_rank_is_its_rank_in_mpi(world):
    """rank == MPI.COMM_WORLD.rank, and MPI works: each rank's number arrives everywhere."""
    cell = run(world, "from mpi4py import MPI\n(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allgather(os.environ['RANK']))")

    assert {rank: (rank, ["0", "1", "2"]) for rank in range(3)} == values(cell)


def test_the_world_knows_its_ranks(world, hosts):
    """Process, node, place and device of each."""
    found = values(run(world, "import socket\n(os.getpid(), socket.gethostname(), int(os.environ['LOCAL_RANK']))"))

    assert found == {place.rank: (place.pid, place.host, place.local_rank) for place in world.world.ranks}
    assert [0, 1, 2] == [place.rank for place in world.world.ranks]
    assert ([[0, 1], [2]] if hosts else [[0, 1, 2]]) == [node.ranks for node in world.world.nodes]
    assert all(place.device == "cpu" or place.device.startswith("cuda:") for place in world.world.ranks)


def test_our_own_variables_are_not_left_to_the_user(world):
    """The rank's orders, and those of the notebook's kernel; only the mark of its world is for its children, too."""
    cell = run(world, "sorted(name for name in os.environ if name.startswith(('DTRAIN_', 'JPY_')))")

    assert same(["DTRAIN_WORLD"]) == values(cell)


def test_a_rank_is_in_the_notebooks_folder(odd, home_of_notebook):
    """Relative files and local modules are found as there."""
    folder, _ = home_of_notebook
    cell = run(odd, "import os, pathlib\n(os.getcwd(), pathlib.Path('my_module.py').exists())")

    assert same((str(folder), True), 2) == values(cell)


def test_a_module_beside_the_notebook_is_the_users_own_code(odd):
    """It imports, and its frames are shown as such."""
    frames = fail(odd, "import my_module\nmy_module.fails()").errors[0].frames

    assert [(2, True), (2, True)] == [(frame.line, frame.cell) for frame in frames]
    assert ("fails", "raise ValueError('in my module')") == (frames[1].function, frames[1].source)


def test_a_module_with_the_name_of_a_library_breaks_no_start(odd):
    """A random.py beside the notebook shadows Python's in cells, as in a notebook, not in our own processes."""
    assert odd.world.size == 2


def test_the_paths_of_the_notebook_hold(odd):
    """Ranks have the notebook's additions to sys.path, and its interpreter."""
    cell = run(odd, "import sys, from_extra\n(from_extra.word, sys.prefix, sys.executable)")

    assert same(("extra", sys.prefix, sys.executable), 2) == values(cell)


def test_ranks_of_a_host_divide_its_cores(world):
    """A rank may use all processors of its host, and keeps its part of the cores busy."""
    code = "import os; (os.environ.get('OMP_NUM_THREADS'), sorted(os.sched_getaffinity(0)))"
    found = values(run(world, code))
    seen = {rank: one.processors for rank, one in world.info().items()}

    for node in world.world.nodes:
        for rank in node.ranks:
            number, processors = found[rank]
            assert seen[rank].numbers == processors
            within = min(len(seen[rank].cores), seen[rank].quota or math.inf)
            # A rank alone has no such variable.
            chosen = str(max(1, int(within / len(node.ranks)))) if len(node.ranks) > 1 else None
            assert number == os.environ.get("OMP_NUM_THREADS", chosen)


def test_a_rank_that_its_cell_has_bound_shows_it(world):
    """The processors are those of the moment."""
    before = world.info(0)[0].processors.numbers
    run(world, f"import os; os.sched_setaffinity(0, {before[:1]})", ranks=0)
    bound = {rank: one.processors.numbers for rank, one in world.info().items()}
    run(world, f"os.sched_setaffinity(0, {before})", ranks=0)

    assert bound == {rank: before[:1] if rank == 0 else before for rank in bound}


def test_a_name_of_letters_digits_and_marks_is_kept(odd):
    """The name is part of the id."""
    assert odd.name == odd.world.name == "My.world_2-x"
    assert odd.world.id.startswith("My.world_2-x-")


def test_variables_of_the_request_are_there(odd):
    """They win over our own defaults, and children have them."""
    cell = run(odd, "import os; print(os.environ['OMP_NUM_THREADS'])\n!printf %s \"$MY_SECRET\" | wc -c")

    assert same(f"3\n{len(SECRET)}\n", 2) == texts(cell)


def test_values_of_variables_are_in_no_command_line_and_in_no_file(odd):
    """No process of the machine has them in its command line, and no file in the world's folders."""
    run(odd, "1")
    lines = []
    for process in psutil.process_iter():
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    files = [
        file
        for folder in (runtime_folder() / odd.world.id, spool_folder() / odd.world.id)
        for file in folder.rglob("*")
        if file.is_file()
    ]

    assert any(str(odd.world.id) in line for line in lines)
    assert [] == [line for line in lines if SECRET in line]
    assert len(files) > 5
    assert [] == [file for file in files if SECRET.encode() in file.read_bytes()]


def test_only_the_user_can_read_what_a_world_keeps(odd):
    """Files with keys or output are 0600, and every folder of ours is 0700; other files lie in such a folder."""
    run(odd, "1")
    runtime, spool = runtime_folder() / odd.world.id, spool_folder() / odd.world.id
    until(lambda: [*spool.glob("*/rank-1.jsonl")])
    folders = [runtime, spool, *(runtime / name for name in ("logs", "profile", "ipython")), *spool.iterdir()]
    files = [*runtime.glob("*.json"), *runtime.glob("profile/security/*"), *spool.glob("*/*")]

    assert {0o700} == {folder.stat().st_mode & 0o777 for folder in folders}
    assert {0o600} == {file.stat().st_mode & 0o777 for file in files}
    assert {"world.json", "steward.json", "ipcontroller-engine.json", "rank-1.jsonl"} <= {file.name for file in files}


def test_a_rank_has_no_terminal_to_wait_for(world):
    """Code that reads standard input sees its end."""
    assert same((b"", False)) == values(run(world, "import os, sys\n(os.read(0, 1), sys.stdout.isatty())"))


def test_the_ranks_are_processes_of_their_own(world):
    """None of them is this process or its child."""
    assert not set(pids(world).values()) & {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)}
