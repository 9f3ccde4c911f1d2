"""Plug-ins get calls of the members that they have, with the arguments that they take; their errors stay with them."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_dtrain.core.framework_report import FrameworkReport
from jupyter_dtrain.core.stacks import Collective
from jupyter_dtrain.core.variables import Variable
from jupyter_dtrain.plugins.framework import ARGUMENTS, ATTRIBUTES, MEMBERS, Framework
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.wire.messages import Watching

WATCH = Watching()


class Plain(Framework):
    """Has a name and no capability."""

    name = "plain"


def plugins_of(*plugins):
    """The plug-ins and what was logged about them."""
    logged: list[str] = []
    return Plugins([(plugin.name, plugin) for plugin in (Plain(), *plugins)], logged.append), logged


def named(name, **members):
    """A plug-in with these members."""
    return type("Made", (Framework,), {"name": name, **members})()


def raising(error):
    """A member that raises this."""

    def member(self, *args, **kwargs):
        raise error

    return member


def ask_all(plugins):
    """Each member, by its name."""
    spec = SimpleNamespace()
    return {
        "introduce": plugins.introduce,
        "meet": lambda: plugins.meet([{}]),
        "environment": lambda: plugins.environment(spec, spec, lambda *_: None),
        "describe": plugins.describe,
        "configuration": plugins.configuration,
        "in_use": plugins.in_use,
        "before_cell": lambda: plugins.before_cell(1, 0, WATCH, [0]),
        "before_joining": lambda: plugins.before_joining(1),
        "after_cell": lambda: plugins.after_cell(failed=False),
        "services": plugins.services,
        "children_ended": lambda: plugins.children_ended({1}),
        "steps": plugins.steps,
        "follow_steps": lambda: plugins.follow_steps(None),
        "stepping": plugins.stepping,
        "recording": lambda: (plugins.profilers(), plugins.recording()),
        "is_log": lambda: plugins.is_log("line"),
        "on_host": lambda: plugins.on_host("value"),
        "number": lambda: plugins.number(1),
        "parts": lambda: plugins.parts("name", 1, {}),
        "hold": lambda: plugins.hold({}, 1),
        "setting": lambda: plugins.setting(1, ".lr", "opt.lr", {}),
        "states": lambda: plugins.states({}),
        "save_values": lambda: list(plugins.save_values({"name": 1}, {}, 1)),
        "misfit": lambda: plugins.misfit("absent", {"name": 1}, {}, Path()),
        "load_values": lambda: plugins.load_values("absent", {"name": 1}, {}, Path()),
        "holder": lambda: plugins.holder(int),
        "devices": plugins.devices,
        "reserved": plugins.reserved,
        "is_out_of_memory": lambda: plugins.is_out_of_memory(MemoryError()),
        "free_memory": plugins.free_memory,
        "waits": lambda: plugins.waits(inspect.currentframe(), None, idle=True),
        "part_of": lambda: plugins.part_of(inspect.currentframe().f_code),
        "part_at": lambda: plugins.part_at(inspect.currentframe(), None),
        "sleeps": lambda: plugins.sleeps("backward"),
        "can_release": lambda: plugins.can_release("bad", "all_reduce"),
        "is_released": lambda: plugins.is_released(MemoryError()),
        "worked": plugins.worked,
        "collectives": plugins.collectives,
        "needs_regroup": plugins.needs_regroup,
        "cannot_heal": plugins.cannot_heal,
        "forbids_heal": plugins.forbids_heal,
        "forbids_fewer": plugins.forbids_fewer,
        "bequeath": plugins.bequeath,
        "inherit": lambda: plugins.inherit({0: {"bad": "words"}}),
        "rejoin": plugins.rejoin,
        "is_apart": plugins.is_apart,
        "release": lambda: plugins.release([""]),
        "recover": lambda: list(plugins.recover()),
        "recovers_last": lambda: list(plugins.recover()),
        "rendezvous": plugins.rendezvous,
        "server": plugins.servers,
        # The last: who fails here is not asked again.
        "prepare": lambda: plugins.prepare(spec, spec, spec),
    }


NEUTRAL = {
    "load_values": [],
    "introduce": {},
    "describe": {},
    "configuration": {},
    "in_use": [],
    "services": [],
    "steps": {},
    "recording": ([], ("", None)),
    "is_log": False,
    "on_host": "value",
    "number": None,
    "hold": [],
    "setting": None,
    "states": [],
    "save_values": [],
    "misfit": "the framework 'absent', which saved name, is not installed here",
    "devices": [],
    "reserved": 0,
    "is_out_of_memory": False,
    "waits": None,
    "sleeps": "",
    "can_release": True,
    "is_released": False,
    "worked": 0,
    "collectives": [],
    "needs_regroup": False,
    "cannot_heal": [],
    "forbids_heal": [],
    "forbids_fewer": [],
    "bequeath": {},
    "is_apart": False,
    "recover": [],
    "recovers_last": [],
    "rendezvous": None,
    "server": {},
}
SPEAKS = ("describe", "on_host", "recover", "recording", "save_values", "misfit", "load_values")
"""Members whose exceptions are answers."""


def test_a_plugin_without_capabilities_is_asked_for_nothing():
    """The neutral answers."""
    plugins, logged = plugins_of()
    asked = ask_all(plugins)

    assert asked.keys() == set(MEMBERS)
    assert {name: ask() for name, ask in asked.items()} == {**dict.fromkeys(MEMBERS), **NEUTRAL}
    assert (plugins.take_notices(), logged) == ([], [])


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
@pytest.mark.parametrize("member", [name for name in MEMBERS if name not in SPEAKS])
def test_a_member_that_raises_is_named_once(member, kind):
    """The answer is the one without it; ValueError is an answer of ``number``."""
    raises = raising(kind("no"))
    plugins, logged = plugins_of(named("bad", **{member: property(raises) if member in ATTRIBUTES else raises}))
    if member == "recovers_last":
        plugins, logged = plugins_of(named("bad", recovers_last=property(raises), recover=lambda _: []))
    ask = ask_all(plugins)[member]
    if (member, kind) == ("number", ValueError):
        with pytest.raises(ValueError, match="no"):
            ask()
        return
    answers = [ask(), ask()]

    assert answers == [NEUTRAL.get(member)] * 2
    words = f"The plug-in 'bad' failed in {member}: {kind.__name__}: no. This rank goes on without it."
    assert plugins.take_notices() == [words]
    assert plugins.take_notices() == []
    assert len(logged) == 1
    assert logged[0].startswith(words)
    assert "Traceback" in logged[0]


@pytest.mark.parametrize(
    ("member", "answer"),
    [
        ("introduce", 1),
        ("environment", None),
        ("environment", {"NAME": "no variable"}),
        ("in_use", None),
        ("configuration", {"optimizer": 3}),
        ("steps", None),
        ("steps", {"optimizer": 2**70}),
        ("number", 1),
        ("number", (1, "no function")),
        ("holder", "no function"),
        ("devices", "many"),
        ("reserved", "much"),
        ("waits", None),
        ("worked", None),
        ("collectives", ["none"]),
        ("server", 5),
        ("rendezvous", 5),
    ],
)
def test_an_answer_of_another_kind_is_a_failure(member, answer):
    """It would fail where it is used, which no guard sees."""
    plugins, logged = plugins_of(named("bad", **{member: answer if member in ATTRIBUTES else lambda *_, **__: answer}))
    found = ask_all(plugins)[member]()

    assert found == NEUTRAL.get(member)
    assert len(logged) == len(plugins.take_notices()) == 1


def test_others_are_asked_beside_one_that_raises():
    """Those before it and after it are asked."""
    steps = [named(name, steps=lambda _, name=name: {name: 1}) for name in ("a", "c")]
    plugins, _ = plugins_of(steps[0], named("b", steps=raising(SystemExit(1))), steps[1])

    assert plugins.steps() == {"a": 1, "c": 1}


def test_an_interrupt_of_the_users_passes():
    """The rank recognises it; another KeyboardInterrupt is the plug-in's own."""
    sent = KeyboardInterrupt()
    plugins, logged = plugins_of(named("waiting", before_cell=raising(sent), recover=raising(sent)))
    plugins.is_interrupt = lambda error: error is sent
    for ask in (lambda: plugins.before_cell(1, 0, WATCH, [0]), lambda: list(plugins.recover())):
        with pytest.raises(KeyboardInterrupt):
            ask()

    assert logged == []


def test_exceptions_that_are_answers():
    """Some exceptions are documented answers, for example that a value is spread over ranks."""
    spread = named("spread", on_host=raising(ValueError("spread over ranks")), recover=raising(TimeoutError("late")))
    plugins, _ = plugins_of(spread)
    with pytest.raises(ValueError, match="spread over ranks"):
        plugins.on_host(1)
    with pytest.raises(TimeoutError, match="late"):
        list(plugins.recover())
    assert plugins.take_notices() == []

    plugins, _ = plugins_of(named("x", **{member: raising(SystemExit("no")) for member in SPEAKS}))
    asked = {
        "on_host": lambda: plugins.on_host(1),
        "recover": lambda: list(plugins.recover()),
        "recording": plugins.recording,
    }
    for member, ask in asked.items():
        with pytest.raises(RuntimeError, match=f"^The plug-in 'x' failed in {member}: SystemExit: no$"):
            ask()
    facts = FrameworkReport("x", "", "", imported=True, details={"unknown": "SystemExit: no"})
    assert plugins.describe() == {"x": facts}


def test_arguments_by_name():
    """A plug-in takes the arguments that it needs; one with names of its own gets all of them."""
    got = {}

    class Few(Framework):
        name = "few"

        def before_cell(self, watch):
            got["few"] = watch

        def after_cell(self):
            got["after"] = True

        def waits(self, frame, *, idle):
            return "here" if idle and frame is not None else ""

    class Whole(Framework):
        """Members of the old form: all arguments by position, with a call to the base class."""

        name = "whole"

        def environment(self, place, spec):
            return {**super().environment(place, spec), "PLACE": Variable(place, spec)}

        def before_cell(self, _run, _generation, _watch, _ranks):
            got["whole"] = (_run, _generation, _watch, _ranks)
            super().before_cell(_run, _generation, _watch, _ranks)

        def after_cell(self, *, failed):
            got["failed"] = failed

        def waits(self, _frame, _call, *, idle):
            return f"idle: {idle}" if _call is None else ""

    class Any(Framework):
        name = "any"

        def before_cell(self, *args):
            got["any"] = args

        def after_cell(self, **kwargs):
            got["kwargs"] = kwargs

    plugins, logged = plugins_of(Few(), Whole(), Any())
    offered = []
    plugins.environment("place", "spec", lambda *one: offered.append(one))
    plugins.before_cell(1, 2, WATCH, [0])
    plugins.after_cell(failed=True)
    frame = inspect.currentframe()

    assert offered == [({"PLACE": Variable("place", "spec")}, "whole")]
    assert got == {
        "few": WATCH,
        "whole": (1, 2, WATCH, [0]),
        "any": (1, 2, WATCH, [0]),
        "after": True,
        "failed": True,
        "kwargs": {"failed": True},
    }
    assert plugins.waits(frame, None, idle=True) == ("few", "here")
    assert plugins.waits(frame, None, idle=False) == ("whole", "idle: False")
    assert logged == []


def test_the_order_of_recovery_and_of_releases():
    """A framework that builds on others comes last; a release is for the named ones, or for all."""
    made, released = [], []
    plugins, _ = plugins_of(
        *(
            named(
                name,
                recovers_last=name == "a",
                recover=lambda self: made.append(self.name) or [f"{self.name} is lost"],
                release=lambda self: released.append(self.name),
            )
            for name in "abc"
        )
    )
    notes = list(plugins.recover())
    plugins.release(["b"])
    plugins.release([""])

    assert made == ["b", "c", "a"]
    assert notes == ["b is lost", "c is lost", "a is lost"]
    assert released == ["b", "a", "b", "c"]


def test_a_plugin_that_cannot_prepare_gets_no_other_call():
    """Nothing that it would have made is there."""
    plugins, _ = plugins_of(named("bad", prepare=raising(OSError("no")), in_use=lambda _: "Bad"))
    before = plugins.in_use()
    plugins.prepare(None, None, None)

    assert before == ["Bad"]
    assert plugins.in_use() == []


def test_a_text_that_cannot_be_made():
    """An exception whose own text raises is named by its type."""

    class Mute(Exception):
        def __str__(self):
            raise SystemExit

    plugins, logged = plugins_of(named("bad", steps=raising(Mute())))
    plugins.steps()

    assert plugins.take_notices() == ["The plug-in 'bad' failed in steps: Mute. This rank goes on without it."]
    assert len(logged) == 1


def test_collectives_are_data():
    """All plug-ins contribute."""
    one = Collective("0", [0, 1], 1, "all_reduce")
    plugins, _ = plugins_of(named("a", collectives=lambda _: [one]), named("b", collectives=lambda _: []))

    assert plugins.collectives() == [one]


def test_our_plugins_take_arguments_that_there_are():
    """Each member is one of the contract's, and takes what that has."""
    plugins = Plugins.load()

    assert plugins.take_notices() == []
    for kind in Framework.__subclasses__():
        if not kind.__module__.startswith("jupyter_dtrain."):
            continue
        for member, arguments in ARGUMENTS.items():
            own = inspect.signature(getattr(kind, member)).parameters
            inherited = getattr(kind, member) is getattr(Framework, member)
            assert inherited or own.keys() - {"self"} <= set(arguments), (kind, member)
        public = {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}
        assert public <= set(MEMBERS), kind


def test_frameworks_whose_steps_are_not_seen_are_named_where_no_other_is_in_use():
    """Those with models: a library that only communicates says nothing about a training."""

    def using(title):
        return {"in_use": lambda _self: title, "parts": lambda _self, _name, _value, _namespace: None}

    blind = named("blind", **using("Blind"))
    idle = named("idle", **using(""), follow_steps=lambda _self, _call: None)
    shows = named("shows", **using("Shows"), follow_steps=lambda _self, _call: None)
    talks = named("talks", in_use=lambda _self: "Talks")

    assert plugins_of(talks)[0].without_steps() == []
    assert plugins_of(talks, blind, idle)[0].without_steps() == ["Blind"]
    assert plugins_of(talks, blind, shows)[0].without_steps() == []


def test_profilers_of_frameworks_whose_steps_count_come_first():
    """Those that never show steps record loops of which no step was seen."""
    recordings = {name: object() for name in ("counts", "logs")}
    logs = named("logs", recording=lambda _self: recordings["logs"])
    counts = named("counts", recording=lambda _self: recordings["counts"], follow_steps=lambda _self, _call: None)
    plugins = plugins_of(logs, counts)[0]

    assert plugins.recording() == ("counts", recordings["counts"])
    assert plugins.recording(with_steps=False) == ("logs", recordings["logs"])
    absent = named("absent", recording=lambda _self: None)
    assert plugins_of(absent, counts)[0].recording(with_steps=False) == ("counts", recordings["counts"])
