"""Which requests are answered, and what a browser may do with the answer."""

import hmac
import ipaddress
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .bundle import SERVED_MAP, digest

METHODS = ("GET", "HEAD")
CONTENT_POLICY = (
    f"default-src 'none'; script-src 'self' '{digest(SERVED_MAP)}'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """Allows only reading requests that come from this machine or have the token, and not from pages of other sites.

    On a loopback address the host name in the URL must be loopback, too: foreign names that resolve to this machine are
    how other sites attack local servers (DNS rebinding). On other addresses the names are not known, so the token
    protects.

    Args:
        app: the app behind it.
        host: the address that the server listens on.
        token: secret that a request must have; None for no check.
    """

    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        self._app, self._token, self._is_local = app, token, is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer: ASGIApp = self._refusal(scope) or self._app
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if scope["method"] not in METHODS:
            return PlainTextResponse("this page is read-only", 405, {"Allow": ", ".join(METHODS)})
        if self._is_local and not is_loopback(_name(host)):
            return PlainTextResponse(f"this server does not answer to the name {host!r}: use localhost", 403)
        if _is_foreign(headers, host):
            return PlainTextResponse("requests from pages of other sites are refused", 403)
        return None if self._token is None else self._ask_token(scope, headers, self._token)

    def _ask_token(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        """The token comes in the URL once, then in a cookie, so that copied links do not contain it."""
        cookie = f"monitorch_{(scope.get('server') or ('', 0))[1]}"  # servers on one machine share cookies
        fields = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if _is(fields.pop("token", [""])[-1], token):
            rest = urlencode(fields, doseq=True)
            answer = RedirectResponse(f"./{'?' if rest else ''}{rest}", 303)
            answer.set_cookie(cookie, token, httponly=True, samesite="lax", path="/")
            return answer if scope["path"] == "/" else None
        known = cookie_parser(headers.get("cookie", "")).get(cookie, "")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if _is(known, token) or _is(bearer, token):
            return None
        return PlainTextResponse("a token is needed: open the URL that monitorch ui has printed", 401)


def is_loopback(host: str) -> bool:
    """Whether a name or address is loopback.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("localhost.evil.example")
    (True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_foreign(headers: Headers, host: str) -> bool:
    """Whether a page of another site makes a request; following a link from there is fine."""
    origin = headers.get("origin")
    if origin is not None and _site(origin) != host.lower():
        return True
    is_page = headers.get("sec-fetch-mode") == "navigate"
    return not is_page and headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _site(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is(said: str, token: str) -> bool:
    return hmac.compare_digest(said.encode(), token.encode())
