"""A cell may ask a person: its ranks wait for the answer, of which nothing is kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from jupyter_dtrain import BadRequest, ReadOnly, RunTimeout, Session
from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.wire.prompt_messages import AnswerPrompts
from tests.session.cells import begin, fail, run, same, texts
from tests.steward.until import PATIENCE, until

RANK = "import os; rank = int(os.environ['RANK'])\n"
SECRET = "correct-horse-battery"  # noqa: S105 — the test's own


def said(cell):
    """What the ranks of a cell have printed since it has begun."""
    return {rank: text.removeprefix("begun\n") for rank, text in texts(cell).items()}


def ask(world, code, ranks=None, **options):
    """Begin a cell whose questions the test answers."""
    return begin(world, RANK + code, ranks, ask=True, **options)


def test_ranks_ask_and_are_answered(world):
    """All at once, and then one of them."""
    cell = ask(world, "name = input('name? ')\nif rank == 1: name += input()\nprint(name)")
    until(lambda: set(world.prompts) == {0, 1, 2})
    assert {(one.kind, one.text, one.number, one.place[-6:]) for one in world.prompts.values()} == {
        ("input", "name? ", 1, "line 3")
    }
    world.answer("Ada")
    until(lambda: set(world.prompts) == {1} and world.prompts[1].number == 2)
    world.answer("!", 1)

    assert cell.wait(PATIENCE)
    assert said(cell) == {0: "Ada\n", 1: "Ada!\n", 2: "Ada\n"}
    with pytest.raises(BadRequest, match="No prompt is open on ranks 0-2"):
        world.answer("late")


def test_the_end_of_the_input_is_python_s_own_error(world):
    """As Ctrl-D gives it in a terminal."""
    cell = ask(world, "try: input()\nexcept EOFError: print('no more')")
    until(lambda: len(world.prompts) == 3)
    world.answer(None)

    assert cell.wait(PATIENCE)
    assert said(cell) == same("no more\n")


def test_a_password_is_kept_nowhere(launch, home):
    """Neither in logs nor in what ranks have said nor in the store."""
    with launch(n=2) as session:
        cell = ask(session, "import getpass; secret = getpass.getpass('token: '); print(len(secret))")
        until(lambda: len(session.prompts) == 2)
        assert {one.kind for one in session.prompts.values()} == {"password"}
        session.answer(SECRET)
        assert cell.wait(PATIENCE)
        assert said(cell) == {rank: f"{len(SECRET)}\n" for rank in (0, 1)}
        run(session, "del secret")
        places = [home, Path(session.request.spool), Path(session.request.folder)]
        kept = [path for place in places for path in place.rglob("*") if path.is_file()]
        kept = [(path, path.read_bytes()) for path in kept]
    kept += [(path, path.read_bytes()) for path in home.rglob("*") if path.is_file()]

    assert any(b"token: " in content for _, content in kept)
    assert [path for path, content in kept if SECRET.encode() in content] == []


def test_a_thread_of_the_cell_may_ask(world):
    """One after the other: the second waits for the first."""
    code = """
import threading
said = {}
def work(name): said[name] = input(f"{name}? ")
threads = [threading.Thread(target=work, args=(name,), name=name) for name in ("one", "two")]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(said.values()))
"""
    cell = ask(world, code, "0")
    until(lambda: 0 in world.prompts)
    assert world.prompts[0].place.endswith((" in work (one)", " in work (two)"))
    world.answer("a", 0)
    until(lambda: 0 in world.prompts and world.prompts[0].number == 2)
    world.answer("b", 0)

    assert cell.wait(PATIENCE)
    assert said(cell)[0] == "['a', 'b']\n"


def test_stop_ends_a_prompt(world):
    """As it ends any other call; the next cell is whole."""
    cell = ask(world, "input('stop me ')")
    until(lambda: len(world.prompts) == 3)
    world.interrupt()
    assert cell.wait(PATIENCE)

    assert cell.outcome == "interrupted"
    assert world.prompts == {}
    assert run(world, "1").outcome == "ok"


def test_a_thread_that_asks_ends_with_its_cell(world):
    """Its question is none of the next cell's."""
    code = "import threading; thread = threading.Thread(target=input, args=('left? ',)); thread.start()"
    cell = ask(world, code + "\nwhile not [one for one in threading.enumerate() if one is thread]: pass", "0")
    assert cell.wait(PATIENCE)
    run(world, "thread.join(5); assert not thread.is_alive()", "0")

    assert world.prompts == {}


def test_the_time_of_a_prompt_is_none_of_the_limit(world):
    """The limit counts again after the answer."""
    cell = ask(world, "input('wait ')\nimport time\nwhile True: time.sleep(0.01)", "0", timeout=1.0)
    until(lambda: 0 in world.prompts)
    threading.Event().wait(1.5)
    assert not cell.interrupted
    world.answer("on", 0)
    assert cell.wait(PATIENCE)

    with pytest.raises(RunTimeout):
        cell.result()


def test_where_nobody_can_answer_the_call_fails_at_once(world):
    """It names the reason, and the way on."""
    cell = fail(world, "input('name? ')")
    for error in cell.errors.values():
        assert error.evalue == (
            "input() asks a person, and nobody can answer: this cell was sent by a program, not from a notebook. Set "
            "values with %%distributed -i NAMES, and look at variables with another %%distributed cell."
        )
    cell = run(world, "import getpass; getpass.getpass()", wait=False)
    assert cell.wait(PATIENCE)
    assert {"--no-wait" in error.evalue for error in cell.errors.values()} == {True}


def test_code_that_asks_again_and_again_is_ended(world):
    """The second time is shown, and nothing that catches exceptions stops the third."""
    cell = fail(world, "while True:\n    try: input('token: ')\n    except Exception: pass")

    assert {error.ename for error in cell.errors.values()} == {"NoAnswer"}
    assert {"The question is 'token: '." in error.evalue for error in cell.errors.values()} == {True}
    for text in texts(cell).values():
        assert text.count("[jupyter-dtrain] This cell goes on after an error, and asks again: input() asks a") == 1


def test_code_may_do_without_several_answers(world):
    """Each question is one of its own."""
    code = "for text in 'abcd':\n    try: input(text)\n    except RuntimeError: pass"
    cell = run(world, code)

    assert said(cell) == same("")


def test_a_process_of_the_cell_cannot_ask(world):
    """It says why, and ends; the cell can ask all the same."""
    code = """
pid = os.fork()
if pid == 0:
    try: input("child? ")
    except RuntimeError as error: os.write(1, str(error).encode())
    finally: os._exit(0)
os.waitpid(pid, 0)
print(input("parent? "))
"""
    cell = ask(world, code, "0")
    until(lambda: 0 in world.prompts)
    world.answer("yes", 0)

    assert cell.wait(PATIENCE)
    assert "a process that the cell has started asks" in said(cell)[0]
    assert said(cell)[0].endswith("yes\n")


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("printf 'Overwrite (y/n)? '; exit 1", True),
        ("python -c 'input(\"Proceed? \")'", True),
        ("printf 'Overwrite (y/n)? '", False),
        ("echo 'Is it there?'; exit 1", False),
        ("exit 1", False),
    ],
)
def test_a_command_that_asks_ends_and_says_why(world, command, asked):
    """It finds no input. A command that has not failed has asked nothing."""
    cell = run(world, f"print('now?', end='')\n!{command}", "0")

    hint = f"[jupyter-dtrain] `{command}` seems to have asked something, and a process that a cell starts has no"
    assert (hint in [line[: len(hint)] for line in said(cell)[0].splitlines()]) is asked, said(cell)[0]


def test_a_client_that_only_looks_answers_nothing(world):
    """It sees the prompt; the steward refuses its answer, whatever the client believes of itself."""
    cell = ask(world, "print(input())", "0")
    until(lambda: 0 in world.prompts)
    other = Session.attach(world.name)
    try:
        until(lambda: 0 in other.prompts)
        for act in (lambda: other.answer("theirs"), other.attend, other.debug):
            with pytest.raises(ReadOnly):
                act()
        with pytest.raises(Refused, match="is controlled by"):
            other._cells.desk.answer(cell.number, {0: 1}, "theirs")
        for client in ("", "nobody", other._link.me.id):
            with pytest.raises(Refused, match="is controlled by"):
                other._link.ask(AnswerPrompts(client, cell.number, {0: 1}, "theirs"))
    finally:
        other.leave()
    world.answer("mine", 0)

    assert cell.wait(PATIENCE)
    assert said(cell)[0] == "mine\n"
