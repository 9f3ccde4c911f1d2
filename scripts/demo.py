"""Run ``examples/01_first_world.ipynb`` without a browser, and say what came out.

The notebook's outputs appear while it runs. Then come the loss per rank per epoch and the test accuracy. The
executed notebook and a web page of it are written to ``build/``, also when a cell failed. The exit status is 0 only
if every cell ran and the model learned.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import HTMLExporter

if TYPE_CHECKING:
    from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples" / "01_first_world.ipynb"
BUILD = ROOT / "build"
ENOUGH = 0.95
"""The least test accuracy of a model that learned."""
CELL_TIMEOUT = 300
"""Seconds. The slowest cell, which imports PyTorch on every rank, takes a few."""

EVERY = 3.0
"""Seconds of silence after which a line says what is going on."""

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LOSS = re.compile(r"rank (\d+) epoch +(\d+) loss ([0-9.]+)")
ACCURACY = re.compile(r"test accuracy ([0-9.]+)")


class Talk:
    """All that is printed while the notebook runs: when nothing is, a line says every few seconds what it does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._doing, self._since, self._last = "", 0.0, 0.0
        self._over = threading.Event()

    def say(self, line: str, *, doing: str = "") -> None:
        """Print a line; ``doing`` names what begins with it."""
        with self._lock:
            self._last = time.monotonic()
            if doing:
                self._doing, self._since = doing, self._last
            print(line, flush=True)

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Within it the lines come."""
        beat = threading.Thread(target=self._beat, daemon=True)
        beat.start()
        try:
            yield
        finally:
            self._over.set()
            beat.join()

    def _beat(self) -> None:
        while not self._over.wait(EVERY / 10):
            now = time.monotonic()
            if now - self._last >= EVERY:
                self.say(f"    … {self._doing}: {now - self._since:.0f} s")


TALK = Talk()


class ThisPython(KernelSpecManager):
    """Knows one kernel: the interpreter that runs this script, whatever kernels the user has installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Give that kernel under every name."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
        return KernelSpec(argv=argv, display_name=kernel_name, language="python")


class TalkingClient(NotebookClient):
    """Executes a notebook in this interpreter and prints each cell and its outputs as they come."""

    def create_kernel_manager(self) -> AsyncKernelManager:
        """Make the manager here, so that the client owns it: it shuts the kernel down at the end."""
        self.km = AsyncKernelManager(kernel_spec_manager=ThisPython())
        return self.km

    def output(self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int) -> Any:
        """Print one output, then keep it in the notebook."""
        content = msg["content"]
        text = content.get("text") or content.get("data", {}).get("text/plain", "")
        for line in str(text).splitlines():
            TALK.say(f"    {line}")
        return super().output(outs, msg, display_id, cell_index)


def announce(cell: NotebookNode, cell_index: int) -> None:
    """Print what is about to run: a cell's first line, and how many more it has."""
    del cell_index
    if cell.cell_type == "code":
        first, *more = cell.source.splitlines()
        TALK.say(f"\n> {first}" + (f"  (+ {len(more)} lines)" if more else ""), doing="this cell runs")


def execute(notebook: NotebookNode) -> str | None:
    """Run all cells in a kernel of this interpreter. Gives the reason when one failed."""
    client = TalkingClient(
        notebook,
        timeout=CELL_TIMEOUT,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        on_cell_start=announce,
    )
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return str(error)
    except AssertionError:
        if client.km is not None:
            raise
        return "Interrupted."  # at Ctrl-C, nbclient ends the kernel, and stumbles when it wants to do so again
    return None


def printed(notebook: NotebookNode) -> str:
    """All text that the notebook's cells printed."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return ANSI.sub("", "".join(output.text for output in outputs if output.output_type == "stream"))


def loss_table(text: str) -> str:
    """One line per epoch, one column per rank."""
    losses = {(int(rank), int(epoch)): loss for rank, epoch, loss in LOSS.findall(text)}
    ranks = sorted({rank for rank, _ in losses})
    lines = ["epoch" + "".join(f"{f'rank {rank}':>10}" for rank in ranks)]
    lines += [
        f"{epoch:>5}" + "".join(f"{losses.get((rank, epoch), '-'):>10}" for rank in ranks)
        for epoch in sorted({epoch for _, epoch in losses})
    ]
    return "\n".join(lines)


def main() -> int:
    """Execute, write, report."""
    TALK.say(f"Running {NOTEBOOK.relative_to(ROOT)} on this machine.", doing="the notebook's kernel starts")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with TALK.going_on():
        failure = execute(notebook)

    BUILD.mkdir(exist_ok=True)
    executed, page = BUILD / NOTEBOOK.name, BUILD / NOTEBOOK.with_suffix(".html").name
    nbformat.write(notebook, executed)
    page.write_text(HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")
    if failure:
        print(f"\n{failure.rstrip()}\n", file=sys.stderr)
        print(f"The notebook failed; it is kept in {executed.relative_to(ROOT)}.", file=sys.stderr)
        return 1

    text = printed(notebook)
    accuracies = ACCURACY.findall(text)
    if not accuracies or not LOSS.search(text):
        print("\nThe notebook ran, but printed no losses or no test accuracy.", file=sys.stderr)
        return 1
    print(f"\nLoss per rank per epoch\n\n{loss_table(text)}\n\nTest accuracy {accuracies[-1]}")
    if float(accuracies[-1]) <= ENOUGH:
        print(f"\nThe model did not learn: its test accuracy must be above {ENOUGH}.", file=sys.stderr)
        return 1
    print(f"\nWritten: {executed.relative_to(ROOT)} and {page.relative_to(ROOT)}")
    print("Next: `make lab` opens this notebook in JupyterLab.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
