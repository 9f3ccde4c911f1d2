"""Programs that wait for a start: a start takes them over where they are what new ones would be, and nobody else keeps
them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from jupyter_dtrain.core.processes import show_variable
from jupyter_dtrain.launch import leftovers
from jupyter_dtrain.launch.leftovers import MARK
from tests.kernels import Notebook
from tests.processes import processes_of, wait_until_gone
from tests.steward.until import until

NAME = "prepared"
"""Of the world; other tests have worlds, too."""
PROGRAMS = 4
"""A guard, a steward, a controller and a watch."""


@pytest.fixture
def warm_mark() -> str:
    """A text in the environment of all processes of a test's kernels."""
    return f"warm-{uuid.uuid4().hex}"


@pytest.fixture
def open_kernel(home: object, warm_mark: str) -> Iterator[Callable[..., Notebook]]:
    """Opens kernels with the extension, whose programs wait for a start: ``open_kernel(**env)``."""
    opened: list[Notebook] = []

    def make(**env: str) -> Notebook:
        notebook = Notebook({"JUPYTER_DTRAIN_WARM_START": "600", "WARM_MARK": warm_mark} | env)
        opened.append(notebook)
        notebook.run("%load_ext jupyter_dtrain")
        return notebook

    yield make
    for notebook in opened:
        notebook.close()
    assert wait_until_gone(warm_mark) == []


def programs(mark: str) -> list[psutil.Process]:
    """The processes that wait, oldest first."""
    found = []
    for line in processes_of(mark):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(line.partition(":")[0]))
            if "jupyter_dtrain" in " ".join(process.cmdline()):
                found.append(process)
    return sorted(found, key=psutil.Process.create_time)


def await_programs(mark: str) -> list[psutil.Process]:
    """All programs, once they are there."""
    until(lambda: len(programs(mark)) == PROGRAMS)
    return programs(mark)


def start(notebook: Notebook, options: str = "") -> int:
    """Start a world; the process id of its steward."""
    notebook.run(f"%distributed start -n 2 --name {NAME} {options}")
    notebook.run("from jupyter_dtrain.launch.worlds import list_worlds")
    code = "print(*[(one.name, one.steward) for one in list_worlds()])"
    return int(re.search(rf"'{NAME}', (\d+)", notebook.run(code))[1])


def said(notebook: Notebook, expression: str) -> set[str]:
    """What both ranks say to an expression."""
    notebook.run(f"%%distributed\nimport os\nfound = str({expression})")
    return set(
        notebook.run("import jupyter_dtrain as d; print(*d.current().pull('found').values(), sep='\\n')").split("\n")[
            :-1
        ]
    )


def test_a_start_takes_over_the_programs_that_wait(open_kernel, warm_mark, tmp_path):
    """The world is what another would be: variables and folder are those of the start, its id marks its processes."""
    notebook = open_kernel(TOKENIZERS_PARALLELISM="early")
    waiting = await_programs(warm_mark)
    notebook.run(f"import os; os.environ['TOKENIZERS_PARALLELISM'] = 'late'; os.chdir({str(tmp_path)!r})")
    steward = start(notebook, "--env GIVEN=1")
    marked = {one.process.pid for one in leftovers.marked_processes() if one.world.startswith(f"{NAME}-")}

    assert steward in {one.pid for one in waiting}
    assert all(one.is_running() for one in waiting)
    assert {one.pid for one in waiting} <= marked
    assert said(notebook, "[os.environ['TOKENIZERS_PARALLELISM'], os.environ['GIVEN'], os.getcwd()]") == {
        f"['late', '1', '{tmp_path}']"
    }
    notebook.run("%distributed stop")
    assert programs(warm_mark) == []


@pytest.mark.parametrize(
    ("change", "options", "expression", "expected"),
    [
        ("import os; os.environ['PYTHONHASHSEED'] = '7'", "", "os.environ['PYTHONHASHSEED']", "7"),
        ("import os; os.umask(0o027)", "", "oct(os.umask(0o027))", "0o27"),
        ("", "--env PYTHONHASHSEED=7", "hash('word')", None),
    ],
)
def test_what_only_a_new_process_takes_over_is_taken_over(
    open_kernel, warm_mark, change, options, expression, expected
):
    """Such a start has new processes, and those that waited have ended."""
    notebook = open_kernel()
    waiting = await_programs(warm_mark)
    notebook.run(change)
    start(notebook, options)
    if expected is None:
        code = "print(hash('word'))"
        env = os.environ | {"PYTHONHASHSEED": "7"}
        expected = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        expected = expected.stdout.strip()

    assert said(notebook, expression) == {expected}
    until(lambda: not all(one.is_running() for one in waiting))
    notebook.run("%distributed stop")


def test_a_start_without_programs_that_wait_starts_its_own(open_kernel, warm_mark):
    """They may have been killed, or have gone while nobody needed them."""
    notebook = open_kernel()
    for one in await_programs(warm_mark):
        one.kill()
    start(notebook)

    assert said(notebook, "1 + 1") == {"2"}
    notebook.run("%distributed stop")


def test_a_child_of_the_kernel_holds_up_no_start(open_kernel, warm_mark):
    """It was forked after the programs were, and has their pipe, as workers of a pool do."""
    notebook = open_kernel()
    waiting = await_programs(warm_mark)
    notebook.run(
        "import multiprocessing as m, time; p = m.get_context('fork').Process(target=time.sleep, args=(60,)); p.start()"
    )
    steward = start(notebook)

    assert steward in {one.pid for one in waiting}  # one that waits for the end of the pipe is given up
    notebook.run("p.kill()\n%distributed stop")


def test_a_program_that_fails_as_it_is_taken_over_costs_no_start(open_kernel, warm_mark):
    """The start goes on with a steward of its own."""
    notebook = open_kernel()
    waiting = await_programs(warm_mark)
    code = "import jupyter_dtrain.launch.prepared as q; q.StartOrder.to_bytes = lambda _: q.part(b'no order')"
    notebook.run(code)
    steward = start(notebook)

    assert steward not in {one.pid for one in waiting}
    assert said(notebook, "1 + 1") == {"2"}
    notebook.run("%distributed stop")


def test_the_programs_end_with_their_kernel(open_kernel, warm_mark):
    """Also where it is killed, and has left a child."""
    notebook = open_kernel()
    waiting = await_programs(warm_mark)
    notebook.run(
        "import multiprocessing as m, time; p = m.get_context('fork').Process(target=time.sleep, args=(99,)); p.start()"
    )
    child = int(notebook.run("print(p.pid)"))
    notebook.kill()
    until(lambda: not any(one.is_running() for one in waiting))
    psutil.Process(child).kill()

    assert wait_until_gone(warm_mark) == []


@pytest.mark.parametrize("how", ["time", "unload"])
def test_the_programs_are_given_back(open_kernel, warm_mark, how):
    """After their time, and with the extension; the kernel goes on, and a start still works."""
    notebook = open_kernel(**({"JUPYTER_DTRAIN_WARM_START": "20"} if how == "time" else {}))
    if how == "unload":
        await_programs(warm_mark)
        notebook.run("%unload_ext jupyter_dtrain")
    until(lambda: not programs(warm_mark), patience=60)
    notebook.run("%reload_ext jupyter_dtrain")
    start(notebook)
    notebook.run("%distributed stop")


def test_none_wait_where_the_user_wants_none(open_kernel, warm_mark):
    """The setting 0."""
    notebook = open_kernel(JUPYTER_DTRAIN_WARM_START="0")
    start(notebook)
    notebook.run("%distributed stop")

    assert programs(warm_mark) == []


def test_programs_that_wait_are_no_leftovers(open_kernel, warm_mark):
    """The doctor, and the next start of another kernel, leave them alone."""
    open_kernel()
    waiting = await_programs(warm_mark)

    assert not {one.pid for one in leftovers.processes([])} & {one.pid for one in waiting}


def test_other_processes_read_the_new_value_of_a_variable():
    """In the environment that Linux shows; a value that does not fit is refused."""
    code = (
        "import sys; from jupyter_dtrain.core.processes import show_variable as show\n"
        "show('LAST', 'short'); print('shown', flush=True); input()\n"
        "try: show('LAST', 'x' * 99)\nexcept ValueError as error: print(error)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"LAST": "x" * 40},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "shown\n"
        found = psutil.Process(process.pid).environ()
        rest, _ = process.communicate("\n")

    assert found["LAST"] == "short"
    assert found["PATH"] == os.environ["PATH"]
    assert rest == "LAST is not the last variable of this process, or it is too short\n"
    with pytest.raises(ValueError, match="not the last variable"):
        show_variable(MARK, "x")
