"""Checkpoint, restart and recovery settings: every key, every older name, every refusal."""

from __future__ import annotations

import pickle
import re
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

import pytest
from tests.support.configuration_page import section

from cairn import (
    InvalidInputError,
)
from cairn.config import (
    ALIASES,
    OPTIONS,
    REFUSED,
    CheckpointSettings,
    RestartSettings,
    Settings,
    check,
    parse,
    with_options,
)

EC = "execution.checkpointing."
SR = "execution.state-recovery."
RS = "restart-strategy."
EXAMPLES: dict[str, tuple[Any, Any]] = {
    EC + "interval": ("2 min", 120_000),
    EC + "mode": ("at-least-once", "AT_LEAST_ONCE"),
    EC + "timeout": ("30 s", 30_000),
    EC + "min-pause": ("500 ms", 500),
    EC + "max-concurrent-checkpoints": ("3", 3),
    EC + "tolerable-failed-checkpoints": (2, 2),
    EC + "externalized-checkpoint-retention": ("retain_on_cancellation", "RETAIN_ON_CANCELLATION"),
    EC + "num-retained": ("6", 6),
    EC + "unaligned.enabled": ("true", True),
    EC + "aligned-checkpoint-timeout": ("1 h", 3_600_000),
    EC + "incremental": (True, True),
    EC + "storage": ("JobManager", "jobmanager"),
    EC + "dir": ("/data", "/data"),
    EC + "savepoint-dir": ("/savepoints", "/savepoints"),
    EC + "data-inline-threshold": ("1 kb", 1024),
    EC + "write-buffer-size": ("8 kb", 8192),
    EC + "local-backup.enabled": ("false", False),
    EC + "local-backup.dirs": ("/local", "/local"),
    EC + "prefer-checkpoint-for-recovery": ("true", True),
    SR + "path": ("/savepoints/1", "/savepoints/1"),
    SR + "claim-mode": ("claim", "CLAIM"),
    "cairn.restore.again": ("false", False),
    "cairn.time.max-jump": ("2 h", 7_200_000),
    "cairn.time.max-downtime": ("30 d", 2_592_000_000),
    "cairn.time.reset": ("true", True),
    "cairn.restore.allow-pickled": ("a.s, b.t", ("a.s", "b.t")),
    "cairn.restore.renames": ("a=b, a.s=a.t", {"a": "b", "a.s": "a.t"}),
    SR + "ignore-unclaimed-state": ("true", True),
    "state.backend.type": ("rocksdb", "rocksdb"),
    RS + "type": ("fixed-delay", "fixed-delay"),
    RS + "fixed-delay.attempts": ("7", 7),
    RS + "fixed-delay.delay": ("10 s", 10_000),
    RS + "failure-rate.max-failures-per-interval": (4, 4),
    RS + "failure-rate.failure-rate-interval": ("5 min", 300_000),
    RS + "failure-rate.delay": ("2 s", 2000),
    RS + "exponential-delay.initial-backoff": ("5 s", 5000),
    RS + "exponential-delay.max-backoff": ("10 min", 600_000),
    RS + "exponential-delay.backoff-multiplier": ("2", 2.0),
    RS + "exponential-delay.reset-backoff-threshold": ("2 h", 7_200_000),
    RS + "exponential-delay.jitter-factor": ("0.5", 0.5),
    RS + "exponential-delay.attempts-before-reset-backoff": ("9", 9),
    "parallelism.default": ("4", 4),
    "pipeline.max-parallelism": (256, 256),
    "pipeline.job-id": ("orders", "orders"),
    "pipeline.auto-generate-uids": ("false", False),
    "cairn.compaction.max-chain": ("8", 8),
    "cairn.epochs.retained": ("5", 5),
    "cairn.errors.show-values": ("false", False),
    "rest.port": ("9000", 9000),
    "rest.bind-address": ("0.0.0.0", "0.0.0.0"),
    "web.checkpoints.history": ("10", 10),
    "cairn.web.enabled": ("false", False),
    "cairn.web.token": ("a-token-of-some-length", "a-token-of-some-length"),
    "cairn.web.hosts": ("a.example, b.example", ("a.example", "b.example")),
    "cairn.web.read-only": ("true", True),
    "cairn.web.hidden-states": ("totals.*", ("totals.*",)),
    "cairn.web.savepoint-roots": ("/data/sp", ("/data/sp",)),
}
REFUSED_EXAMPLES = [
    *[key for key in REFUSED if not key.endswith(".*")],
    EC + "checkpoints-after-tasks-finish.enabled",
    EC + "unaligned.interruptible-timers.enabled",
    EC + "unaligned.interruptible-timers.emit-intermediate-watermarks",
    EC + "file-merging.enabled",
    EC + "file-merging.across-checkpoint-boundary",
    EC + "file-merging.max-file-size",
    EC + "file-merging.max-space-amplification",
    EC + "file-merging.pool-blocking",
    EC + "file-merging.max-subtasks-per-file",
    "state.backend.rocksdb.memory.managed",
    "state.backend.rocksdb.memory.fixed-per-slot",
    "state.backend.rocksdb.memory.fixed-per-tm",
    "state.backend.rocksdb.memory.write-buffer-ratio",
    "state.backend.rocksdb.memory.high-prio-pool-ratio",
    "state.backend.rocksdb.checkpoint.transfer.thread.num",
    "state.backend.rocksdb.timer-service.factory",
    "state.backend.rocksdb.timer-service.cache-size",
    "state.backend.rocksdb.predefined-options",
    "state.backend.forst.primary-dir",
    "state.backend.forst.cache.reserve-size",
    "state.latency-track.keyed-state-enabled",
    "state.backend.latency-track.sample-interval",
    "state.size-track.keyed-state-enabled",
    "state.changelog.enabled",
    "state.changelog.dstl.dfs.base-path",
    "state.backend.changelog.enabled",
    "taskmanager.network.memory.buffer-debloat.enabled",
    "taskmanager.network.memory.buffer-debloat.target",
]


def value_of(settings: Settings, key: str) -> Any:
    return attrgetter(OPTIONS[key][0])(settings)


def test_every_option_has_an_example() -> None:
    assert set(EXAMPLES) == set(OPTIONS)


@pytest.mark.parametrize("key", EXAMPLES)
def test_option_is_read_into_its_field_and_no_other(key: str) -> None:
    given, expected = EXAMPLES[key]
    settings = parse({key: given})
    assert value_of(settings, key) == expected
    assert value_of(settings, key) != value_of(Settings(), key)
    assert all(value_of(settings, other) == value_of(Settings(), other) for other in OPTIONS if other != key)


@pytest.mark.parametrize("alias", ALIASES)
def test_older_name_is_read_like_the_name_it_stands_for(alias: str) -> None:
    given, expected = EXAMPLES[ALIASES[alias]]
    assert value_of(parse({alias: given}), ALIASES[alias]) == expected


def test_every_field_of_the_parts_has_a_key_but_for_the_size_without_one() -> None:
    names = {name for name, _, _ in OPTIONS.values()}
    parts = {"checkpoints": CheckpointSettings, "restart": RestartSettings}
    wanted = {f"{part}.{field.name}" for part, kind in parts.items() for field in fields(kind)}
    assert wanted - names == {"checkpoints.max_state_size"}


def test_keys_tables_are_apart() -> None:
    assert not set(OPTIONS) & set(ALIASES)
    assert not set(REFUSED) & {*OPTIONS, *ALIASES}
    families = tuple(key[:-1] for key in REFUSED if key.endswith(".*"))
    assert not [key for key in (*OPTIONS, *ALIASES) if key.startswith(families)]
    assert set(ALIASES.values()) <= set(OPTIONS)


@pytest.mark.parametrize("key", REFUSED_EXAMPLES)
def test_refused_key_is_an_error_with_its_reason(key: str) -> None:
    family = max((known for known in REFUSED if known == key or key.startswith(known.rstrip("*"))), key=len)
    with pytest.raises(InvalidInputError, match=re.escape(key)) as caught:
        parse({key: "true"})
    assert REFUSED[family] in caught.value.message
    assert caught.value.facts["option"] == key


def test_every_family_of_refused_keys_has_an_example() -> None:
    families = [key[:-1] for key in REFUSED if key.endswith(".*")]
    assert [family for family in families if not any(key.startswith(family) for key in REFUSED_EXAMPLES)] == []


def test_reasons_name_options_that_exist() -> None:
    named = {word for reason in REFUSED.values() for word in re.findall(r"[a-z]+(?:[.-][a-z]+){2,}", reason)}
    assert named <= set(OPTIONS)


def test_unknown_key_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(InvalidInputError, match=r"did you mean execution\.checkpointing\.interval\?"):
        parse({EC + "intervall": "1 s"})


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        (1500, 1500), ("1500", 1500), (" 20ms ", 20), ("20 MILLIS", 20), ("1 millisecond", 1), ("10 s", 10_000),
        ("10sec", 10_000), ("1 second", 1000), ("2 m", 120_000), ("2 min", 120_000), ("3 minutes", 180_000),
        ("1 h", 3_600_000), ("2 hours", 7_200_000), ("1 d", 86_400_000), ("2 days", 172_800_000),
    ],
)  # fmt: skip
def test_durations(text: Any, milliseconds: int) -> None:
    assert parse({EC + "min-pause": text}).checkpoints.min_pause_ms == milliseconds


@pytest.mark.parametrize("off", [0, "0", "0 ms", -1, "-5 s"])
def test_interval_of_zero_or_less_is_off(off: Any) -> None:
    assert parse({EC + "interval": off}).checkpoints.interval_ms == 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("off", "none"), ("disable", "none"), ("None", "none"), ("fixeddelay", "fixed-delay"),
        ("FIXED_DELAY", "fixed-delay"), ("failurerate", "failure-rate"), ("failure-rate", "failure-rate"),
        ("exponentialdelay", "exponential-delay"), ("exponential-delay", "exponential-delay"),
    ],
)  # fmt: skip
def test_restart_types(text: str, kind: str) -> None:
    assert parse({RS + "type": text}).restart.type == kind


def test_attempts_may_be_infinite() -> None:
    settings = parse({RS + "exponential-delay.attempts-before-reset-backoff": "Infinite"})
    assert settings.restart.attempts_before_reset == 0


WRONG: list[tuple[str, Any, str]] = [
    (EC + "interval", "soon", "expected a duration"),
    (EC + "interval", "1.5 s", "expected a duration"),
    (EC + "interval", True, "expected a duration"),
    (EC + "interval", "10 parsecs", "expected a duration"),
    (EC + "interval", "9 ms", "expected at least 10 ms, or 0 for no checkpoints, found 9 ms"),
    (EC + "timeout", 9, "expected at least 10 ms, found 9 ms"),
    (EC + "timeout", 0, "expected at least 10 ms, found 0 ms"),
    (EC + "min-pause", "-1 s", "expected at least 0 ms, found -1000 ms"),
    (EC + "aligned-checkpoint-timeout", -1, "expected at least 0 ms, found -1 ms"),
    (EC + "mode", "twice", "expected EXACTLY_ONCE or AT_LEAST_ONCE, found 'twice'"),
    (EC + "externalized-checkpoint-retention", "keep", "RETAIN_ON_CANCELLATION, found 'keep'"),
    (EC + "storage", "com.example.Factory", "expected filesystem or jobmanager, found 'com.example.Factory'"),
    (EC + "max-concurrent-checkpoints", 0, "expected at least 1, found 0"),
    (EC + "max-concurrent-checkpoints", "many", "expected a whole number, found 'many'"),
    (EC + "num-retained", 0, "expected at least 1, found 0"),
    (EC + "tolerable-failed-checkpoints", -1, "expected at least 0, found -1"),
    (EC + "unaligned.enabled", "yes", "expected true or false, found 'yes'"),
    (EC + "savepoint-dir", " ", "expected some text, found nothing"),
    (EC + "savepoint-dir", "s3://b/x", "expected a local path or a file: URL"),
    (EC + "dir", "hdfs://host/x", "expected a local path or a file: URL"),
    (EC + "local-backup.dirs", "/a,/b", "expected one directory, found '/a,/b'"),
    (EC + "local-backup.dirs", "s3://b/x", "expected a local path or a file: URL"),
    (EC + "write-buffer-size", "big", "expected a size"),
    ("cairn.restore.renames", "a", "expected old=new"),
    ("cairn.restore.renames", "{", "expected a JSON object"),
    ("cairn.restore.renames", "a=c,b=c", "each needs a new name of its own"),
    (SR + "claim-mode", "LEGACY", "LEGACY leaves open who owns"),
    (RS + "type", "sometimes", "expected none or fixed-delay or failure-rate or exponential-delay, found 'sometimes'"),
    (RS + "fixed-delay.attempts", -1, "expected at least 0, found -1"),
    (RS + "fixed-delay.delay", -1, "expected at least 0 ms, found -1 ms"),
    (RS + "failure-rate.max-failures-per-interval", 0, "expected at least 1, found 0"),
    (RS + "failure-rate.failure-rate-interval", 0, "expected at least 1 ms, found 0 ms"),
    (RS + "exponential-delay.backoff-multiplier", 1, "expected more than 1, found 1.0"),
    (RS + "exponential-delay.backoff-multiplier", "nan", "expected a number such as 1.5, found 'nan'"),
    (RS + "exponential-delay.backoff-multiplier", True, "expected a number such as 1.5, found True"),
    (RS + "exponential-delay.jitter-factor", 1, "expected from 0 to below 1, found 1.0"),
    (RS + "exponential-delay.jitter-factor", "-0.1", "expected from 0 to below 1, found -0.1"),
    (RS + "exponential-delay.attempts-before-reset-backoff", 0, "expected a number from 1"),
    (RS + "exponential-delay.initial-backoff", "2 min", "expected at most 60000 ms, which is restart-strategy."),
]


@pytest.mark.parametrize(("key", "value", "message"), WRONG)
def test_wrong_value_is_an_error_that_names_key_value_and_what_is_right(key: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)) as caught:
        parse({key: value})
    assert caught.value.message.startswith(f"option {key}: ")
    assert caught.value.facts["option"] == key


def test_error_names_the_key_that_was_given() -> None:
    with pytest.raises(InvalidInputError, match=r"option state\.checkpoints\.num-retained: expected at least 1"):
        parse({"state.checkpoints.num-retained": 0})


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [(EC + "mode", "AT_LEAST_ONCE", "EXACTLY_ONCE"), (EC + "max-concurrent-checkpoints", 2, "1")],
)
def test_unaligned_checkpoints_need_exactly_once_one_at_a_time(key: str, value: Any, right: str) -> None:
    parse({key: value})
    because = f"option {key}: expected {right} because {EC}unaligned is true, found {value!r}"
    with pytest.raises(InvalidInputError, match=re.escape(because)):
        parse({EC + "unaligned": "true", key: value})


def test_later_layer_wins_over_an_earlier_one_also_by_its_older_name() -> None:
    first = {EC + "num-retained": 2, EC + "mode": "AT_LEAST_ONCE"}
    assert parse(first, {"state.checkpoints.num-retained": 3}).checkpoints == CheckpointSettings(
        num_retained=3, mode="AT_LEAST_ONCE"
    )


def test_two_names_of_one_setting_with_two_values_are_refused() -> None:
    old, new = "state.checkpoints.num-retained", EC + "num-retained"
    for first, second in ((old, new), (new, old)):
        with pytest.raises(InvalidInputError, match=re.escape(f"options {first} and {second} are two names")) as caught:
            parse({first: 2, second: 3})
        assert "2 and 3; leave one of them out" in caught.value.message
    with pytest.raises(InvalidInputError, match="two names"):
        with_options(Settings(), {old: 2, new: 3})
    assert parse({old: "3", new: 3}).checkpoints.num_retained == 3, "the same in other words"


def test_a_file_url_is_a_directory() -> None:
    assert parse({EC + "savepoint-dir": "file:///sp"}).checkpoints.savepoint_dir == "file:///sp"


@pytest.mark.parametrize("key", [5, None, ("a",)])
def test_a_key_that_is_no_text_is_told_so(key: Any) -> None:
    with pytest.raises(InvalidInputError, match="option names are text, found"):
        parse({key: "x"})


def test_settings_changed_in_code_can_be_checked() -> None:
    check(Settings())
    check(replace(Settings(), checkpoints=CheckpointSettings(interval_ms=-1)))
    for wrong in (
        replace(Settings(), checkpoints=CheckpointSettings(interval_ms=5)),
        replace(Settings(), checkpoints=CheckpointSettings(mode="exactly-once")),
        replace(Settings(), checkpoints=CheckpointSettings(unaligned=True, max_concurrent=2)),
        replace(Settings(), restart=RestartSettings(type="off")),
        replace(Settings(), restart=RestartSettings(initial_backoff_ms=61_000)),
        replace(Settings(), claim_mode="LEGACY"),
    ):
        with pytest.raises(InvalidInputError, match=r"^\[invalid-input\] option .*: expected .*, found "):
            check(wrong)


def test_options_can_be_changed_later() -> None:
    before = parse({EC + "num-retained": 4, "pipeline.global-job-parameters.a": "1"})
    after = with_options(before, {EC + "interval": "1 s"})
    assert after == replace(before, checkpoints=CheckpointSettings(interval_ms=1000, num_retained=4))
    assert before.checkpoints.interval_ms == 0


def test_settings_travel_to_workers() -> None:
    clashing = (EC + "mode", EC + "max-concurrent-checkpoints")
    settings = parse({key: given for key, (given, _) in EXAMPLES.items() if key not in clashing})
    assert pickle.loads(pickle.dumps(settings)) == settings


def rows(title: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| `([^`]+)` \| (.*) \|$", section(title), flags=re.MULTILINE)


def test_page_lists_exactly_the_options_older_names_and_refused_keys() -> None:
    families = ["pipeline.global-job-parameters.<name>", "spark.<anything>"]
    options = [row for row in rows("Options") if row[0] not in families]
    assert sorted(options) == sorted((key, meaning) for key, (_, _, meaning) in OPTIONS.items())
    assert sorted(rows("Older names")) == sorted((old, f"`{new}`") for old, new in ALIASES.items())
    assert sorted(rows("Flink options that are refused")) == sorted(REFUSED.items())
