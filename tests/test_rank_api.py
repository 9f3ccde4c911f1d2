"""``log`` and ``progress`` outside a world, where an exported script uses them."""

from __future__ import annotations

import csv
import subprocess
import sys

import pytest

import jupyter_dtrain


@pytest.fixture(autouse=True)
def no_csv():
    """A test's choice does not reach the next test."""
    yield
    jupyter_dtrain.log_to_csv(None)


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": "/usr/bin", **env},
    )


def test_numbers_are_printed(capsys):
    """One line for what was logged together; steps are counted for each name, or named."""
    said = python(
        "from jupyter_dtrain import log\n"
        "log(loss=0.5, acc=1)\nlog(loss=0.25)\nlog({'loss/test': 2}, step=40)\nlog(loss=1)"
    )

    assert said.stdout.splitlines() == [
        "step 0  loss 0.5  acc 1",
        "step 1  loss 0.25",
        "step 40  loss/test 2",
        "step 2  loss 1",
    ]
    assert said.stderr == ""


def test_a_configuration_outside_a_world_is_silent():
    """But for what cannot be stored."""
    said = python(
        "import jupyter_dtrain\njupyter_dtrain.config({'a b': 1}, lr=0.5)\njupyter_dtrain.config(odd=object())"
    )

    assert said.stdout == ""
    assert len(said.stderr.splitlines()) == 1
    assert "config(): 'odd' is left out: object is no number" in said.stderr


def test_a_script_needs_neither_jupyter_nor_a_framework():
    """The import is light, and what is logged brings nothing in."""
    said = python(
        "import sys, jupyter_dtrain\njupyter_dtrain.log(loss=1)\n"
        "print([m for m in ('torch', 'IPython', 'ipyparallel', 'zmq', 'mpi4py') if m in sys.modules])"
    )

    assert said.stdout.splitlines()[-1] == "[]"


def test_under_torchrun_lines_and_rows_carry_the_rank(tmp_path):
    """The variable names the file; ``{rank}`` in it gives each process its own file."""
    said = python("from jupyter_dtrain import log\nlog(loss=0.5)", RANK="3", DTRAIN_CSV=f"{tmp_path}/{{rank}}.csv")
    rows = list(csv.DictReader((tmp_path / "3.csv").read_text().splitlines()))

    assert said.stdout == "[3] step 0  loss 0.5\n"
    assert [(row["rank"], row["step"], row["name"], row["value"]) for row in rows] == [("3", "0", "loss", "0.5")]
    assert list(rows[0]) == ["rank", "step", "time", "name", "value"]


def test_a_csv_file_is_appended_to(tmp_path, capsys):
    """The file has one header; numbers can be read back as they were."""
    path = tmp_path / "losses.csv"
    for value in (0.1, float("nan")):
        jupyter_dtrain.log_to_csv(path)
        jupyter_dtrain.log({"a,b\nc": value})
        jupyter_dtrain.log_to_csv(None)
    rows = list(csv.reader(path.read_text().splitlines()))

    assert [row[3:] for row in rows] == [["name", "value"], ["a,b c", "0.1"], ["a,b c", "nan"]]


def test_a_csv_file_that_cannot_be_written_gets_one_warning(tmp_path, capsys):
    """Training goes on."""
    jupyter_dtrain.log_to_csv(tmp_path / "none" / "losses.csv")
    jupyter_dtrain.log(loss=1)
    jupyter_dtrain.log(loss=2)
    said = capsys.readouterr()

    assert said.err.count("cannot be written") == 1
    assert "loss 2" in said.out


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("text", "'text' is text, not a number; what is more is kept in a world, or where JUPYTER_DTRAIN_STORE names"),
        ([1, 2, 3], "list is not one number"),
        (None, "NoneType is not"),
    ],
)
def test_a_value_that_is_no_number_is_left_out_with_a_word(value, words):
    """The values logged with it are kept."""
    said = python(f"from jupyter_dtrain import log\nlog(bad={value!r}, good=1)\nlog(bad={value!r})")

    assert said.stdout == "step 0  good 1\n"
    assert f"log(): 'bad' is left out: {words}" in said.stderr
    assert said.stderr.count("left out") == 1


def test_numbers_of_libraries_are_numbers(capsys):
    """Scalars of numpy and torch, of any shape with one element."""
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    jupyter_dtrain.log(
        a=np.float32(0.5), b=np.array([[2.0]])[0, 0], c=torch.tensor(0.25), d=torch.ones(1, 1), e=True, step=1
    )

    assert capsys.readouterr().out == "step 1  a 0.5  b 2  c 0.25  d 1  e 1\n"


def test_a_step_that_is_no_number_is_counted_instead():
    """A word, and nothing is lost."""
    said = python("from jupyter_dtrain import log\nlog(loss=1, step='x')")

    assert said.stdout == "step 0  loss 1\n"
    assert "a step must be a whole number, not 'x'" in said.stderr


def test_progress_goes_through_everything_and_draws_a_line():
    """The line is on stderr, and ends with a newline, even when the loop is left."""
    said = python(
        "from jupyter_dtrain import progress\nprint(list(progress(range(5), name='five')))\n"
        "for x in progress((c for c in 'abc')):\n    if x == 'b': break"
    )
    lines = [line for line in said.stderr.splitlines() if line]

    assert said.stdout == "[0, 1, 2, 3, 4]\n"
    assert lines[0].startswith("five:  20% |██        | 1/5 [0:00, ")
    assert lines[1].startswith("five: 100% |██████████| 5/5 [0:00, ")
    assert lines[-1].startswith("1 [0:00, ")
