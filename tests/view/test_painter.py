"""Output reaches the cell that it belongs to, or the place that stands for the cell."""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from jupyter_dtrain.view.painter import TextPainter, painter_for_cell

ROOT = Path(__file__).parents[2]


class Kernel:
    """A real ipykernel, and what its cells show."""

    def __init__(self) -> None:
        self._manager, self._client = start_new_kernel(cwd=str(ROOT))
        self.messages: list[dict] = []

    def run(self, code: str) -> str:
        """Execute ``code`` and wait for its reply; the id of the request."""
        request = self._client.execute(code, store_history=False)
        deadline = time.monotonic() + 30
        while True:
            message = self._client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            self.messages.append(message)
            own = message["parent_header"].get("msg_id") == request
            assert message["msg_type"] != "error", message["content"]
            if own and message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return request

    def shown(self, request: str, *kinds: str) -> list[dict]:
        """The messages of the types ``kinds`` in the request's cell."""
        return [m for m in self.messages if m["parent_header"].get("msg_id") == request and m["msg_type"] in kinds]

    def text(self, request: str, name: str = "stdout") -> str:
        """The text in the request's cell."""
        streams = [m["content"] for m in self.shown(request, "stream")]
        return "".join(content["text"] for content in streams if content["name"] == name)

    def stop(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel():
    started = Kernel()
    started.run("import threading, contextlib, io, sys\nfrom jupyter_dtrain.view.painter import *")
    yield started
    started.stop()


def test_output_of_another_thread_lands_in_its_own_cell(kernel):
    """A later cell may run meanwhile, and keeps its own output."""
    first = kernel.run(
        "print('before')\n"
        "p, go = painter_for_cell(), threading.Event()\n"
        "def paint():\n"
        "    go.wait(30)\n"
        "    p.stream('stdout', 'hello\\n'); p.stream('stderr', 'caf\\udce9\\n')\n"
        "    p.display({'text/plain': '0%', 'text/html': '<b>\\udce9</b>'}, {'dtrain': {'rank': 1}}, 'an-id')\n"
        "    p.update({'text/plain': '100%'}, {}, 'an-id'); p.settle('an-id')\n"
        "t = threading.Thread(target=paint); t.start()"
    )
    second = kernel.run("print('second'); go.set(); t.join(); (type(p).__name__, p.live, p.paced)")
    assert kernel.text(first) == "before\nhello\n"
    assert kernel.text(first, "stderr") == "caf�\n"
    display, update = (message["content"] for message in kernel.shown(first, "display_data", "update_display_data"))
    assert display["data"] == {"text/plain": "0%", "text/html": "<b>�</b>"}
    assert display["metadata"] == {"dtrain": {"rank": 1}}
    assert display["transient"] == update["transient"] == {"display_id": "an-id"}
    assert update["data"] == {"text/plain": "100%"}
    assert kernel.text(second) == "second\n"
    (result,) = kernel.shown(second, "execute_result")
    assert result["content"]["data"]["text/plain"] == "('KernelPainter', True, True)"


def test_capture_takes_text_and_rich_outputs(kernel):
    """%%capture holds everything that a cell shows, the final state of each display included."""
    cell = kernel.run(
        "get_ipython().run_cell_magic('capture', 'kept', '''\n"
        "p = painter_for_cell()\n"
        "def paint():\n"
        "    p.stream('stdout', 'out\\\\n'); p.stream('stderr', 'err\\\\n')\n"
        "    p.display({'image/png': 'AA'}, {}, 'i')\n"
        "    for n in range(9): p.update({'image/png': str(n)}, {}, 'i')\n"
        "    p.settle('i')\n"
        "t = threading.Thread(target=paint); t.start(); t.join()\n"
        "''')\n"
        "print([kept.stdout, kept.stderr, [o.data for o in kept.outputs], p.live, p.paced])"
    )
    expected = ["out\n", "err\n", [{"image/png": "AA"}, {"image/png": "8"}], False, False]
    assert kernel.text(cell) == f"{expected}\n"
    assert kernel.shown(cell, "display_data", "update_display_data") == []


def test_capture_of_displays_alone_leaves_the_text_in_the_cell(kernel):
    """%%capture --no-stdout --no-stderr."""
    cell = kernel.run(
        "get_ipython().run_cell_magic('capture', '--no-stdout --no-stderr kept', '''\n"
        "p = painter_for_cell()\n"
        "p.stream('stdout', 'out\\\\n'); p.display({'image/png': 'AA'}, {})\n"
        "''')\n"
        "print(len(kept.outputs))"
    )
    assert kernel.text(cell) == "out\n1\n"
    assert kernel.shown(cell, "display_data") == []


def test_text_that_is_redirected_goes_there_and_displays_stay_in_the_cell(kernel):
    """contextlib.redirect_stdout takes text and nothing else."""
    cell = kernel.run(
        "with contextlib.redirect_stdout(io.StringIO()) as kept:\n"
        "    p = painter_for_cell()\n"
        "    p.stream('stdout', 'out\\n'); p.display({'text/plain': 'x'}, {}, 'j'); p.settle('j')\n"
        "print([kept.getvalue()])"
    )
    assert kernel.text(cell) == "['out\\n']\n"
    assert len(kernel.shown(cell, "display_data")) == 1


def test_without_ipython_output_is_text_on_the_current_streams():
    """A script's output goes where its prints go."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        painter = painter_for_cell()
        painter.stream("stdout", "a\n")
        painter.stream("stderr", "b\n")
        painter.display({"text/plain": "42"}, {})
    assert (out.getvalue(), err.getvalue()) == ("a\n42\n", "b\n")
    assert (painter.live, painter.paced) == (False, False)


def test_a_file_gets_the_first_and_the_last_state_of_a_display():
    """No passing states, and no state twice."""
    out = io.StringIO()
    painter = TextPainter(out, io.StringIO(), tty=False)
    painter.display({"text/plain": "0%"}, {}, "i")
    for n in range(1, 101):
        painter.update({"text/plain": f"{n}%"}, {}, "i")
    painter.stream("stdout", "line\n")
    painter.settle("i")
    painter.settle("i")
    assert out.getvalue() == "0%\nline\n100%\n"


def test_a_terminal_redraws_one_line_below_the_text():
    """In the end the screen shows the text above, and below it the line in its last state."""
    out = io.StringIO()
    painter = TextPainter(out, out, tty=True)
    assert painter.live
    painter.display({"text/plain": "0%"}, {}, "i", moving=True)
    painter.update({"text/plain": "50%"}, {}, "i")
    painter.stream("stdout", "text\n")
    painter.update({"text/plain": "100%"}, {}, "i")
    painter.settle("i")
    painter.stream("stderr", "after\n")
    assert screen(out.getvalue()) == ["text", "100%", "after", ""]


def test_a_line_that_is_redrawn_stays_in_one_row_of_the_terminal(monkeypatch):
    """A longer one would leave its rows behind; in the end it is there as a whole."""
    monkeypatch.setenv("COLUMNS", "20")
    out = io.StringIO()
    painter = TextPainter(out, out, tty=True)
    for number in range(3):
        painter.display({"text/plain": f"state {number} of a line that is long"}, {}, "i", moving=True)
        painter.stream("stdout", "text\n")
        assert all(len(line) < 20 for line in screen(out.getvalue()))
        assert screen(out.getvalue())[-1] == f"state {number} of a line …"
    painter.settle("i")
    assert screen(out.getvalue())[-2:] == ["state 2 of a line that is long", ""]


def test_a_terminal_keeps_ordinary_displays_in_their_place():
    """A display is text like any other until it is updated."""
    out = io.StringIO()
    painter = TextPainter(out, out, tty=True)
    painter.display({"text/plain": "first"}, {}, "i")
    painter.stream("stdout", "text\n")
    painter.update({"text/plain": "several\nlines"}, {}, "i")
    painter.stream("stdout", "more\n")
    painter.settle("i")
    assert screen(out.getvalue()) == ["first", "text", "more", "several", "lines", ""]


def test_a_terminal_names_what_it_cannot_show():
    """A picture without text is not silently left out."""
    out = io.StringIO()
    TextPainter(out, out, tty=False).display({"image/png": "AA"}, {})
    assert out.getvalue() == "<image/png>\n"


def test_a_stream_of_a_small_character_set_gets_question_marks():
    """Text that the stream cannot encode does not raise."""
    raw = io.BytesIO()
    painter = TextPainter(io.TextIOWrapper(raw, "ascii"), io.StringIO(), tty=False)
    painter.stream("stdout", "caf\u00e9 \udce9\n")
    assert raw.getvalue() == b"caf? ?\n"


def test_a_closed_stream_raises():
    """Painters hide no failure; what to do about it is their user's decision."""
    out = io.StringIO()
    out.close()
    with pytest.raises(ValueError, match="closed"):
        TextPainter(out, out, tty=False).stream("stdout", "a\n")


def screen(written: str) -> list[str]:
    """Text with carriage returns and erased lines as a terminal shows it."""
    return [line.split("\r\x1b[K")[-1] for line in written.split("\n")]
