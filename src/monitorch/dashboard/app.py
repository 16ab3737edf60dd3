"""The routes of the page: its files, names as JSON, numbers as bytes, and a stream of ticks."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ..errors import MonitorchError, OptionError, StoreError, UnreadableRunError
from ..store import Run
from . import api
from .guard import Guard
from .live import ticks
from .run_folder import RunFolder
from .windows import PLANES, WindowRequest, blocks, pack

STATIC = Path(__file__).parent / "static"
_FRESH = {"Cache-Control": "no-store"}
_LARGEST = 10**18 - 1


def create_app(
    run_folder: RunFolder,
    host: str = "127.0.0.1",
    token: str | None = None,
    is_ending: Callable[[], bool] = lambda: False,
) -> Starlette:
    """The web app for some runs.

    Args:
        run_folder: the runs.
        host: the address that the server listens on.
        token: secret that a browser must send; None for no check.
        is_ending: whether the server is shutting down, so that streams must end.
    """

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        yield
        run_folder.close()

    endpoints = _Endpoints(run_folder, is_ending)
    routes = [
        Route(f"/api/{name}", getattr(endpoints, name))
        for name in ("runs", "summaries", "head", "health", "events", "windows", "histogram", "live")
    ]
    return Starlette(
        routes=[*routes, Mount("/", _Pages(directory=STATIC, html=True))],
        middleware=[Middleware(Guard, host=host, token=token)],
        exception_handlers={
            UnreadableRunError: _refuse(404),
            StoreError: _refuse(404),
            OSError: _refuse(404),
            MonitorchError: _refuse(400),
        },
        lifespan=life,
    )


class _Endpoints:
    """The endpoints; those that read a run are called in threads."""

    def __init__(self, run_folder: RunFolder, is_ending: Callable[[], bool]) -> None:
        self._folder, self._is_ending = run_folder, is_ending

    def runs(self, request: Request) -> Response:
        return _json(api.runs(self._folder.infos()))

    def summaries(self, request: Request) -> Response:
        found = {}
        for name in request.query_params.getlist("run"):
            with suppress(StoreError):  # a run that cannot be read still has a line in the list
                found[name] = api.summary(self._folder.run(name))
        return _json(found)

    def head(self, request: Request) -> Response:
        return _json({**api.head(self._run(request)), "name": request.query_params["run"]})

    def health(self, request: Request) -> Response:
        return _json(api.health(self._run(request)))

    def events(self, request: Request) -> Response:
        return _json(api.events(self._run(request).events(_number(request, "since") or 0)))

    def windows(self, request: Request) -> Response:
        found = list(blocks(self._run(request), _window_request(request)))
        return Response(pack(found), media_type="application/octet-stream", headers=_FRESH)

    def histogram(self, request: Request) -> Response:
        ask = request.query_params
        lens, tag = ask.get("lens"), ask.get("tag")
        if lens is None or tag is None:
            raise OptionError("lens= and tag= are needed")
        found = api.histogram(self._run(request), lens, tag, ask.getlist("layer"), _number(request, "step"))
        return _json(found)

    async def live(self, request: Request) -> Response:
        headers = {**_FRESH, "X-Accel-Buffering": "no"}
        if request.method == "HEAD":  # otherwise it would never end
            return Response(media_type="text/event-stream", headers=headers)
        stream = ticks(self._folder, request.query_params.getlist("run"), self._is_ending)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    def _run(self, request: Request) -> Run:
        name = request.query_params.get("run")
        if name is None:
            raise OptionError("run= is missing")
        return self._folder.run(name)


class _Pages(StaticFiles):
    """Static files that a browser checks each time, so that an update of the package shows at once."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        """The file, or a reply that it has not changed."""
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _json(value: Any) -> Response:
    return Response(json.dumps(value, allow_nan=False), media_type="application/json", headers=_FRESH)


def _refuse(status: int) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": _message(request, error)}, status, headers=_FRESH)

    return answer


def _message(request: Request, error: Exception) -> str:
    """The error message without paths, which are private to this machine."""
    name = request.query_params.get("run")
    if isinstance(error, UnreadableRunError):
        return f"the run {name!r} {error.reason}"
    if isinstance(error, OSError):
        return f"the run {name!r} cannot be read: {error.strerror or type(error).__name__}"
    return str(error)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:  # raised also for thousands of digits
        value = _LARGEST + 1
    if abs(value) > _LARGEST:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise OptionError(f"{name}={shown!r} must be a whole number of at most 18 digits")
    return value


def _window_request(request: Request) -> WindowRequest:
    lenses, statistics, layers, planes = map(request.query_params.getlist, ("lens", "statistic", "layer", "plane"))
    if len(lenses) != len(statistics) or not lenses:
        raise OptionError("lens= and statistic= come in pairs, at least one")
    series = tuple(zip(lenses, statistics, strict=True))
    resolution = _number(request, "resolution")
    span = _number(request, "first"), _number(request, "last"), 500 if resolution is None else resolution
    return WindowRequest(series, tuple(layers) or None, *span, tuple(planes) or PLANES)
