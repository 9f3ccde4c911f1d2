"""The protocol: how a request, its answer and a broadcast look on the wire, and the number that says which one it is.

Every message is a :mod:`msgspec` struct. :mod:`.steward_messages` has those between clients and a world's steward,
:mod:`.agent_messages` those to ranks and their watches. A request names its answer by its base class, as in
``class Renew(StewardRequest[Driven], tag="renew")``; so ``channel.ask(Renew(...))`` returns a ``Driven``, and a type
checker knows it. Both sides decode by struct and encode with :func:`to_content`.

The messages travel as the content of signed Jupyter messages:

* a request carries ``op``, the tag of its struct, and the struct's fields;
* an answer carries ``status``: ``ok`` and the fields of the answer, or ``error`` and ``words``;
* a broadcast of the steward carries ``kind``, its tag, and its fields.

A reader ignores fields that it does not know, and a field that was added later has a default. So :data:`PROTOCOL`
grows only when an old and a new program could misunderstand each other: a message is gone, or a field changes its
meaning.

A world outlives ``pip install -U``: its steward speaks the number that it was started with. The number stands in the
world's listing file and in the steward's answers to ``request``, ``state`` and ``join``; a world without one speaks
:data:`UNNUMBERED`. A client reads it when it attaches and sends its own when it joins; where the two differ, either
side raises :class:`~jupyter_dtrain.core.errors.OtherVersion` with one sentence. Such a world can still be listed,
interrupted and stopped. **For these three,** :class:`~.steward_messages.ReadStatus`,
:class:`~.steward_messages.InterruptRun` **and** :class:`~.steward_messages.Stop` **keep their names, fields and meaning
for ever, whatever the number.** So do the fields of the listing file.

Under failure: a request that cannot be read, or whose handler raises, gets one answer with ``status`` ``error``; it
ends no thread. The asker gets :class:`~jupyter_dtrain.core.errors.Refused` with the words. An answer that is not what
the request promises raises the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, Generic, TypeVar, get_args, overload

import msgspec

from jupyter_dtrain.core.errors import OtherVersion, Refused
from jupyter_dtrain.core.events import RunContext
from jupyter_dtrain.core.structs import readable

PROTOCOL: Final = 5
"""The protocol that this version speaks."""
UNNUMBERED: Final = 0
"""The protocol of worlds that were started before protocols had numbers."""

RUN_MESSAGE: Final = "dtrain_run"
"""Shell message to a rank: :class:`~.agent_messages.RunCell`, with pickles in the buffers."""
VALUES_MESSAGE: Final = "dtrain_values"
"""Shell message to a rank: a :class:`~.agent_messages.ValuesRequest`, with pickles in the buffers."""
HELLO_MESSAGE: Final = "dtrain_hello"
"""Shell message to a rank, answered when the rank is idle. It shows that the rank can be reached."""
REQUEST_MESSAGE: Final = "dtrain_request"
"""Control message: an :class:`AgentRequest` or a :class:`~.agent_messages.WatchRequest`."""
REPLY_MESSAGE: Final = "dtrain_reply"
"""The answer of an agent or a watch."""

STEWARD_REQUEST: Final = "dtrain_world_request"
"""Control message: a :class:`StewardRequest`."""
STEWARD_REPLY: Final = "dtrain_world_reply"
"""The answer of the steward."""
STEWARD_EVENT: Final = "dtrain_world_event"
"""A broadcast of the steward: a :class:`~.steward_messages.Broadcast`."""

A = TypeVar("A", bound=msgspec.Struct)
M = TypeVar("M")


class Request(msgspec.Struct, Generic[A], frozen=True, tag_field="op"):
    """A request whose answer is an ``A``."""


class StewardRequest(Request[A], frozen=True):
    """A client's request to the steward."""


class AgentRequest(Request[A], frozen=True):
    """A request that the agent of a rank answers, whatever the main thread does."""


class Cell(msgspec.Struct, frozen=True):
    """One cell, as its notebook knows it."""

    number: int | None = None
    """The number that the notebook shows, such as 3 for ``In [3]``; None outside IPython."""
    id: str = ""
    """The cell's id in the notebook file; empty where the front end sends none, as a terminal or an old one."""
    run_name: str = ""
    """The name that the person gave the run of the cell."""
    above: int = 0
    """The lines above the code for the ranks, such as its magic. An editor counts them, so tracebacks do."""
    context: RunContext = RunContext()


class Watching(msgspec.Struct, frozen=True):
    """The measurements that a cell wants without a line of code."""

    metrics: bool = True
    grad_norm: bool = False
    step_time: bool = True
    """Where each rank spends its time, see :class:`~jupyter_dtrain.core.events.StepParts`."""
    check: str = ""
    """The model that is compared over ranks while the cell runs; empty for none."""
    check_every: int = 10
    """How many steps lie between two comparisons."""
    record_memory: bool = False
    """The memory of each rank over the cell, see :class:`~jupyter_dtrain.core.memory_record.RecordedMemory`."""
    ring: int = 0
    """How many states of the training each rank keeps in memory, the newest ones, for a way back."""
    ring_every: int = 0
    """How many steps lie between two of them."""


class Done(msgspec.Struct, frozen=True):
    """The answer that says only that the request was accepted."""


def to_content(message: msgspec.Struct) -> dict[str, Any]:
    """``message`` as the content of a Jupyter message."""
    content: dict[str, Any] = msgspec.to_builtins(message, str_keys=True)
    return content


@overload
def from_content(content: Any, kind: type[M]) -> M: ...
@overload
def from_content(content: Any, kind: Any) -> Any: ...
def from_content(content: Any, kind: Any) -> Any:
    """The message that ``content`` is. Raises :class:`Refused` for content that is no ``kind``.

    ``kind``: a struct, or a union of structs. A type checker takes no union for a type, so its caller names the result.
    """
    try:
        return msgspec.convert(content, readable(kind), str_keys=True)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise Refused(f"The message cannot be read: {error}.") from error


def accepted(answer: msgspec.Struct) -> dict[str, Any]:
    """The content of a reply that carries ``answer``."""
    return {"status": "ok", **to_content(answer)}


def refused(error: BaseException) -> dict[str, Any]:
    """The content of a reply that says why there is no answer."""
    words = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
    return {"status": "error", "words": words}


def replied(answer: Callable[[], msgspec.Struct]) -> dict[str, Any]:
    """The content of a reply that carries what ``answer`` returns, or says what it raised."""
    try:
        return accepted(answer())
    except Exception as error:  # noqa: BLE001 — the asker gets it, whatever it is
        return refused(error)


def read_answer(content: dict[str, Any], request: Request[A]) -> A:
    """The answer to ``request`` in the content of a reply. Raises :class:`Refused`."""
    if content.get("status") != "ok":
        raise Refused(str(content.get("words") or "The request was refused."))
    answer: A = from_content(content, _answer_type(type(request)))
    return answer


@cache
def _answer_type(request: type[Request[Any]]) -> type[Any]:
    """The answer that the class statement of ``request`` names."""
    base = request.__orig_bases__[0]  # type: ignore[attr-defined]  # Python sets it for generic bases
    answer: type[Any] = get_args(base)[0]
    return answer


def check_protocol(name: str, protocol: int, version: str = "") -> None:
    """Raise :class:`OtherVersion` unless this client speaks ``protocol``, as the world ``name`` does.

    ``version``: the version of jupyter-dtrain that started the world; empty where it is not known.
    """
    if protocol != PROTOCOL:
        raise OtherVersion(explain_protocol(name, protocol, version))


def explain_protocol(name: str, protocol: int, version: str = "") -> str:
    """Why the world ``name`` cannot be joined, and what can be done with it."""
    older = "an older" if protocol < PROTOCOL else "a newer"
    started = f"{older} version of jupyter-dtrain{f' ({version})' if version else ''}"
    return (
        f"World {name!r} was started by {started}: it speaks protocol {protocol}, and this one {PROTOCOL}, so it "
        f"cannot be joined from here. %distributed worlds shows it, %distributed interrupt {name} interrupts its cell, "
        f"%distributed stop {name} ends it."
    )
