"""One definition of the start options: signature, ``-h``, the dialog's schema, checks and the request come from it."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import subprocess
import sys

import msgspec
import pytest

from jupyter_dtrain import BadRequest, Session, Settings
from jupyter_dtrain.launch import options, starting
from jupyter_dtrain.launch.mpi import find_mpiexec
from jupyter_dtrain.magics.parsing import HelpShown
from jupyter_dtrain.magics.table import verb_parser
from jupyter_dtrain.wire.requests import WorldOptions, WorldRequest

REMOTE = {
    "hosts": "127.0.0.1:4",
    "hostfile": "HOSTFILE",
    "ssh_args": "-p 2222",
    "python": "/opt/python",
    "interface": "lo",
}
"""The options of a world on other hosts, with values."""
NAMES = ["n", "gpus_per_rank", "name", "profile", "env", "mpiexec", "tensorboard", "track", "snapshot_every"]
NAMES += ["auto_replace"]
NAMES += [*REMOTE, "chief", "ps", "torch_backend"]
IN_SLURM = ["slurm", "nodes", "ntasks_per_node", "partition", "account", "time", "gres", "sbatch"]
IN_SLURM[-1:-1] = ["gpus_per_node", "gpus_per_task", "cpus_per_task", "mem", "qos"]
"""They need a Slurm; see test_slurm.py."""
ALL = NAMES[:-3] + IN_SLURM + NAMES[-3:]
SECRET = "hunter2"  # noqa: S105 — must not be shown

PLUGIN = """
import logging, sys
from typing import Annotated, Literal
import msgspec
from msgspec import Meta
from jupyter_dtrain.core.declarations import Declaration

class Options(msgspec.Struct, frozen=True):
    speed: Annotated[Literal["slow", "fast"], Meta(title="Speed", description="how fast (default: slow)")] = "slow"
    eager: Annotated[bool, Meta(title="Eager", description="run at once (default: on)")] = True
    share: Annotated[float, Meta(title="Share", description="share of a GPU (default: 1)", ge=0)] = 1.0

class Taken(msgspec.Struct, frozen=True):
    name: str = "mine"

class Needed(msgspec.Struct, frozen=True):
    no_default: int

class Strange(msgspec.Struct, frozen=True):
    layers: list[int] = []

GOOD = Declaration("quick", options=Options, roles=lambda size, options: ["runner"] * size if options.eager else [])
TAKEN, NEEDED = Declaration("taken", options=Taken), Declaration("needed", options=Needed)
STRANGE = Declaration("strange", options=Strange)
"""
ENTRIES = """[jupyter_dtrain.declarations]
quick = quick_declared:GOOD
taken = quick_declared:TAKEN
needed = quick_declared:NEEDED
strange = quick_declared:STRANGE
missing = quick_declared:NOTHING
"""
SHOW = """
import contextlib, inspect, io, json
from jupyter_dtrain import Session, Settings
from jupyter_dtrain.launch import options, starting
from jupyter_dtrain.magics.parsing import HelpShown
from jupyter_dtrain.magics.table import verb_parser

parameter = inspect.signature(Session.start).parameters["speed"]
out = io.StringIO()
with contextlib.redirect_stdout(out), contextlib.suppress(HelpShown):
    verb_parser().parse_line("start -h")
line = vars(verb_parser().parse_line("start --speed fast --no-eager --share 0.5"))
del line["run"]
asked = options.check({"n": 2, "speed": "fast"})
request = starting._make_request(asked, asked.place(), Settings(), None)
print(json.dumps({
    "signature": [str(parameter.annotation), parameter.default],
    "docstring": Session.start.__doc__,
    "help": out.getvalue(),
    "schema": options.schema("local")["properties"],
    "line": line,
    "request": request.frameworks,
    "roles": request.roles,
}))
"""


def help_of_start(capsys) -> str:
    with pytest.raises(HelpShown):
        verb_parser().parse_line("start -h")
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture
def example(tmp_path, monkeypatch):
    """A value of each option that is not its default."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dtrain.toml").write_text("[lab]\n")
    hostfile = tmp_path / "hosts"
    hostfile.write_text("127.0.0.1 slots=4\n")
    return REMOTE | {
        "hostfile": str(hostfile),
        "n": 3,
        "gpus_per_rank": 2,
        "name": "some-name",
        "profile": "lab",
        "env": {"A": SECRET},
        "mpiexec": find_mpiexec(None),
        "tensorboard": str(tmp_path),
        "snapshot_every": "10m model opt",
        "auto_replace": True,
        "chief": True,
        "ps": 1,
        "torch_backend": "gloo",
    }


def test_there_are_these_options():
    """The options have the order in which a person sees them."""
    assert [option.name for option in options.options()] == ALL
    assert [field.name for field in msgspec.structs.fields(WorldOptions)] == NAMES[:10]


# `track` needs a tracker: tests/store/test_tracking.py has it.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "track"])
def test_an_option_is_the_same_everywhere(name, example, capsys):
    """Signature, docstring, -h, schema, magic line and request."""
    option = next(option for option in options.options() if option.name == name)
    parameter = inspect.signature(Session.start).parameters[name]
    properties = options.schema(option.launchers[0] if option.launchers else "local")["properties"]
    values = {"n": 4, "chief": True} | {name: example[name]}
    if name in REMOTE and name != "hostfile":
        values |= {"hosts": example["hosts"]}
    text = " ".join(f"{key}={value}" for key, value in example["env"].items()) if name == "env" else str(example[name])
    words = (
        option.flag
        if example[name] is True
        else f"{option.flag}={shlex.quote(text)}"
        if name in REMOTE
        else f"{option.flag} {text}"
    )
    line = getattr(verb_parser().parse_line(f"start {words}"), name)
    asked = options.check(values)
    request = starting._make_request(asked, asked.place(), Settings(), None)
    starting._remove_folders(request)
    sent = msgspec.json.decode(msgspec.json.encode(request), type=WorldRequest)
    held = sent.launcher_options if option.launchers else msgspec.to_builtins(sent.options)
    if option.framework:
        held = sent.frameworks[option.framework]

    assert parameter.default == option.default
    assert f"* ``{name}``: {option.description.replace('`', '``')}" in (inspect.getdoc(Session.start) or "")
    assert option.description in help_of_start(capsys)
    assert option.flag in help_of_start(capsys)
    assert properties[name]["description"] == option.description
    assert properties[name]["title"]
    assert option.description.count("(default: ") == 1
    taken = {"env": dict, "snapshot_every": " ".join}.get(name, lambda value: value)
    assert taken(line) == example[name]
    assert held[name] == example[name]


def test_options_that_a_line_leaves_out_come_from_the_definition():
    """A parser has no defaults of its own."""
    assert set(vars(verb_parser().parse_line("start"))) == {"run"}


def test_none_stands_for_the_default_and_paths_for_text(tmp_path):
    """Callers of Session.start pass such values."""
    nothing = options.check(dict.fromkeys(ALL))

    assert nothing == options.check({})
    assert options.check({"tensorboard": tmp_path}).world.tensorboard == str(tmp_path)
    assert options.check({"env": os.environ}).world.env == dict(os.environ)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"n": 0}, "n must be a whole number, at least 1 and at most 1024, not 0."),
        ({"n": True}, "n must be a whole number, at least 1 and at most 1024, not True."),
        ({"n": 2.0}, "n must be a whole number, at least 1 and at most 1024, not 2.0."),
        ({"name": 3}, "name must be text, not 3."),
        ({"env": {"A": 1}}, "env must be a dict that maps text to text."),
        ({"env": {1: SECRET}}, "env must be a dict that maps text to text."),
        ({"env": SECRET}, "env must be a dict that maps text to text."),
        ({"chief": 1}, "chief must be True or False, not 1."),
        ({"ps": -1}, "ps must be a whole number, at least 0, not -1."),
        ({"torch_backend": "mpi"}, "torch_backend must be auto, nccl or gloo, not 'mpi'."),
        ({"size": 2}, f"There is no option 'size'. The options are {', '.join(ALL)}."),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_words(values, words):
    """One sentence with the fix; values of variables are in none."""
    with pytest.raises(BadRequest) as caught:
        options.check(values)

    assert str(caught.value) == words
    assert SECRET not in repr(caught.value.__cause__)


@pytest.mark.parametrize(
    ("values", "launcher", "words"),
    [
        ({"ssh_args": "-p 2222"}, None, "ssh_args is for the launcher 'Hosts over ssh': choose it with hosts or host"),
        ({"hosts": "a:2"}, "local", "hosts is for the launcher 'Hosts over ssh': choose it with hosts or hostfile."),
        ({}, "moon", "There is no launcher 'moon'. There is: local, hosts"),
    ],
)
def test_options_of_another_launcher_are_refused(values, launcher, words):
    """The error says how to choose the launcher."""
    with pytest.raises(BadRequest) as caught:
        options.check(values, launcher)

    assert str(caught.value).startswith(words)


def test_a_launcher_that_a_dialog_names_needs_no_flag():
    """The choice of the launcher says the same."""
    assert options.check({}, "slurm").launcher_values["slurm"]
    assert "slurm" not in options.schema("slurm")["properties"]
    assert "nodes" in options.schema("slurm")["properties"]


def test_options_choose_their_launcher():
    """Without any, the ranks run here; a dialog sends values that are the default."""
    assert options.check({"n": 2}).launcher.name == "local"
    assert options.check({"hosts": "a:2"}).launcher.name == "hosts"
    assert options.check({"hosts": "a:2"}).launcher_values["hosts"] == "a:2"
    assert options.check({"hosts": None, "python": None}).launcher.name == "local"


def test_a_dialog_reads_its_own_labels():
    """The sidebar's fields have titles."""
    with pytest.raises(BadRequest, match="Parameter servers must be a whole number, at least 0, not -1"):
        options.check({"ps": -1}, titled=True)


def test_values_of_variables_are_in_no_repr(example):
    """A traceback or a log may show any object."""
    del example["hostfile"]  # it and hosts exclude each other
    asked = options.check(example)
    request = starting._make_request(asked, asked.place(), Settings(), None)
    starting._remove_folders(request)

    assert SECRET not in repr(request)
    assert SECRET not in repr(options.check(example))
    assert "hidden" in repr(request)


def test_importing_the_package_reads_no_declarations():
    """The extension does not either; the first look at the options does."""
    code = (
        "from IPython.testing.globalipapp import start_ipython\n"
        "shell = start_ipython()\n"
        "import jupyter_dtrain; jupyter_dtrain.load_ipython_extension(shell)\n"
        "from jupyter_dtrain import Session\n"
        "from jupyter_dtrain.core.declarations import declarations\n"
        "print(declarations.cache_info().misses)\n"
        "Session.start\n"
        "print(declarations.cache_info().misses)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60, text=True)

    assert answer.stdout.split()[-2:] == ["0", "1"]


def test_a_frameworks_option_is_everywhere_as_well(tmp_path):
    """A package adds one with an entry point. Options that cannot be used are logged and left out."""
    metadata = tmp_path / "quick-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: quick\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "quick_declared.py").write_text(PLUGIN)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    answer = subprocess.run(
        [sys.executable, "-c", SHOW],
        capture_output=True,
        check=True,
        timeout=60,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "JUPYTER_RUNTIME_DIR": str(tmp_path), "JUPYTER_DATA_DIR": str(tmp_path)},
    )
    shown = json.loads(answer.stdout)

    assert shown["signature"] == ["typing.Literal['slow', 'fast']", "slow"]
    assert "* ``speed``: how fast (default: slow)" in shown["docstring"]
    assert "--speed {slow,fast}" in shown["help"]
    assert shown["schema"]["speed"]["enum"] == ["slow", "fast"]
    assert shown["line"] == {"speed": "fast", "eager": False, "share": 0.5}
    assert shown["request"]["quick"] == {"speed": "fast", "eager": True, "share": 1.0}
    assert shown["roles"] == ["runner", "runner"]
    assert list(shown["schema"])[:5] == NAMES[:5]
    assert {"no_default", "layers"}.isdisjoint(shown["schema"])
    for name in ("taken", "needed", "strange"):
        assert f"The start options of {name} cannot be used" in answer.stderr
    assert "declaration of the framework missing cannot be loaded" in answer.stderr
