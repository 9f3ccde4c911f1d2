"""Catches all output of a cell and hands it to the recorder.

Two roads lead here: Python's ``sys.stdout`` and ``sys.stderr``; and IPython's display hooks, which send Jupyter
messages through :class:`EventSession`. :mod:`.descriptors` is the third road, for native code and child processes.

Under failure nothing here raises into user code: a replacement stands for bytes that cannot be decoded. A child process
that was forked from a rank writes to the descriptors, since it has no recorder thread. It writes whole lines, as other
processes write to the same pipe.
"""

from __future__ import annotations

import codecs
import io
import os
import select
import threading
from collections.abc import Callable, Iterable
from typing import Any

from jupyter_client.session import Session

from jupyter_dtrain.core.events import ClearOutput, Display, MimeBundle, Result
from jupyter_dtrain.plugins.patches import Patch

from .recorder import Recorder

DISPLAYS = Patch(
    "ipykernel.zmqshell",
    replaces=(
        "ZMQDisplayPublisher.session",
        "ipykernel.displayhook.ZMQShellDisplayHook.session",
        "jupyter_client.session.Session.send",
    ),
    why="IPython's displays go to clients one by one, past the record of the cell's output.",
    lost="displays of a cell may not appear",
)


class RankStream(io.TextIOBase):
    """``sys.stdout`` or ``sys.stderr`` of a rank."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, recorder: Recorder, name: str, fd: int, before: Callable[[], None] = lambda: None) -> None:
        """``before``: called before text is recorded, to record what comes before it."""
        self._recorder = recorder
        self._fd = fd
        self._before = before
        self._pid = os.getpid()
        self._buffer = _Bytes(self)
        self._line = ""
        self._writing = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)
        self.name = name

    @property
    def buffer(self) -> io.RawIOBase:
        """The binary stream beneath, for code that writes bytes."""
        return self._buffer

    def write(self, text: str) -> int:
        """Record ``text``; return the number of its characters."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if os.getpid() != self._pid:
            with self._writing:
                lines, end, rest = (self._line + text).rpartition("\n")
                self._line = rest
                self._write_lines(lines + end)
        else:
            self._before()
            self._recorder.write(self.name, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]  # typeshed has bytes-like here
        """Record ``lines``."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Spool the printed text."""
        if os.getpid() == self._pid:
            self._recorder.flush()
            return
        with self._writing:
            line, self._line = self._line, ""
            self._write_lines(line)

    def writable(self) -> bool:
        """Return True: programs may write here."""
        return True

    def isatty(self) -> bool:
        """Return False: programs should not expect a terminal."""
        return False

    def fileno(self) -> int:
        """The descriptor that child processes may write to; it is captured as well."""
        return self._fd

    def close(self) -> None:
        """Do nothing: a library that closes ``sys.stdout`` must not silence the rank."""

    def _forked(self) -> None:
        """Make a new lock in a forked child: a thread that does not exist there may have held the old one."""
        self._line = ""
        self._writing = threading.Lock()

    def _write_lines(self, text: str) -> None:
        """Write to the pipe in pieces that Linux keeps whole; each piece ends with a line unless the line is longer."""
        data = text.encode("utf-8", "replace")
        while data:
            end = len(data) if len(data) <= select.PIPE_BUF else data.rfind(b"\n", 0, select.PIPE_BUF) + 1
            data = data[os.write(self._fd, data[: end or select.PIPE_BUF]) :]


class _Bytes(io.RawIOBase):
    """The ``buffer`` of a :class:`RankStream`."""

    def __init__(self, stream: RankStream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = bytes(data)
        self._stream.write(self._decoder.decode(view))
        return len(view)


class EventSession(Session):
    """Stands in for the Jupyter session of the display hooks: their messages become events.

    Only ``send`` differs: the real class still builds the messages. Error messages are dropped, since the agent makes
    the error event from the exception itself.
    """

    def __init__(
        self,
        recorder: Recorder,
        before: Callable[[], None] = lambda: None,
        shown: Callable[[MimeBundle], object] = lambda _: None,
        **kwargs: Any,
    ) -> None:
        """``before``: see :class:`RankStream`. ``shown``: called with the data of each display, once it is recorded."""
        super().__init__(**kwargs)
        self._shown = shown
        self._recorder = recorder
        self._before = before
        self._pid = os.getpid()
        DISPLAYS.replace(self, "send", self._record)

    def _record(
        self,
        _original: Any,
        stream: Any,  # noqa: ARG002 — jupyter_client's signature
        msg_or_type: Any,
        content: Any = None,
        *_args: Any,
        **_kwargs: Any,
    ) -> Any:
        """Record the message as an event; a forked child has no recorder and drops it."""
        if os.getpid() != self._pid:
            return None
        self._before()
        if isinstance(msg_or_type, dict):
            kind, content = msg_or_type["header"]["msg_type"], msg_or_type["content"]
        else:
            kind, content = msg_or_type, content or {}
        if kind in ("display_data", "update_display_data"):
            display_id = content.get("transient", {}).get("display_id")
            update = kind == "update_display_data"
            self._recorder.append(Display(content["data"], content.get("metadata") or {}, display_id, update))
            self._shown(content["data"])
        elif kind == "execute_result":
            count = content.get("execution_count") or 0
            self._recorder.append(Result(content["data"], content.get("metadata") or {}, count))
            self._shown(content["data"])
        elif kind == "clear_output":
            self._recorder.append(ClearOutput(bool(content.get("wait"))))
        return msg_or_type
