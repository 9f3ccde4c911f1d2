"""Writes the cells of a job as one Python file, a section for each cell, that a person can read and go on with."""

from __future__ import annotations

import inspect
import io
import keyword
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any, Final

from jupyter_dtrain.core.declarations import load
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.run_names import telling_line
from jupyter_dtrain.core.settings import STORE_VARIABLE
from jupyter_dtrain.core.world import parse_ranks, quantity

from . import script_preamble
from .arguments import Argument, arguments_of, read_from
from .dependencies import OWN, Needed, Packages
from .job import supports
from .names import names_of
from .notebook import JobWorld, Notebook, NotebookCell
from .syntax import Python

_NOQA: Final = re.compile(r"  # noqa.*")
_WIDTH: Final = 100
_TRAINS: Final = re.compile(
    r"\.(backward|fit|minimize|train_batch)\(|\b(train\w*|log)\(|\btrainer\.\w+\(", re.IGNORECASE
)
"""Calls of a cell that trains."""


class _Words:
    """Names for the script's own variables that no cell uses."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        names = ("RANK", "WORLD_SIZE", "LOOP", "ARGUMENTS", "record")
        self.rank, self.size, self.loop, self.arguments, self.record = map(self._free, names)

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        return name


def write_script(
    notebook: Notebook,
    world: JobWorld,
    needed: Needed,
    codes: list[Python],
    packages: Packages,
    name: str,
    run_name: str,
) -> str:
    """The script of a job. ``codes``: its cells in plain Python; ``name``: that of its file; ``run_name``: its runs'.

    Raises :class:`BadRequest` for ranks that are not in the world.
    """
    words = _Words(needed.known | {one for code in codes for one in _read(code.code)})
    arguments = arguments_of([code.code for code in codes])
    codes = [code._replace(code=read_from(code.code, arguments, words.arguments)) for code in codes]
    fits = [trains(cell.source) and cell.on_ranks for cell in needed.cells]
    # A job with one training is one run from its beginning on, also where it fails before.
    several = sum(fits) > 1
    sections = [
        _section(cell, code, world, words, record=several and fit)
        for cell, code, fit in zip(needed.cells, codes, fits, strict=True)
    ]
    recording = _recording(words, run_name, several=several, configured=bool(arguments))
    parts = [
        _requirements(packages),
        _docstring(notebook, world, needed, packages, name, arguments),
        *_imports(codes, packages, arguments=bool(arguments)),
        _set_up(world, codes, words, sections, packages, [_parser(arguments, words), recording]),
        *sections,
        *_endings(packages),
    ]
    text = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    try:
        compile(text, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise BadRequest(
            f"The cells do not fit into one script ({error.msg}, line {error.lineno}: {(error.text or '').strip()}): "
            f"change that line, or leave its cell out with --cells."
        ) from None
    return text


def _read(code: str) -> frozenset[str]:
    names = names_of(code)
    return names.at_once | names.later | names.bound


def _requirements(packages: Packages) -> str:
    """The packages as the block that ``uv run`` and other tools read (PEP 723)."""
    lines = [f"#     {_literal(one)}," for one in packages.requirements()]
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    block = ["# /// script", f'# requires-python = ">={python}"', "# dependencies = [", *lines, "# ]", "# ///"]
    return "\n".join(block)


EXPORTED: Final = "exported by jupyter-dtrain"
"""Words of the docstring of each exported script."""
_ADVICE: Final = ("Each of these lines runs the script:", "The first line runs the script, on every node; so do:")


def torchrun_line(world: JobWorld, name: str) -> str:
    """The line for torchrun that gives the script ``name`` the ranks of ``world``; of several nodes, each runs it."""
    if world.nodes == 1:
        return f"torchrun --standalone --nproc-per-node {world.per_node} {name}"
    meeting = "--rdzv-backend c10d --rdzv-endpoint FIRST_NODE:29400"
    return f"torchrun --nnodes {world.nodes} --nproc-per-node {world.per_node} {meeting} {name}"


def mpirun_line(world: JobWorld, name: str) -> str:
    """The line for Open MPI's mpirun that gives the script ``name`` the ranks of ``world``."""
    hosts = ",".join(f"NODE{number}:{world.per_node}" for number in range(1, world.nodes + 1))
    return f"mpirun -n {world.ranks} {f'--host {hosts} ' if world.nodes > 1 else ''}python {name}"


def _parser(arguments: Sequence[Argument], words: _Words) -> tuple[str, str]:
    """The function that reads the arguments of the command line, and the line that calls it; empty without any."""
    if not arguments:
        return "", ""
    lines = [
        "def read_arguments() -> argparse.Namespace:",
        '    """The values of the cells, unless the command line has others."""',
        "    parser = argparse.ArgumentParser()",
        *(f"    {one.call}" for one in arguments),
        "    # Some launchers add them.",
        '    parser.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)',
        '    parser.add_argument("--mp_parameters", help=argparse.SUPPRESS)',
        "    found = parser.parse_args()",
        "    del found.local_rank, found.mp_parameters",
        "    return found",
    ]
    return "\n".join(lines), f"{words.arguments} = read_arguments()"


def _recording(words: _Words, run_name: str, *, several: bool, configured: bool) -> tuple[str, str]:
    """What records the job: a function and a call for each of ``several`` runs, or lines for one."""
    body = [f'if os.environ.get("{STORE_VARIABLE}"):', "    import jupyter_dtrain", ""]
    config = [f"    jupyter_dtrain.config(**vars({words.arguments}))"] if configured else []
    if not several:
        return "", "\n".join([*body, f"    jupyter_dtrain.record_job({_literal(run_name)})", *config])
    head = [f"def {words.record}(training: str) -> None:", '    """Begin a run of the job: each training is one."""']
    lines = [*body, f"    jupyter_dtrain.record_job({_literal(run_name)}, training)", *config]
    return "\n".join([*head, *(f"    {line}".rstrip() for line in lines)]), ""


def _literal(text: str) -> str:
    return f'"{text}"'


def _docstring(
    notebook: Notebook, world: JobWorld, needed: Needed, packages: Packages, name: str, arguments: Sequence[Argument]
) -> str:
    there = notebook.world.words
    job = "" if world.words == there else f" This job has {world.words}."
    lines = [
        f"{quantity(len(needed.cells), 'cell')} of {notebook.name}, {EXPORTED} {metadata.version(OWN)}.",
        "",
        f"Their world had {there}.{job} {_ADVICE[world.nodes > 1]}",
        "",
        f"    {torchrun_line(world, name)}",
        f"    {mpirun_line(world, name)}",
        f"    python {name}",
        "",
        f"With {STORE_VARIABLE} set to the file of a store, what jupyter_dtrain.log() gets goes there.",
    ]
    if arguments:
        flags = ", ".join(one.flag for one in arguments)
        lines += ["", *textwrap.wrap(f"The cells' values are its defaults; other ones: {flags}.", _WIDTH)]
    if world.env:
        lines += [
            "",
            f"Set {', '.join(world.env)} first: the world was given them by --env, and values are not exported.",
        ]
    if packages.own:
        lines += ["", f"It needs these modules beside it: {', '.join(packages.own)}."]
    body = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{body}\n"""'


def _imports(codes: list[Python], packages: Packages, *, arguments: bool) -> list[str]:
    futures = sorted({one for code in codes for one in code.futures})
    modules = {"json", "os", "re", "socket", "sys", "zlib"}.union(*(code.modules for code in codes))
    modules = modules.union(*(one.set_up_modules for one in supports(packages.roots)))
    if any(code.awaits for code in codes):
        modules.add("asyncio")
    if arguments:
        modules.add("argparse")
    future = [f"from __future__ import {', '.join(futures)}"] if futures else []
    return [*future, "\n".join(f"import {module}" for module in sorted(modules))]


def _set_up(
    world: JobWorld,
    codes: list[Python],
    words: _Words,
    sections: list[str],
    packages: Packages,
    more: list[tuple[str, str]],
) -> str:
    """``more``: functions as text, each with the lines that call it, or empty text; the first before all others."""
    functions: list[Callable[..., Any]] = [script_preamble.join_world, script_preamble.meet_at]
    (parser, reading), (recorder, recording) = more
    calls = [*filter(None, [reading]), "join_world()"]
    if world.gpus_per_rank:
        functions.append(script_preamble.take_gpus)
        calls.append(f"take_gpus({world.gpus_per_rank})")
    for place in dict.fromkeys(one.set_up for one in supports(packages.roots) if one.set_up):
        functions.append(load(place))
        calls.append(f"{functions[-1].__name__}({_tuple(world.roles)})")
    if world.env:
        functions.append(script_preamble.check_variables)
        calls.append(f"check_variables({_tuple(world.env)})")
    if any(code.shows for code in codes):
        functions.append(script_preamble.show)
    if any(code.displays for code in codes):
        functions.append(script_preamble.display)
    body = "\n".join(sections)
    for word, variable in ((words.rank, "RANK"), (words.size, "WORLD_SIZE")):
        if re.search(rf"^if .*\b{word}\b", body, re.MULTILINE):
            calls.append(f'{word} = int(os.environ["{variable}"])')
    if any(code.awaits for code in codes):
        calls.append(f"{words.loop} = asyncio.new_event_loop()")
    if "matplotlib" in body:
        calls.append('os.environ.setdefault("MPLBACKEND", "Agg")  # there is no notebook to show figures in')
    calls += filter(None, [recording])
    parts = ["# %% Set-up: the variables that torchrun sets, whoever starts this script"]
    parts += ["\n\n" + _NOQA.sub("", inspect.getsource(one)).rstrip() for one in functions]
    parts += [f"\n\n{text}" for text in (parser, recorder) if text]
    return "\n".join(parts) + "\n\n\n" + "\n".join(calls)


def _tuple(words: Iterable[str]) -> str:
    return "(" + "".join(f"{_literal(one)}, " for one in words).removesuffix(" ") + ")"


def trains(source: str) -> bool:
    """Whether a cell looks as if it trains: it calls what trains, steps or logs."""
    return _TRAINS.search(source) is not None


def _section(cell: NotebookCell, code: Python, world: JobWorld, words: _Words, *, record: bool) -> str:
    title = " ".join((cell.title or telling_line(cell.source)).split())
    place = f"[{cell.name}]" if cell.on_ranks else f"[{cell.name}, from the notebook itself]"
    head = f"# %% {place} {title}".rstrip()[:_WIDTH]
    body, condition = code.code, _condition(cell, world, words)
    if code.awaits:
        body = _coroutine(cell, code, words)
    if condition:
        body = f"if {condition}:\n{indented(body)}"
    told = [f"# {' '.join(sentence.split())}"[:_WIDTH] for sentence in cell.steered]
    begun = [f"{words.record}({_literal(title.replace(chr(92), ' ').replace(chr(34), chr(39)))})"] if record else []
    return "\n".join([head, *told, *begun, body])


def _condition(cell: NotebookCell, world: JobWorld, words: _Words) -> str:
    """On which ranks the cell runs, as Python; empty for all of them."""
    if cell.ranks is None:
        return ""
    try:
        ranks = parse_ranks(cell.ranks.strip().strip("[]"), world.ranks)
    except BadRequest as error:
        raise BadRequest(
            f"{cell.name} runs on ranks {cell.ranks}: {error} Give the job more of them with -n."
        ) from None
    if len(ranks) == world.ranks:
        return ""
    if re.fullmatch(r"\s*-\d+\s*", cell.ranks):
        return f"{words.rank} == {words.size} - {cell.ranks.strip()[1:]}"
    if len(ranks) == 1:
        return f"{words.rank} == {ranks[0]}"
    if ranks == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 3:  # noqa: PLR2004 — a range is shorter then
        return f"{words.rank} in range({ranks[0]}, {ranks[-1] + 1})"
    return f"{words.rank} in ({', '.join(map(str, ranks))})"


def _coroutine(cell: NotebookCell, code: Python, words: _Words) -> str:
    """A cell that awaits, as a function: its names are the script's all the same."""
    names = names_of(code.code)
    bound = sorted(one for one in names.bound if not keyword.iskeyword(one))
    if names.star:
        raise BadRequest(f"{cell.name} awaits, and imports *: a function cannot do both. Import the names one by one.")
    declared = textwrap.fill(f"global {', '.join(bound)}", _WIDTH, subsequent_indent="    ") if bound else ""
    declared = declared.replace("\n", " \\\n")
    function = f"cell_{cell.number}"
    body = "\n".join(filter(None, (declared, code.code)))
    return f"async def {function}():\n{indented(body)}\n\n\n{words.loop}.run_until_complete({function}())"


def _endings(packages: Packages) -> list[str]:
    ends = dict.fromkeys(one.end for one in supports(packages.roots) if one.end)
    return [f"# %% The end\n{end}" for end in ends]


def indented(code: str) -> str:
    """``code`` in a block. The lines inside of a text in several lines stay as they are."""
    lines = code.splitlines()
    inside: set[int] = set()
    starts: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(code + "\n").readline):
        kind = tokenize.tok_name[token.type]
        if kind == "FSTRING_START":
            starts.append(token.start[0])
        elif kind == "FSTRING_END":
            inside.update(range(starts.pop() + 1, token.end[0] + 1))
        elif kind == "STRING":
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
    return "\n".join(
        line if number in inside or not line.strip() else f"    {line}" for number, line in enumerate(lines, 1)
    )
