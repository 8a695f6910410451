"""The page of sessions, served to this machine only.

Every address begins with a secret token, and requests that name another host are refused, so that no other page and no
other user's browser can reach it. Nothing but the page's own files and what sessions make is served.
"""

import asyncio
import json
import logging
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from threading import Event
from types import FrameType
from typing import Any

from iic_geotools.errors import IICError, MissingPackageError, OutputError, UsageError
from iic_runtime.studio.live import LiveSession, sentence
from iic_runtime.studio.session import Session
from iic_runtime.studio.tiles import TileAddress

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError as error:
    raise MissingPackageError.for_extra(error.name or "starlette", "cpu,studio") from error

_LOG = logging.getLogger(__name__)
ADDRESS = "127.0.0.1"
MOST_BODY = 1 << 20
"""Bytes that a request may have."""
MOST_PATH = 300
"""Characters that the path of a request may have: more digits than this are no number of a tile."""
POLL = 0.05
"""Seconds between two looks at whether a session has changed."""
_PAGE = {
    "": ("index.html", "text/html"),
    "studio.css": ("studio.css", "text/css"),
    "studio.js": ("studio.js", "text/javascript"),
    "viewer.js": ("viewer.js", "text/javascript"),
    "layers.js": ("layers.js", "text/javascript"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def serve(
    sessions: Sequence[Session],
    *,
    port: int = 0,
    browser: bool = True,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the page of some sessions until the process is interrupted, and close them.

    Args:
        port: The port; 0 for any that is free.
        browser: Whether to open the page.
        on_ready: Called with the address of the page.
    """
    token = secrets.token_urlsafe(24)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, port))
        except OSError as error:
            raise OutputError(
                f"The port {port} cannot be used ({error.strerror}); give another `port`."
            ) from error
        port = listener.getsockname()[1]
        live = [LiveSession(session) for session in sessions]
        stopping = Event()
        app = make_app(live, token, port, stopping)
        config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=2)
        address = f"http://{ADDRESS}:{port}/{token}/"

        def announce() -> None:
            on_ready(address)
            if browser:
                webbrowser.open(address)

        server = _Server(config, announce, stopping)
        try:
            with suppress(KeyboardInterrupt):  # uvicorn raises it again after it has ended
                server.run(sockets=[listener])
        finally:
            for entry in live:
                entry.close()


class _Server(uvicorn.Server):
    """A server that reports when it starts and when it stops.

    Args:
        config: How it serves.
        on_ready: Called when it answers.
        stopping: Set when it is to end, so that what goes on until then ends too.
    """

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], stopping: Event) -> None:
        super().__init__(config)
        self._on_ready, self._stopping = on_ready, stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        await run_in_threadpool(self._on_ready)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End, because the user has interrupted the process."""
        self._stopping.set()
        super().handle_exit(sig, frame)


def make_app(sessions: Sequence[LiveSession], token: str, port: int, stopping: Event) -> ASGIApp:
    """Return the application: the page under `/TOKEN/`, and what it asks for under `/TOKEN/api/`.

    Args:
        token: The secret that every address begins with.
    """

    def session(request: Request) -> LiveSession:
        index = int(request.path_params["session"])
        if not 0 <= index < len(sessions):
            raise UsageError(f"There is no scene {index}.")
        return sessions[index]

    async def page(request: Request) -> Response:
        name, kind = _PAGE[request.path_params.get("file", "")]
        return Response((files(__package__) / "page" / name).read_bytes(), media_type=kind)

    async def scenes(_: Request) -> Response:
        return JSONResponse([entry.scene() for entry in sessions])

    async def state(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(session(request).state))

    async def events(request: Request) -> Response:
        return StreamingResponse(_events(session(request), stopping), media_type="text/event-stream")

    def picture(request: Request) -> Response:
        live = session(request)
        content, kind = live.session.imagery.tile(request.path_params["composite"], _address(request))
        return Response(content, media_type=kind)

    def labels(request: Request) -> Response:
        stamp, content = session(request).tile(request.path_params["layer"], _address(request))
        return Response(content, media_type="application/octet-stream", headers={"X-Stamp": str(stamp)})

    async def act(request: Request) -> Response:
        arguments = await _arguments(request)
        live, action = session(request), request.path_params["action"]
        if action == "suggest":
            places = await run_in_threadpool(live.suggest, arguments.get("tiles", []))
            return JSONResponse({"places": places})
        return JSONResponse(await run_in_threadpool(live.act, action, arguments))

    tile = "{level:int}/{column:int}/{row:int}"
    api = [
        Route("/scenes", scenes),
        Route("/{session:int}/state", state),
        Route("/{session:int}/events", events),
        Route(f"/{{session:int}}/picture/{{composite:str}}/{tile}", picture),
        Route(f"/{{session:int}}/labels/{{layer:str}}/{{stamp:int}}/{tile}", labels),
        Route("/{session:int}/{action:str}", act, methods=["POST"]),
    ]
    pages = [Route(f"/{file}", page) for file in _PAGE if not file]
    pages += [Route("/{file:str}", page)]
    app = Starlette(
        routes=[Mount(f"/{token}", routes=[Mount("/api", routes=api), *pages])],
        exception_handlers={KeyError: _missing, Exception: _failed, IICError: _refused},
    )
    return _Guard(app, port)


def _address(request: Request) -> TileAddress:
    return TileAddress(*(request.path_params[name] for name in ("level", "column", "row")))


async def _arguments(request: Request) -> dict[str, Any]:
    try:
        arguments = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        raise UsageError("The request is not JSON.") from error
    if not isinstance(arguments, dict):
        raise UsageError("The request is not a JSON object.")
    return arguments


async def _events(live: LiveSession, stopping: Event) -> AsyncIterator[str]:
    """Yield the state whenever it has changed."""
    seen = -1
    while not stopping.is_set():
        if live.changes != seen:
            seen = live.changes
            state = await run_in_threadpool(live.state)
            yield f"data: {json.dumps(state)}\n\n"
        await asyncio.sleep(POLL)


async def _missing(_: Request, error: Exception) -> Response:
    return PlainTextResponse("There is no such page.", 404)


async def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": sentence(error)}, 409)


async def _failed(_: Request, error: Exception) -> Response:
    _LOG.debug("A request failed", exc_info=error)
    return JSONResponse({"error": sentence(error)}, 500)


class _Guard:
    """Refuses requests that name another host or come from another page, and large ones; adds headers.

    Without the check of the host, a page of another site could reach this server by giving its own name this address
    (DNS rebinding); the token would still be unknown to it.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}" for name in (ADDRESS, "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get("origin")
        refusal = None
        if headers.get("host") not in self._hosts:
            refusal = PlainTextResponse("This page is for the machine that it runs on.", 403)
        elif origin is not None and origin.removeprefix("http://") not in self._hosts:
            refusal = PlainTextResponse("Another page may not use this one.", 403)
        elif len(scope["path"]) > MOST_PATH:
            refusal = PlainTextResponse("There is no such page.", 404)
        elif scope["method"] == "POST" and not headers.get("content-type", "").startswith("application/json"):
            refusal = PlainTextResponse("Requests are JSON.", 415)
        elif int(headers.get("content-length") or 0) > MOST_BODY or "transfer-encoding" in headers:
            refusal = PlainTextResponse("The request is too large.", 413)

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        await (refusal or self._app)(scope, receive, send_with_headers)
