"""How long a client may take to send a request or to read an answer, and how many connections it may hold.

Uvicorn waits for the rest of a request for as long as the connection lasts, and counts such connections against its
limit of concurrency: a hundred that never send anything shut everybody out. Here a connection on which the server
waits for its client has a deadline, and is the first to be closed when a newcomer needs room: the one that has waited
longest goes. A client that holds too many connections loses its own and not those of others.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from cairn.web import security

HEAD_SECONDS = 10.0
"""From the opening of a connection, or the end of its last answer, to the end of the next request's head."""
_BODY_GRACE = 5.0
"""The guard answers a body that is late; the connection is closed if not even that answer is taken."""
STALLED_SECONDS = 30.0
"""How long an answer may wait until its client reads on."""
MOST = 200
MOST_OF_A_CLIENT = 100
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 32\r\n\r\nToo many connections; try again\n"
)


class BoundedProtocol(H11Protocol):
    """One connection. The server's set `connections` has all of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.network = ""
        """Whose connection it is: an IPv4 address, or the /64 network of an IPv6 address."""
        self.waiting_since: float | None = None
        """When the server began to wait for the client; None while the client waits for an answer."""
        self._phase = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.network = _network(self.client[0] if self.client else "")
        self._follow()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_SECONDS, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close the connection at once, whatever is still to be sent."""
        self.waiting_since = None
        self.connections.discard(self)
        self.transport.abort()

    def _follow(self) -> None:
        """Set the deadline anew when the connection has come to another phase of a request."""
        phase = self._phase_now()
        if phase == self._phase:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        if phase == "answer":
            self.waiting_since = None
        else:
            self.waiting_since = self.waiting_since or time.monotonic()
            seconds = HEAD_SECONDS if phase == "head" else security.BODY_SECONDS + _BODY_GRACE
            self._deadline = self.loop.call_later(seconds, self.drop)
        self._phase = phase

    def _phase_now(self) -> str:
        if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr]
            return "head"
        return "body" if self.cycle.more_body else "answer"

    def _make_room(self) -> None:
        """Called for a new connection: if there are too many, the one that has waited longest is closed for it."""
        everybody = [one for one in self.connections if isinstance(one, BoundedProtocol)]
        crowd = [one for one in everybody if one.network == self.network]
        if len(crowd) <= MOST_OF_A_CLIENT:
            crowd = everybody
            if len(crowd) <= MOST:
                return
        waiting = [(one.waiting_since, id(one), one) for one in crowd if one is not self and one.waiting_since]
        if waiting:
            min(waiting)[2].drop()
            return
        self.transport.write(_FULL)
        self.transport.close()


def _network(address: str) -> str:
    """An IPv6 client has a network of addresses of its own."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
