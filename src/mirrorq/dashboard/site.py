"""The HTTP application: one page, its two files, the page's requests, and an admin's actions.

Read-only, unless there is an admin key and a request has the key. The page shows foreign names and
texts as text, never as markup, and a policy of the browser (CSP) blocks all else. A request must
name this host by an address or as localhost: a foreign page whose name leads here gets nothing.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mirrorq.api.access import Access
from mirrorq.dashboard.acting import action, messages
from mirrorq.dashboard.observer import Observer
from mirrorq.errors import MirrorQError

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
BODY_BYTES_MAX = 4096

_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
Handler = Callable[[Request], Awaitable[Response]]


def make_site(
    observer: Observer, admin: Access, admin_key: str | None, hosts: tuple[str, ...]
) -> ASGIApp:
    """Return the application.

    Args:
        admin: does an admin's actions.
        admin_key: allows a user to act; None: no user may act.
        hosts: names by which the page may be asked for, beside addresses and localhost.
    """

    async def state(request: Request) -> Response:
        return Response(observer.state(), media_type="application/json")

    async def past(request: Request) -> Response:
        body = await run_in_threadpool(observer.past)
        return Response(body, media_type="application/json")

    async def rights(request: Request) -> Response:
        found = {"possible": admin_key is not None, "admin": _is_admin(request, admin_key)}
        return JSONResponse(found)

    async def act(request: Request) -> Response:
        if not _is_admin(request, admin_key):
            return _refused(403, "this needs the admin key of the dashboard")
        try:
            asked = await _asked(request)
            act_now = action(admin, asked)
        except ValueError as error:
            return _refused(400, str(error))
        try:
            found = await run_in_threadpool(act_now)
        except (MirrorQError, TimeoutError) as error:
            return _refused(409, str(error))
        observer.hurry()
        return JSONResponse({"done": True, "count": found if type(found) is int else None})

    async def browse(request: Request) -> Response:
        if not _is_admin(request, admin_key):
            return _refused(403, "this needs the admin key of the dashboard")
        queue, start = request.query_params.get("queue", ""), request.query_params.get("from", "1")
        if not queue or not start.isdecimal() or not 1 <= int(start) < 2**63:
            return _refused(400, "name a queue, and a sequence from 1 on")
        try:
            found = await run_in_threadpool(messages, admin, queue, int(start))
        except (MirrorQError, TimeoutError) as error:
            return _refused(409, str(error))
        return JSONResponse({"messages": found})

    routes = [Route(path, _file(*found)) for path, found in _FILES.items()]
    routes += [
        Route("/api/state", state),
        Route("/api/past", past),
        Route("/api/rights", rights),
        Route("/api/browse", browse),
        Route("/api/act", act, methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, hosts=hosts)])


class _Guard:
    """Looks at the host of each request, and puts the headers on each answer."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        if not _is_known_host(Request(scope).headers.get("host", ""), self._hosts):
            answer = _refused(421, "ask by an address, or as localhost")
            await answer(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def _is_known_host(host: str, hosts: tuple[str, ...]) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]").lower()
    if name == "localhost" or name in hosts:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _file(name: str, kind: str) -> Handler:
    body = (files("mirrorq.dashboard") / "page" / name).read_bytes()

    async def give(request: Request) -> Response:
        return Response(body, headers={"content-type": kind})

    return give


def _refused(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status_code=status)


def _is_admin(request: Request, admin_key: str | None) -> bool:
    if admin_key is None:
        return False
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(given.encode(), admin_key.encode())


async def _asked(request: Request) -> Mapping[str, Any]:
    """Return the request's JSON object.

    Raises:
        ValueError: the body is no JSON object, or too large.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise ValueError(f"a request has at most {BODY_BYTES_MAX} bytes")
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the request is no JSON") from None
    if not isinstance(asked, dict):
        raise ValueError("the request is no JSON object")
    return asked
