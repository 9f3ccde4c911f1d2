"""Reads notebooks for an export: a file, or this session. It knows the first lines of cells, as the magics parse them.

The values of ``--env`` in a start line end here: a :class:`~jupyter_dtrain.jobs.JobWorld` has names alone.

An export without a file reads the cells of this session, in the order in which a person ran them. IPython keeps the
text of each cell under its number, and :class:`SessionCells` adds what only the moment of the run shows: the cell's id
in the notebook, whether auto mode sent it to the ranks, and whether it ended well. A cell without an id (in a terminal,
and in some front ends) counts each time it runs.

Under failure: for cells that ran before the extension was loaded only IPython's text is known; they count as local
cells that ended well.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from IPython.core.error import UsageError
from IPython.core.getipython import get_ipython

from jupyter_dtrain.core.errors import BadRequest, DtrainError
from jupyter_dtrain.core.world import quantity
from jupyter_dtrain.jobs import JobWorld, Notebook, NotebookCell
from jupyter_dtrain.jobs.notebook import listed
from jupyter_dtrain.launch.hostlist import named_hosts
from jupyter_dtrain.launch.local import default_size
from jupyter_dtrain.launch.options import assign_roles, check
from jupyter_dtrain.launch.slurm.options import SlurmOptions
from jupyter_dtrain.session import current
from jupyter_dtrain.store import Store

from .cells import cell_parser, rank_parser
from .doctor import SLURM
from .parsing import HelpShown, MagicParser
from .transform import RANK_NAMES, VERB_NAMES, CellTransform
from .worlds import FIRST, start_arguments, start_options

_FIRST: Final = re.compile(rf"\s*%%({'|'.join((*RANK_NAMES, 'local'))})\b([^\n]*)\n?")
_VERB: Final = rf"%(?:{'|'.join(VERB_NAMES)})"
_START: Final = re.compile(rf"^[ \t]*{_VERB}[ \t]+start\b(.*)$", re.MULTILINE)
_AUTO: Final = re.compile(rf"^[ \t]*{_VERB}[ \t]+auto[ \t]+(on|off)\b", re.MULTILINE)
_HEADING: Final = re.compile(r"^#+\s+(.+?)\s*#*$", re.MULTILINE)
_LATEST: Final = 200
"""Runs of this session's world in which an export looks for what a person asked of their loops."""
_CONTINUED: Final = re.compile(rf"({_VERB}[^\n]*)\\\n")


class _Code(NamedTuple):
    """A code cell before its first line is read."""

    number: int
    source: str
    auto: bool
    title: str = ""
    tags: tuple[str, ...] = ()


def read_file(path: str | Path) -> Notebook:
    """A notebook file. Raises :class:`BadRequest` where it cannot be read."""
    path = Path(path).expanduser()
    try:
        import nbformat
    except ImportError:
        raise BadRequest("To read a notebook file, install nbformat: pip install nbformat") from None
    try:
        found: Any = nbformat
        notebook = found.read(path, as_version=4)
    except OSError as error:
        raise BadRequest(f"The notebook {path} cannot be read: {error.strerror}.") from None
    except Exception as error:  # noqa: BLE001 — nbformat raises whatever its reader and its schema raise
        raise BadRequest(f"{path} is not a notebook ({str(error).splitlines()[0]}): name a file .ipynb.") from None
    codes = list(_codes(notebook.cells))
    world, problems = _world_of(code.source for code in codes)
    return Notebook(path.name, list(_cells(codes)), world, problems)


def _codes(cells: Iterable[Any]) -> Iterator[_Code]:
    transform, title, number = CellTransform(), "", 0
    for cell in cells:
        if cell.cell_type == "markdown":
            titles = _HEADING.findall(cell.source)
            title = titles[-1] if titles else title
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        number += 1
        auto = transform.sends(cell.source.splitlines(keepends=True))
        yield _Code(number, cell.source, auto, title, tuple(cell.metadata.get("tags", ())))
        title = ""
        for word in _AUTO.findall(cell.source):
            transform.auto = word == "on"


class Ran(NamedTuple):
    """One cell that has run here."""

    number: int
    source: str
    id: str
    auto: bool
    """Whether it was a plain cell that auto mode sent to the ranks."""
    failed: bool


class SessionCells:
    """A part that joins a shell and remembers how its cells ended."""

    def __init__(self, transform: CellTransform) -> None:
        self._transform = transform
        self._shell: Any = None
        self._auto = False
        self._known: dict[int, Ran] = {}

    def install(self, shell: Any) -> None:
        """Follow the cells of ``shell`` from now on."""
        self._shell = shell
        shell.events.register("pre_run_cell", self._begins)
        shell.events.register("post_run_cell", self._ended)

    def uninstall(self, shell: Any) -> None:
        """Stop following them."""
        shell.events.unregister("pre_run_cell", self._begins)
        shell.events.unregister("post_run_cell", self._ended)

    def _begins(self, info: Any) -> None:
        self._auto = self._transform.sends(str(info.raw_cell or "").splitlines(keepends=True))

    def _ended(self, result: Any) -> None:
        number, info = result.execution_count, result.info
        if number is not None and info is not None:
            self._known[number] = Ran(
                number, str(info.raw_cell), str(info.cell_id or ""), self._auto, failed=not result.success
            )

    def cells(self) -> list[Ran]:
        """All cells so far: each once, with its last text, at the place of its first run."""
        texts = list(self._shell.history_manager.input_hist_raw)
        found: dict[Any, Ran] = {}
        for number, text in enumerate(texts):
            ran = self._known.get(number) or Ran(number, text, "", auto=False, failed=False)
            if text.strip():
                found[ran.id or number] = ran
        return list(found.values())


def read_session() -> Notebook:
    """The cells of this session. Raises :class:`BadRequest` outside of one."""
    from . import part_of

    shell = get_ipython()
    ran = None if shell is None else part_of(shell, SessionCells)
    if ran is None:
        raise BadRequest("There is no session with jupyter_dtrain loaded: name a notebook's file instead.")
    cells = ran.cells()
    failed = [cell.number for cell in cells if cell.failed and _FIRST.match(cell.source)]
    codes = [_Code(cell.number, cell.source, cell.auto) for cell in cells if not cell.failed]
    world, problems = _live_world() or _world_of(code.source for code in codes)
    if failed:
        one = len(failed) == 1
        problems = [
            *problems,
            f"Cell{'' if one else 's'} {listed(failed)} failed, so {'it is' if one else 'they are'} left out.",
        ]
    return Notebook("this session", _steered(_cells(codes)), world, problems)


def _steered(cells: Iterable[NotebookCell]) -> list[NotebookCell]:
    """The cells with what a person asked of their loops while they ran in this session's world."""
    found = list(cells)
    try:
        runs = Store.open().runs(_LATEST, current().name)
    except DtrainError:
        return found
    # The newest run of each text comes first.
    acts: dict[str, tuple[str, ...]] = {}
    for run in runs:
        acts.setdefault(run.source.strip(), tuple(f"Steered after step {act.step}: {act.words}" for act in run.acts))
    return [
        msgspec.structs.replace(cell, steered=acts.get(cell.source.strip(), ())) if cell.on_ranks else cell
        for cell in found
    ]


def _cells(codes: Iterable[_Code]) -> Iterator[NotebookCell]:
    for code in codes:
        first = _FIRST.match(code.source)
        kind = first[1] if first else "distributed" if code.auto else "local"
        body = code.source[first.end() :] if first else code.source
        cell = NotebookCell(code.number, body, on_ranks=kind != "local", title=code.title, tags=code.tags)
        if first and kind != "local":
            parser = rank_parser() if kind == "rank" else cell_parser()
            try:
                args = parser.parse_line(first[2])
            except HelpShown:
                continue
            except UsageError as error:
                raise BadRequest(
                    f"The first line of {cell.name} cannot be read: {str(error).splitlines()[0]}"
                ) from None
            if not body.strip():
                continue
            cell = msgspec.structs.replace(
                cell,
                title=args.run_name or code.title,
                ranks=args.ranks,
                inputs=tuple(args.inputs),
                brought=(*args.pull, *filter(None, [args.output])),
            )
        yield cell


def _live_world() -> tuple[JobWorld, list[str]] | None:
    """The world of this session, if it runs."""
    try:
        session = current()
        world = session.world
    except DtrainError:
        return None
    request = session.request
    # A job asks for one GPU a rank: ranks that share GPUs here, or have none, need none there.
    gpus = len({(rank.host, rank.device) for rank in world.ranks if rank.device != "cpu"}) == world.size
    return (
        JobWorld(
            world.size,
            len(world.nodes),
            tuple(request.options.env),
            tuple(request.roles),
            gpus,
            request.options.gpus_per_rank or 0,
            _of_scheduler(request.launcher_options) if request.launcher == SLURM else {},
        ),
        [],
    )


def _of_scheduler(values: Mapping[str, Any]) -> dict[str, str]:
    """What a start asked of Slurm, but for the size of the world."""
    size = ("slurm", "nodes", "ntasks_per_node")
    return {name: str(value) for name, value in values.items() if value is not None and name not in size}


def _world_of(sources: Iterable[str]) -> tuple[JobWorld, list[str]]:
    """The world that the first start line, or the first cell with start options, asks for; and why it is not known."""
    try:
        given = next((given for given in map(_given, sources) if given is not None), None)
        return JobWorld(default_size()) if given is None else _asked(given), []
    except (UsageError, DtrainError, HelpShown):
        # Neither the line nor its error is shown: it may have values of --env.
        size = default_size()
        words = (
            f"The options of %distributed start are not known here, so {quantity(size, 'rank')} on 1 node are assumed"
        )
        return JobWorld(size), [f"{words}: -n and --nodes say otherwise."]


def _given(source: str) -> dict[str, Any] | None:
    """The start options in a cell; None where it starts no world."""
    if lines := _START.findall(_CONTINUED.sub(r"\1 ", source)):
        parser = MagicParser(prog="%distributed start")
        start_arguments(parser)
        return start_options(parser.parse_args(shlex.split(lines[0], comments=True)))
    first = _FIRST.match(source)
    if first is None or first[1] not in VERB_NAMES:
        return None
    return start_options(cell_parser().parse_line(first[2]), FIRST) or None


def _asked(given: dict[str, Any]) -> JobWorld:
    asked = check(given)
    with contextlib.suppress(BadRequest):  # the job may run where there are more GPUs than here
        asked = asked.share_gpus()
    each, own = asked.world.gpus_per_rank or 0, asked.launcher_options
    hosts = named_hosts(given.get("hosts"), given.get("hostfile"))
    nodes, size = len(hosts) or 1, asked.world.n or sum(hosts.values()) or default_size()
    of_scheduler: dict[str, str] = {}
    if isinstance(own, SlurmOptions):
        nodes, tasks = own.wanted(asked.world.n)
        size, of_scheduler = asked.world.n or nodes * tasks, _of_scheduler(asked.launcher_values)
    roles = tuple(assign_roles(asked, size))
    return JobWorld(size, nodes, tuple(asked.world.env), roles, each > 0, each, of_scheduler)
