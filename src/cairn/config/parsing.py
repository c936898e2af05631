"""Parses and validates settings: Flink's keys to one frozen object. Unknown keys and wrong values are errors.

Keys of Flink that have no counterpart in cairn are refused with the reason, so that no setting is silently without
effect. `spark.*` keys are handed to the local Spark session that the environment starts when it is given none.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from cairn.config.options import ALIASES, OPTIONS, REFUSED
from cairn.config.settings import (
    CLAIM_MODES,
    MIN_CHECKPOINT_MS,
    MODES,
    RESTART_TYPES,
    RETENTIONS,
    STORAGES,
    Settings,
)
from cairn.errors import InvalidInputError

_PARAMETER = "pipeline.global-job-parameters."


_KEYS = {name: key for key, (name, _, _) in OPTIONS.items()}


def parse(*layers: Mapping[str, Any], origins: Sequence[str] = ()) -> Settings:
    """Settings from one or more maps of keys; a later map wins. `origins` says where each map comes from."""
    options: list[Mapping[str, Any]] = []
    spark: dict[str, str] = {}
    parameters: dict[str, str] = {}
    for layer in layers:
        own: dict[str, Any] = {}
        for given, value in layer.items():
            if not isinstance(given, str):
                raise InvalidInputError(f"option names are text, found {given!r} ({type(given).__name__})")
            if given.startswith("spark."):
                spark[given] = str(value)
            elif given.startswith(_PARAMETER):
                parameters[given.removeprefix(_PARAMETER)] = str(value)
            else:
                own[given] = value
        options.append(own)
    return _changed(Settings(spark=spark, parameters=parameters), options, origins)


def with_options(settings: Settings, options: Mapping[str, Any], origin: str = "code") -> Settings:
    """A checked copy of the settings in which these keys have these values. An empty origin: nobody has set them."""
    return _changed(settings, [options], [origin])


def check(settings: Settings) -> None:
    """Raise if checkpoint, restart or recovery settings are out of range or do not fit together.

    `parse` has done this for what it returns; it is for settings that were changed in code.
    """
    _check(settings, {})


def _changed(settings: Settings, layers: Iterable[Mapping[str, Any]], origins: Sequence[str]) -> Settings:
    parts: dict[str, dict[str, Any]] = {"": {}}
    given_as: dict[str, str] = {}
    given = dict(settings.given)
    for place, layer in enumerate(layers):
        origin = origins[place] if place < len(origins) else ""
        here: dict[str, str] = {}
        for key, value in layer.items():
            name, read = _option(key)
            part, _, inner = name.rpartition(".")
            fields = parts.setdefault(part, {})
            try:
                wanted = read(value)
            except ValueError as error:
                raise InvalidInputError(f"option {key}: {error}", option=key) from None
            if name in here and fields[inner] != wanted:
                first = here[name]
                raise InvalidInputError(
                    f"options {first} and {key} are two names of one setting and have different values, "
                    f"{layer[first]!r} and {value!r}; leave one of them out",
                    option=key,
                )
            fields[inner] = wanted
            given_as[name] = here[name] = key
            if origin:
                given[_KEYS[name]] = str(origin)
    own = parts.pop("")
    if own.get("max_parallelism") == -1:
        own["max_parallelism"] = 0
    own.update((part, replace(getattr(settings, part), **changes)) for part, changes in parts.items())
    changed = replace(settings, **own, given=given)
    _check(changed, given_as)
    return changed


def _option(given: str) -> tuple[str, Callable[[Any], Any]]:
    """Field and reader of a key, or an error that says what is wrong with the key."""
    key = ALIASES.get(given, given)
    if key in OPTIONS:
        return OPTIONS[key][:2]
    reason = _refusal(key)
    if reason is not None:
        raise InvalidInputError(f"option {given} of Flink does not exist in cairn: {reason}", option=given)
    near = difflib.get_close_matches(key, [*OPTIONS, *ALIASES], n=1)
    hint = f"did you mean {near[0]}?" if near else "docs/configuration.md lists the options."
    raise InvalidInputError(f"there is no option {given}; {hint}", option=given)


def _refusal(key: str) -> str | None:
    if key in REFUSED:
        return REFUSED[key]
    families = [family for family in REFUSED if family.endswith(".*") and key.startswith(family[:-1])]
    return REFUSED[max(families, key=len)] if families else None


def _at_least(low: int, unit: str = "") -> tuple[Callable[[Any], bool], str]:
    return lambda value: value >= low, f"at least {low}{unit}"


def _one_of(choices: tuple[str, ...]) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value in choices, " or ".join(choice for choice in choices if choice)


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "claim_mode": _one_of(CLAIM_MODES),
    "checkpoints.interval_ms": (
        lambda ms: ms <= 0 or ms >= MIN_CHECKPOINT_MS, f"at least {MIN_CHECKPOINT_MS} ms, or 0 for no checkpoints",
    ),
    "max_jump_ms": _at_least(60_000, " ms"),
    "max_downtime_ms": _at_least(60_000, " ms"),
    "checkpoints.mode": _one_of(MODES),
    "checkpoints.timeout_ms": _at_least(MIN_CHECKPOINT_MS, " ms"),
    "checkpoints.min_pause_ms": _at_least(0, " ms"),
    "checkpoints.max_concurrent": _at_least(1),
    "checkpoints.tolerable_failures": _at_least(0),
    "checkpoints.retention": _one_of(RETENTIONS),
    "checkpoints.num_retained": _at_least(1),
    "checkpoints.aligned_timeout_ms": _at_least(0, " ms"),
    "checkpoints.storage": _one_of(STORAGES),
    "restart.type": _one_of(("", *RESTART_TYPES)),
    "restart.attempts": _at_least(0),
    "restart.delay_ms": _at_least(0, " ms"),
    "restart.max_failures": _at_least(1),
    "restart.failure_interval_ms": _at_least(1, " ms"),
    "restart.failure_delay_ms": _at_least(0, " ms"),
    "restart.initial_backoff_ms": _at_least(1, " ms"),
    "restart.max_backoff_ms": _at_least(1, " ms"),
    "restart.multiplier": (lambda factor: factor > 1, "more than 1"),
    "restart.reset_ms": _at_least(1, " ms"),
    "restart.jitter": (lambda factor: 0 <= factor < 1, "from 0 to below 1"),
    "restart.attempts_before_reset": _at_least(0),
}  # fmt: skip


def _check(settings: Settings, given_as: Mapping[str, str]) -> None:
    """`given_as` has the names under which the user knows the fields, where these are not the usual keys."""

    def key(name: str) -> str:
        return given_as.get(name, _KEYS[name])

    def found(name: str) -> Any:
        return attrgetter(name)(settings)

    def require(name: str, fits: bool, right: str) -> None:
        if not fits:
            shown = f"{found(name)} ms" if name.endswith("_ms") else repr(found(name))
            raise InvalidInputError(f"option {key(name)}: expected {right}, found {shown}", option=key(name))

    for name, (fits, right) in _RANGES.items():
        require(name, fits(found(name)), right)
    checkpoints, restart = settings.checkpoints, settings.restart
    if checkpoints.unaligned:
        why = f"because {key('checkpoints.unaligned')} is true"
        require("checkpoints.mode", checkpoints.mode == "EXACTLY_ONCE", f"EXACTLY_ONCE {why}")
        require("checkpoints.max_concurrent", checkpoints.max_concurrent == 1, f"1 {why}")
    most = f"at most {restart.max_backoff_ms} ms, which is {key('restart.max_backoff_ms')}"
    require("restart.initial_backoff_ms", restart.initial_backoff_ms <= restart.max_backoff_ms, most)
