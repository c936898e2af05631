"""What servers for tests are made of: jars from Maven Central, kept in a folder so that nothing is fetched twice.

`CAIRN_TEST_CACHE` names the folder (`~/.cache/cairn-tests` unless set), `CAIRN_MAVEN` another repository.
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path

LIST = Path(__file__).with_name("jars.txt")


class NotAvailableError(Exception):
    """A server cannot be had here; the text says why."""


def folder() -> Path:
    return Path(os.environ.get("CAIRN_TEST_CACHE") or Path.home() / ".cache" / "cairn-tests")


def jars(group: str) -> list[Path]:
    """The jars of one group of `jars.txt`, fetched where they are missing and checked against their checksums."""
    wanted = [line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [_jar(coordinate, checksum) for name, coordinate, checksum in wanted if name == group]


def _jar(coordinate: str, checksum: str) -> Path:
    organisation, artifact, version = coordinate.split(":")
    path = folder() / "jars" / f"{artifact}-{version}.jar"
    if path.exists():
        return path
    base = os.environ.get("CAIRN_MAVEN") or "https://repo1.maven.org/maven2"
    address = f"{base}/{organisation.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            data = answer.read()
    except (urllib.error.URLError, OSError) as error:
        raise NotAvailableError(f"{address} cannot be fetched: {error}") from error
    if hashlib.sha256(data).hexdigest() != checksum:
        raise NotAvailableError(f"{address} does not have the checksum of {LIST.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    partial.write_bytes(data)
    partial.rename(path)
    return path
