"""Opens files of directories that anybody may have written to: regular files only, and no more bytes than a limit.

A pipe, a socket or a device under the name of a record would keep its reader waiting for ever, and a sparse file of
many gigabytes would exhaust its memory. The opened file is examined, and not its name before it is opened, so nothing
can change in between. Links are not followed.
"""

from __future__ import annotations

import errno
import os
import stat

from cairn.errors import CorruptFileError
from cairn.storage import layout

MAX_BODY = 1 << 30
"""Of a manifest or checkpoint: they hold small changes themselves, of a subtask and epoch at most 1 MiB, the greatest
inline threshold. A record that would be larger is not written, so a file that is larger is none of ours."""
MAX_METADATA = 64 << 20
"""Of a savepoint, which holds no state itself."""
_HEAD = 20
"""What a container adds to its body, `container.HEAD`."""
_NOTE = 1 << 20
_STATISTICS = 64 << 20
"""Statistics have numbers of every operator and subtask."""
_ANYTHING = 1 << 36
"""State files, output and logs, whose size other records tell."""
_LIMITS = {
    layout.RUNS: _NOTE, layout.WEB: _NOTE, layout.CLAIMS: _NOTE, layout.TAKEN: _NOTE, layout.STOPPING: _NOTE,
    layout.DISCARDS: _NOTE, layout.BASES: _NOTE, layout.TIMES: _NOTE,
    layout.EVENTS: 16 << 20, layout.STATS: _STATISTICS, layout.HISTORY: _STATISTICS, layout.CONTROL: _STATISTICS,
    layout.EPOCHS: MAX_BODY + _HEAD,
}  # fmt: skip
_NAMES = {layout.JOB: _NOTE, layout.CLAIMED: _NOTE, layout.RESTORES: _NOTE}
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"), (stat.S_ISDIR, "a folder"), (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"), (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


def limit_of(path: str) -> int:
    """How many bytes the file of a job or savepoint may have, by its path below their directory."""
    folder, _, name = path.rpartition("/")
    if name == layout.METADATA:
        return (MAX_BODY if folder else MAX_METADATA) + _HEAD
    return _NAMES.get(name) or _LIMITS.get(folder, _ANYTHING)


def open_file(path: str) -> int:
    """A descriptor of a regular file. Raises `CorruptFileError` for anything else under that name, and `OSError`."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise _refused(path, "it is not a regular file but a symbolic link") from None
        if error.errno == errno.ENXIO:
            raise _refused(path, "it is not a regular file but a socket or a device") from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = next((kind for matches, kind in _KINDS if matches(mode)), "something else")
        raise _refused(path, f"it is not a regular file but {kind}")
    return descriptor


def read(path: str, limit: int) -> bytes:
    """All bytes of a regular file. Raises `CorruptFileError` for one that has more than `limit`, and as `open_file`."""
    descriptor = open_file(path)
    with open(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        data = file.read(min(size, limit) + 1) or b"" if size <= limit else b""
        while size <= limit and len(data) <= limit:  # it may have grown, and short reads happen
            more = file.read(min(1 << 20, limit + 1 - len(data)))
            if not more:
                return data
            data += more
    raise _refused(path, f"it has {max(size, len(data))} bytes, at most {limit} are read")


def _refused(path: str, why: str) -> CorruptFileError:
    return CorruptFileError(
        f"{path} is refused: {why}",
        path=path,
        remedy="cairn writes no such file. Find out where it comes from, move it away, and bring the file back from a "
        "copy.",
    )
