"""What made a run, without a line of code: its hyper-parameters, and what its process runs in, as events of the run.

A thread looks once the cell has logged its first point, or after :data:`LONG` seconds without one; again a few seconds
later, when libraries know more; and at the cell's end. A shorter cell without points says nothing. The training loop
does nothing for it. Hyper-parameters come from the code (:mod:`.settings_in_code`), from the arguments of functions of
the user's that run then, from argparse, from what the notebook sent, and from the plug-ins. The lowest rank of a run
says them; each rank says its environment.

Under failure: what cannot be read is left out, and the run goes on. The end of a cell waits at most :data:`PATIENCE`
seconds for the last look; the thread that took longer says nothing more, and the next run has another.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.configuration import clean_name, fields_of, stored
from jupyter_dtrain.core.environment import read_environment
from jupyter_dtrain.core.events import Body, ConfigOrigin, Configured
from jupyter_dtrain.core.frames import frame_of
from jupyter_dtrain.plugins.framework import locals_of
from jupyter_dtrain.plugins.libraries import is_library
from jupyter_dtrain.plugins.patches import Patch, caller

from .scripts import is_script, running_script
from .settings_in_code import MOST, CodeSetting, CodeSettings, found

if TYPE_CHECKING:
    from types import FrameType

    from jupyter_dtrain.core.world import Placement
    from jupyter_dtrain.wire.agent_messages import RunCell

    from .metrics import MetricBuffer
    from .plugins import Plugins

LONG: Final = 1.0
"""Seconds after which a run without points says what it is."""
LATER: Final = 5.0
"""Seconds between the first look and the second."""
PATIENCE: Final = 1.0
"""Seconds that the end of a cell waits for the last look."""
EARLIER: Final = 200
"""Cells before this one whose settings it may use."""
CELLS: Final = "<ipython-input-"
"""How the file names of cells begin."""
FRAMES: Final = 100
"""Calls of the main thread that are looked at."""

ARGUMENTS = Patch(
    "argparse",
    replaces=("ArgumentParser.parse_known_args",),
    why="The arguments of a script are hyper-parameters, and argparse gives them to the script alone.",
    lost="arguments that a script parses with argparse are missing in its run's configuration",
)


class _Run:
    """One cell that runs."""

    def __init__(self, cell: RunCell, *, first: bool) -> None:
        self.code = cell.code
        self.size = len(cell.ranks)
        self.sent = [one.name for one in cell.inputs]
        self.first = first
        """Whether this rank says the hyper-parameters."""
        self.wake = threading.Event()
        """Its first point has come, or its end."""
        self.ends = threading.Event()
        self.done = threading.Event()
        self.trains = False
        self.looks = False
        """Whether it is worth a look: it trains, or takes its time."""
        self.arguments: Any = None
        """What argparse has given to the user's code."""
        self.looked = False
        self.own: CodeSettings | None = None
        self.said: dict[str, tuple[ConfigOrigin, Any]] = {}


class Configuration:
    """Says what makes the runs of one rank. :meth:`begin` and :meth:`end` are for the main thread."""

    def __init__(
        self,
        place: Placement,
        emit: Callable[[Body], object],
        plugins: Plugins,
        metrics: MetricBuffer,
        namespace: Mapping[str, Any],
        devices: Callable[[], list[str]],
    ) -> None:
        """``namespace``: the user's; ``devices``: returns the names of those that the rank may use."""
        self._place = place
        self._emit = emit
        self._plugins = plugins
        self._metrics = metrics
        self._namespace = namespace
        self._devices = devices
        self._run: _Run | None = None
        self._lock = threading.Lock()
        """Held while an event is recorded, so that none goes to a later run."""
        self._earlier: list[str | CodeSettings] = []
        """Cells before: their code, or the settings in it."""
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None
        metrics.before_flush(self._points_come)

    def install(self) -> None:
        """Follow argparse. Once, before user code."""
        ARGUMENTS.when_imported(
            lambda module: ARGUMENTS.replace(module.ArgumentParser, "parse_known_args", self._parsed)
        )

    def begin(self, cell: RunCell) -> None:
        """Begin a run. A verb of this package's own says nothing."""
        if cell.cell.context.aside:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="dtrain-configuration", daemon=True)
            self._thread.start()
        self._run = _Run(cell, first=self._place.rank == min(cell.ranks))
        self._begun.set()

    def end(self) -> None:
        """End the run, once its cell has ended and before its last event."""
        run = self._run
        if run is None:
            return
        run.trains = run.trains or self._metrics.has_points
        run.ends.set()
        run.wake.set()
        if (run.trains or run.looks) and not run.done.wait(PATIENCE):
            self._thread = None  # the next run has another; this one ends by itself
        with self._lock:
            self._run = None
        self._earlier.append(run.own or run.code)
        del self._earlier[:-EARLIER]

    def _points_come(self) -> None:
        run = self._run
        if run is not None and not run.wake.is_set():
            run.trains = True
            run.wake.set()

    # The thread.

    def _loop(self) -> None:
        own = threading.current_thread()
        while own is self._thread:
            self._begun.wait()
            self._begun.clear()
            run = self._run
            if run is None:
                continue
            run.wake.wait(LONG)
            run.looks = run.trains or not run.ends.is_set()
            if run.looks:
                self._look(run)
                if not run.ends.wait(LATER):
                    self._look(run)
                    run.ends.wait()
                self._look(run)
            run.done.set()

    def _look(self, run: _Run) -> None:
        begins, run.looked = not run.looked, True
        with contextlib.suppress(Exception):  # whatever the user's objects, or libraries, are
            if run.first:
                self._say(run, self._found(run))
        if begins:
            with contextlib.suppress(Exception):  # as above
                script = running_script()
                command = [] if script is None else script.command
                self._record(run, read_environment(self._devices(), command))

    def _say(self, run: _Run, values: Mapping[str, tuple[ConfigOrigin, Any]]) -> None:
        by_origin: dict[ConfigOrigin, dict[str, Any]] = {}
        for name, (origin, value) in values.items():
            if run.said.get(name) != (origin, value):
                run.said[name] = (origin, value)
                by_origin.setdefault(origin, {})[name] = value
        for origin, told in by_origin.items():
            self._record(run, Configured(told, origin))

    def _record(self, run: _Run, body: Body) -> None:
        with self._lock:
            if run is self._run:
                self._emit(body)

    # What it finds.

    def _found(self, run: _Run) -> dict[str, tuple[ConfigOrigin, Any]]:
        values: dict[str, tuple[ConfigOrigin, Any]] = {}
        for name in run.sent:
            for one in found(name, self._namespace.get(name)):
                _add(values, run, one, "sent")
        for one in self._in_code(run):
            if len(values) >= MOST:
                break
            if one.name not in run.sent:
                _add(values, run, one, "cell")
        sections = {"world": {"world_size": run.size}, **self._plugins.configuration()}
        for section, known in sections.items():
            for name, value in known.items():
                _add(values, run, CodeSetting(name, value, section, again=True), "library")
        return values

    def _in_code(self, run: _Run) -> Iterator[CodeSetting]:
        script = running_script()
        namespace = dict(self._namespace) if script is None else dict(script.namespace)
        if run.own is None:
            run.own = CodeSettings(run.code if script is None else ast.parse(script.source or b""))
        earlier = self._read_earlier()
        known = [name for cell in earlier for name in cell.assigned]
        definitions = {name: one for cell in earlier for name, one in cell.definitions.items()}
        yield from run.own.settings(namespace, dict.fromkeys(known), definitions)
        if run.arguments is not None:
            yield from found("args", run.arguments)
        if not run.ends.is_set():
            yield from self._in_calls()

    def _read_earlier(self) -> list[CodeSettings]:
        """The settings in earlier cells. Those are read now, where a run is one that needs them."""
        found = []
        for place, cell in enumerate(self._earlier):
            read = CodeSettings(cell) if isinstance(cell, str) else cell
            self._earlier[place] = read
            found.append(read)
        return found

    def _in_calls(self) -> Iterator[CodeSetting]:
        """The arguments of the user's functions that the main thread is in, and the configurations that they hold."""
        inner: list[FrameType] = []
        frame = frame_of(threading.main_thread().ident)
        while frame is not None and len(inner) < FRAMES:
            code = frame.f_code
            if code.co_name == "<module>" and (code.co_filename.startswith(CELLS) or is_script(code.co_filename)):
                break  # what is outside of it is no code of the cell
            if code.co_flags & inspect.CO_OPTIMIZED and _is_users(code.co_filename):
                inner.append(frame)
            frame = frame.f_back
        else:
            return
        for one in inner:
            code = one.f_code
            arguments = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
            for name, value in locals_of(one).items():
                if name in arguments or (type(value) is not dict and fields_of(value) is not None):
                    yield from found(name, value, code.co_name)

    def _parsed(self, original: Any, parser: Any, *args: Any, **kwargs: Any) -> Any:
        """Note what argparse gives to the user's code. IPython and libraries parse as well."""
        result = original(parser, *args, **kwargs)
        frame = caller()
        if frame.f_code.co_name == "parse_args" and frame.f_back is not None:
            frame = frame.f_back
        run = self._run
        if run is not None and _is_users(frame.f_code.co_filename):
            run.arguments = result[0]
        return result


def _is_users(file: str) -> bool:
    """Whether code is the user's: a cell's, or of a file outside of libraries."""
    return file.startswith(CELLS) if file.startswith("<") else not is_library(file)


def _add(values: dict[str, tuple[ConfigOrigin, Any]], run: _Run, setting: CodeSetting, origin: ConfigOrigin) -> None:
    """Add a setting. One of a name that has another value is ``FUNCTION.NAME``."""
    name = clean_name(setting.name)
    try:
        value = stored(name, setting.value)
    except ValueError:
        return
    if name in values and values[name][1] != value and setting.function:
        name = clean_name(f"{setting.function}.{setting.name}")
    if name in values:
        return
    before = run.said.get(name)
    if before is not None and before[0] == origin and not setting.again:
        value = before[1]  # that of the first step
    values[name] = origin, value
