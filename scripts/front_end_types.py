"""Write ``labextension/src/generated.ts``: the front end's types of messages and documents, and the magics' options.

python scripts/front_end_types.py            write it
python scripts/front_end_types.py --check    exit with 1 if it is not what the structs and the parsers say
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import inspect as types

from jupyter_dtrain.core import events
from jupyter_dtrain.core.notices import ADDRESS
from jupyter_dtrain.core.step_time import PARTS
from jupyter_dtrain.magics.cells import cell_parser, rank_parser
from jupyter_dtrain.magics.transform import RANK_NAMES, VERB_NAMES
from jupyter_dtrain.server import attention, exports, messages
from jupyter_dtrain.view import document, points, scaling, step_time

FILE = Path(__file__).resolve().parent.parent / "labextension" / "src" / "generated.ts"

HEAD = """// Made by scripts/front_end_types.py from Python's structs and parsers: change those.
"""

NAMED: dict[str, Any] = {
    "RunRankState": document.RankState,
    "RunOutcome": document.RunOutcome,
    "WorldRankState": events.RankState,
    "WorldPhase": messages.WorldPhase,
    "ItemKind": attention.Kind,
    "ItemLevel": attention.Level,
    "Steps": document.Steps,
}
"""Types that are no structs, with the names that they get."""

ROOTS: list[type[msgspec.Struct]] = [
    document.RunDocument,
    points.News,
    scaling.ScalingDocument,
    *get_args(messages.AnyMessage),
    messages.StoredRun,
    messages.RunListing,
    messages.RunPage,
    messages.RunDifferences,
    messages.MediaIndex,
    messages.RunColumns,
    messages.CellOutputs,
    messages.HeldVariables,
    messages.ProfileProgress,
    exports.ExportTargets,
    exports.WrittenJob,
]
"""Structs that the front end reads; those that they consist of come with them."""


def main() -> int:
    """Write the file, or compare it."""
    text = generated()
    if sys.argv[1:] == ["--check"]:
        same = FILE.exists() and FILE.read_text() == text
        if not same:
            print(f"{FILE.name} is not what Python says: python scripts/front_end_types.py")
        return int(not same)
    FILE.write_text(text)
    return 0


def generated() -> str:
    """The whole file."""
    aliases = [f"export type {name} = {written(types.type_info(kind), named=False)};" for name, kind in NAMED.items()]
    found: dict[type[msgspec.Struct], str] = {}
    for root in ROOTS:
        collect(root, found)
    union = " | ".join(kind.__name__ for kind in get_args(messages.AnyMessage))
    return (
        "\n\n".join(
            [
                HEAD + "\n" + "\n".join(aliases),
                *found.values(),
                f"export type Message = {union};",
                outcomes(),
                parts(),
                f"/** The page that explains notices. */\nexport const NOTICES = {json.dumps(ADDRESS)};",
                options(),
                "",
            ]
        ).rstrip("\n")
        + "\n"
    )


def collect(kind: type[msgspec.Struct], found: dict[type[msgspec.Struct], str]) -> None:
    """Add ``kind``, after the structs that it consists of."""
    if kind in found:
        return
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    for part in structs_in(info):
        collect(part, found)
    found[kind] = declared(info)


def structs_in(info: types.StructType) -> list[type[msgspec.Struct]]:  # noqa: C901 — a case for each kind of type
    """The structs that are named in the fields of one."""
    found: list[type[msgspec.Struct]] = []

    def look(kind: types.Type) -> None:
        match kind:
            case types.StructType():
                found.append(kind.cls)
            case types.ListType() | types.VarTupleType():
                look(kind.item_type)
            case types.TupleType():
                for one in kind.item_types:
                    look(one)
            case types.DictType():
                look(kind.value_type)
            case types.UnionType():
                for one in kind.types:
                    look(one)
            case types.Metadata():
                if rows := (kind.extra or {}).get("rows"):
                    found.append(rows)
                look(kind.type)

    for field in info.fields:
        look(field.type)
    return found


def declared(info: types.StructType) -> str:
    """A struct as a type: an object, or a tuple where the struct travels as an array."""
    kind = info.cls
    words = described(kind)
    fields = [
        (field.encode_name, "?" if may_lack(kind, field) else "", written(field.type), words.get(field.name, ""))
        for field in info.fields
    ]
    head = comment(inspect.cleandoc(kind.__doc__ or ""), "")
    if info.array_like:
        shown = [f"{name}{'?' if mark else ''}: {one}" for name, mark, one, _ in fields]
        told = [f"`{name}`: {doc}" for name, _, _, doc in fields if doc]
        head = comment("\n".join([inspect.cleandoc(kind.__doc__ or ""), *told]), "")
        return f"{head}export type {kind.__name__} = [\n" + "".join(f"  {one},\n" for one in shown) + "];"
    lines = [f'  {info.tag_field}: "{info.tag}";\n'] if info.tag is not None else []
    lines += [f"{comment(doc, '  ')}  {name}{mark}: {one};\n" for name, mark, one, doc in fields]
    return f"{head}export interface {kind.__name__} {{\n{''.join(lines)}}}"


def may_lack(kind: type[msgspec.Struct], field: types.Field) -> bool:
    """Whether a message may come without the field."""
    if field.required:
        return False
    unset = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    return unset or kind.__struct_config__.omit_defaults


def written(kind: types.Type, *, named: bool = True) -> str:  # noqa: C901, PLR0912 — a case for each kind of type
    """A type in TypeScript."""
    if named:
        for name, alias in NAMED.items():
            if kind == types.type_info(alias):
                return name
    match kind:
        case types.StrType():
            return "string"
        case types.IntType() | types.FloatType():
            return "number"
        case types.BoolType():
            return "boolean"
        case types.NoneType():
            return "null"
        case types.AnyType():
            return "unknown"
        case types.LiteralType():
            # msgspec keeps literals in alphabetical order, which does not change between versions of Python.
            return " | ".join(json.dumps(value) for value in sorted(kind.values))
        case types.ListType() | types.VarTupleType():
            item = written(kind.item_type)
            return f"({item})[]" if " | " in item else f"{item}[]"
        case types.TupleType():
            return f"[{', '.join(written(one) for one in kind.item_types)}]"
        case types.DictType():
            return f"Record<string, {written(kind.value_type)}>"
        case types.UnionType():
            parts = [written(one) for one in kind.types]
            return " | ".join([part for part in parts if part != "null"] + ["null"] * ("null" in parts))
        case types.StructType():
            return kind.cls.__name__
        case types.Metadata(extra=extra):
            if extra and "rows" in extra:
                return f"{extra['rows'].__name__}[]"
            return str(extra["type"]) if extra and "type" in extra else written(kind.type)
    raise TypeError(f"No TypeScript is known for {kind!r}: add it to written().")


def described(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The text below each field, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("msgspec") or base is object:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[field.target.id] = inspect.cleandoc(str(below.value.value))
    return found


def comment(words: str, indent: str) -> str:
    """A documentation comment; none for no words."""
    lines = words.replace("``", "`").splitlines()
    if not lines:
        return ""
    if len(lines) == 1:
        return f"{indent}/** {lines[0]} */\n"
    return f"{indent}/**\n" + "".join(f"{indent} * {line}".rstrip() + "\n" for line in lines) + f"{indent} */\n"


def outcomes() -> str:
    """The words for how a run ended, each with its meaning."""
    rows = "".join(f"  {json.dumps(word)[1:-1]}: {json.dumps(meaning)},\n" for word, meaning in events.OUTCOMES.items())
    return (
        "/** The one word for each way in which a run ends, or that it goes on, and its meaning. */\n"
        f"export const OUTCOMES: Record<RunOutcome, string> = {{\n{rows}}};"
    )


def parts() -> str:
    """The parts of a step, with their names."""
    rows = "".join(f"  {part}: {json.dumps(step_time.name_of(part))},\n" for part in PARTS)
    return (
        "/** The parts of a training step, in the order in which they are drawn, with their names. */\n"
        f"export const STEP_PARTS: Record<string, string> = {{\n{rows}}};"
    )


def options() -> str:
    """The options of a cell's magics whose value is the next word."""
    valued = {
        option
        for parser in (cell_parser(), rank_parser())
        for action in parser._actions  # noqa: SLF001 — with former names, which nothing else lists
        if action.option_strings and action.nargs is None
        for option in action.option_strings
    }
    listed = ", ".join(json.dumps(option) for option in sorted(valued))
    return (
        "/** Options of `%%distributed` and `%%rank` whose value is the next word. */\n"
        f"export const VALUED_OPTIONS: readonly string[] = [{listed}];\n\n"
        "/** The magics whose cells go to the ranks. */\n"
        f"export const RANK_MAGICS: readonly string[] = {json.dumps(RANK_NAMES)};\n\n"
        "/** The magics of one line whose first word is a verb. */\n"
        f"export const VERB_MAGICS: readonly string[] = {json.dumps(VERB_NAMES)};"
    )


if __name__ == "__main__":
    sys.exit(main())
