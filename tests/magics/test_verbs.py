"""``%distributed`` describes a world and steers it."""

from __future__ import annotations

import re

import pytest

from jupyter_dtrain.magics import verbs

PIDS = "[rank.pid for rank in __import__('jupyter_dtrain').current().world.ranks]"
WAIT = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"


@pytest.mark.parametrize("verb", [verb.name for verb in verbs()])
def test_every_verb_has_help(notebook, verb):
    """``-h`` prints and does nothing, whether a world runs or not."""
    cell = notebook.ok(f"%distributed {verb} -h")

    assert cell.out.startswith(f"usage: %distributed {verb}")
    assert "%%%" not in cell.out


@pytest.mark.parametrize(
    ("line", "usage"),
    [
        ("%distributed -h", "usage: %distributed [-h] VERB"),
        ("%%distributed -h", "usage: %%distributed [-h] [-r RANKS]"),
        ("%%distributed -h\n", "usage: %%distributed [-h] [-r RANKS]"),
        ("%%distributed -h\nprint(1)", "usage: %%distributed [-h] [-r RANKS]"),
        ("%%rank -h", "usage: %%rank [-h]"),
        ("%%rank -h\nprint(1)", "usage: %%rank [-h]"),
        ("%dist -h", "usage: %distributed [-h] VERB"),
        ("%%dist -h", "usage: %%distributed [-h] [-r RANKS]"),
        ("%%local -h", "usage: %%local [-h]"),
        ("%%local -h\nprint(1)", "usage: %%local [-h]"),
        ("%%speedup -h", "usage: %%speedup [-h]"),
    ],
)
def test_help_is_given_with_a_body_and_without(notebook, line, usage):
    """IPython itself refuses a cell magic without a body; ours answers."""
    cell = notebook.ok(line)

    assert cell.out.startswith(usage)
    assert "%%%" not in cell.out
    assert all(f"  {verb.name} " in cell.out or f"  {verb.name}\n" in cell.out for verb in verbs() if "VERB" in usage)


def test_an_unknown_verb_names_those_that_exist(notebook):
    """A usage error, not a traceback."""
    said = notebook.run("%distributed strat").said

    assert "'strat'" in said
    assert all(verb.name in said for verb in verbs())


def test_dist_is_short_for_distributed(ranks):
    """In lines, in cells and in auto mode."""
    assert ranks.ok("%%dist -r 1\n1 + 1").display_texts == ["[1] 2"]
    ranks.ok("%dist auto on")
    status = ranks.ok("%dist status")
    ranks.ok("%dist auto off")

    assert status.display_texts[0].startswith("World 'world")
    assert {"dist", "distributed", "rank", "speedup", "local"} <= set(
        ranks.value("[*get_ipython().magics_manager.magics['cell']]")
    )


def test_no_verb_means_status(ranks):
    """A table of the ranks, as text and as HTML."""
    bare, status = ranks.ok("%distributed"), ranks.ok("%distributed status")
    pids = ranks.value(PIDS)
    rows = status.display_texts[0].splitlines()

    assert [row.split()[0] for row in rows[2:]] == ["0", "1", "2"]
    assert [int(row.split()[4]) for row in rows[2:]] == pids
    assert all(row.endswith("idle") for row in rows[2:])
    assert status.displays[0]["data"]["text/html"].count("<tr>") == 4
    assert bare.display_texts[0].splitlines()[1:] == rows[1:]


def test_status_and_stacks_show_what_runs(ranks):
    """Ranks at the same place share an entry, with the lines of the cell."""
    idle = ranks.ok("%distributed stacks").out
    code = f"%%distributed --no-wait\nimport os\ndef wait():\n    {WAIT.replace(chr(10), chr(10) + '    ')}\n"
    code += "print('in', flush=True)\nif os.environ['RANK'] == '0':\n    wait()\nelse:\n    wait()"
    running = ranks.ok(code)
    running.wait_for(lambda cell: "[0-2] in" in cell.out)
    status = ranks.ok("%distributed").display_texts[0]
    stacks = ranks.ok("%distributed stacks").out
    one = ranks.ok("%distributed stacks -r -1").out
    ranks.ok("open('go', 'w').close()")
    ranks.ok("%%distributed\n1")
    ranks.ok("import os; os.unlink('go')")

    assert idle == "Ranks 0-2: idle\n"
    assert status.splitlines()[0].count("running") == 1
    assert [row.split()[-1] for row in status.splitlines()[2:]] == ["running"] * 3
    assert re.findall(r"^(Ranks? [0-9-]+): running$", stacks, re.MULTILINE) == ["Rank 0", "Ranks 1-2"]
    number = running.reply["execution_count"]
    assert f"cell [{number}], line 8: wait()" in stacks
    assert "line 10: wait()" in stacks
    assert "line 5 in wait: while not" in stacks
    assert "rank/" not in stacks
    assert one.startswith("Rank 2: running")


def test_flame_shows_where_the_time_of_a_running_cell_goes(ranks):
    """With the lines of the cell as the notebook numbers them; the file lies beside the notebook."""
    running = ranks.ok(f"%%distributed --no-wait\nprint('in', flush=True)\n{WAIT}")
    running.wait_for(lambda cell: "[0-2] in" in cell.out)
    flame = ranks.ok("%distributed flame -s 0.5 -r 1-2 -o waits.json")
    refused = [ranks.run(f"%distributed flame {options}") for options in ("-s 99", "-r 7", "-s x")]
    ranks.ok("open('go', 'w').close()")
    ranks.ok("%%distributed\n1")
    names = ranks.ok("import json, os; [one['name'] for one in json.load(open('waits.json'))['profiles']]")
    ranks.ok("os.unlink('go'); os.unlink('waits.json')")

    [text] = flame.display_texts
    number = running.reply["execution_count"]
    assert f"\ncell [{number}], line 4: while not pathlib.Path('go').exists(): " in text
    assert "All samples are in waits.json" in text
    assert "<svg" in flame.displays[0]["data"]["text/html"]
    assert names.display_texts == ["['rank 1', 'rank 2']"]
    assert "0.5 to 60 seconds, not for 99.0" in refused[0].said
    assert "ranks 0 to 2" in refused[1].said
    assert "invalid float value: 'x'" in refused[2].said


RECORDED = """%%distributed --record-memory -r 1-2
import ctypes, mmap, time
pages = mmap.mmap(-1, 150_000_000)
held = (ctypes.c_char * len(pages)).from_buffer(pages)
for _ in range(4):
    ctypes.memset(held, 1, len(pages))  # fills
time.sleep(0.1)
"""


def test_a_recorded_cell_shows_the_peak_of_its_memory_with_its_line(ranks):
    """Below its output, also when it fails; the verb shows it again, and options that cannot be have a sentence."""
    none = ranks.run("%distributed memory --record")
    shown = ranks.ok(RECORDED)
    again = ranks.ok("%distributed memory --record -r 2")
    failed = ranks.run("%%distributed --record-memory -r 0\nprint('said')\n1 / 0")
    quiet = ranks.ok("%%distributed --record-memory --no-wait -r 1-2\ndel pages, held")
    refused = ranks.run("%distributed memory --record -r 9")
    ranks.ok("%%distributed\n1")

    assert "%%distributed --record-memory records a cell's." in none.said
    number = shown.reply["execution_count"]
    text = shown.display_texts[-1]
    assert re.match(r"The resident memory of rank [12] was highest at \d+\.?\d* [MG]B \(1[456]\d\.?\d* MB more", text)
    assert f"cell [{number}], line 6: ctypes.memset(held, 1, len(pages))  # fills" in text.splitlines()[0]
    assert "<svg" in shown.displays[-1]["data"]["text/html"]
    assert again.display_texts[0].splitlines()[0] == text.splitlines()[0] or "of rank 2" in again.display_texts[0]
    assert "ZeroDivisionError" in failed.said
    assert failed.display_texts[-1].startswith("The resident memory of rank 0 was highest")
    assert not quiet.display_texts
    assert "ranks 0 to 2" in refused.said


def test_memory_has_names_and_free_lets_go_of_outputs(ranks):
    """A table for a notebook, and a sentence for each group of ranks."""
    ranks.ok("%%distributed\nlarge = bytearray(9_000_000)")
    ranks.ok("%%distributed\nbytearray(8_000_000)")
    shown = ranks.ok("%distributed memory -r 0,2 -n 2")
    freed = ranks.ok("%distributed free").out
    ranks.ok("%%distributed\ndel large")
    refused = ranks.run("%distributed memory -r 9")

    text = shown.display_texts[0]
    assert text.splitlines()[0].endswith("on 2 ranks")
    assert re.search(r"^ *9 MB  large +value +bytearray +cpu +0,2$", text, re.MULTILINE)
    assert re.search(r"^ *8 MB  Out\[\d+\], _ .* only old outputs keep it$", text, re.MULTILINE)
    assert shown.displays[0]["data"]["text/html"].count("<table>") == 2
    assert re.match(r"Ranks? [\d,-]+: let go of \d+ old outputs?", freed)
    assert "There is no rank 9" in str(refused.reply)


def test_the_interrupt_verb_ends_a_cell_in_the_background(ranks):
    """Its own output shows its end, and variables stay."""
    running = ranks.ok("%%distributed --no-wait\nstage = 'kept'\nprint('in', flush=True)\nimport time; time.sleep(600)")
    running.wait_for(lambda cell: "[0-2] in" in cell.out)
    verb = ranks.ok("%distributed interrupt")
    running.wait_for(lambda cell: "KeyboardInterrupt" in cell.err)

    assert verb.said.strip() == ""
    assert ranks.ok("%%distributed\nstage").display_texts == ["[0-2] 'kept'"]


def test_a_restart_gives_fresh_ranks_to_the_same_world(ranks):
    """Other processes, no variables, the same names."""
    ranks.ok("%%distributed\nx = 1")
    before = ranks.value(PIDS)
    cell = ranks.ok("%distributed restart")
    after = ranks.value(PIDS)

    assert re.fullmatch(r"World 'world[-0-9]*' is up: 3 ranks in [0-9.]+ s", cell.display_texts[-1])
    assert len(cell.displays) == 1
    assert not set(before) & set(after)
    assert ranks.ok("%%distributed\n'x' in globals()").display_texts == ["[0-2] False"]


@pytest.fixture
def auto(ranks):
    """Every plain cell goes to the ranks, for one test."""
    told = ranks.ok("%distributed auto on").out
    assert "%%local" in told
    yield ranks
    ranks.ok("%distributed auto off")


def test_auto_mode_sends_plain_cells_to_the_ranks(auto):
    """They may begin with blank lines, comments, ``!`` or a magic of IPython's."""
    size = auto.ok("import os\nint(os.environ.get('WORLD_SIZE', 0))")
    blank = auto.ok("\n\n# a comment\nprint('here')")
    shell = auto.ok("!echo $WORLD_SIZE")
    line = auto.ok("%time y = 1")

    assert size.display_texts == ["[0-2] 3"]
    assert blank.lines == ["[0-2] here"]
    assert shell.lines == ["[0-2] 3"]
    assert any("Wall time" in text for text in line.lines)
    assert auto.ok("%%local\n'y' in globals()").display_texts == ["False"]


def test_auto_mode_leaves_cells_that_steer_the_notebook_alone(auto):
    """The magics by which one gets out of it, and cells of other cell magics."""
    local = auto.ok("%%local\nimport os; 'WORLD_SIZE' in os.environ")
    status = auto.ok("%distributed")
    load = auto.ok("%load_ext jupyter_dtrain")
    explicit = auto.ok("%%rank 1\n1 + 1")
    other = auto.ok("%%writefile here.txt\nno Python at all")
    below_a_comment = auto.ok("# What runs?\n\n%distributed")

    assert local.display_texts == ["False"]
    assert status.display_texts[0].startswith("World 'world")
    assert "already loaded" in load.out
    assert explicit.display_texts == ["[1] 2"]
    assert other.out == "Writing here.txt\n"
    assert below_a_comment.display_texts[0].startswith("World 'world")
    assert auto.ok("# only this").said.strip() == ""


def test_a_front_ends_own_request_stays_here_in_auto_mode(auto):
    """A list of variables, say: it runs silently, and expects the notebook's."""
    auto.send("mine = 'here'", silent=True).wait()

    assert auto.ok("%%local\nmine").display_texts == ["'here'"]
    assert auto.ok("'mine' in globals()").display_texts == ["[0-2] False"]


def test_an_empty_cell_does_nothing_in_auto_mode(auto):
    """Front ends send them."""
    assert auto.ok("").said.strip() == ""
    assert auto.ok("\n  \n").said.strip() == ""


def test_local_keeps_a_cell_here_and_off_ends_auto_mode(ranks):
    """``%%local`` may also stand where auto mode is off."""
    ranks.ok("%distributed auto on")
    ranks.ok("%distributed auto off")
    plain = ranks.ok("import os\n'WORLD_SIZE' in os.environ")

    assert plain.display_texts == ["False"]
    assert ranks.ok("%%local\nkept = 3\nkept").display_texts == ["3"]
    assert ranks.value("kept") == 3
    assert "on, off" in ranks.run("%distributed auto").said or "{on,off}" in ranks.run("%distributed auto").said
