"""A notebook as an export sees it: its code cells in order, and the world that they ran in. Plain data.

Cells have the number that a person sees: in a session that of ``In [3]``, in a file their place among its code cells,
which is the same after Run All.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.world import quantity

_RANGE = re.compile(r"(\d+)(?:\s*-\s*(\d*))?\Z")


class NotebookCell(msgspec.Struct, frozen=True):
    """One code cell."""

    number: int
    source: str
    """The code of the cell, without the line of ``%%distributed``."""
    on_ranks: bool
    """Whether it ran on ranks; otherwise it is a local cell, which ran in the notebook."""
    title: str = ""
    tags: tuple[str, ...] = ()
    ranks: str | None = None
    """The ranks that run it, as a person wrote them; None: all."""
    inputs: tuple[str, ...] = ()
    """The notebook's variables that ``-i`` sends first."""
    brought: tuple[str, ...] = ()
    """The notebook's variables that it sets: those of ``--pull`` and ``-o``."""
    steered: tuple[str, ...] = ()
    """What a person asked of its loop while it ran here, each as a sentence: a job runs the cell without that."""

    @property
    def name(self) -> str:
        """How messages call the cell, such as ``cell 3``."""
        return f"cell {self.number}"


def _gpus_in_gres(option: str, value: str) -> bool:
    """Whether what a start asks of Slurm is GPUs of a node as a generic resource, and no other resource."""
    return option == "gres" and re.search(r"(^|,|[:/])gpu\b", value) is not None


class JobWorld(msgspec.Struct, frozen=True):
    """The world of a job."""

    ranks: int
    nodes: int = 1
    env: tuple[str, ...] = ()
    """The names, never the values, of the variables that ``--env`` gave."""
    roles: tuple[str, ...] = ()
    """The role of each rank; empty where all are alike."""
    gpus: bool = False
    """Whether each rank has a GPU."""
    gpus_per_rank: int = 0
    """How many GPUs each rank sees, as ``--gpus-per-rank`` gave; 0: all of its node."""
    asked: dict[str, str] = {}
    """What its start asked of a scheduler, by option."""

    @property
    def per_node(self) -> int:
        """Ranks of each node."""
        return -(-self.ranks // self.nodes)

    @property
    def gpus_per_node(self) -> int:
        """GPUs that a node needs; 0 where none is asked for."""
        return self.per_node * (self.gpus_per_rank or int(self.gpus))

    @property
    def words(self) -> str:
        """``2 ranks on 1 node``."""
        return f"{quantity(self.ranks, 'rank')} on {quantity(self.nodes, 'node')}"

    def resized(self, ranks: int | None, nodes: int | None) -> JobWorld:
        """The world with another size. Raises :class:`BadRequest` if nodes would have different numbers of ranks."""
        if ranks is None and nodes is None:
            return self
        ranks, nodes = ranks or self.ranks, nodes or self.nodes
        if ranks % nodes:
            raise BadRequest(
                f"{quantity(ranks, 'rank')} cannot be spread evenly over {quantity(nodes, 'node')}: give -n as a "
                f"multiple of --nodes, such as -n {nodes * -(-ranks // nodes)} --nodes {nodes}."
            )
        other = msgspec.structs.replace(self, ranks=ranks, nodes=nodes, roles=self.roles if ranks == self.ranks else ())
        if other.per_node == self.per_node:
            return other
        # The GPUs of a node go with its ranks, so they are counted anew; those of the start were for another number.
        of_node = {name for name, value in self.asked.items() if name == "gpus_per_node" or _gpus_in_gres(name, value)}
        asked = {name: value for name, value in self.asked.items() if name not in of_node}
        return msgspec.structs.replace(other, asked=asked, gpus=self.gpus or bool(of_node))


class Notebook(msgspec.Struct, frozen=True):
    """The code cells of a notebook, and the world that they ran in."""

    name: str
    """The file, or the words that stand for the session."""
    cells: Sequence[NotebookCell]
    """All its code cells, in order."""
    world: JobWorld
    left_out: Sequence[str] = ()
    """Sentences about cells that its reader has left out."""

    @property
    def on_ranks(self) -> list[NotebookCell]:
        """The cells that ran on ranks."""
        return [cell for cell in self.cells if cell.on_ranks]


def choose(notebook: Notebook, cells: str | None, tag: str | None) -> list[NotebookCell]:
    """The cells to export: all that ran on ranks, or those of them in a range, or with a tag.

    Raises :class:`BadRequest` where there is none.
    """
    found = notebook.on_ranks
    if not found:
        raise BadRequest(
            f"{notebook.name} has no cell that runs on ranks, so there is nothing to export: begin the cells that "
            f"train with %%distributed."
        )
    if cells is not None:
        wanted = _numbers(cells, max(cell.number for cell in notebook.cells))
        found = [cell for cell in found if cell.number in wanted]
        if not found:
            raise BadRequest(
                f"No cell that runs on ranks is in --cells {cells}. Those of {notebook.name} are "
                f"{listed(cell.number for cell in notebook.on_ranks)}."
            )
    if tag is not None:
        found = [cell for cell in found if tag in cell.tags]
        if not found:
            there = sorted({one for cell in notebook.on_ranks for one in cell.tags})
            has = (
                f"Their tags are {', '.join(there)}."
                if there
                else "They have no tags: add one in JupyterLab's sidebar."
            )
            raise BadRequest(f"No cell that runs on ranks has the tag {tag!r}. {has}")
    return found


def _numbers(text: str, last: int) -> set[int]:
    found: set[int] = set()
    for part in filter(None, map(str.strip, text.split(","))):
        match = _RANGE.match(part)
        if match is None:
            raise BadRequest(f"{part!r} names no cells. Write their numbers as 3, 3-7, 3- or 2,5-8.")
        first = int(match[1])
        end = first if match[2] is None else int(match[2] or last)
        if end < first:
            raise BadRequest(f"The range {part!r} is empty: write {end}-{first}.")
        found.update(range(first, end + 1))
    if not found:
        raise BadRequest("--cells names no cells. Write their numbers as 3, 3-7, 3- or 2,5-8.")
    return found


def listed(things: Iterable[object]) -> str:
    """``1, 2 and 5``."""
    words = [str(one) for one in things]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
