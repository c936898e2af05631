"""Checks whether Spark's own log files, which cairn relies on and does not write, are whole.

Spark writes entries of its logs under another name, renames them, and never forces them to disk. Hadoop puts a file
with checksums beside each, `.<name>.crc`: `crc` and a zero byte, the length of a chunk (4 bytes, big-endian), and the
CRC-32 of every chunk. Spark does not always verify them, so cairn does at the start of a run: one bit in the log of a
file source can cause a file to be read twice or never.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
import zlib
from collections.abc import Callable

from cairn.errors import CorruptFileError
from cairn.logs import get_logger
from cairn.quantities import shell_word
from cairn.storage import layout, regular_files
from cairn.storage.filesystem import LocalFileSystem

_log = get_logger("cairn.job")
_MAGIC = b"crc\0"
_CHUNK = 512
MAX_LOG = 1 << 32
"""The log of a file source has a line for every file that it ever read."""
ENTRY = re.compile(r"\d+(\.compact)?")
"""The name of an entry in the log of a file source."""
VERSION = "v1"
"""The first line of an entry in any of Spark's logs."""


def read_log(path: str) -> bytes:
    """The bytes of a log file, compared with the checksums beside it, if there are any that can be used."""
    data = regular_files.read(path, MAX_LOG)
    try:
        checksums = regular_files.read(_checksums(path), MAX_LOG)
    except FileNotFoundError:
        return data
    chunk = int.from_bytes(checksums[4:8], "big")
    if not checksums.startswith(_MAGIC) or not 0 < chunk <= 1 << 30:  # not written whole, as after a power loss
        _log.warning("%s cannot be used, so %s is taken as it is", _checksums(path), path)
        return data
    if checksums != sealed(data, chunk):
        raise CorruptFileError(
            f"{path} does not match its checksums in {_checksums(path)}: it was damaged or changed after Spark wrote "
            "it. Restore it from a backup; nothing was changed.",
            path=path,
        )
    return data


def read_text(path: str) -> str:
    """The text of a log file, verified as `read_log` does."""
    try:
        return read_log(path).decode()
    except UnicodeDecodeError:
        raise CorruptFileError(
            f"{path} is not a text file. Restore it from a backup; nothing was changed.", path=path
        ) from None


def sealed(data: bytes, chunk: int = _CHUNK) -> bytes:
    """The checksum file that Hadoop keeps beside a file with these bytes."""
    sums = (zlib.crc32(data[at : at + chunk]) for at in range(0, len(data), chunk))
    return _MAGIC + chunk.to_bytes(4, "big") + b"".join(value.to_bytes(4, "big") for value in sums)


def _checksums(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.crc")


def commit_batch(folder: str, epoch: int, watermark: int) -> None:
    """Commit the batch of a restored epoch in Spark's log, if it is not committed yet."""
    entry = f'{VERSION}\n{{"nextBatchWatermarkMs":{max(0, watermark)}}}'
    with contextlib.suppress(FileExistsError):
        LocalFileSystem(folder).create(f"{layout.COMMITS}/{epoch}", entry.encode())


def check_logs(folder: str, epoch: int, remedy: Callable[[], str]) -> None:
    """Refuse logs of Spark's that a query could not continue from, or would continue from wrongly.

    `folder` is the query's checkpointLocation, `epoch` the newest committed one (-1 if there is none), whose positions
    were compared with its manifest; `remedy` says what can be done about a damaged log. Entries before that epoch are
    not checked: Spark does not read them.
    """
    _check_query_id(os.path.join(folder, layout.QUERY_ID), remedy)
    for number in batches(os.path.join(folder, layout.OFFSETS)):
        if number > epoch:
            way_out = "no epoch was committed for it, so it can be moved away: the epoch is planned again"
            _check_entry(os.path.join(folder, layout.OFFSETS, str(number)), way_out, remedy)
    for number in batches(os.path.join(folder, layout.COMMITS)):
        if number >= epoch - 1:
            way_out = "its epoch has a manifest, so it can be moved away: the epoch is rolled forward"
            _check_entry(os.path.join(folder, layout.COMMITS, str(number)), way_out, remedy)
    sources = os.path.join(folder, layout.SOURCES)
    for source in sorted(os.listdir(sources)) if os.path.isdir(sources) else ():
        place = os.path.join(sources, source)
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            if ENTRY.fullmatch(name):
                _check_source(os.path.join(place, name), remedy)


def _check_query_id(path: str, remedy: Callable[[], str]) -> None:
    """`metadata` has the id of Spark's query as a JSON object, and nothing else."""
    try:
        document = json.loads(read_log(path))
        if isinstance(document, dict) and isinstance(document.get("id"), str) and document["id"]:
            return
    except FileNotFoundError:
        return
    except (CorruptFileError, ValueError, RecursionError):
        pass
    checksums = shell_word(_checksums(path))
    line = shell_word(json.dumps({"id": str(uuid.uuid4())}))
    raise CorruptFileError(
        f"{path}, which has the id of Spark's query, is empty or damaged, and Spark could not start from it. Bring it "
        f"back from a copy, or write a new id, on which nothing in the job depends: `echo {line} > {shell_word(path)}; "
        f"rm -f {checksums}`. Nothing was changed; {remedy()}",
        path=path,
    )


def batches(folder: str) -> list[int]:
    """The batches that one of Spark's logs has an entry of, ascending; none if the folder does not exist."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def _check_entry(path: str, way_out: str, remedy: Callable[[], str]) -> None:
    data = _read(path, lambda: f"{way_out}. Or: {remedy()}")
    if data is None:
        return
    version, document = [*data.split(b"\n"), b""][:2]
    if not re.fullmatch(rb"v\d+", version) or not _is_json(document):
        raise _torn(path, f"{way_out}. Or: {remedy()}")


def _check_source(path: str, remedy: Callable[[], str]) -> None:
    """An entry that was cut short is empty, or cut within its last line, where Spark's sources write a document."""
    data = _read(path, remedy)
    if data is None:
        return
    last = data[data.rfind(b"\n") + 1 :]
    if not data or (last.startswith(b"{") and not _is_json(last)):
        raise _torn(path, remedy())


def _read(path: str, remedy: Callable[[], str]) -> bytes | None:
    try:
        return read_log(path)
    except FileNotFoundError:  # a query that still runs has removed it
        return None
    except CorruptFileError as error:
        raise CorruptFileError(f"{error.message} Or: {remedy()}", **error.facts) from None


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _torn(path: str, remedy: str) -> CorruptFileError:
    return CorruptFileError(
        f"{path}, a file of Spark's log, is truncated or damaged, and Spark could not resume from it. Restore it "
        f"from a backup; {remedy}",
        path=path,
    )
