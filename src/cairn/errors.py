"""The error tree: what went wrong, where, and what to do next.

Every error has a stable `code`, keeps its facts in `facts`, and survives pickling from a Spark worker to the
driver. The classes are divided by what the catcher does next::

    CairnError
    ├── InvalidInputError       fix the call or the configuration (also a ValueError)
    │   ├── StateTypeError      a value does not fit the declared type (also a TypeError)
    │   └── MissingPackageError an optional package is not installed (also an ImportError)
    ├── NotFoundError           the named thing does not exist (also a LookupError)
    ├── IncompatibleStateError  the code and the stored state do not fit together
    ├── UserFunctionError       the user's function raised
    ├── EpochFailedError        this epoch did not happen; the last committed one is intact
    ├── FencedError             a newer run owns the job; this one must stop
    ├── CorruptFileError        a durable file is damaged or not ours
    ├── StorageError            the store did not do what was asked; often passes
    ├── StateMisuseError        a handle was used where it has no meaning
    ├── UnsupportedError        PyFlink has it and cairn has not (also an AttributeError or ImportError)
    └── InternalError           a bug in cairn
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


class CairnError(Exception):
    """Root of all errors raised by cairn. `code` never changes between releases; `facts` holds the details."""

    code = "error"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(kind: type[CairnError], message: str, facts: dict[str, Any]) -> CairnError:
    return kind(message, **facts)


class InvalidInputError(CairnError, ValueError):
    code = "invalid-input"


class StateTypeError(InvalidInputError, TypeError):
    code = "state-type"


class MissingPackageError(InvalidInputError, ImportError):
    code = "missing-package"


class NotFoundError(CairnError, LookupError):
    code = "not-found"


class IncompatibleStateError(CairnError):
    code = "incompatible-state"


class UserFunctionError(CairnError):
    code = "user-function"


class EpochFailedError(CairnError):
    code = "epoch-failed"


class CheckpointFailedError(CairnError):
    code = "checkpoint-failed"


class FencedError(CairnError):
    code = "fenced"


class CorruptFileError(CairnError):
    code = "corrupt-file"


class StorageError(CairnError):
    code = "storage"


class StateMisuseError(CairnError):
    code = "state-misuse"


class UnsupportedError(CairnError):
    code = "unsupported"


class UnsupportedAttributeError(UnsupportedError, AttributeError):
    """`hasattr` is false, as for every attribute that is missing."""


class UnsupportedImportError(UnsupportedError, ImportError):
    """Raised by `from cairn import X`."""


class InternalError(CairnError):
    code = "internal"


_ALL: dict[str, type[CairnError]] = {
    kind.__name__: kind
    for kind in (
        InvalidInputError,
        StateTypeError,
        MissingPackageError,
        NotFoundError,
        IncompatibleStateError,
        UserFunctionError,
        EpochFailedError,
        CheckpointFailedError,
        FencedError,
        CorruptFileError,
        StorageError,
        StateMisuseError,
        UnsupportedError,
        UnsupportedAttributeError,
        UnsupportedImportError,
        InternalError,
    )
}
# The first entry that matches decides, so subclasses stand before their parents.
_ADVICE: tuple[tuple[type[CairnError], str], ...] = (
    (StateTypeError, "Make the value fit the declared type, or declare another type."),
    (MissingPackageError, "Install the named package where the job runs, and start again; no state was changed."),
    (InvalidInputError, "Correct the named call or setting and start again; no state was changed."),
    (NotFoundError, "Check the name and the directory."),
    (FencedError, "Another run owns this job. Leave it running, or stop it and start this one again."),
    (CorruptFileError, "Start from an older checkpoint or a savepoint; keep the damaged file."),
    (IncompatibleStateError, "Use the code that fits the state, or migrate the state."),
    (StorageError, "Check that the storage can be reached and has space, then start again."),
    (UserFunctionError, "Correct the function and start again; the last committed epoch is intact."),
    (EpochFailedError, "Start the job again; it resumes from the last committed epoch."),
    (
        CheckpointFailedError,
        "The job and its earlier checkpoints are not affected. Fix the cause and take another one.",
    ),
    (StateMisuseError, "Use state and timers only where the message allows it."),
    (UnsupportedError, "Use the alternative that the message names; docs/pyflink.md lists all differences."),
    (InternalError, "This is a bug in cairn. Run again with --debug and report the traceback."),
)


def remedy(error: CairnError) -> str | None:
    """What to do next: the error's own `remedy` fact, or the general advice for its kind."""
    own = error.facts.get("remedy")
    if own:
        return str(own)
    return next((advice for kind, advice in _ADVICE if isinstance(error, kind)), None)


_NOTE = "cairn-facts: "
FAILURE_FACTS = ("uid", "subtask", "epoch", "exception", "cause", "file", "line", "function", "traceback")
_IN_TRACEBACK = re.compile(
    r"cairn\.[\w.]+\.(\w+): \[([a-z-]+)\] (.*?)"
    rf"(?:\n{_NOTE}(\{{.*?\}})(?=\n|\Z)|(?=\n\s*(?:at |SQLSTATE|An exception |Traceback |\n|$)|\Z))",
    re.DOTALL,
)


def facts_note(facts: Mapping[str, Any]) -> str:
    """A line for the note of an exception that carries its facts to whoever reads the traceback, or nothing."""
    told = {name: facts[name] for name in FAILURE_FACTS if name in facts}
    return _NOTE + json.dumps(told, default=str) if told else ""


def from_traceback(text: str) -> CairnError | None:
    """The cairn error that a Spark exception text carries from a worker, or None. The last one in the text wins."""
    found = None
    for match in _IN_TRACEBACK.finditer(text):
        kind = _ALL.get(match.group(1), CairnError)
        message = match.group(3).partition(f"\n{_NOTE}")[0].strip()
        found = kind(message, **_carried(match.group(4)), code=match.group(2))
    return found


def _carried(note: str | None) -> dict[str, Any]:
    try:
        told = json.loads(note) if note else {}
    except ValueError:  # cut off on its way
        return {}
    return {name: told[name] for name in FAILURE_FACTS if name in told}
