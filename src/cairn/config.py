"""Settings: one frozen object, Flink's keys, defaults and validation. Unknown keys and wrong values are errors.

Only keys that have an effect are listed. `spark.*` keys are handed to the local Spark session that the environment
starts when it is given none.
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cairn.errors import InvalidInputError

DEFAULT_DIRECTORY = "./cairn-data"
MAX_INLINE = 1 << 20
_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "k": 1 << 10, "mb": 1 << 20, "m": 1 << 20, "gb": 1 << 30, "g": 1 << 30}


def default_local_directory() -> str:
    """Where working stores live unless told otherwise: private to the user, on the host's own disk."""
    return os.path.join(tempfile.gettempdir(), f"cairn-{os.getuid() if hasattr(os, 'getuid') else 0}")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a job runs with. Built by `parse`; the environment's `set_*` calls give changed copies."""

    directory: str = ""
    inline_threshold: int = 20 * 1024
    local_directory: str = field(default_factory=default_local_directory)
    backend: str = "lmdb"
    parallelism: int = 0
    max_parallelism: int = 0
    job_id: str = ""
    auto_uids: bool = True
    ignore_unclaimed: bool = False
    compaction_chain: int = 32
    epochs_retained: int = 10
    show_values: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"-?\d+", str(value).strip()):
            raise ValueError(f"expected a whole number, found {value!r}")
        number = int(str(value))
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low} to {high}, found {number}")
        return number

    return read


def _boolean(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"expected true or false, found {value!r}")
    return text == "true"


def _size(value: Any) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", str(value))
    if match is None or match.group(2).lower() not in _UNITS:
        raise ValueError(f"expected a size such as '20 kb', found {value!r}")
    return int(match.group(1)) * _UNITS[match.group(2).lower()]


def _inline(value: Any) -> int:
    size = _size(value)
    if size > MAX_INLINE:
        raise ValueError(f"at most 1 mb is allowed, found {value!r}")
    return size


def _text(value: Any) -> str:
    text = str(value).strip()
    if not text:
        raise ValueError("expected some text, found nothing")
    return text


OPTIONS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "execution.checkpointing.dir": ("directory", _text, "directory of all jobs; default ./cairn-data"),
    "execution.checkpointing.data-inline-threshold": (
        "inline_threshold", _inline, "changes up to this size travel inside the manifest; default 20 kb, at most 1 mb",
    ),
    "execution.checkpointing.local-backup.dirs": (
        "local_directory", _text, "where working stores live on each host; default: in the temporary folder",
    ),
    "execution.state-recovery.ignore-unclaimed-state": (
        "ignore_unclaimed", _boolean, "start although stored state belongs to operators that the job no longer has",
    ),
    "state.backend.type": ("backend", _text, "lmdb (default), hashmap, rocksdb, or an installed one"),
    "parallelism.default": ("parallelism", _integer(1, 32768), "number of subtasks; default: that of Spark"),
    "pipeline.max-parallelism": (
        "max_parallelism", _integer(-1, 32768), "number of key groups, fixed for a job's life; default as in Flink",
    ),
    "pipeline.job-id": ("job_id", _text, "name of the job's directory; default: made from the job's name"),
    "pipeline.auto-generate-uids": ("auto_uids", _boolean, "false: operators must have a uid; default true"),
    "cairn.compaction.max-chain": (
        "compaction_chain", _integer(2, 10_000), "deltas after which state is compacted into a snapshot; default 32",
    ),
    "cairn.epochs.retained": ("epochs_retained", _integer(2, 100_000), "manifests that are kept; default 10"),
    "cairn.errors.show-values": ("show_values", _boolean, "show data in error messages; default false"),
}  # fmt: skip
ALIASES = {
    "state.checkpoints.dir": "execution.checkpointing.dir",
    "state.storage.fs.memory-threshold": "execution.checkpointing.data-inline-threshold",
    "taskmanager.state.local.root-dirs": "execution.checkpointing.local-backup.dirs",
    "state.backend": "state.backend.type",
}
_PARAMETER = "pipeline.global-job-parameters."


def parse(*layers: Mapping[str, Any]) -> Settings:
    """Settings from one or more maps of keys; a later map wins."""
    values: dict[str, Any] = {}
    spark: dict[str, str] = {}
    parameters: dict[str, str] = {}
    for layer in layers:
        for given, value in layer.items():
            key = ALIASES.get(given, given)
            if key.startswith("spark."):
                spark[key] = str(value)
            elif key.startswith(_PARAMETER):
                parameters[key.removeprefix(_PARAMETER)] = str(value)
            elif key in OPTIONS:
                name, read, _ = OPTIONS[key]
                try:
                    values[name] = read(value)
                except ValueError as error:
                    raise InvalidInputError(f"option {given}: {error}", option=given) from None
            else:
                near = difflib.get_close_matches(key, [*OPTIONS, *ALIASES], n=1)
                hint = f"did you mean {near[0]}?" if near else "docs/configuration.md lists the options."
                raise InvalidInputError(f"there is no option {given}; {hint}", option=given)
    if values.get("max_parallelism") == -1:
        values["max_parallelism"] = 0
    return Settings(**values, spark=spark, parameters=parameters)
