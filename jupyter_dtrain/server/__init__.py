"""The Jupyter Server extension: it serves the sidebar, also while a kernel is busy or gone.

It is a client of the stewards like any other, and only an observer: it drives no world and renews no lease. It reads
the ranks' spools, which are JSON, and asks the stewards; it has no channel to the ranks, and unpickles nothing. Only
the program that makes a profile asks ranks, in a process of its own (:mod:`.profiler`).

Under failure: the sidebar shows that a world does not answer, and a request to it fails with a message within seconds.
A failure in one world affects no other world, nor the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "jupyter_dtrain.server"}]


def _load_jupyter_server_extension(app: ServerApp) -> None:
    """Add the handlers to a server; the extension looks at nothing before a page asks."""
    from .handlers import handlers
    from .observatory import Observatory

    settings: dict[str, Any] = app.web_app.settings
    settings["dtrain_observatory"] = Observatory(app.log)
    app.web_app.add_handlers(".*$", handlers(settings["base_url"]))  # type: ignore[no-untyped-call]
