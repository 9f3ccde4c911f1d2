"""The output of a cell in a notebook: lines, displays, results."""

from __future__ import annotations

import base64
import struct

import pytest

from jupyter_dtrain import Settings

RANK = "import os\nrank = int(os.environ['RANK'])\n"


def test_equal_lines_come_once_with_the_ranks_that_printed_them(ranks):
    """Different lines come each with its own."""
    cell = ranks.ok(
        f"%%distributed\n{RANK}print('all alike')\nprint(f'I am {{rank}}')\nprint('two' if rank else 'one')"
    )

    assert sorted(cell.lines) == sorted(
        ["[0-2] all alike", "[0] I am 0", "[1] I am 1", "[2] I am 2", "[0] one", "[1-2] two"]
    )
    for rank in range(3):
        mine = [line.split("] ")[1] for line in cell.lines if str(rank) in _ranks(line)]
        assert mine == ["all alike", f"I am {rank}", "two" if rank else "one"]


def _ranks(line):
    """The digits that ``[0-2]`` stands for."""
    label = line[1 : line.index("]")]
    return "012" if label == "0-2" else "12" if label == "1-2" else "01" if label == "0-1" else label


def test_a_world_of_one_rank_needs_no_labels(open_notebook):
    """Its cells look like any other cell."""
    notebook = open_notebook()
    notebook.ok("%load_ext jupyter_dtrain")
    notebook.ok("%distributed start -n 1")
    cell = notebook.ok("%%distributed\nprint('hello')\nprint('more', end='')\n6 * 7")

    assert cell.lines == ["hello", "more"]
    assert cell.display_texts == ["42"]


def test_standard_error_keeps_its_kind(ranks):
    """Front ends show it in another colour."""
    cell = ranks.ok(
        "%%distributed\nimport sys\nprint('fine')\nprint('careful', file=sys.stderr)\nos.write(2, b'raw\\n')"
    )

    assert cell.lines == ["[0-2] fine"]
    assert sorted(cell.err.splitlines()) == ["[0-2] careful", "[0-2] raw"]


def test_output_of_child_processes_and_native_code_comes_too(ranks):
    """Text may come from any writer to a rank's standard output."""
    cell = ranks.ok("%%distributed\nimport subprocess\nsubprocess.run(['echo', 'child'])\n!echo shell\nprint('python')")

    assert [line for line in cell.lines if "child" in line] == ["[0-2] child"]
    assert "[0-2] shell" in cell.lines
    assert "[0-2] python" in cell.lines


def test_text_of_ended_children_comes_before_what_their_rank_prints_later(ranks):
    """Each rank prints in the order in which it works, so its lines also equal those of other ranks."""
    cell = ranks.ok(
        "%%distributed\nimport os, subprocess, sys\nfor n in range(3):\n    print('begin', n)\n"
        "    subprocess.run(['echo', f'child {n}'])\n    print('between', n)\n    os.system(f'echo shell {n}')\n"
        "    print('end', n)"
    )

    for rank in range(3):
        mine = [line.split("] ")[1] for line in cell.lines if str(rank) in _ranks(line)]
        expected = [f"{word} {n}" for n in range(3) for word in ("begin", "child", "between", "shell", "end")]
        assert [word if word != "same" else expected[at] for at, word in enumerate(mine)] == expected


def test_lines_of_forked_workers_stay_whole(ranks):
    """Workers print at the same time, in several pieces a line."""
    cell = ranks.ok(
        "%%distributed -r 0\nimport multiprocessing\n"
        "def work(worker):\n    for n in range(200): print('worker', worker, 'line', n, '.' * 30)\n"
        "fork = multiprocessing.get_context('fork')\n"
        "workers = [fork.Process(target=work, args=(worker,)) for worker in range(4)]\n"
        "for one in workers: one.start()\n"
        "for one in workers: one.join()\n"
    )

    expected = [f"[0] worker {worker} line {n} {'.' * 30}" for worker in range(4) for n in range(200)]
    assert sorted(cell.lines) == sorted(expected)


def test_a_later_cell_updates_the_output_of_an_earlier_one(ranks):
    """As in any notebook."""
    earlier = ranks.ok(f"%%distributed\n{RANK}from IPython.display import display\nh = display('a', display_id=True)")
    later = ranks.ok("%%distributed\nh.update(f'b {rank}')")
    earlier.wait_for(lambda cell: all(f"[{rank}] 'b {rank}'" in cell.display_texts for rank in range(3)))

    assert later.display_texts == []


def test_a_loop_that_clears_its_output_shows_its_last_lines(ranks):
    """Also where the clearing is in a function of an earlier cell."""
    ranks.ok("%%distributed\nfrom IPython.display import clear_output\ndef again(): clear_output(wait=True)")
    cell = ranks.ok("%%distributed\nfor n in range(5):\n    again()\n    print('step', n)")

    assert (cell.display_texts, cell.lines) == (["[0-2] step 4"], [])


def test_lines_come_while_the_cell_runs(ranks):
    """They do not wait for its end."""
    cell = ranks.send(
        "%%distributed\nimport pathlib, time\nprint('begun', flush=True)\n"
        "while not pathlib.Path('seen').exists(): time.sleep(0.01)\nprint('ended')"
    )
    cell.wait_for(lambda cell: "[0-2] begun" in cell.out)
    during = (cell.lines, cell.reply)
    (ranks.folder / "seen").touch()
    cell.wait()

    assert during == (["[0-2] begun"], None)
    assert cell.lines == ["[0-2] begun", "[0-2] ended"]


@pytest.mark.parametrize("cells", [5, pytest.param(30, marks=pytest.mark.slow)])
def test_the_first_line_does_not_wait_for_the_end_of_its_cell(open_notebook, cells):
    """Cells that print and then take a while; how long each line took, with the product's own hold, is printed."""
    ranks = open_notebook(JUPYTER_DTRAIN_OUTPUT_DELAY=str(Settings().output_delay))
    ranks.ok("%load_ext jupyter_dtrain")
    ranks.ok("%distributed start -n 3")
    delays, before_end = [], 0
    for _ in range(cells):
        cell = ranks.ok(
            "%%distributed\nimport os, time\n"
            "print(time.time() if os.environ['RANK'] == '0' else '', flush=True)\ntime.sleep(0.3)"
        )
        texts = [
            (at, message["content"]["text"])
            for at, message in zip(cell.arrived, cell.messages, strict=True)
            if message["msg_type"] == "stream"
        ]
        at, text = next((at, text) for at, text in texts if "[0]" in text)
        printed = float(next(line for line in text.splitlines() if line.startswith("[0]")).split()[1])
        delays.append(at - printed)
        before_end += cell.arrived[-1] - at > 0.15
    delays.sort()
    median, p95, most = (delays[place] * 1000 for place in (cells // 2, cells - 2, cells - 1))
    print(f"first line: median {median:.1f} ms, p95 {p95:.1f} ms, most {most:.1f} ms")

    assert before_end >= cells - 2


def test_progress_is_one_bar_in_the_cells_panel(ranks):
    """Every rank has its part in it; the saved form needs no widget."""
    pytest.importorskip("tqdm")
    cell = ranks.ok(
        "%%distributed\nimport time\nfrom tqdm import tqdm\nfor step in tqdm(range(12)): time.sleep(0.1)\nprint('done')"
    )
    (panel,) = cell.displays
    (bar,) = panel["data"]["application/vnd.jupyter-dtrain.run+json"]["bars"]

    assert "application/vnd.jupyter.widget-view+json" not in panel["data"]
    assert "ranks 0-2: ok" in panel["data"]["text/plain"]
    assert [part[:3] for part in bar[2]] == [[rank, 12.0, 12.0] for rank in range(3)]
    assert cell.err == ""
    assert cell.lines == ["[0-2] done"]


def parted(cell):
    """The texts of the cell's captions, and its other displays."""
    captions = [one for one in cell.displays if one["metadata"]["dtrain"].get("caption")]
    others = [one for one in cell.displays if one not in captions]
    return [one["data"]["text/plain"] for one in captions], others


def test_displays_carry_their_ranks(ranks):
    """The rank is in their metadata, and in words above them; equal ones are one."""
    cell = ranks.ok(
        f"%%distributed\n{RANK}from IPython.display import HTML, display\n"
        "display(HTML('<b>same</b>'))\ndisplay(HTML(f'<i>{rank}</i>'))"
    )
    captions, displays = parted(cell)
    shown = [(display["data"]["text/html"], display["metadata"]["dtrain"]) for display in displays]

    assert shown[0] == ("<b>same</b>", {"ranks": [0, 1, 2]})
    assert sorted(shown[1:], key=str) == [(f"<i>{rank}</i>", {"rank": rank}) for rank in range(3)]
    assert sorted(captions) == ["[0-2]", "[0]", "[1]", "[2]"]


def test_a_display_that_is_updated_stays_one(ranks):
    """The handle of ``display`` works from a rank."""
    cell = ranks.ok(
        "%%rank 1\nfrom IPython.display import display\nhandle = display('first', display_id=True)\n"
        "print('between')\nhandle.update('second')"
    )

    assert cell.display_texts == ["[1] 'second'"]
    assert cell.lines == ["[1] between"]


def test_clearing_output_leaves_what_came_after(ranks):
    """A loop that draws anew has one output."""
    cell = ranks.ok(
        "%%rank 0\nfrom IPython.display import clear_output, display\n"
        "for step in range(3):\n    clear_output(wait=True)\n    display(f'step {step}')"
    )

    assert [text for text in cell.display_texts if text] == ["[0] 'step 2'"]


def test_equal_results_are_grouped(ranks):
    """The groups have the order of their lowest ranks."""
    cell = ranks.ok(f"%%distributed\n{RANK}rank == 1")

    assert cell.display_texts == ["[0,2] False", "[1] True"]
    assert [display["metadata"]["dtrain"] for display in cell.displays] == [{"ranks": [0, 2]}, {"rank": 1}]


def test_a_rich_result_keeps_all_its_representations(ranks):
    """A table such as pandas makes: HTML for the notebook, text for the terminal."""
    cell = ranks.ok(
        "%%distributed\nclass Table:\n    def _repr_html_(self): return '<table></table>'\n"
        "    def __repr__(self): return 'a  b\\n1  2'\nTable()"
    )

    captions, (table,) = parted(cell)
    assert captions == ["[0-2]"]
    assert table["data"]["text/html"] == "<table></table>"
    assert "a  b\n1  2" in table["data"]["text/plain"]
    assert table["metadata"]["dtrain"] == {"ranks": [0, 1, 2]}


def test_a_last_expression_with_a_semicolon_or_none_shows_nothing(ranks):
    """Any notebook does the same."""
    assert ranks.ok("%%distributed\n1 + 1;").said.strip() == ""
    assert ranks.ok("%%distributed\nNone").said.strip() == ""


def test_a_figure_comes_as_a_picture(ranks):
    """matplotlib needs no set-up in a rank."""
    pytest.importorskip("matplotlib")
    cell = ranks.ok(
        f"%%distributed -r 1\n{RANK}import matplotlib.pyplot as plt\n"
        "plt.figure(figsize=(2, 1), dpi=50)\nplt.plot([rank, 2]);",
        patience=120,
    )
    captions, (figure,) = parted(cell)
    picture = base64.b64decode(figure["data"]["image/png"])

    assert picture.startswith(b"\x89PNG")
    assert all(side > 20 for side in struct.unpack(">II", picture[16:24]))
    assert figure["metadata"]["dtrain"] == {"rank": 1}
    assert captions == ["[1]"]


def test_capture_around_a_cell_keeps_everything(ranks):
    """Text, displays and results are in what was captured, and nothing below the cell."""
    cell = ranks.ok(
        "%%capture caught\n%%distributed\nimport sys\nfrom IPython.display import HTML, display\n"
        "print('text')\nprint('trouble', file=sys.stderr)\ndisplay(HTML('<b>rich</b>'))\n6 * 7"
    )
    texts = ranks.value("[output.data.get('text/html', output.data['text/plain']) for output in caught.outputs]")

    assert cell.said.strip() == ""
    assert "[0-2] text\n" in ranks.value("caught.stdout")
    assert ranks.value("caught.stderr") == "[0-2] trouble\n"
    assert texts == ["<b>rich</b>", "[0-2] 42"]


def test_capture_keeps_the_last_state_of_a_progress_bar_only(ranks):
    """A text that cannot move is written once."""
    ranks.ok(
        "%%capture caught\n%%distributed\nimport time\nfor i in range(5):\n"
        "    print(f'\\rstep {i}', end='')\n    time.sleep(0.1)\nprint()"
    )
    text = ranks.value("caught.stdout + ''.join(output.data['text/plain'] for output in caught.outputs)")

    assert "step 4" in text
    assert "step 1" not in text


def test_a_captured_cell_that_fails_fails(ranks):
    """Its error is not swallowed with its text."""
    cell = ranks.run("%%capture caught\n%%distributed\nprint('before')\n1 / 0")

    assert cell.ename == "DistributedError"


def test_text_that_is_redirected_goes_there(ranks):
    """``contextlib.redirect_stdout`` around a run."""
    ranks.ok(
        "import contextlib, io, jupyter_dtrain\nbuffer = io.StringIO()\n"
        "with contextlib.redirect_stdout(buffer):\n    jupyter_dtrain.current().run(\"print('kept')\")"
    )

    assert ranks.value("buffer.getvalue()") == "[0-2] kept\n"


def test_the_bytes_that_are_sent_are_not_many_more_than_those_printed(ranks):
    """400 lines of 60 characters from each of two ranks, all messages with their headers counted."""
    payload = 2 * 400 * 60
    cell = ranks.ok(
        f"%%distributed -r 0,1\n{RANK}for number in range(400):\n    print(f'{{rank}} {{number:04}} '.ljust(59, 'x'))"
    )
    sent = sum(ranks.size_of(message) for message in cell.messages)
    print(f"{payload} bytes printed, {sent} sent in {len(cell.messages)} messages: {sent / payload:.2f}")

    assert len(cell.lines) == 800
    assert sent <= 2 * payload


def test_the_first_part_of_one_huge_print_is_shown(ranks):
    """The cell shows the first 2 MB of many small pieces, and then the place of the rest."""
    cell = ranks.ok(
        "%%rank 0\nprint('\\n'.join(f'{number:06} '.ljust(99, 'x') for number in range(50_000)))", patience=120
    )

    assert [int(line.split()[1]) for line in cell.lines] == list(range(len(cell.lines)))
    assert 1_900_000 < len(cell.out) <= 2_000_000
    assert "Rank 0 printed 5 MB in 50,000 lines" in cell.display_texts[-1]
    shown = cell.display_texts[-1].partition("\nWhat this means: ")[0].rstrip()
    assert shown.splitlines()[-1].startswith("[0] 049999 ")


def test_odd_characters_survive(ranks):
    """Wide letters, colours, and what is no text at all."""
    cell = ranks.ok(
        "%%rank 0\nimport sys\nprint('größer 漢字 \\x1b[31mred\\x1b[0m')\n"
        "sys.stdout.flush()\nos.write(1, b'\\xff\\xfe\\n')\nprint('\\ud800')"
    )
    raw = "".join(content["text"] for content in cell.of("stream"))

    assert "größer 漢字" in cell.out
    assert "\x1b[31mred\x1b[0m" in raw
    assert len(cell.lines) == 3


def test_a_line_waits_for_other_ranks_as_long_as_the_setting_says(ranks):
    """All tests set it to far more than this, and the default is far less."""
    cell = ranks.ok(f"%%distributed\n{RANK}import time; time.sleep(rank * 0.2); print('late'); time.sleep(0.5)")

    assert cell.lines == ["[0-2] late"]


def test_fifty_cells_in_a_row_come_out_in_order(ranks):
    """Each below its own cell."""
    cells = [ranks.ok(f"%%distributed\nprint('cell {number}')") for number in range(50)]

    assert [cell.lines for cell in cells] == [[f"[0-2] cell {number}"] for number in range(50)]
