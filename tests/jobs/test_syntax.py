"""IPython's syntax in plain Python, or refused with the cell's name."""

from __future__ import annotations

import pytest

from jupyter_dtrain import BadRequest
from jupyter_dtrain.jobs.names import names_of
from jupyter_dtrain.jobs.script import indented
from jupyter_dtrain.jobs.syntax import translate
from tests.jobs.cells import ranks


def python(source, *known):
    return translate(ranks(4, source), frozenset(known)).code


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("!nvidia-smi", 'subprocess.run("nvidia-smi", shell=True, check=False)'),
        ("!echo {x + 1} $x $HOME", "subprocess.run(f'echo {x + 1} {x} $HOME', shell=True, check=False)"),
        ("!awk '{print $1}' log", "subprocess.run(\"awk '{print $1}' log\", shell=True, check=False)"),
        ("!echo $$x", 'subprocess.run("echo $x", shell=True, check=False)'),
        ("%cd ~/data", 'os.chdir(os.path.expanduser("~/data"))'),
        ("%cd {x}", "os.chdir(os.path.expanduser(f'{x}'))"),
        ("%env NCCL_DEBUG=INFO", 'os.environ["NCCL_DEBUG"] = "INFO"'),
        ("%set_env A b c", 'os.environ["A"] = "b c"'),
        ("%matplotlib inline", "# left out: %matplotlib inline"),
        ("!pip install x", "# left out, as packages belong into the job's environment: !pip install x"),
        ("%distributed start --env CHOICE=secret", "# left out: %distributed start"),
        ("model?", "# left out: %pinfo model"),
        ("%%bash\nls", "subprocess.run([\"bash\"], input='ls\\n', text=True, check=True)"),
        ("x = 1\nx", "x = 1\nshow(x)"),
        ("f(x)", "show(f(x))"),
        ("x;", "x;"),
        ("print(x)", "print(x)"),
        ("dist.destroy_process_group()", "dist.destroy_process_group()"),
        ("'a line of text'", "'a line of text'"),
        ("x = '''\n!ls\n%cd\n'''", "x = '''\n!ls\n%cd\n'''"),
        ("text = 'ä'; 'ö' + text", "text = 'ä'; show('ö' + text)"),
    ],
)
def test_magics_and_last_values_become_python(source, expected):
    assert python(source, "x") == expected


def test_a_magic_in_a_block_stays_in_its_block():
    assert python("if x:\n    !ls\n    %pip install y\n", "x") == (
        'if x:\n    subprocess.run("ls", shell=True, check=False)\n    pass  # left out: %pip install y'
    )


def test_the_output_of_a_command_is_a_list_of_lines():
    namespace = {"subprocess": __import__("subprocess")}
    exec(python("lines = !printf 'a\\nb\\n'"), namespace)  # noqa: S102 — to run it is the test

    assert namespace["lines"] == ["a", "b"]


@pytest.mark.parametrize("source", ["%time y = x + 1", "y = %time x + 1", "%%time\ny = x + 1"])
def test_a_timed_line_binds_its_name_and_prints_its_time(source, capsys):
    namespace = {"x": 2, "time": __import__("time")}
    code = python(source, "x")
    exec(code, namespace)  # noqa: S102 — to run it is the test

    assert namespace["y"] == 3
    assert capsys.readouterr().out.startswith("Wall time: ")
    assert "y" in names_of(code).bound


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("%timeit f()", "cell 4 has %timeit f(), which a script cannot do: write it in Python, or leave the cell out"),
        ("%%capture out\nf()", "cell 4 has %%capture, which"),
        ("x = %who_ls", "cell 4 has the value of %who_ls, which"),
        ("f(get_ipython())", "cell 4 has a call of get_ipython(), which"),
        ("_ + 1", "cell 4 has IPython's _, which a script cannot do: give the value a name of its own"),
        ("Out[3]", "cell 4 has IPython's Out, which"),
        ("%cd -", "cell 4 has %cd -, which"),
        ("def f(:", "cell 4 is not Python"),
    ],
)
def test_a_magic_without_a_counterpart_is_refused_with_the_cell_s_name(source, words):
    with pytest.raises(BadRequest) as caught:
        python(source)

    assert str(caught.value).startswith(words)


def test_a_name_of_the_cells_own_is_not_taken_for_ipython_s():
    assert python("for _ in range(3):\n    _ + 1", "_") == "for _ in range(3):\n    _ + 1"


def test_lines_inside_a_text_are_not_indented():
    assert indented("x = '''\na\n'''\n\ny = 1") == "    x = '''\na\n'''\n\n    y = 1"


def test_names_that_a_cell_reads_and_binds_are_those_of_its_own_scopes():
    names = names_of(
        "x = x + 1\n"
        "rows = [row for row in table if row > limit]\n"
        "class Net(Base):\n    width = 3\n    double = width * two\n    def f(self): return g(self.width)\n"
        "def h(a, b=default):\n    global made\n    made = a + later\n"
        "cfg['lr'] = 0.1\n"
        "import a.b, c as d\n"
        "with open(p) as file: pass\n"
    )

    assert names.bound == {"x", "rows", "Net", "h", "made", "a", "d", "file"}
    assert names.at_once == {"x", "table", "limit", "Base", "two", "default", "cfg", "p"}
    assert names.later == {"g", "later"}
    assert names.changed == {"cfg"}


def test_names_of_a_cell_that_awaits_are_found():
    names = names_of("rows = await load()\nasync for row in rows:\n    print(row)\nmore = [r async for r in rows]")

    assert names.bound == {"rows", "row", "more"}
    assert names.at_once == {"load"}


def test_a_star_import_and_a_pattern_are_seen():
    names = names_of("from m import *\nmatch point:\n    case {'x': x, **rest}: pass\n    case [first, *others]: pass")

    assert names.star
    assert names.bound == {"x", "rest", "first", "others"}
    assert names.at_once == {"point"}
