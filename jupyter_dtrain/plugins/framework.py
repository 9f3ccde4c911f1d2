"""The contract between a rank's engine and the plug-ins for frameworks, cut into small capabilities.

The core names no framework. Each framework is a class that derives from :class:`Framework`, found by the entry point
group ``jupyter_dtrain.frameworks``. Importing a plug-in imports no framework: the plug-in hooks into the import that
the user's code does later (:meth:`.Patch.when_imported`). A framework that is not installed costs nothing.

:class:`Framework` offers nine capabilities, one class for each noun below: :class:`Start`, :class:`Description`,
:class:`Cells`, :class:`Values`, :class:`Snapshots`, :class:`Memory`, :class:`Waiting`, :class:`Recovery` and
:class:`Server`. A plug-in overrides the members that it has something to do in. A rank never asks a plug-in for a
member that it left alone.

Members with several arguments are called by name, and a plug-in takes only the arguments that it needs::

    class Mine(Framework):
        name = "mine"

        def before_cell(self, watch: Watching) -> None:  # the contract: before_cell(run, generation, watch, ranks)
            self._on = watch.metrics

Under failure: all calls go through :class:`~jupyter_dtrain.rank.plugins.Plugins`, which guards each of them. A member
that raises is logged once, the next cell names it, and the rank goes on with the answers of the other plug-ins. The
contract of a member says so where an exception is an answer instead.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import CodeType, FrameType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_dtrain.core.contents import Kind, PartSummary
from jupyter_dtrain.core.frames import variables_of

if TYPE_CHECKING:
    from pathlib import Path

    from jupyter_dtrain.core.framework_report import FrameworkReport
    from jupyter_dtrain.core.memory import DeviceMemory
    from jupyter_dtrain.core.stacks import Collective
    from jupyter_dtrain.core.traces import GroupOf
    from jupyter_dtrain.core.variables import Variable


_OF_IPYTHON = re.compile(r"_+|_\d+|_i+\d*|_[iod]h")
"""``_``, ``_12``, ``_i12`` and the like."""


GROUP = "jupyter_dtrain.frameworks"

Read = Callable[[Sequence[Any]], Sequence[float]]
"""Reads many values at once that may still be on a device; waits for them."""


class CellEnds(BaseException):
    """A framework raises it where a script would wait for ever: the cell ends well here, on this rank."""


class NothingToJoin(RuntimeError):
    """A framework raises it in a rank that joins a run, where the others have none left that it could join.

    The rank's cell ends as interrupted: neither its code nor that of the others has failed.
    """


class Doing(NamedTuple):
    """What a function, or a call, does in a step of training."""

    part: str
    """One of :data:`jupyter_dtrain.core.step_time.PARTS`."""
    call: str = ""
    """For communication: the collective, such as ``all_reduce``."""


class Part(ABC):
    """One part of a user's variable: what it is, its digest, its norm and its bytes.

    A framework has a class of its own for its tensors. A part whose values cannot be read has an empty digest, and
    nobody takes it for equal.
    """

    name: str
    kind: Kind
    steady: bool = True
    """Whether another thread may read its values while a cell runs, which may free their memory meanwhile."""

    @abstractmethod
    def facts(self) -> PartSummary:
        """Describe the part, without looking at its values."""

    @abstractmethod
    def digest(self) -> str:
        """Digest the values in their order; empty where they cannot be read. Devices make no difference."""

    @abstractmethod
    def norm(self) -> float | None:
        """The 2-norm of the values; None where they are no numbers."""

    def words(self) -> str:
        """The value itself as text, where it is short; else empty."""
        return ""

    def read(self, _start: int, _stop: int) -> bytes:
        """The bytes of the values from ``start`` to ``stop``."""
        return b""

    def copy(self, _places: Sequence[slice], /) -> Callable[[], Any]:
        """Copy the values at ``places``, slices of the axes; a single slice is of all values, in some order.

        The copy stays as the values are now. What comes back gives it as an array of numpy's, and may wait for a
        device: another thread calls it, once. Raises :class:`ValueError` where there are no such values.
        """
        raise ValueError("its values cannot be read")

    def distance(self, _start: int, _data: bytes) -> tuple[float, float, int]:
        """How far the bytes from ``start`` on are from ``data``, which :meth:`read` has read on another rank.

        The largest absolute difference, the sum of the squares of all, and the number of elements that differ.
        """
        return math.nan, math.nan, 0


class TensorMemory(NamedTuple):
    """Memory that a tensor of a framework's takes, with all that shares it, such as views."""

    key: Hashable
    """Equal for all that share the memory: its device and address, where those are known without a wait."""
    size: int
    """Bytes on this rank."""
    type: str
    shape: tuple[int, ...] | None
    dtype: str
    device: str
    """Such as ``cpu`` or ``cuda:0``."""
    kind: Kind | None = None
    """None: that of the place in which it was found."""
    graph: bool = False
    """Whether it keeps the graph of a backward pass."""


class Owned(NamedTuple):
    """The words for a place that is named after a tensor, such as ``.state[model.weight].exp_avg``."""

    before: str
    tensor: Any
    after: str
    otherwise: str
    """Stands for the tensor where it has no name."""


class Inner(NamedTuple):
    """An object inside another."""

    words: str | Owned
    """How the name of the outer one goes on, such as ``.weight`` or ``[3]``."""
    value: Any
    kind: Kind | None = None
    """The role of tensors there; None: that of the outer one."""


class Holds(NamedTuple):
    """Memory of an object's own, and the objects inside it."""

    own: TensorMemory | None = None
    inside: Sequence[Inner] = ()


class HeldState(ABC):
    """What a training needs to go on from one of its steps, as a copy in this rank's memory."""

    names: Sequence[str]
    """The variables that it is of."""
    size: int
    """Bytes of the copy."""
    finite: bool
    """Whether all numbers in it are finite."""

    @abstractmethod
    def put_back(self) -> None:
        """Copy it back into the objects that it is of, in place. Wait for no rank. Raises what stands in the way."""


class Settable(NamedTuple):
    """Where a framework keeps a value that a person may set between two steps: in one place, or in several alike."""

    values: Sequence[Any]
    """What is there now, one for each place."""
    put: Callable[[Sequence[Any]], object]
    """Writes a value into each place."""
    note: str = ""
    """What a person who sets it must know, as a clause; empty for nothing."""


Look = Callable[[Any, bool], Holds]
"""Looks into one object. The second argument: whether no cell runs, and none begins before it returns."""


class Recording(ABC):
    """One use of a framework's profiler, for some steps of a loop. The thread of the loop calls all but :meth:`write`.

    Whatever it raises is told to who has asked for the profile, and the training goes on.
    """

    cut: str = ""
    """Why it has ended by itself, as a clause; empty while it has not."""

    @abstractmethod
    def prepare(self) -> None:
        """Load what the profiler needs, a step before :meth:`start`: it may take seconds."""

    @abstractmethod
    def start(self) -> None:
        """Begin to record this thread, and the devices of the rank."""

    def complete(self) -> bool:
        """Wait for what the loop has begun, some seconds at most, where the framework computes while the loop goes on.

        Called after each step, before the time is taken: so all that belongs to a step is within it. Interrupts arrive.
        Return whether all is done.
        """
        return True

    def may_stop(self) -> bool:
        """Whether it may be stopped now: False while other threads still write into what it records.

        The loop goes on meanwhile, so more steps are recorded. After some seconds it is stopped all the same.
        """
        return True

    @abstractmethod
    def stop(self) -> None:
        """End that; do nothing where it has ended, or never began. It is called again where an interrupt broke it."""

    @abstractmethod
    def write(self, path: Path) -> list[GroupOf]:
        """Write what was recorded to ``path`` in Chrome's JSON format, once it was stopped. Any thread.

        Return the groups of the collectives in it, where the trace does not name them and this framework knows them.
        """


class Start:
    """Before user code. Members are called once, on the main thread, in the order in which they stand here."""

    def introduce(self) -> str:
        """Return what the other ranks need to know of this rank, such as where it will listen; empty for nothing.

        All ranks wait for each other's introductions: do here only what takes no time.
        """
        return ""

    def meet(self, introductions: list[str]) -> None:
        """Take the introductions of all ranks to this framework, by rank: at the start, and before :meth:`rejoin`."""

    def environment(self, *_: Any, **__: Any) -> dict[str, Variable]:
        """``environment(place: Placement, spec: RankSpec)``: return variables to set, each with its reason.

        A variable that the user has set keeps the user's value. A plug-in that sets variables later, such as at an
        import, offers them to :data:`jupyter_dtrain.core.variables.given`.
        """
        return {}

    def prepare(self, *_: Any, **__: Any) -> None:
        """``prepare(place: Placement, spec: RankSpec, metrics: MetricBuffer)``: hook into the framework's import.

        ``metrics``: takes the losses. A plug-in that raises here is not asked for anything afterwards.
        """


class Description:
    """The framework as this rank sees it. Any thread may ask, also while a cell runs."""

    def describe(self) -> FrameworkReport | None:
        """Return what the framework sees in this rank; None where there is nothing to say.

        Import nothing and wait for nothing. The reader sees an exception in place of the facts.
        """
        return None

    def in_use(self) -> str:
        """Return what people call this framework, if user code has imported it; else empty."""
        return ""

    def configuration(self) -> dict[str, dict[str, Any]]:
        """Return what is known of the training in this cell: hyper-parameters by name, by the object that has them.

        Such as ``{"optimizer": {"optimizer": "SGD", "lr": 0.1}}``; empty before there is a training. Values are
        numbers, text, booleans, None and small containers of these. Import nothing and wait for nothing, also for no
        device.
        """
        return {}


class Cells:
    """Around each cell. Members are for the main thread, but for :meth:`is_log`."""

    services: tuple[str, ...] = ()
    """Words in the command lines of processes that the framework starts in one cell and counts on in later ones.

    The end of an interrupted cell leaves them alone, with all that is beneath them."""

    def before_cell(self, *_: Any, **__: Any) -> None:
        """``before_cell(run: int, generation: int, watch: Watching, ranks: Sequence[int])``: a cell is about to run.

        ``run``: the number of the run; it is equal on all ranks of the run, and no other run of the world has it.
        ``generation``: the world's. ``watch``: what the cell wants to see. ``ranks``: those of the run. An interrupt
        may end a wait in here.
        """

    def before_joining(self, _run: int, /) -> None:
        """``before_joining(run)``: the cell that is about to run is that of ``run``, which goes on in other ranks.

        Called after :meth:`before_cell`, in a rank that is new: it runs the cell from its beginning, and is to join the
        others. A framework that cannot give it their state must not let it begin alone.
        """

    def after_cell(self, *_: Any, **__: Any) -> None:
        """``after_cell(failed: bool)``: the cell has ended; add points of its metrics that still wait.

        ``failed``: whether the cell has failed in this rank, or was interrupted. Interrupts do not arrive in here, but
        the exception that Stop raises last does. After a failed cell, return within 10 s.
        """

    def children_ended(self, _pids: set[int], /) -> None:
        """``children_ended(pids)``: let go of objects that need these processes.

        The cell that has just been interrupted had started them, and the rank has ended them. It may have had none.
        """

    def steps(self) -> dict[str, int]:
        """Return how many steps each optimizer has made in this cell, by its variable; empty where none count."""
        return {}

    def follow_steps(self, _call: Callable[[int], object] | None, /) -> None:
        """``follow_steps(call)``: after each step of the optimizer that steps first, call ``call`` with its number.

        The number counts this cell's steps, from 1; the call comes on the thread of the training loop. None ends that.
        """

    def stepping(self) -> Any:
        """Return the optimizer that steps first in this cell, see :meth:`follow_steps`; None before its first step."""
        return None

    def recording(self) -> Recording | None:
        """Return a fresh use of the framework's profiler; None where there is nothing yet that it could record.

        Any thread may ask, also while a cell runs. In a cell in which no framework shows steps (:meth:`follow_steps`),
        those that the loop logs are counted, and frameworks that never show any are asked first.
        """
        return None

    def is_log(self, _line: str, /) -> bool:
        """``is_log(line)``: whether native code or a child process has written ``line`` as a log that no cell shows.

        The spool and ``Run.text`` keep such lines. Be quick. A thread of the rank asks for each line.
        """
        return False


class Values:
    """The contents of the framework's tensors. The main thread asks, from user code."""

    def on_host(self, value: Any) -> Any:
        """Return ``value`` with this framework's tensors, however deep in it, as tensors on the host.

        Raises :class:`ValueError` for a tensor that is spread over ranks, so that no rank has all of it. Any other
        exception says as well why the value cannot be sent.
        """
        return value

    def number(self, _value: Any, /) -> tuple[Any, Read] | None:
        """``number(value)``: for a tensor with one element, what to add to the metrics and what reads it later.

        None for values of any other kind. Raises :class:`ValueError` for a tensor that is no number; the cell shows
        why.
        """
        return None

    def parts(self, *_: Any, **__: Any) -> list[Part] | None:
        """``parts(name: str, value: Any, namespace: Mapping[str, Any])``: the parts of one of the user's variables.

        For a tensor of this framework the tensor itself, for a model its weights and what belongs to them; None for a
        value of any other kind. ``namespace``: the user's names. Wait for no other rank, and compute nothing yet. Any
        thread may ask, also while a cell runs.
        """
        return None

    def setting(self, *_: Any, **__: Any) -> Settable | None:
        """``setting(value: Any, path: str, name: str, namespace: Mapping[str, Any])``: where to set a value.

        ``path``: what follows ``value`` in the ``name`` of what a person wants to set: ``.lr`` or ``[1].lr`` after
        ``opt``; it may be empty. None where the framework knows no better than to set an attribute, an item
        or a variable. ``namespace``: the names that the loop sees. Change nothing yet. The thread of the loop asks,
        between two of its steps, and calls ``put`` there, on all ranks or on none; wait for no rank.
        """
        return None

    def states(self, _namespace: Mapping[str, Any], /) -> list[Part]:
        """``states(namespace)``: random states and step counters, which decide what a rank does next."""
        return []


class Snapshots:
    """The state of models, optimizers and spread arrays on disk, for a world of any size.

    The main threads of all ranks ask together. Each rank pickles everything else: an object with ``state_dict`` as its
    state.
    """

    def save_values(self, *_: Any, **__: Any) -> tuple[Any, ...]:
        """``save_values(values: Mapping[str, Any], namespace: Mapping[str, Any], size: int)``: copy states to memory.

        Return the names of those of ``values`` that this framework saves, and this rank's files as bytes, by name;
        other ranks' files have other names. A third item may be a list of sentences that the user must know of the
        snapshot. ``size``: ranks in the world. Nothing is saved where the names differ between ranks. A file
        ``NAME.json`` that several ranks return must be the same on all of them, else nothing is saved: so they can
        compare how they describe a variable. May wait for the other ranks. Raises what stands in the way. Change
        nothing: the training goes on.
        """
        return [], {}

    def misfit(self, *_: Any, **__: Any) -> str:
        """``misfit(values: Mapping[str, Any], namespace: Mapping[str, Any], folder: Path)``: why not to load.

        ``folder`` has the files of all ranks. Empty where the saved states fit ``values``. Change nothing, and wait for
        no rank.
        """
        return ""

    def load_values(self, *_: Any, **__: Any) -> list[str] | None:
        """``load_values(values: Mapping[str, Any], namespace: MutableMapping[str, Any], folder: Path)``: load states.

        It gives objects their states, or binds names in ``namespace`` to new ones. Return sentences about what came
        otherwise than it was saved. May wait for the other ranks. Raises what stands in the way.
        """


class Memory:
    """Memory of the rank: what holds it, how much there is on its GPU, and what happens when it runs out."""

    def holder(self, _kind: type, /) -> Look | None:
        """``holder(kind)``: what looks into objects of the type ``kind``, tensors, models or others; None for no such.

        Any thread may call it, also while a cell runs. It runs no code of the user's, waits for no device and for no
        rank, reads no values and keeps no object. Without it, the attributes and items of an object are looked through.
        """
        return None

    def hold(self, *_: Any, **__: Any) -> HeldState | None:
        """``hold(namespace: Mapping[str, Any], room: int)``: copy the state of a training to the host's memory.

        That of all models, optimizers, schedulers and scalers in ``namespace``, and the random states; None where there
        are none. Raises :class:`MemoryError` where the copy would take more than ``room`` bytes. Change nothing, and
        wait for no rank. The thread of the loop asks, between two of its steps.
        """
        return None

    def devices(self) -> list[DeviceMemory]:
        """Return the memory of each device that this framework uses, without a wait for it. Any thread."""
        return []

    def reserved(self) -> int | None:
        """Return the bytes of GPU memory that this framework holds; None where it uses none. Any thread."""
        return None

    def is_out_of_memory(self, _exception: BaseException, /) -> bool:
        """``is_out_of_memory(exception)``: whether the framework raises it when there is not enough memory.

        Any thread may ask.
        """
        return False

    def free_memory(self) -> None:
        """Give back the memory that is reserved and not in use."""


class Waiting:
    """The calls in which a thread of the rank waits for other ranks. Other threads ask while a cell runs."""

    def waits(self, *_: Any, **__: Any) -> str:
        """``waits(frame: FrameType, call: ast.Call | None, idle: bool)``: what a thread waits in.

        Return a word such as ``all_reduce``; empty where the thread does not wait for other ranks. ``frame``: its
        innermost frame. ``call``: the call at that place, where the user's source shows it. ``idle``: whether the
        thread uses no processor.
        """
        return ""

    def can_release(self, _call: str, /) -> bool:
        """``can_release(call)``: whether ``release`` ends a wait in ``call``, which :meth:`waits` has named.

        Where it does not, the cell says at once that only the end of the rank ends the wait.
        """
        return True

    def is_released(self, _exception: BaseException, /) -> bool:
        """``is_released(exception)``: whether it says that a rank which was released, or has died, has ended the call.

        A rank may notice before its own request to release comes.
        """
        return False

    def part_of(self, _code: CodeType, /) -> Doing | None:
        """``part_of(code)``: what a function of the framework does in a step; None where it says nothing.

        Asked once for each function in a cell. Any thread.
        """
        return None

    def part_at(self, *_: Any, **__: Any) -> Doing | None:
        """``part_at(frame: FrameType, call: ast.Call | None)``: what a native call does in a step; None for any other.

        ``frame``: the innermost of the main thread, which is in the middle of ``call``, where the source shows that.
        Asked once for each place in a cell. Any thread.
        """
        return None

    def sleeps(self, _part: str, /) -> str:
        """``sleeps(part)``: the call in which the main thread waits for other ranks if it sleeps in this part.

        Such as ``all_reduce``, in the backward pass of DDP on processors; empty where it sleeps for another reason. Be
        quick.
        """
        return ""

    def worked(self) -> int:
        """Return a count of what others, or other threads, do for this rank's cell: the cell moves while it rises."""
        return 0

    def collectives(self) -> list[Collective]:
        """Return the last few collectives that this rank has begun, of each group, where they are recorded."""
        return []


class Recovery:
    """Ranks that wait are freed, and groups are made whole again."""

    recovers_last: bool = False
    """Whether this framework stands on groups of another, which must be whole before :meth:`recover` is called."""

    def needs_regroup(self) -> bool:
        """Whether a set-up failed or groups were released, so that the next set-up must be in a new generation."""
        return False

    def is_apart(self) -> bool:
        """Whether this rank has begun something with other ranks that does not come about. Asked after a failed cell.

        If so, the groups must be made anew: the ranks' next calls would meet what others had begun.
        """
        return False

    def release(self) -> None:
        """Make every wait for other ranks raise. All ranks get this request together. Called on the control thread."""

    def recover(self, *_: Any, **__: Any) -> list[str]:
        """``recover(bound: frozenset[str], again: bool)``: make whole again what was released.

        A cell that runs on all ranks in a new generation comes next. ``bound``: the names that it binds anew before it
        reads them. ``again``: an error or an interrupt has ended the last try of this rank, in any framework. Returns
        sentences about what could not be made whole, each with the line that does it. Raises what stands in the way of
        recovery: the cell ends with that error, and the next cell tries again. An interrupt may end a wait in here.
        """
        return []

    def cannot_heal(self) -> str:
        """Return a sentence on what stays broken here when ranks are replaced or added; empty where nothing does.

        Asked on the control thread, before a heal or a resize.
        """
        return ""

    def forbids_heal(self) -> str:
        """Return why no heal and no resize can work here, as a clause; empty where they can.

        Asked like :meth:`cannot_heal`.
        """
        return ""

    def forbids_fewer(self) -> str:
        """Return why the world cannot lose ranks that live, as a clause; empty where it can.

        Such as a variable that is spread over all ranks: its parts on those that end would be lost. Asked like
        :meth:`cannot_heal`, before a resize to fewer ranks.
        """
        return ""

    def bequeath(self) -> str:
        """Return what a rank that is new must know to come along in :meth:`recover`; empty for nothing.

        Asked in a living rank, on a thread of its own, while it runs no cell.
        """
        return ""

    def inherit(self, _heritage: dict[int, str], /) -> None:
        """``inherit(heritage)``: in a rank that is new in a world that runs, take what living ranks have left, by rank.

        Called once, on the main thread, after ``prepare``.
        """

    def rejoin(self) -> None:
        """In a living rank: there are new ranks, or fewer ones, and MPI's world is a new one.

        The :class:`~jupyter_dtrain.core.world.Placement` that ``prepare`` got says how many ranks there are now.

        Called on the control thread, while the rank runs no cell. The next cell of all ranks recovers.
        """


class Server:
    """Processes that the steward runs for this framework. The steward reads these, not the rank."""

    rendezvous: str | None = None
    """Module that serves as the world's rendezvous store when run with ``-m``, or None. It gets a listening socket:
    see :mod:`jupyter_dtrain.steward.rendezvous`."""

    server: str | None = None
    """Module that the steward runs like :attr:`rendezvous`, at an address of its own, for this framework alone.

    Ranks find the address in the options of their :class:`~jupyter_dtrain.wire.requests.RankSpec`, by the plug-in's
    name.
    """


class Framework(Start, Description, Cells, Values, Snapshots, Memory, Waiting, Recovery, Server):
    """One framework in one rank. Override the members of the capabilities that it has; give it a :attr:`name`."""

    name: str
    """The plug-in's own; no other plug-in has it."""


CAPABILITIES: tuple[type, ...] = (Start, Description, Cells, Values, Snapshots, Memory, Waiting, Recovery, Server)

MEMBERS: tuple[str, ...] = tuple(name for one in CAPABILITIES for name in vars(one) if not name.startswith("_"))
"""The names of all members of all capabilities."""

ATTRIBUTES: tuple[str, ...] = tuple(name for name in MEMBERS if not callable(getattr(Framework, name)))
"""The members that are data."""

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "environment": ("place", "spec"),
    "prepare": ("place", "spec", "metrics"),
    "before_cell": ("run", "generation", "watch", "ranks"),
    "after_cell": ("failed",),
    "waits": ("frame", "call", "idle"),
    "part_at": ("frame", "call"),
    "recover": ("bound", "again"),
    "parts": ("name", "value", "namespace"),
    "setting": ("value", "path", "name", "namespace"),
    "hold": ("namespace", "room"),
    "save_values": ("values", "namespace", "size"),
    "misfit": ("values", "namespace", "folder"),
    "load_values": ("values", "namespace", "folder"),
}
"""The members that are called by name, each with all arguments that it may take."""


MOST_ITEMS = 1000
"""The items of a dictionary in which :func:`value_of` looks."""
_OWN_REFERENCES = 3
"""Those that a frame, a variable and an argument have to one object."""


def locals_of(frame: FrameType) -> Mapping[str, Any]:
    """The variables of a frame, of which nothing stays behind: a look at a training must not keep its tensors.

    Before Python 3.13, ``f_locals`` of a function's frame is a copy that the frame keeps until the function ends.
    """
    found = variables_of(frame)
    if type(found) is not dict or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return found
    kept = dict(found)
    # The function itself may hold it, as locals() gives the same copy. And of a frame that is traced, Python puts the
    # copy back.
    if sys.getrefcount(found) <= _OWN_REFERENCES and frame.f_trace is None:
        found.clear()
    return kept


def value_of(frame: FrameType, node: ast.expr) -> Any:
    """The value of a name, or of attributes and items of one, found without running anybody's code; else None.

    A property, and an item of anything but a list, a tuple or a dictionary, is code.
    """
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return locals_of(frame).get(name, frame.f_globals.get(name))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
        case ast.Attribute(value=inner, attr=attr):
            return _attribute(value_of(frame, inner), attr)
        case ast.Subscript(value=inner, slice=index):
            return _item(value_of(frame, inner), value_of(frame, index))
    return None


def _attribute(owner: Any, name: str) -> Any:
    if owner is sys.modules.get("jupyter_dtrain"):
        return getattr(owner, name, None)  # it makes some when they are asked for, by code of ours
    with contextlib.suppress(AttributeError):
        own = object.__getattribute__(owner, "__dict__")
        if name in own:
            return own[name]
    for kind in _order(type(owner)):
        if name in (of_class := type.__getattribute__(kind, "__dict__")):
            found = of_class[name]
            if type(found) is MemberDescriptorType:  # of __slots__
                with contextlib.suppress(AttributeError):
                    return found.__get__(owner)
            is_code = any("__get__" in type.__getattribute__(one, "__dict__") for one in _order(type(found)))
            return None if is_code else found
    return None


class Attributes:
    """Reads the attributes that objects of one type keep themselves, without running anybody's code."""

    def __init__(self, kind: type) -> None:
        self._dict: Any = None
        self._slots: dict[str, Any] = {}
        for one in _order(kind)[:-1]:
            for name, found in type.__getattribute__(one, "__dict__").items():
                if name == "__dict__" and type(found) is GetSetDescriptorType:
                    self._dict = self._dict or found
                elif type(found) is MemberDescriptorType and not name.startswith("__"):
                    self._slots.setdefault(name, found)

    def of(self, value: Any) -> list[tuple[str, Any]]:
        """The attributes of ``value``, by name."""
        own = None if self._dict is None else self._dict.__get__(value)
        found = list(own.items()) if type(own) is dict else []
        for name, slot in self._slots.items():
            with contextlib.suppress(AttributeError):  # it was never set
                found.append((name, slot.__get__(value)))
        return found


def _order(kind: type) -> tuple[type, ...]:
    """``kind`` and its bases, without asking its metaclass."""
    order: tuple[type, ...] = type.__getattribute__(kind, "__mro__")
    return order


def _item(owner: Any, index: Any) -> Any:
    # Other threads may change what is read here.
    if type(owner) in (list, tuple) and type(index) is int:
        with contextlib.suppress(IndexError):
            return owner[index]
    if type(owner) is dict and type(index) in (int, str) and len(owner) <= MOST_ITEMS:
        # Not by a lookup, which may compare with a key of the user's.
        return next((value for key, value in list(owner.items()) if type(key) is type(index) and key == index), None)
    return None


def user_names() -> list[tuple[str, Any]]:
    """The names that user code has in this rank, with their values; without those that IPython keeps."""
    from IPython.core.interactiveshell import InteractiveShell

    if not InteractiveShell.initialized():
        return []
    names = list(InteractiveShell.instance().user_ns.items())
    return [(name, value) for name, value in names if not of_ipython(name)]


def of_ipython(name: str) -> bool:
    """Whether IPython keeps this name of a namespace for itself."""
    return bool(_OF_IPYTHON.fullmatch(name)) or name in {"In", "Out", "exit", "quit", "get_ipython", "open"}
