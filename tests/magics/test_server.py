"""A real Jupyter server with its default limits between the kernel and the notebook."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from pathlib import Path

import pytest
import websocket
from jupyter_server.services.kernels.connection.base import deserialize_binary_message

from tests.magics.notebook import Cell

PATIENCE = 60

MEGABYTES = 100
TEXT = """
import hashlib
def text_of(rank):
    lines = [f"{rank} {number:07} ".ljust(99, chr(97 + number % 26)) for number in range(COUNT)]
    return "\\n".join(lines) + "\\n"
""".replace("COUNT", str(MEGABYTES * 10_000 // 2))


class Server:
    """``jupyter server`` as a user starts it, and one kernel behind it."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self._token = secrets.token_hex(16)
        self._log = (folder / "server.log").open("w")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyter_server", "--no-browser", "--ServerApp.ip=127.0.0.1"),
                *("--allow-root", f"--IdentityProvider.token={self._token}", f"--ServerApp.root_dir={folder}"),
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        file = runtime / f"jpserver-{self.process.pid}.json"
        deadline = time.monotonic() + PATIENCE
        # The file comes before the server listens, and its port may change where another program takes it meanwhile.
        while not self._listens(file):
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.05)
        self._cells: dict[str, Cell] = {}
        self._changed = threading.Condition()
        self.bytes = 0
        self.kernel = self._ask("POST", "api/kernels", {"name": "python3"})["id"]
        self._session = uuid.uuid4().hex
        self._socket = websocket.create_connection(
            f"ws://{self.address}/api/kernels/{self.kernel}/channels?session_id={self._session}&token={self._token}",
            timeout=PATIENCE,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listens(self, file: Path) -> bool:
        if not file.exists() or not (text := file.read_text()):
            return False
        port = json.loads(text)["port"]
        self.address = f"127.0.0.1:{port}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    def _ask(self, method: str, path: str, body: dict | None = None) -> dict:
        request = urllib.request.Request(
            f"http://{self.address}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self._token}"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 — our own server
            return json.loads(answer.read() or b"{}")

    def _listen(self) -> None:
        with contextlib.suppress(websocket.WebSocketException, OSError):
            while True:
                text = self._socket.recv()
                if not text:
                    return
                message = json.loads(text) if isinstance(text, str) else deserialize_binary_message(text)
                with self._changed:
                    cell = self._cells.get(message["parent_header"].get("msg_id", ""))
                    if cell is not None and message["channel"] == "iopub":
                        self.bytes += len(text)
                        cell.hear(message)
                    elif cell is not None and message["channel"] == "shell":
                        cell.reply = message["content"]
                    self._changed.notify_all()

    def send(self, code: str) -> Cell:
        """Begin a cell."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.3"}
        header |= {"session": self._session, "username": "test", "date": ""}
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        with self._changed:
            cell = self._cells[header["msg_id"]] = Cell(self._changed)
        self._socket.send(json.dumps(message))
        return cell

    def run(self, code: str, patience: float = PATIENCE) -> Cell:
        """Run a cell to its end."""
        cell = self.send(code)
        cell.wait(patience)
        assert cell.reply is not None
        assert cell.reply["status"] == "ok", cell.said[-5000:]
        return cell

    def restart(self) -> None:
        """Restart the kernel, as Kernel > Restart in JupyterLab does."""
        self._ask("POST", f"api/kernels/{self.kernel}/restart")

    def close(self) -> None:
        """Stop the kernel, then the server."""
        with contextlib.suppress(OSError):
            self._ask("DELETE", f"api/kernels/{self.kernel}")
        self._socket.close()
        self._thread.join(5)
        self.process.terminate()
        self.process.wait(PATIENCE)
        self._log.close()


@pytest.fixture(scope="module")
def server(home, tmp_path_factory):
    """A server with a kernel in which two ranks run."""
    server = Server(tmp_path_factory.mktemp("server"), home / "runtime")
    try:
        server.run("%load_ext jupyter_dtrain\n%distributed start -n 2")
        yield server
    finally:
        server.close()


def memory(pid, field):
    """A line of a process's status, in MB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(text.split(f"{field}:")[1].split()[0]) / 1000


def saved_size(cell):
    """Bytes of the cell's outputs in a saved notebook, at least."""
    texts = [content["text"] for content in cell.of("stream")]
    return len(json.dumps(texts)) + len(json.dumps([[d["data"], d["metadata"]] for d in cell.displays]))


def test_the_kernel_is_this_interpreter(server):
    """Else the tests below would say nothing."""
    cell = server.run("import sys; print(sys.executable)")

    assert os.path.realpath(cell.out.strip()) == os.path.realpath(sys.executable)


def test_a_flood_of_output_reaches_the_notebook_in_bounds_and_the_log_in_full(server):
    """100 MB from two ranks: the server drops nothing, the notebook stays small, so does the kernel."""
    server.run(f"%%distributed\n{TEXT}\nimport os, sys\nflood = text_of(os.environ['RANK'])")
    pid = int(server.run("import os; print(os.getpid())").out)
    before, wire_before = memory(pid, "VmRSS"), server.bytes
    started = time.monotonic()
    cell = server.run(
        "%%distributed -o run\nfor start in range(0, len(flood), 10_000):\n"
        "    sys.stdout.write(flood[start : start + 10_000])",
        patience=300,
    )
    took = time.monotonic() - started
    wire = server.bytes - wire_before
    grown = memory(pid, "VmHWM") - before
    check = server.run(
        f"{TEXT}\nhashed = lambda text: hashlib.sha256(text.encode()).hexdigest()\n"
        "for rank in (0, 1):\n    text, wanted = run.text(rank), text_of(rank)\n"
        "    print(rank, len(text), len(wanted), hashed(text) == hashed(wanted))\n"
        "del text, wanted"
    )
    print(
        f"{MEGABYTES} MB in {took:.1f} s: {wire / 1e6:.2f} MB over the wire, "
        f"{saved_size(cell) / 1e6:.2f} MB saved, kernel grew by {grown:.0f} MB"
    )

    assert check.lines == [f"{rank} {MEGABYTES * 500_000} {MEGABYTES * 500_000} True" for rank in (0, 1)]
    assert "rate exceeded" not in cell.said
    assert wire < 4_000_000
    assert saved_size(cell) < 4_000_000
    assert 1_900_000 < len(cell.out.encode()) <= 2_000_000
    assert "100 MB in 1,000,000 lines" in cell.display_texts[-1]
    assert "Run.text(0)" in cell.display_texts[-1]
    shown = cell.display_texts[-1].partition("\nWhat this means: ")[0].rstrip()
    assert shown.splitlines()[-1].startswith("[1] 1 0499999")
    assert grown < 150


def test_the_shown_part_of_a_flood_is_its_beginning_without_a_gap(server):
    """Each rank's lines are in order; a line that was shown unfinished, as its end came late, has its own display."""
    body = "import os\nfor number in range(30_000):\n    print(f'{os.environ[\"RANK\"]} {number:06} '.ljust(59, 'x'))"
    cell = server.run(f"%%distributed\n{body}", patience=120)

    shown = 0
    for rank in "01":
        numbers = [int(line.split()[2]) for line in cell.lines if line.startswith(f"[{rank}]")]
        apart = [int(text.split()[2]) for text in cell.display_texts if re.fullmatch(rf"\[{rank}\] \d \d+ x+", text)]
        assert sorted(numbers) == numbers
        assert sorted(numbers + apart) == list(range(len(numbers) + len(apart)))
        assert len(apart) < 5  # the rare case
        shown += len(numbers)
    # One rank may be far ahead of the other.
    assert shown > 25_000
    assert "rate exceeded" not in cell.said


def test_output_below_the_limit_is_shown_in_full(server):
    """1.6 MB in one burst is more than the server takes in a second: it comes paced, and all of it."""
    cell = server.run("%%rank 0\nfor number in range(20_000):\n    print(f'{number:06} '.ljust(75, 'x'))", patience=120)

    assert [int(line.split()[1]) for line in cell.lines] == list(range(20_000))
    assert cell.displays == []


def test_the_notebooks_own_prints_fit_beside_those_of_the_ranks(server):
    """A kernel prints while a cell in the background floods."""
    server.run("%%distributed --no-wait -o run\nfor number in range(20_000):\n    print('y' * 90)")
    cell = server.run("for number in range(200):\n    print(f'here {number}')\nrun.wait()", patience=120)

    assert [line for line in cell.lines if line.startswith("here")] == [f"here {number}" for number in range(200)]
    assert "rate exceeded" not in cell.said


def test_a_run_goes_on_while_its_kernel_is_restarted(server, tmp_path):
    """Jupyter sends SIGINT, as Stop does, and the request to shut down after it; only the kernel's own cell ends."""
    ready = tmp_path / "ready"
    wait = f"while not os.path.exists({str(ready)!r}): time.sleep(0.05)"
    cell = server.send(f"%%distributed\nimport os, time\nprint('before', flush=True)\n{wait}\nprint('after')")
    cell.wait_for(lambda cell: "before" in cell.out)
    server.restart()
    try:
        server.run("%load_ext jupyter_dtrain")
        attached = server.run("%distributed attach")
        ready.touch()
        ended = server.run(
            "import jupyter_dtrain\nrun = jupyter_dtrain.current().last_run\nrun.wait()\nprint(run.outcome)"
        )

        def ends(cell):
            """The last lines of the ranks: one of them may print its own a moment later."""
            return [line for line in cell.lines if line.endswith(" after")]

        shown = attached.wait_for(lambda cell: sorted(ends(cell)) in (["[0-1] after"], ["[0] after", "[1] after"]))

        assert cell.ename in (None, "LeftRunning")  # the kernel may be killed before it says so
        assert " ago. All of its output so far is shown here." in attached.out
        assert ended.out == "ok\n"
        assert [line for line in shown.lines if line.endswith((" before", " after"))] == ["[0-1] before", *ends(shown)]
    finally:
        server.run("%distributed stop")  # the kernel that goes now has only attached to it
