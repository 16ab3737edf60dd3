"""The web server of the page."""

import contextlib
import errno
import secrets
import socket
from collections.abc import Callable
from urllib.parse import urlencode

import uvicorn

from ..errors import MonitorchError, OptionError
from .app import create_app
from .guard import is_loopback
from .run_folder import RunFolder

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8700
SHORTEST_TOKEN = 8
_PORTS_TO_TRY = 20
_SHUTDOWN_SECONDS = 2


def serve(
    run_folder: RunFolder,
    host: str = DEFAULT_HOST,
    port: int | None = None,
    token: str | None = None,
    on_start: Callable[[str], None] = print,
) -> None:
    """Serve the page until the process is interrupted.

    Args:
        run_folder: the runs.
        host: the address to listen on; any but loopback needs a token, which is made if not given.
        port: 0 for any free port; None for the usual one, or the next that is free.
        token: secret that a browser must send.
        on_start: called with the URL when the server listens.
    """
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise OptionError(f"the token must have at least {SHORTEST_TOKEN} characters")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    server = make_server(run_folder, host, token)
    with contextlib.closing(listen(host, port)) as listening:
        on_start(url_of(listening, token))
        server.run(sockets=[listening])


def make_server(run_folder: RunFolder, host: str, token: str | None) -> uvicorn.Server:
    """A server that is not running yet; its streams end with it."""
    server: uvicorn.Server
    app = create_app(run_folder, host, token, lambda: server.should_exit)
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    server = uvicorn.Server(config)
    return server


def listen(host: str, port: int | None) -> socket.socket:
    """A socket on the port, or on the first free one."""
    ports = range(DEFAULT_PORT, DEFAULT_PORT + _PORTS_TO_TRY) if port is None else [port]
    for candidate in ports:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise MonitorchError(f"cannot listen on {host}, port {candidate}: {error.strerror or error}") from error
        except UnicodeError as error:  # before it is even looked up
            raise MonitorchError(f"cannot listen on {host}: it is no name of a machine: {error}") from error
    raise MonitorchError(f"port {ports[0]} of {host} is taken: choose another with --port, 0 for any that is free")


def url_of(listening: socket.socket, token: str | None) -> str:
    """The URL to open; an address for all interfaces is replaced by the machine's name."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?{urlencode({'token': token})}" if token else "")
