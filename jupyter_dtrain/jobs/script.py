"""Writes the cells of a job as one Python file, a section for each cell, that a person can read and go on with."""

from __future__ import annotations

import inspect
import io
import keyword
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any, Final

from jupyter_dtrain.core.declarations import load
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.run_names import telling_line
from jupyter_dtrain.core.settings import STORE_VARIABLE
from jupyter_dtrain.core.world import parse_ranks

from . import script_preamble
from .dependencies import OWN, Needed, Packages
from .job import supports
from .names import names_of
from .notebook import JobWorld, Notebook, NotebookCell
from .syntax import Python

_NOQA: Final = re.compile(r"  # noqa.*")
_WIDTH: Final = 100


class _Words:
    """Names for the script's own variables that no cell uses."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self.rank, self.size, self.loop = map(self._free, ("RANK", "WORLD_SIZE", "LOOP"))

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        return name


def write_script(
    notebook: Notebook, world: JobWorld, needed: Needed, codes: list[Python], packages: Packages, name: str
) -> str:
    """The script of a job. ``codes``: its cells in plain Python; ``name``: that of its file.

    Raises :class:`BadRequest` for ranks that are not in the world.
    """
    words = _Words(needed.known | {one for code in codes for one in _read(code.code)})
    sections = [_section(cell, code, world, words) for cell, code in zip(needed.cells, codes, strict=True)]
    parts = [
        _requirements(packages),
        _docstring(notebook, world, needed, packages, name),
        *_imports(codes, packages),
        _set_up(world, codes, words, sections, packages, name),
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


def _literal(text: str) -> str:
    return f'"{text}"'


def _docstring(notebook: Notebook, world: JobWorld, needed: Needed, packages: Packages, name: str) -> str:
    here = "--standalone " if world.nodes == 1 else ""
    lines = [
        f"{len(needed.cells)} cells of {notebook.name}, exported by jupyter-dtrain {metadata.version(OWN)}.",
        "",
        f"Their world had {world.words}. Each of these lines runs the script:",
        "",
        f"    torchrun {here}--nproc-per-node {world.per_node} {name}",
        f"    mpirun -n {world.ranks} python {name}",
        f"    python {name}",
        "",
        f"With {STORE_VARIABLE} set to the file of a store, what jupyter_dtrain.log() gets goes there.",
    ]
    if world.env:
        lines += [
            "",
            f"Set {', '.join(world.env)} first: the world was given them by --env, and values are not exported.",
        ]
    if packages.own:
        lines += ["", f"It needs these modules beside it: {', '.join(packages.own)}."]
    body = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{body}\n"""'


def _imports(codes: list[Python], packages: Packages) -> list[str]:
    futures = sorted({one for code in codes for one in code.futures})
    modules = {"json", "os", "re", "socket", "sys", "zlib"}.union(*(code.modules for code in codes))
    modules = modules.union(*(one.set_up_modules for one in supports(packages.roots)))
    if any(code.awaits for code in codes):
        modules.add("asyncio")
    future = [f"from __future__ import {', '.join(futures)}"] if futures else []
    return [*future, "\n".join(f"import {module}" for module in sorted(modules))]


def _set_up(
    world: JobWorld, codes: list[Python], words: _Words, sections: list[str], packages: Packages, name: str
) -> str:
    functions: list[Callable[..., Any]] = [script_preamble.join_world, script_preamble.meet_at]
    calls = ["join_world()"]
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
    calls += [
        f'if os.environ.get("{STORE_VARIABLE}"):',
        "    import jupyter_dtrain",
        "",
        f"    jupyter_dtrain.record_job({_literal(name.removesuffix('.py'))})",
    ]
    parts = ["# %% Set-up: the variables that torchrun sets, whoever starts this script"]
    parts += ["\n\n" + _NOQA.sub("", inspect.getsource(one)).rstrip() for one in functions]
    return "\n".join(parts) + "\n\n\n" + "\n".join(calls)


def _tuple(words: Iterable[str]) -> str:
    return "(" + "".join(f"{_literal(one)}, " for one in words).removesuffix(" ") + ")"


def _section(cell: NotebookCell, code: Python, world: JobWorld, words: _Words) -> str:
    title = " ".join((cell.title or telling_line(cell.source)).split())
    place = f"[{cell.name}]" if cell.on_ranks else f"[{cell.name}, from the notebook itself]"
    head = f"# %% {place} {title}".rstrip()[:_WIDTH]
    body, condition = code.code, _condition(cell, world, words)
    if code.awaits:
        body = _coroutine(cell, code, words)
    if condition:
        body = f"if {condition}:\n{indented(body)}"
    told = [f"# {' '.join(sentence.split())}"[:_WIDTH] for sentence in cell.steered]
    return "\n".join([head, *told, body])


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
