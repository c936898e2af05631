"""The container of small records on disk: magic, a digit for the format, xxh3-64 of the body, its length, the body.

::

    magic (7 bytes), format (1 byte)
    xxh3-64 of the body (8 bytes)
    length of the body  (4 bytes, little-endian)
    body                MessagePack
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import xxhash

from cairn.errors import CorruptFileError, IncompatibleStateError, InvalidInputError
from cairn.storage.regular_files import MAX_BODY

MAGIC_BYTES = 7
HEAD = MAGIC_BYTES + 1 + 8 + 4

_T = TypeVar("_T")


def seal(magic: bytes, version: bytes, record: Any) -> bytes:
    body = msgspec.msgpack.encode(record)
    if len(body) > MAX_BODY:
        raise InvalidInputError(
            f"the record of an epoch or checkpoint would take {len(body)} bytes; at most {MAX_BODY} are written and "
            "read. Lower execution.checkpointing.data-inline-threshold, so that less state lies in it."
        )
    return magic + version + xxhash.xxh3_64_digest(body) + len(body).to_bytes(4, "little") + body


def version_of(data: bytes) -> bytes:
    return data[MAGIC_BYTES : MAGIC_BYTES + 1]


def is_intact(data: bytes) -> bool:
    """Whether the body is the one that was sealed; a length that lies is seen, too."""
    body = data[HEAD:]
    length = int.from_bytes(data[HEAD - 4 : HEAD], "little")
    return len(body) == length and xxhash.xxh3_64_digest(body) == data[MAGIC_BYTES + 1 : HEAD - 4]


def unseal(data: bytes, version: bytes, kind: type[_T], name: str) -> _T:
    """The record in these bytes, whose magic was looked at; an error that names the file if they are cut, changed or
    too new. A record has `requires`: features that a reader must know.
    """
    if version_of(data) != version:
        raise IncompatibleStateError(
            f"{name} has format {version_of(data)!r}; this cairn reads format {version!r}. Use the release that wrote "
            "it or a newer one; nothing was changed.",
            path=name,
        )
    if not is_intact(data):
        length = int.from_bytes(data[HEAD - 4 : HEAD], "little")
        raise CorruptFileError(
            f"{name} is damaged: it has {max(0, len(data) - HEAD)} of {length} bytes or other ones", path=name
        )
    try:
        record = msgspec.msgpack.decode(data[HEAD:], type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CorruptFileError(f"{name} cannot be read: {error}", path=name) from error
    requires: list[str] = getattr(record, "requires", [])
    if requires:
        raise IncompatibleStateError(
            f"{name} needs features that this cairn does not have: {', '.join(requires)}", path=name
        )
    return record
