"""The cell of a notebook that runs in this process, by which a front end finds the cell of a run again."""

from __future__ import annotations

from pathlib import Path

from jupyter_dtrain.wire.messages import Cell


def current_cell(code: str = "") -> Cell:
    """The cell that runs in this process, and from which ``code`` goes to the ranks."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or shell.history_manager is None:
        return Cell()
    # The execution count is raised before a cell runs in some versions of IPython (9.18), after it in others.
    number = len(shell.history_manager.input_hist_parsed) - 1
    above = lines_above(shell.history_manager.input_hist_raw[-1], code)
    return Cell(number if number > 0 else None, _id_of_cell(shell), above=above)


def lines_above(cell: str, code: str) -> int:
    """The lines of ``cell`` above ``code``, such as its magic; 0 if ``code`` is not the end of the cell."""
    cell, code = cell.rstrip(), code.rstrip()
    return cell.removesuffix(code).count("\n") if code and cell.endswith(f"\n{code}") else 0


def _id_of_cell(shell: object) -> str:
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return ""
    # JupyterLab, Notebook 7 and VS Code send it with every request to execute a cell.
    found = kernel.get_parent("shell").get("metadata", {}).get("cellId", "")
    return found if isinstance(found, str) else ""


def kernel_id() -> str:
    """The id of the Jupyter kernel that this process is, as its server knows it; empty where it is none."""
    from IPython.core.getipython import get_ipython

    if getattr(get_ipython(), "kernel", None) is None:
        return ""
    try:
        from ipykernel.connect import get_connection_file

        name = Path(get_connection_file()).stem
    except Exception:  # noqa: BLE001 — a kernel of another kind, or its file is gone: no pills, and nothing else
        return ""
    return name.removeprefix("kernel-") if name.startswith("kernel-") else ""
