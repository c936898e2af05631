"""Clients that hold connections without asking for anything, over real sockets: others are answered all the same."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.support.patience import PATIENCE, until
from tests.support.rest_client import BEARER, TOKEN
from tests.support.web_job import JOB, make_job

from cairn.web import connections, security
from cairn.web.job_catalogue import Catalogue
from cairn.web.web_options import WebOptions
from cairn.web.web_server import Server

LONG = 4 * PATIENCE
"""How long the server waits for a client unless a test says otherwise. An answer within PATIENCE did not wait."""
IDLE = b""
HALF_HEAD = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
HALF_LINE = b"GET /met"
HALF_BODY = (
    b"POST /api/v1/jobs/harness/checkpoints HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer " + TOKEN.encode() + b"\r\nContent-Length: 1000\r\n\r\n{"
)
REFUSED_BODY = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
BODY_OF_A_GET = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
ANSWERED = b"GET /api/v1/config HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
STALLING = {
    "idle": IDLE, "half a line": HALF_LINE, "half a head": HALF_HEAD, "half a body": HALF_BODY,
    "half a body without token": REFUSED_BODY, "a body nobody reads": BODY_OF_A_GET, "kept alive": ANSWERED,
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    make_job(folder)
    return folder


@pytest.fixture(autouse=True)
def _long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", LONG)
    monkeypatch.setattr(connections, "STALLED_SECONDS", LONG)
    monkeypatch.setattr(security, "BODY_SECONDS", LONG)


@pytest.fixture(scope="module")
def only_server(root: Path) -> Iterator[Server]:
    made = Server(Catalogue(str(root)), WebOptions(port=0, token=TOKEN))
    made.start()
    assert httpx.get(f"{made.url}/metrics").status_code == 200
    yield made
    made.stop()


@pytest.fixture
def server(only_server: Server) -> Server:
    """The server when nobody holds a connection any more."""
    until(lambda: only_server.open_connections() == 0)
    return only_server


@contextlib.contextmanager
def held(server: Server, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """So many connections on which this was sent, and nothing more is."""
    address = urlsplit(server.url)
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection((address.hostname or "", address.port or 0), timeout=30))
            one.sendall(sent)
            made.append(one)
        yield made


def is_closed(one: socket.socket, within: float) -> bool:
    """Whether the server closes a connection in time; what it answers before is read."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        one.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            if not one.recv(65_536):
                return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True
    return False


def assert_answered(server: Server) -> None:
    for path in ("/metrics", f"/jobs/{JOB}", "/api/v1/jobs"):
        answer = httpx.get(f"{server.url}{path}", timeout=PATIENCE)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"


@pytest.mark.parametrize("sent", STALLING.values(), ids=STALLING)
def test_connections_that_send_no_whole_request_do_not_keep_others_out(server: Server, sent: bytes) -> None:
    with held(server, 220, sent):
        if sent == STALLING["kept alive"]:  # these are whole requests, which are answered first
            until(lambda: httpx.get(f"{server.url}/metrics", timeout=PATIENCE).status_code == 200)
        assert_answered(server)


@pytest.mark.parametrize("sent", STALLING.values(), ids=STALLING)
def test_a_connection_that_sends_no_whole_request_is_closed(
    server: Server, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(security, "BODY_SECONDS", 0.3)
    with held(server, 1, sent) as (one,):
        assert is_closed(one, PATIENCE)


def test_a_head_that_comes_a_byte_at_a_time_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    with held(server, 1, HALF_HEAD) as (one,):
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < PATIENCE:
                one.sendall(b"x")
                time.sleep(0.05)
        assert 0.4 < time.monotonic() - began < PATIENCE


def test_a_body_that_comes_a_byte_at_a_time_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "BODY_SECONDS", 0.5)
    with held(server, 1, HALF_BODY) as (one,):
        began = time.monotonic()
        one.setblocking(False)
        answer = b""
        while b"\r\n\r\n" not in answer and time.monotonic() - began < PATIENCE:
            with contextlib.suppress(BlockingIOError):
                one.sendall(b" ")
            with contextlib.suppress(BlockingIOError):
                answer += one.recv(65_536)
            time.sleep(0.05)
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_an_answer_that_nobody_reads_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.3)
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    address = urlsplit(server.url)
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect((address.hostname, address.port))
        many = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 400
        one.settimeout(PATIENCE)
        with contextlib.suppress(OSError):
            one.sendall(many)
        deadline = time.monotonic() + PATIENCE
        while server.open_connections() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.open_connections() == 0


def test_one_client_leaves_room_for_others(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback has many addresses: what one of them holds is closed to its own cost, not to that of another."""
    monkeypatch.setattr(connections, "MOST_OF_A_CLIENT", 10)
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), source_address=("127.0.0.2", 0)) as other:
        other.sendall(HALF_LINE)
        until(lambda: server.open_connections() > 0)
        with held(server, 30, HALF_HEAD) as hogs:
            assert_answered(server)
            assert sum(is_closed(one, PATIENCE) for one in hogs[:20]) == 20
            other.sendall(b"rics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            other.settimeout(PATIENCE)
            assert other.recv(20).startswith(b"HTTP/1.1 200")


def test_all_clients_together_hold_no_more_than_the_server_can_bear(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST", 10)
    with held(server, 50, HALF_HEAD):
        assert_answered(server)
        assert server.open_connections() <= 10


def test_requests_that_take_long_leave_room_for_metrics(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MOST_REQUESTS", 3)

    def asked() -> httpx.Response:
        return httpx.get(f"{server.url}/api/v1/jobs", timeout=PATIENCE)

    with held(server, 3, HALF_BODY):
        until(lambda: asked().status_code == 503)
        refused = asked()
        assert (refused.status_code, refused.json()["code"]) == (503, "busy")
        assert refused.headers["retry-after"] == "1"
        assert httpx.get(f"{server.url}/metrics", timeout=PATIENCE).status_code == 200
    deadline = time.monotonic() + PATIENCE
    while httpx.get(f"{server.url}/api/v1/jobs", headers=BEARER).status_code != 200:
        assert time.monotonic() < deadline, "the requests that were broken off are still counted"
        time.sleep(0.05)


def test_no_more_pages_listen_than_may(server: Server) -> None:
    listening = f"GET /api/v1/jobs/{JOB}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with held(server, 60, listening) as streams:
        assert [one.recv(12) for one in streams].count(b"HTTP/1.1 200") == 16
        assert_answered(server)
    deadline = time.monotonic() + PATIENCE
    while httpx.get(f"{server.url}/api/v1/jobs/{JOB}/events?once=true").status_code != 200:
        assert time.monotonic() < deadline, "streams that have ended are still counted"
        time.sleep(0.1)
