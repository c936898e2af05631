"""The gate before every request: host, token, origin, size, and the headers of every answer.

A request passes these in order:
1. its `Host` is one of ours, so that a foreign name pointed to this address gets nothing;
2. with an open address, or to change something, it carries the token (header, or the cookie of a link with `?token=`);
3. to change something, it is JSON, and if a browser sent it, it comes from our own page;
4. its body is small, and is there in time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
from collections.abc import MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response

from cairn.logs import get_logger
from cairn.text import one_line
from cairn.web.problems import problem
from cairn.web.web_options import WebOptions

_audit = get_logger("cairn.audit")
MAX_BODY = 64 * 1024
BODY_SECONDS = 10.0
MOST_REQUESTS = 32
"""Concurrent requests, except for metrics, which are always available, and streams, which have their own limit."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_SAFE = ("GET", "HEAD")
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
"""RFC 9110, `Host`: no user, no path, no second port, no zone of an address."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Guard:
    """ASGI middleware."""

    def __init__(self, app: Any, options: WebOptions) -> None:
        self._app = app
        self._options = options
        self._answering = 0
        own = options.address if options.address not in ("0.0.0.0", "::") else ""  # noqa: S104 - compared, not bound
        self._hosts = {_canonical(host) for host in (*_LOOPBACK, own, *options.hosts) if host}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer[name] = value
                if "cache-control" not in answer:
                    answer["Cache-Control"] = "no-store"
            await send(message)

        refused = self._refusal(scope, headers)
        if refused is not None:
            await refused(scope, receive, send_with_headers)
        elif _uncounted(scope["path"]):
            await self._answer(scope, receive, send_with_headers)
        elif self._answering >= MOST_REQUESTS:
            busy = problem(
                503, "busy", f"{MOST_REQUESTS} other requests are in progress", "Retry in a second.",
                {"Retry-After": "1"},
            )  # fmt: skip
            await busy(scope, receive, send_with_headers)
        else:
            self._answering += 1
            try:
                await self._answer(scope, receive, send_with_headers)
            finally:
                self._answering -= 1

    async def _answer(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Let a request through that is not refused, with its whole body if it has to have one."""
        if scope["method"] not in _SAFE:
            try:
                body = await asyncio.wait_for(_read(receive), BODY_SECONDS)
            except TimeoutError:
                too_slow = problem(408, "invalid-input", f"the body did not arrive within {BODY_SECONDS:.0f} s")
                await too_slow(scope, receive, send)
                return
            if body is None:
                too_large = problem(413, "invalid-input", f"the body is larger than {MAX_BODY} bytes")
                await too_large(scope, receive, send)
                return
            who = scope.get("client") or ("?", 0)
            _audit.info(
                "%s %s from %s: %s", scope["method"], one_line(scope["path"]), who[0],
                one_line(body[:500].decode("utf-8", "replace")),
            )  # fmt: skip
            receive = _replay(body, receive)
        await self._app(scope, receive, send)

    def _refusal(self, scope: dict[str, Any], headers: Headers) -> Response | None:
        named = headers.getlist("host")
        host = named[0] if len(named) == 1 else ""
        if host_name(host) not in self._hosts:
            return problem(
                421, "forbidden-host", f"this server does not accept the host {', '.join(named)[:100]!r}",
                "Use the address that the job printed, or set cairn.web.hosts.",
            )  # fmt: skip
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)[:50])
        if "token" in query and scope["method"] in _SAFE:
            return self._login(scope, query, host)
        changes = scope["method"] not in _SAFE
        if (changes or not self._options.loopback) and not self._known(scope, headers):
            remedy = "Open the link that was printed at the start, or send the header Authorization: Bearer TOKEN."
            return problem(
                401, "token-needed", "this requires the token of the server", remedy, {"WWW-Authenticate": "Bearer"}
            )
        return self._refuse_change(headers, host) if changes else None

    def _refuse_change(self, headers: Headers, host: str) -> Response | None:
        if self._options.read_only:
            return problem(
                403, "read-only", "this server is read-only", "Use the command line, or unset cairn.web.read-only."
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        foreign = origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}")
        if foreign or site not in (None, "same-origin", "none"):
            return problem(403, "foreign-origin", "requests from another origin cannot change anything")
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json" and headers.get("content-length", "0") != "0":
            return problem(415, "invalid-input", "the body must be application/json")
        if origin is not None and kind != "application/json":
            return problem(415, "invalid-input", "a browser must send application/json")
        return None

    def _login(self, scope: dict[str, Any], query: dict[str, str], host: str) -> Response:
        """A link with the token: keep it in a cookie, and take it out of the address."""
        if not self._fits(query.pop("token")):
            return problem(401, "token-needed", "the token is wrong; a generated token changes at every start")
        rest = f"?{urlencode(query)}" if query else ""
        path = "/" + scope["path"].lstrip("/")  # a path that begins with two slashes would name another host
        answer = RedirectResponse(path + rest, 303)
        answer.set_cookie(_cookie(host), self._options.token, httponly=True, samesite="strict", path="/")
        return answer

    def _known(self, scope: dict[str, Any], headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._fits(given.strip()):
            return True
        return self._fits(headers.get("x-cairn-token", "")) or self.has_cookie(headers)

    def has_cookie(self, headers: Headers) -> bool:
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        found = cookies.get(_cookie(headers.get("host", "")))
        return found is not None and self._fits(found.value)

    def _fits(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "replace"), self._options.token.encode())


def _uncounted(path: str) -> bool:
    return path == "/metrics" or (path.startswith("/api/") and path.endswith("/events"))


def host_name(host: str) -> str | None:
    """The name or address in a `Host` header, in one spelling; None unless it is `uri-host [":" port]` and no more."""
    match = _HOST.fullmatch(host)
    if match is None:
        return None
    if match["ipv6"] is None:
        return match["name"].lower()
    try:
        return str(ipaddress.IPv6Address(match["ipv6"]))
    except ValueError:
        return None


def _canonical(host: str) -> str:
    """A configured name or address, spelled as `host_name` spells it."""
    return host_name(f"[{host}]") or host.lower()


def _cookie(host: str) -> str:
    """Cookies do not know ports, and two jobs of a machine must not overwrite each other's."""
    port = host.rsplit(":", 1)[-1] if ":" in host and not host.endswith("]") else "80"
    return f"cairn_token_{port}" if port.isdigit() else "cairn_token"


async def _read(receive: Any) -> bytes | None:
    """The whole body, or None if it is too large."""
    parts: bytes = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return parts
        parts += message.get("body", b"")
        if len(parts) > MAX_BODY:
            return None
        if not message.get("more_body"):
            return parts


def _replay(body: bytes, receive: Any) -> Any:
    told = False

    async def again() -> Any:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
