"""The sessions that are open in this process, and what becomes of their worlds when it ends.

When this process ends for good, the worlds that it started end, unless another client has taken them over; when it
restarts or crashes, their lease decides. A Jupyter kernel learns which it is from the ``restart`` flag of
``shutdown_request``. Any other Python process (IPython in a terminal, a script) that reaches its exit handlers ends for
good. A process that is killed reaches none, and the lease decides.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from jupyter_dtrain.core.errors import DtrainError, NoWorld
from jupyter_dtrain.core.stop_button import shutdown
from jupyter_dtrain.plugins.patches import Patch

SHUTDOWN = Patch(
    "ipykernel.kernelbase",
    replaces=("Kernel.do_shutdown",),
    why="A kernel that ends does not say whether it restarts, on which the end of its worlds depends.",
    lost="a world outlives its notebook's kernel until its keep-alive time has passed",
)


class OpenSession(Protocol):
    """The part of a session that decides about its world when this process ends."""

    @property
    def closed(self) -> bool:
        """Whether the session was stopped, or has lost its world."""

    @property
    def name(self) -> str:
        """The name of its world."""

    @property
    def loss(self) -> str:
        """Why its world is gone; empty while it is there, and after a stop here."""

    @property
    def started_here(self) -> bool:
        """Whether the session started the world, rather than attached to it."""

    @property
    def controls(self) -> bool:
        """Whether the session may run cells."""

    def store_runs(self) -> None:
        """Have the store know all that the ranks have said by now; never raises."""

    def _stop_soon(self) -> None:
        """Ask the world to end, without waiting for it."""


S = TypeVar("S", bound=OpenSession)


class OpenSessions(Generic[S]):
    """The open sessions, the newest last."""

    def __init__(self) -> None:
        self._sessions: list[S] = []
        self._watching = False
        self._restarting = False
        self._failure = ""

    @property
    def failure(self) -> str:
        """Why there is no world here though one was asked for, and the ways on: no cell may run elsewhere unasked.

        The last start has failed, or the last world was lost. Empty otherwise.
        """
        lost = next((session for session in reversed(self._sessions) if session.closed and session.loss), None)
        if lost is None:
            return self._failure
        return (
            f"World {lost.name!r} is gone ({lost.loss}), and no cell starts another one by itself. Run the line again "
            f"that started it, or start another world with %distributed start, or join one with %distributed attach."
        )

    @failure.setter
    def failure(self, words: str) -> None:
        self._failure = words

    def add(self, session: S) -> None:
        """``session`` was started here, or attached."""
        self._forget_closed()
        self._sessions.append(session)
        self._failure = ""
        if not self._watching:
            self._watching = True
            self._watch_this_process()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Keep the reason why a start failed here, until another world comes."""
        try:
            yield
        except BaseException as error:
            if all(session.closed for session in self._sessions):
                words = str(error).strip() if isinstance(error, DtrainError) else f"{type(error).__name__}: {error}."
                why = "it was interrupted." if isinstance(error, KeyboardInterrupt) else words.partition("\n")[0]
                self._forget_closed()
                self._failure = (
                    f"No world is running here, because its start failed: {why} Run that line again, or start another "
                    f"world with %distributed start."
                )
            raise

    def remove(self, session: S) -> None:
        """``session`` was stopped, or its world never came up."""
        if session in self._sessions:
            self._sessions.remove(session)

    def _forget_closed(self) -> None:
        self._sessions = [session for session in self._sessions if not session.closed]

    def __iter__(self) -> Iterator[S]:
        return reversed(list(self._sessions))

    def current(self) -> S:
        """The newest one that has a world. Raises :class:`NoWorld` when there is none."""
        for session in reversed(self._sessions):
            if not session.closed:
                return session
        if self.failure:
            raise NoWorld(self.failure)
        raise NoWorld("No world is running here: start one with %distributed start, or Session.start(n=2).")

    def store_all(self) -> None:
        """Have the stewards store what their ranks have said by now, for a person who reads the store next."""
        for session in list(self._sessions):
            if not session.closed:
                session.store_runs()

    def stop_all(self) -> None:
        """Ask the worlds that were started and are still driven here to end, without waiting for it."""
        for session in list(self._sessions):
            if session.started_here and session.controls:
                session._stop_soon()  # noqa: SLF001 — for this module alone

    def _watch_this_process(self) -> None:
        atexit.register(self._at_exit)
        with contextlib.suppress(ImportError):
            from IPython.core.getipython import get_ipython

            kernel = getattr(get_ipython(), "kernel", None)
            if kernel is not None:
                self._wrap_shutdown(kernel)

    def _at_exit(self) -> None:
        if not self._restarting:
            self.stop_all()

    def _wrap_shutdown(self, kernel: Any) -> None:
        def do_shutdown(original: Any, restart: bool, *args: Any, **kwargs: Any) -> Any:  # noqa: FBT001 — ipykernel's
            shutdown.asked = True
            self._restarting = bool(restart)
            if not restart:
                self.stop_all()
            return original(restart, *args, **kwargs)

        def install(_: Any) -> None:
            SHUTDOWN.replace(kernel, "do_shutdown", do_shutdown)
            shutdown.comes_by_request = True

        SHUTDOWN.when_imported(install)
