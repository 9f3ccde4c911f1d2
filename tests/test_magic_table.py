"""One table has all magics: what ``-h``, Tab and the reference tell of each is the same."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import jupyter_dtrain
from jupyter_dtrain.core.declarations import load, session_methods
from jupyter_dtrain.launch.options import options
from jupyter_dtrain.magics.completion import _Line, offers
from jupyter_dtrain.magics.parsing import MagicParser
from jupyter_dtrain.magics.table import CELL_MAGICS, sections, verb_parser, verbs
from jupyter_dtrain.magics.transform import NAMES, RANK_NAMES, VERB_NAMES

REFERENCE = (Path(__file__).parents[1] / "docs" / "reference" / "magics.md").read_text()
PARSERS = {title: parser for title, _, parser, _ in sections()}
OPTION = re.compile(r"(?<![\w-])-{1,2}[A-Za-z][\w-]*")


def in_help(parser: MagicParser) -> set[str]:
    """The options in the left column of the text of ``-h``."""
    left = re.findall(r"^  (-.*?)(?:  |$)", parser.format_help(), re.MULTILINE)
    return {option for text in left for option in OPTION.findall(re.sub(r"\{.*?\}", "", text))} - {"-h", "--help"}


def in_reference(title: str) -> set[str]:
    """The options in the left columns of the reference's tables."""
    [section] = re.findall(rf"^## `{re.escape(title)}`\n(.*?)(?=^## |\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    left = [row.split(" | ")[0] for row in section.splitlines() if row.startswith("| `")]
    return {option for text in left for option in OPTION.findall(text)}


def on_tab(parser: MagicParser) -> set[str]:
    """The options that Tab offers, each with words about it."""
    dash, dashes = offers(parser, " -")[1], offers(parser, " --")[1]
    assert all(words not in ("", "option") for _, words in [*dash, *dashes])
    return {text for text, _ in [*dash, *dashes]} - {"-h", "--help"}


def from_start(title: str) -> set[str]:
    """The options of ``start`` that a magic takes beside its own."""
    borrowed = in_reference("%distributed start") if title in ("%%distributed", "%%speedup") else set()
    return borrowed - in_reference(title)


@pytest.mark.parametrize("title", PARSERS)
def test_help_tab_and_the_reference_have_the_same_options(title):
    parser = PARSERS[title]

    assert in_help(parser) == in_reference(title)
    assert on_tab(parser) - from_start(title) == in_reference(title)


@pytest.mark.parametrize("title", ["%%distributed", "%%speedup"])
def test_a_magic_that_takes_the_options_of_start_points_to_them(title):
    """Tab offers them there; ``-h`` and the reference name ``start``, whose list they do not repeat."""
    parser = PARSERS[title]
    [section] = re.findall(rf"^## `{title}`\n(.*?)\n\|", REFERENCE, re.MULTILINE | re.DOTALL)

    assert {"--slurm", "--hosts", "--torch-backend"} <= on_tab(parser) & from_start(title)
    assert "%distributed start -h lists them" in parser.format_help()
    assert "%distributed start -h lists them" in " ".join(section.split())


def test_the_options_of_groups_and_of_sets_are_there():
    """They were in neither the reference nor Tab."""
    assert {"--global-batch", "--per-rank-batch"} <= in_reference("%%speedup")
    assert "not with --per-rank-batch" in REFERENCE
    assert {"--slurm", "--hosts", "--torch-backend"} <= in_reference("%distributed start")
    assert set(_Line(PARSERS["%%speedup"], "").options) >= {"--global-batch", "--per-rank-batch"}


def test_the_list_of_verbs_has_each_once_below_its_heading():
    text = verb_parser().format_help()
    headings = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)

    assert headings[:7] == [
        "worlds",
        "cells",
        "data",
        "looking inside",
        "the running loop",
        "snapshots",
        "runs and jobs",
    ]
    below = [f"{verb.name} {one.name}" for verb in verbs() if verb.below == "verb" for one in verb.verbs]
    alone = [verb.name for verb in verbs() if verb.name not in ("show", "compare")]
    for name in [*alone, *below, *(f"%%{magic.names[0]}" for magic in CELL_MAGICS)]:
        assert len(re.findall(rf"^  {re.escape(name)}  ", text, re.MULTILINE)) == 1, name
    assert not re.search(r"^  (show|compare) ", text, re.MULTILINE), "the short forms are told where the long ones are"


def test_what_changes_a_cells_text_knows_the_same_magics():
    assert sorted(NAMES) == sorted(name for magic in CELL_MAGICS for name in magic.names)
    assert set(VERB_NAMES) < set(RANK_NAMES) < set(NAMES)


IN_OTHER_NAMES = {
    "%%distributed": {"no_wait": "wait", "run_name": "name"},
    "%distributed diff": {"name": "path"},
    "%distributed resize": {"size": "n"},
    "%distributed report": {"run_names": "runs"},
    "%distributed run": {"no_wait": "wait", "run_name": "name"},
    "%distributed runs": {"n": "limit", "all": "everything"},
    "%distributed runs compare": {"run_names": "runs"},
    "%distributed runs show": {"run_name": "name"},
    "%distributed set": {"run_number": "run", "values": "settings"},
    "%distributed track": {"run_name": "run"},
    "%distributed step": {"run_number": "run", "steps": "count"},
    **{
        f"%distributed {verb}": {"run_number": "run"}
        for verb in ("between", "undo", "pause", "resume", "stop-after", "until-differs", "rewind")
    },
    "%%between": {"run_number": "run"},
}
"""By magic, the options whose parameters have other names: each is short for a line that people type."""

ELSEWHERE = {
    "%%distributed": {"output": "the value of run() is the Run", "pull": "Session.pull"},
    "%%speedup": {"output": "the value of speedup()"},
    "%distributed deepspeed-tune": {"output": "the value of tune()"},
    "%distributed doctor": {"json": "Examination.to_json", "remove_leftovers": "remove_leftovers"},
    "%distributed gather": {"output": "the value of gather()"},
    "%distributed interrupt": {"name": "RunningWorld.interrupt"},
    "%distributed memory": {"record": "Session.memory_record"},
    "%distributed run": {"output": "the value of run_script() is the Run", "pull": "Session.pull"},
    "%distributed runs": {"columns": "Store.select", "group": "Store.select"},
    "%distributed runs delete": {"run_names": "StoredRun.delete has no arguments"},
    "%distributed snapshots delete": {"names": "Snapshot.delete has no arguments"},
    "%distributed snapshots show": {"name": "each Snapshot in the list tells what it holds"},
    "%distributed start": {"save_profile": "save_profile"},
    "%distributed stop": {"all": "RunningWorld.stop", "name": "RunningWorld.stop"},
    "%distributed upload": dict.fromkeys(("hosts", "hostfile", "ssh_args", "python"), "upload"),
}
"""By magic, the options that Python has elsewhere: a name of jupyter_dtrain, or words."""

PYTHON_ALONE = {
    "ask": "a magic finds out whether a person can answer",
    "code": "the cell below the magic's line",
    "data": "the notebook's variable",
    "folder": "DIR/NAME names it",
    "here": "the notebook's world",
    "progress": "a magic shows it",
    "ready": "restart and replace give it",
    "self": "the method's object",
    "session": "the method's object, of a framework",
    "source": "the cell below the magic's line",
    "settings": "environment variables, for a notebook; some targets of export have none",
    "target": "a verb of its own",
    "take_over": "a former name",
    "timeout": "seconds for an answer, which a person does not choose",
    "view": "a magic shows the run in its cell",
}
"""Parameters that no magic has."""

WITHOUT_PYTHON = {
    "%%local": "a program has no auto mode",
    "%distributed auto": "a program has no plain cells that could go to ranks",
}


def in_python(name: str) -> Any:
    """The public object of that name, such as ``Session.save``; a framework's methods, too."""
    first, _, method = name.partition(".")
    if first == "Session" and method in session_methods():
        return load(session_methods()[method])
    found = getattr(jupyter_dtrain, first)
    return getattr(found, method) if method else found


ROWS = {title: (parser, python) for title, _, parser, python in sections()}


@pytest.mark.parametrize("title", ROWS)
def test_whatever_a_magic_does_python_does(title):
    """Option by option; what differs is told above, with the reason."""
    parser, python = ROWS[title]
    if title in WITHOUT_PYTHON:
        assert not python
        return
    if title == "%distributed export":  # its verbs have the options
        return
    counterpart = in_python(python)
    alike = title.replace("%%rank", "%%distributed").replace("%distributed show", "%distributed runs show")
    alike = alike.replace("%distributed compare", "%distributed runs compare")
    parameters = dict(inspect.signature(counterpart).parameters) if callable(counterpart) else {}
    if parameters.get("options"):  # run_script() takes those of run()
        parameters |= inspect.signature(jupyter_dtrain.Session.run).parameters
    if parameters.get("slurm"):  # doctor() takes the options of a start in Slurm
        parameters |= {option.name: None for option in options() if "slurm" in option.launchers}
    magic = {action.dest.removeprefix("start_") for action, _ in parser.known} - {"help"}
    magic = {"settings" if name.startswith("setting_") else name for name in magic}
    if title in ("%%distributed", "%%speedup"):
        magic -= {option.name for option in options()} - set(parameters)
    names = IN_OTHER_NAMES.get(alike, {})

    assert {names.get(one, one) for one in magic} - set(parameters) == set(ELSEWHERE.get(alike, {}))
    assert set(parameters) - {names.get(one, one) for one in magic} <= {*PYTHON_ALONE, "options", "slurm"}


def test_the_reference_names_the_magics_that_python_lacks():
    """And no other, for the sentence says that Python does everything else."""
    reference = (Path(__file__).parents[1] / "docs" / "reference" / "api.md").read_text()
    sentence = " ".join(reference.partition("`import jupyter_dtrain`")[0].split())

    assert sorted(re.findall(r"`([^`]+)`", sentence)) == sorted(WITHOUT_PYTHON)


def test_where_python_has_an_option_elsewhere_it_is_there_and_in_the_reference():
    reference = (Path(__file__).parents[1] / "docs" / "reference" / "api.md").read_text()
    told = [words for found in ELSEWHERE.values() for words in found.values()]
    names = {name for name in (*told, *(python for _, python in ROWS.values())) if re.fullmatch(r"[A-Za-z_.]+", name)}

    assert {"Session.pull", "RunningWorld.stop", "upload"} <= names
    for name in names:
        in_python(name)
        assert re.search(rf"auto(class|function):: {name.partition('.')[0]}$", reference, re.MULTILINE), name
