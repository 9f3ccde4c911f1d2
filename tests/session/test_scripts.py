"""A script in the ranks, held against torchrun where that has something to say."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from jupyter_dtrain import BadRequest, DistributedError

PATIENCE = 60


@pytest.fixture
def script(tmp_path):
    """``script(source, name="train.py")``: the path of a new file."""

    def write(source, name="train.py"):
        path = tmp_path / name
        path.write_text(source)
        return path

    return write


def play(session, path, *arguments, **options):
    return session.run_script(path, arguments, view=None, timeout=PATIENCE, **options)


def value(session, code):
    """The value of ``code`` on each rank."""
    results = session.run(code, view=None, timeout=PATIENCE).results
    return [ast.literal_eval(results[rank].data["text/plain"]) for rank in sorted(results)]


def test_a_script_sees_what_torchrun_shows_it(world, script, tmp_path):
    """Its name, its arguments, its folder, the world."""
    pytest.importorskip("torch", reason="torch, whose torchrun is asked, is not installed")
    script("where = __file__", "beside.py")
    path = script(
        "import beside, json, os, sys\n"
        "seen = [__name__, sys.argv[1:], sys.argv[0], __file__, sys.path[0], beside.where, int(os.environ['RANK'])]\n"
        "seen += [sys.modules['__main__'].seen is seen, __doc__]\n"
        "if __name__ == '__main__' and sys.argv[1] != '-':\n"
        "    open(sys.argv[1] + os.environ['RANK'], 'w').write(json.dumps(seen))\n"
        "    sys.exit(0)\n"
    )
    arguments = [str(tmp_path / "seen-"), "--lr", "-1", "two words"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    subprocess.run([*command, str(path), *arguments], check=True, capture_output=True, timeout=PATIENCE)
    theirs = [json.loads((tmp_path / f"seen-{rank}").read_text()) for rank in range(3)]
    play(world, path, *arguments)
    ours = [json.loads((tmp_path / f"seen-{rank}").read_text()) for rank in range(3)]

    assert theirs == ours
    assert value(world, "seen") == ours


def test_names_of_a_script_stay_unless_it_is_to_be_fresh(world, script):
    """The process is as it was."""
    before = value(world, "import sys\n(sys.argv, sys.path, __name__, '__file__' in globals())")
    play(world, script("class Model:\n    size = 3\nmodel, kept = Model(), 1\ndef look():\n    return kept + 1"))
    stayed = value(
        world, "kept = 5\n(model.size, look(), __import__('pickle').loads(b'c__main__\\nModel\\n.') is Model)"
    )
    play(world, script("kept, other = 7, 8"), fresh=True)
    after = value(world, "import sys\n(sys.argv, sys.path, __name__, '__file__' in globals())")

    assert stayed == [(3, 6, True)] * 3
    assert value(world, "(kept, 'other' in globals())") == [(5, False)] * 3
    assert before == after


def test_a_module_beside_the_script_that_was_changed_is_imported_anew(world, script, tmp_path):
    """torchrun has the same effect, since it starts new processes."""
    (tmp_path / "models").mkdir()
    path = script("import config\nfrom models import net\nimport multiprocessing\nsize = config.size, net.depth")
    script("size = 1", "config.py")
    script("depth = 1", "models/net.py")
    # As a cell of a notebook beside the script may have done.
    value(
        world, f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport config, models.net, multiprocessing as mp\n1"
    )
    script("size = 2000", "config.py")
    script("depth = 3000", "models/net.py")
    play(world, path)
    found = value(world, "sys.path.pop(0)\n(size, multiprocessing is mp)")

    assert found == [((2000, 3000), True)] * 3


def test_a_module_of_that_name_from_elsewhere_stands_aside(world, script, tmp_path):
    """A cell's own is there again afterwards."""
    (tmp_path / "elsewhere").mkdir()
    script("size = 1", "elsewhere/sizes.py")
    script("size = 2", "sizes.py")
    elsewhere = str(tmp_path / "elsewhere")
    value(world, f"import sys\nsys.path.insert(0, {elsewhere!r})\nimport sizes\nmine = sizes\n1")
    play(world, script("import sizes\nsize = sizes.size"))
    found = value(world, "sys.path.pop(0)\nimport sizes\n(size, sizes is mine)")

    assert found == [(2, True)] * 3


def test_an_exception_in_a_script_is_shown_at_its_line(world, script):
    """The names defined until then stay; a script that exits with a code other than 0 ends there."""
    path = script("stage = 1\ndef step():\n    raise ValueError('no')\n\nstep()\n")
    with pytest.raises(DistributedError, match=r"ValueError: no") as raised:
        play(world, path)
    frames = raised.value.run.errors[0].frames
    with pytest.raises(DistributedError, match="SystemExit: 3"):
        play(world, script("import sys\nsys.exit(3)"))

    assert [(frame.file, frame.line) for frame in frames if frame.cell][-2:] == [(str(path), 5), (str(path), 3)]
    assert value(world, "stage") == [1] * 3


def test_a_module_is_run_as_python_m_runs_it(world, tmp_path):
    """A module of a package, then a package; both in the folder of work, with relative imports."""
    package = tmp_path / "plan"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "beside.py").write_text("where = __name__")
    look = (
        "import json, os, sys\nfrom . import beside\n"
        "seen = [__name__, sys.argv, __file__, __package__, __spec__.name, sys.path[0], beside.where, __doc__]\n"
        "seen.append(sys.modules['__main__'].seen is seen)\n"
    )
    (package / "train.py").write_text(look + "print(json.dumps(seen))")
    (package / "__main__.py").write_text(look + "print(json.dumps(seen))")
    before = value(
        world, "import sys\n(sys.argv, sys.path, __name__, '__file__' in globals(), '__spec__' in globals())"
    )
    value(world, f"import os\nhere = os.getcwd()\nos.chdir({str(tmp_path)!r})\n1")
    try:
        for name in ("plan.train", "plan"):
            command = [sys.executable, "-m", name, "--lr", "-1"]
            done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=PATIENCE)
            play(world, name, "--lr", "-1", module=True)
            assert value(world, "seen") == [json.loads(done.stdout)] * 3
        (package / "train.py").write_text("changed = 1\n1 / 0\n")
        with pytest.raises(DistributedError, match="ZeroDivisionError") as raised:
            play(world, "plan.train", module=True)
        for name, words in (("plan.none", "plan.none"), ("no.where", "no.where"), ("nowhere", "nowhere")):
            with pytest.raises(DistributedError, match=f"ModuleNotFoundError: No module named {words}") as missing:
                play(world, name, module=True)
            assert not [frame for frame in missing.value.run.errors[0].frames if not frame.cell]
        (package / "__main__.py").unlink()
        with pytest.raises(DistributedError, match="'plan' is a package and cannot be directly executed"):
            play(world, "plan", module=True)
        with pytest.raises(BadRequest, match=r"'plan/train.py' cannot be the name of a module"):
            play(world, "plan/train.py", module=True)
    finally:
        value(world, "os.chdir(here)\n1")

    frames = [(frame.file, frame.line) for frame in raised.value.run.errors[0].frames if frame.cell]
    assert frames[-1] == (str(package / "train.py"), 2)
    assert not [frame for frame in raised.value.run.errors[0].frames if not frame.cell]
    after = "import sys\n(sys.argv, sys.path, __name__, '__file__' in globals(), '__spec__' in globals())"
    assert value(world, after) == before
    assert value(world, "changed") == [1] * 3


def test_losses_of_a_script_have_their_names(world, script):
    pytest.importorskip("torch")
    path = script(
        "import torch\nweight = torch.zeros(1, requires_grad=True)\noptimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for _ in range(3):\n    cost = (weight - 1).square().sum()\n    cost.backward()\n    optimizer.step()\n"
    )
    run = play(world, path)

    assert [len(run.metrics["cost"][rank].values) for rank in range(3)] == [3] * 3


def test_a_file_that_is_no_script_goes_nowhere(world, script, tmp_path):
    """The error says why."""
    number = world.last_run
    with pytest.raises(BadRequest, match=r"The script .*gone.py cannot be read: No such file"):
        play(world, tmp_path / "gone.py")
    with pytest.raises(BadRequest, match=r"The script .* cannot be read: Is a directory"):
        play(world, tmp_path)
    with pytest.raises(BadRequest, match=r"train.py, line 2: .*No rank ran it"):
        play(world, script("x = 1\ndef\n"))
    with pytest.raises(BadRequest, match=r"train.py"):
        play(world, script("x = 1\0"))

    assert world.last_run is number
