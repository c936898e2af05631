"""Where the savepoint of a request goes: a folder whose name depends on the job and the request alone."""

from __future__ import annotations

import hashlib
import os

from cairn.errors import InvalidInputError
from cairn.storage import layout
from cairn.storage.filesystem import local_root


def target_directory(requested: str | None, configured: str) -> str:
    """The directory that a savepoint is written into: the one that was requested, or the configured one."""
    directory = requested or configured
    if not directory:
        raise InvalidInputError(
            "no directory for the savepoint: name one, or set execution.checkpointing.savepoint-dir "
            "(env.set_default_savepoint_directory) for all savepoints of the job",
            option="execution.checkpointing.savepoint-dir",
        )
    return local_root(directory)


def savepoint_path(directory: str, job_id: str, request: str) -> str:
    """The folder of the savepoint that a request makes: the same for the same request."""
    return os.path.join(local_root(directory), layout.savepoint_name(job_id, request_token(request)))


def request_token(*names: str) -> str:
    """A short hash that stands for a request in names of folders."""
    return hashlib.blake2b("\0".join(names).encode(), digest_size=6).hexdigest()
