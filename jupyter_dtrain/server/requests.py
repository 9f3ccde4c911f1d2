"""The base of all handlers: checks who asks, reads the request, and answers an error in words.

A request that fails has a status of 400 or above and a message that says what to do.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from jupyter_dtrain.core.errors import BadRequest, DtrainError
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.store.filters import BadFilter

from .steward import Silent

if TYPE_CHECKING:
    from .monitor import Monitor
    from .observatory import Observatory

RESOURCE = "dtrain"

MOST = 10**18 - 1
"""The largest number that a page can name: all are in reach of the store's 64 bits."""


class NotFound(Exception):
    """The thing that a request is about does not exist, or is no longer kept."""


def guarded(method: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None] | None]:
    """A decorator for handlers: only a user who may do this gets an answer; an error is one with the fitting status."""

    @functools.wraps(method)
    async def inner(self: ApiHandler, *args: str) -> None:
        try:
            await method(self, *args)
        except NotFound as error:
            self.fail(HTTPStatus.NOT_FOUND, str(error))
        except BadFilter as error:
            place = {"position": error.position, "length": error.length}
            self.fail(HTTPStatus.BAD_REQUEST, str(error), error.option, place)
        except BadRequest as error:
            self.fail(HTTPStatus.BAD_REQUEST, str(error), error.option)
        except (msgspec.ValidationError, UnicodeError) as error:  # also text that no encoding takes
            self.fail(HTTPStatus.BAD_REQUEST, str(error))
        except Silent as error:
            self.fail(HTTPStatus.GATEWAY_TIMEOUT, f"The world cannot be reached: {error}.")
        except DtrainError as error:
            self.fail(HTTPStatus.CONFLICT, str(error), error.option)

    return web.authenticated(authorized(inner))


def number(text: str, label: str) -> int:
    """The whole number that ``text`` is. Raises :class:`BadRequest`, which calls it ``label``."""
    try:
        found = int(text)
    except ValueError:  # also for more digits than Python reads
        found = MOST + 1
    if abs(found) > MOST:
        raise BadRequest(f"{label} must be a whole number of at most 18 digits.")
    return found


class ApiHandler(APIHandler):
    """The base of the handlers."""

    auth_resource = RESOURCE

    @property
    def observatory(self) -> Observatory:
        """The server's observatory."""
        found: Observatory = self.settings["dtrain_observatory"]
        return found

    def body(self) -> dict[str, Any]:
        """The request's JSON object; an empty body is an empty object."""
        try:
            # Jupyter's own function logs a traceback for what a page has sent.
            content = json.loads(self.request.body) if self.request.body else {}
        except (ValueError, RecursionError):
            raise BadRequest("The body must be JSON in UTF-8.") from None
        if not isinstance(content, dict):
            raise BadRequest("The body must be a JSON object.")
        return content

    def fail(
        self, status: HTTPStatus, words: str, option: str = "", more: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Answer with an error; ``option``: the option that is wrong, by which a page finds its field."""
        self.set_status(int(status))
        self.finish(json.dumps({"message": words, **({"option": option} if option else {}), **more}))

    def answer(self, content: dict[str, Any] | msgspec.Struct, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Answer with a JSON object, which may contain structs."""
        self.set_status(int(status))
        self.finish(json.dumps(content, default=msgspec.to_builtins))

    async def world(self, key: str) -> Monitor:
        """The world with this id. Raises :class:`NotFound` where there is none."""
        found = await self.observatory.find(key)
        if found is None:
            raise NotFound("This world no longer exists.")
        return found

    def ranks(self, monitor: Monitor) -> list[int] | None:
        """The ranks that the request's body names, or None for all ranks. Raises :class:`BadRequest`."""
        ranks = msgspec.convert(self.body().get("ranks"), readable(list[int] | None))
        if ranks is not None and not all(0 <= rank < monitor.size for rank in ranks):
            raise BadRequest(f"The world only has ranks 0 to {monitor.size - 1}.")
        return ranks
