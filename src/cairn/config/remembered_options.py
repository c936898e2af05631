"""The options that a job remembers from run to run (docs/design/0010-remembered-configuration.md).

Remembered is what describes the job: its checkpoints, their retention, its restart strategy, how its state is stored,
what its page must not show. Not remembered is what describes one start or one machine (snapshots to start from, paths,
addresses, ports, the parallelism, Spark's own settings), and nothing that can hold a secret (tokens, job parameters).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from cairn.config.options import OPTIONS
from cairn.config.parsing import with_options
from cairn.config.settings import RememberedOption, Settings
from cairn.errors import InvalidInputError

_CHECKPOINTS = (
    "interval", "mode", "timeout", "min-pause", "max-concurrent-checkpoints", "tolerable-failed-checkpoints",
    "externalized-checkpoint-retention", "num-retained", "unaligned.enabled", "aligned-checkpoint-timeout",
    "incremental", "data-inline-threshold", "write-buffer-size",
)  # fmt: skip
REMEMBERED = tuple(
    key
    for key in OPTIONS
    if key.removeprefix("execution.checkpointing.") in _CHECKPOINTS
    or key.startswith("restart-strategy.")
    or key
    in (
        "cairn.compaction.max-chain", "cairn.epochs.retained", "web.checkpoints.history", "cairn.web.hidden-states",
        "cairn.errors.show-values",
    )
)  # fmt: skip
"""Keys that are remembered, in the order of the documentation."""
_INFINITE = ("restart-strategy.exponential-delay.attempts-before-reset-backoff", 0, "infinite")


def restart_keys(kind: str) -> list[str]:
    """The options that a restart strategy of this type sets."""
    if not kind:
        return []
    return [key for key in OPTIONS if key == "restart-strategy.type" or key.startswith(f"restart-strategy.{kind}.")]


def value_of(settings: Settings, key: str) -> Any:
    """The value of an option as its reader takes it: times in milliseconds, sizes in bytes."""
    value = attrgetter(OPTIONS[key][0])(settings)
    if (key, value) == _INFINITE[:2]:
        return _INFINITE[2]
    return list(value) if isinstance(value, tuple) else value


def shown(key: str, value: Any) -> str:
    """A value in words."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value} ms" if OPTIONS[key][0].endswith("_ms") else str(value)


def recalled(settings: Settings, known: Mapping[str, RememberedOption], where: str) -> Settings:
    """The settings with what the job remembers of options that are not set now; what is set now wins.

    Its `remembered` is what the next run will know. A remembered value that cannot be used is an error that says how to
    go on: a job must not fall back to a default in silence.
    """
    usable = {key: option for key, option in known.items() if key in REMEMBERED}
    taken = {key: option.value for key, option in usable.items() if key not in settings.given}
    try:
        made = with_options(settings, taken, origin="")
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{error.message}. The job remembers {', '.join(sorted(taken))} from an earlier run ({where}); set the "
            "option that does not fit explicitly, with -D or in the code.",
            **error.facts,
        ) from None
    fresh = {
        key: RememberedOption(value_of(made, key), origin)
        for key, origin in settings.given.items()
        if key in REMEMBERED and not same(usable.get(key), value_of(made, key), origin)
    }
    return replace(made, remembered={**usable, **fresh})


def same(option: RememberedOption | None, value: Any, origin: str) -> bool:
    return option is not None and (option.value, option.origin) == (value, origin)


def overrides(settings: Settings, known: Mapping[str, RememberedOption]) -> list[str]:
    """What is set now to another value than the job remembers: `key: 5 before, 1 now, from -D`."""
    found = []
    for key in REMEMBERED:
        if key in known and key in settings.given and known[key].value != value_of(settings, key):
            before, now = shown(key, known[key].value), shown(key, value_of(settings, key))
            found.append(f"{key}: {before} before, {now} now, from {settings.given[key]}")
    return found


def taken_over(settings: Settings, known: Mapping[str, RememberedOption]) -> list[str]:
    """What the job remembers, is not set now, and differs from the default: `key=value`."""
    default = Settings()
    return [
        f"{key}={shown(key, value_of(settings, key))}"
        for key in REMEMBERED
        if key in known and key not in settings.given and value_of(settings, key) != value_of(default, key)
    ]
