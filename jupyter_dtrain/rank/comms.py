"""Widgets in a rank: their messages become events of the run, and the front end's answers reach them.

A comm is a pair of objects with one id, here and in the browser. The rank records a comm's messages like any output,
and the notebook's kernel stands in for the rank towards the front end. Answers come between cells, on the main thread,
where callbacks may do what a cell may.

Under failure: a line on stderr stands for a message that cannot be recorded. A callback that raises prints its
traceback, which the next cell shows.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from comm.base_comm import BaseComm, CommManager

from jupyter_dtrain.core.events import CommMessage
from jupyter_dtrain.plugins.patches import Patch

COMMS = Patch(
    "comm",
    replaces=("create_comm", "get_comm_manager"),
    why="A rank is no kernel that a front end talks to: its widgets' messages would reach nobody. comm means both "
    "functions to be replaced.",
    lost="widgets that a rank makes do not appear",
)

KINDS = ("comm_open", "comm_msg", "comm_close")


class RankComms:
    """The comms of a rank. Made once, before user code."""

    def __init__(self, emit: Callable[[CommMessage], bool], complain: Callable[[str], None]) -> None:
        """``emit`` records a message; it returns False when no cell runs that the message could belong to."""
        self._emit = emit
        self._complain = complain
        self._between: list[CommMessage] = []
        self._manager = CommManager()

    def install(self) -> None:
        """Make every new comm of this process one of ours; ipykernel is imported already."""
        comms = self

        class RankComm(BaseComm):
            """A comm whose other side is reached through the notebook."""

            def publish_msg(
                self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
            ) -> None:
                comms.say(msg_type, self.comm_id, data, metadata, buffers, str(keys.get("target_name") or ""))

        def create_comm(_original: Any, *args: Any, **kwargs: Any) -> BaseComm:
            return RankComm(*args, **kwargs)

        def install(module: Any) -> None:
            COMMS.replace(module, "create_comm", create_comm)
            COMMS.replace(module, "get_comm_manager", lambda _original: self._manager)

        COMMS.when_imported(install)

    def say(self, kind: str, comm_id: str, data: Any, metadata: Any, buffers: Any, target: str) -> None:
        """Record what a comm of this rank publishes, or keep it for the front end's next message between cells."""
        if kind not in KINDS:
            return
        try:
            message = CommMessage(
                kind,  # type: ignore[arg-type]  # one of KINDS
                comm_id,
                msgspec.to_builtins(data or {}, enc_hook=str),
                msgspec.to_builtins(metadata or {}, enc_hook=str),
                target,
                [bytes(buffer) for buffer in buffers or ()],
            )
        except Exception as error:  # noqa: BLE001 — a widget's state may hold anything
            self._complain(f"a message of a widget was left out: {type(error).__name__}: {error}")
            return
        if not self._emit(message):
            self._between.append(message)
            del self._between[:-1000]

    def hear(self, messages: Iterable[CommMessage]) -> list[CommMessage]:
        """Deliver the front end's messages to this rank's comms; return the comms' messages since the last cell."""
        for message in messages:
            found = self._manager.comms.get(message.comm_id)
            if found is None:
                continue
            content = {"comm_id": message.comm_id, "data": message.data}
            buffers = [memoryview(buffer) for buffer in message.buffers]
            wire = {"content": content, "metadata": message.metadata, "buffers": buffers}
            try:
                if message.kind == "comm_close":
                    self._manager.comms.pop(message.comm_id, None)
                    found.handle_close(wire)
                else:
                    found.handle_msg(wire)
            except KeyboardInterrupt:
                break
            except Exception:  # noqa: BLE001 — a user's callback
                with contextlib.suppress(Exception):
                    traceback.print_exc()
        said, self._between = self._between, []
        return said
