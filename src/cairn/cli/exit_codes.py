"""The exit codes of the `cairn` command, and which error ends with which of them."""

from __future__ import annotations

from enum import IntEnum

from cairn.errors import (
    CairnError,
    CorruptFileError,
    FencedError,
    IncompatibleStateError,
    InvalidInputError,
    NotFoundError,
    StateTypeError,
    StorageError,
)


class ExitCode(IntEnum):
    """The exit codes of every command; they are part of the interface."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    DAMAGED = 5
    INCOMPATIBLE = 6
    STORAGE = 7
    INTERRUPTED = 130


# The first entry that matches decides, so subclasses stand before their parents.
_CODES: tuple[tuple[type[CairnError], ExitCode], ...] = (
    (StateTypeError, ExitCode.FAILED),
    (InvalidInputError, ExitCode.USAGE),
    (NotFoundError, ExitCode.NOT_FOUND),
    (FencedError, ExitCode.CONFLICT),
    (CorruptFileError, ExitCode.DAMAGED),
    (IncompatibleStateError, ExitCode.INCOMPATIBLE),
    (StorageError, ExitCode.STORAGE),
)


def exit_code(error: CairnError) -> ExitCode:
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)
