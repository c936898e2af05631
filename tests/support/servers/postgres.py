"""A PostgreSQL server for tests: from Debian's packages, in a folder of its own, on a free port of this machine."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.support.servers import apt
from tests.support.servers.cache import NotAvailableError
from tests.support.servers.kafka import free_port

_QUICK = "fsync=off|full_page_writes=off|max_connections=30|shared_buffers=16MB|log_min_messages=fatal"


def _programs() -> str:
    """The folder with `initdb` and `pg_ctl`; installed where that is possible."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    if not found and (named := shutil.which("initdb")):
        found = [named]
    if not found:
        apt.install("postgresql")
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    if not found:
        raise NotAvailableError("PostgreSQL is not installed, and apt-get cannot install it here")
    return os.path.dirname(found[-1])


class PostgresServer:
    """Started by `start`, which may be called again after `stop`: the data is kept."""

    def __init__(self) -> None:
        self._bin = _programs()
        self._folder = Path(tempfile.mkdtemp(prefix="cairn-postgres-"))
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:  # the server refuses to run as root
            account = pwd.getpwnam(
                next(user.pw_name for user in pwd.getpwall() if user.pw_name in ("postgres", "nobody"))
            )
            os.chown(self._folder, account.pw_uid, account.pw_gid)
            self._as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self.port = free_port()
        self.url = f"postgresql://cairn@127.0.0.1:{self.port}/postgres"
        self._call("initdb", "-D", "data", "-U", "cairn", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")

    def _call(self, program: str, *args: str) -> None:
        with (self._folder / "said").open("ab") as said:
            done = subprocess.run(
                [f"{self._bin}/{program}", *args], cwd=self._folder, stdout=said, stderr=said, check=False, **self._as
            )
        if done.returncode:
            text = (self._folder / "said").read_text()[-2000:]
            raise NotAvailableError(f"{program} of PostgreSQL failed: {text}")

    def start(self) -> None:
        options = " ".join(f"-c {option}" for option in _QUICK.split("|"))
        options += f" -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._folder} -p {self.port}"
        self._call("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")

    def stop(self) -> None:
        """Drop all connections and end, as a crash of the server looks from outside."""
        self._call("pg_ctl", "-D", "data", "-w", "-m", "immediate", "stop")

    def remove(self) -> None:
        if (self._folder / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url) as connection:
            return connection.execute(query.encode()).fetchall()

    def run(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url) as connection:
            connection.execute(statement.encode())
