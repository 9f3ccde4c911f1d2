"""Requests for reports on stored runs: as a file, and as a page for others.

``/dtrain/report?ids=1,2&format=html`` is a file to keep or to send. ``/dtrain/report/view?ids=1,2`` is the same report
as a page, made anew from the store whenever somebody opens it: a link to it is a link to the runs as they are now.

Who may open that link is for the server to say, as of each of its pages: it needs a login, and the right to ``read``
the resource ``dtrain``. On a machine of one's own that is the owner. In JupyterHub the owner shares the server
(https://jupyterhub.readthedocs.io/en/stable/reference/sharing.html), and the link of a colleague is
``https://HUB/user/OWNER/dtrain/report/view?ids=1,2``: the Hub logs the colleague in and asks whether the share lets
them in. A share alone opens the whole server, with its kernels. Where others are to read and nothing else, the server
gets an authorizer, in ``jupyter_server_config.py``::

    import os
    from jupyter_server.auth import Authorizer

    class OthersRead(Authorizer):
        def is_authorized(self, handler, user, action, resource):
            own = user.username == os.environ["JUPYTERHUB_USER"]
            return own or (action == "read" and resource == "dtrain")

    c.ServerApp.authorizer_class = OthersRead

They may then see what the Runs tab shows, and change nothing.

The page cannot run anything: its policy, which the server sends as a header as well, allows no script, no form, no
frame around it, and puts it into an origin of its own. Errors are words, with a status of 400 or above.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from jupyter_server.base.handlers import JupyterHandler

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.store import Store, StoredRun
from jupyter_dtrain.store.report import Format, written
from jupyter_dtrain.store.report_data import MOST_RUNS, RunsReport
from jupyter_dtrain.store.report_page import POLICY, words_page

from .requests import ApiHandler, NotFound, guarded, number

TYPES: Final[dict[Format, str]] = {
    "html": "text/html; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
}
"""The content type of each form."""


class ReportHandler(ApiHandler):
    """``/dtrain/report``."""

    @guarded
    async def get(self) -> None:
        """A report on the runs ``ids``, such as ``1,2``, as a file: in ``format`` html, md or csv; with ``notes``."""
        ids = _ids(self.get_query_argument("ids", ""))
        form = self.get_query_argument("format", "html")
        if form not in TYPES:
            raise BadRequest(f"A report is html, md or csv, and not {form[:20]!r}.")
        text = await asyncio.to_thread(_report, ids, form, self.get_query_argument("notes", ""))
        name = "-".join(map(str, ids[:10]))
        self.set_header("Content-Disposition", f'attachment; filename="report-{name}.{form}"')
        self.set_header("Cache-Control", "no-store")
        self.finish(text, set_content_type=TYPES[form])


class ReportPage(ApiHandler):
    """``/dtrain/report/view``."""

    @property
    def content_security_policy(self) -> str:
        """What the page may do: nothing."""
        return f"{POLICY}; frame-ancestors 'none'; sandbox"

    def get_login_url(self) -> str:
        """Where a person logs in who has none yet: this is a page, and no request of one."""
        return JupyterHandler.get_login_url(self)

    @guarded
    async def get(self) -> None:
        """A report on the runs ``ids``, as a page that shows the runs as they are now."""
        text = await asyncio.to_thread(_report, _ids(self.get_query_argument("ids", "")), "html", "")
        self._show(text)

    def fail(
        self,
        status: HTTPStatus,
        words: str,
        option: str = "",  # noqa: ARG002 — the base's shape
        more: Mapping[str, int] | None = None,  # noqa: ARG002
    ) -> None:
        """Answer with a page that says what is wrong."""
        self.set_status(int(status))
        self._show(words_page(words))

    def _show(self, text: str) -> None:
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")
        self.finish(text, set_content_type=TYPES["html"])


def _ids(text: str) -> list[int]:
    """The ids of runs that a request names. Raises :class:`BadRequest`."""
    found = [number(part, "The id of a run") for part in text.split(",") if part.strip()]
    if not found:
        raise BadRequest("Name the runs of the report by their ids, such as ids=1,2.")
    if len(found) > MOST_RUNS:
        raise BadRequest(f"A report may have {MOST_RUNS} runs, not {len(found)}: choose fewer.")
    return list(dict.fromkeys(found))


def _report(ids: list[int], form: Format, notes: str) -> str:
    return written(RunsReport([_run(one) for one in ids], notes), form)


def _run(run: int) -> StoredRun:
    """The stored run with this id. Raises :class:`NotFound` where it was deleted."""
    try:
        return Store.open().run_with_id(run)
    except BadRequest:
        raise NotFound(f"Run {run} is no longer kept.") from None
