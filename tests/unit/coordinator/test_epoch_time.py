"""One epoch with a wrong clock must not poison a job: it is refused or corrected, and time can be set right again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.restore_lab import checkpoint_of, restored, savepoint_of, shape_of
from tests.support.state_lab import ttl, with_ttl

from cairn.config import parse
from cairn.coordinator import epoch_time
from cairn.coordinator.epoch_time import TimeKeeper, elapsed_seconds, now_ms
from cairn.errors import CorruptFileError, EpochFailedError, InvalidInputError
from cairn.model.descriptors import MapStateDescriptor, ValueStateDescriptor
from cairn.model.functions import KeyedProcessFunction
from cairn.model.manifest import Manifest
from cairn.snapshots.lookup import as_python, find_rows
from cairn.snapshots.resolver import open_snapshot
from cairn.storage.filesystem import LocalFileSystem
from cairn.testing.keyed_harness import UID, KeyedProcessHarness

SECOND = 1000
DAY = 86_400 * SECOND
YEAR = 365 * DAY
START = 56 * YEAR


class Clock:
    """The clocks of a driver's host: the one that people set, and the one that nobody sets."""

    def __init__(self) -> None:
        self.wall = START
        self.passed = 0.0

    def sleep(self, millis: int) -> None:
        self.wall += millis
        self.passed += millis / 1000


class Visits(KeyedProcessFunction):
    """State with a time to live of 100 ms or without one, and a timer a second after every row."""

    def __init__(self, fading: bool = True) -> None:
        self.fading = fading

    def open(self, runtime_context: Any) -> None:
        last, each = ValueStateDescriptor("last", "bigint"), MapStateDescriptor("all", "bigint", "bigint")
        self.last = runtime_context.get_state(with_ttl(last, ttl()) if self.fading else last)
        self.all = runtime_context.get_map_state(with_ttl(each, ttl()) if self.fading else each)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.key, f"{self.last.value()} {sorted(self.all.keys())}"
        if value.n:
            self.last.update(value.n)
            self.all.put(value.n, value.n)
            timers = ctx.timer_service()
            timers.register_processing_time_timer(timers.current_processing_time() + SECOND)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + SECOND)  # again and again
        yield ctx.get_current_key(), f"timer {timestamp}"


class Job(KeyedProcessHarness):
    """A harness whose epochs are planned by a clock, which may be wrong."""

    def __init__(self, folder: Path, clock: Clock, fading: bool = True) -> None:
        self.clock = clock
        self.reset = False
        super().__init__(Visits(fading), "key", "key string, n bigint", "key string, out string", state_dir=folder)

    def _start(self) -> None:
        super()._start()
        self.keep_time(
            TimeKeeper(self.files, DAY, 90 * DAY, self.reset, lambda: self.clock.wall, lambda: self.clock.passed)
        )

    def keep_time(self, keeper: TimeKeeper) -> None:
        self._loop._setup = replace(self._loop._setup, timekeeper=keeper)

    def epoch_now(self, *rows: Any, planned: int | None = None) -> list[str]:
        """An epoch that Spark plans now, or has planned earlier; returns what it put out."""
        self._time = self.clock.wall if planned is None else planned
        self.push(*rows)
        try:
            return [row.out for row in self.run_epoch()]
        finally:
            self.discard()

    def started_again(self, reset: bool = False, elsewhere: bool = True) -> None:
        """Another run; with `elsewhere` in another process, which does not know when the last epoch was."""
        self.reset = reset
        if elsewhere:
            epoch_time._instants.clear()
        self.restart()


@pytest.fixture
def clock() -> Clock:
    epoch_time._instants.clear()
    return Clock()


@pytest.fixture
def job(tmp_path: Path, clock: Clock) -> Iterator[Job]:
    with Job(tmp_path / "job", clock) as made:
        made.epoch_now(("a", 1))
        yield made


def time_of(job: Job) -> int:
    assert job.manifest is not None
    return job.manifest.time_ms


def test_time_is_that_of_the_batch_while_the_clock_is_right(job: Job, clock: Clock) -> None:
    for pause in (10, 5 * SECOND, 3 * DAY):  # a pause may be long: no rows came
        clock.sleep(pause)
        job.epoch_now(("a", 1))
        assert time_of(job) == clock.wall
    assert not job.files.exists("times")


def test_time_stands_still_while_the_clock_is_a_little_behind(job: Job, clock: Clock) -> None:
    before = time_of(job)
    clock.wall -= 10 * SECOND
    job.epoch_now(("a", 1))
    assert time_of(job) == before


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_clock_that_jumps_ahead_is_refused_until_it_is_right(job: Job, clock: Clock, elsewhere: bool) -> None:
    clock.sleep(10 * SECOND)
    clock.wall += 10 * YEAR
    for _ in range(2):
        with pytest.raises(EpochFailedError, match=r"clock of the driver's host seems to be wrong") as caught:
            job.epoch_now(("a", 2))
        assert job.epoch == 0
        job.started_again(elsewhere=elsewhere)  # a supervisor tries again
    assert "2035" in caught.value.message
    assert "2025" in caught.value.message
    assert "-D cairn.time.max-" in caught.value.message
    planned = clock.wall
    clock.wall -= 10 * YEAR
    job.started_again(elsewhere=elsewhere)
    job.epoch_now(("a", 2), planned=planned)  # Spark's log has the entry of before
    assert time_of(job) == clock.wall


def test_a_clock_that_jumps_by_days_is_refused_also_by_a_run_that_the_process_starts_again(
    job: Job, clock: Clock
) -> None:
    clock.wall += 3 * DAY
    with pytest.raises(EpochFailedError, match=r"0.0 seconds have passed .* -D cairn.time.max-jump \(now 24.0 hours\)"):
        job.epoch_now(("a", 2))
    job.started_again(elsewhere=False)
    with pytest.raises(EpochFailedError, match=r"by the monotonic clock"):
        job.epoch_now(("a", 2))


def test_a_job_that_was_stopped_for_weeks_goes_on(job: Job, clock: Clock) -> None:
    clock.wall += 60 * DAY
    clock.passed = 7.0  # of another host
    job.started_again()
    job.epoch_now(("a", 2))
    assert time_of(job) == clock.wall


def test_a_start_after_years_is_refused_and_the_option_accepts_it(job: Job, clock: Clock) -> None:
    clock.wall += 2 * YEAR
    job.started_again()
    with pytest.raises(
        EpochFailedError, match=r"730.0 days after epoch 0 .* -D cairn.time.max-downtime \(now 90.0 days\)"
    ):
        job.epoch_now(("a", 2))
    job.started_again()
    job.keep_time(TimeKeeper(job.files, DAY, 3 * YEAR, now=lambda: clock.wall, elapsed=lambda: clock.passed))
    job.epoch_now(("a", 2))
    assert time_of(job) == clock.wall


def test_a_corrected_time_is_the_same_when_the_epoch_is_repeated(job: Job, clock: Clock) -> None:
    planned = clock.wall + 10 * YEAR
    clock.sleep(SECOND)
    job.started_again()
    job._time = planned
    job.push(("a", 2))
    job.fail_epoch("acknowledged")
    first = job.cluster.context
    assert first is not None
    assert first.time_ms == clock.wall
    for later in (5 * SECOND, 20 * YEAR):  # whatever the clock says by then
        clock.wall += later
        job.started_again()
        job._time = planned
        job.fail_epoch("acknowledged")
        again = job.cluster.context
        assert again is not None
        assert again.time_ms == first.time_ms
    job.discard()
    job.started_again()
    job.epoch_now(("a", 2), planned=planned)
    assert time_of(job) == first.time_ms


def test_a_damaged_decision_is_named(job: Job, clock: Clock, tmp_path: Path) -> None:
    job.started_again()
    path = tmp_path / "job" / "times" / f"{1:020d}-{clock.wall}"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(CorruptFileError, match=f"{path}.*can be moved away"):
        job.epoch_now(("a", 2))
    path.unlink()
    job.started_again()
    job.epoch_now(("a", 2))


# A job that is poisoned already: an earlier version accepted the time, or nothing was there to compare it with.


@pytest.fixture
def poisoned(tmp_path: Path, clock: Clock) -> Iterator[Job]:
    """Its first epoch ran ten years ahead; then the clock was set right."""
    clock.wall += 10 * YEAR
    with Job(tmp_path / "job", clock) as made:
        made.epoch_now(("a", 1), ("b", 1))
        clock.wall -= 10 * YEAR
        clock.sleep(50)
        yield made


def test_a_poisoned_job_says_so_and_names_the_way_out(poisoned: Job, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        poisoned.started_again()
        poisoned.epoch_now(("a", 0))
        poisoned.epoch_now(("a", 0))
    (record,) = [record.message for record in caplog.records if "stands still" in record.message]
    assert "cairn.time.reset=true" in record


def test_time_is_set_back_once(poisoned: Job, clock: Clock) -> None:
    poisoned.started_again(reset=True)
    for _ in range(3):
        poisoned.epoch_now(("a", 0))
        assert time_of(poisoned) == clock.wall
        clock.sleep(SECOND)
    poisoned.started_again(reset=True)
    clock.wall -= 5 * SECOND  # of another host: not wrong, and no reason to run back
    before = time_of(poisoned)
    poisoned.epoch_now(("a", 0))
    assert time_of(poisoned) == before


def test_state_of_the_wrong_time_lives_from_the_reset_on(poisoned: Job, clock: Clock) -> None:
    poisoned.started_again(reset=True)
    assert "1 [1]" in poisoned.epoch_now(("a", 0))
    clock.sleep(99)
    assert "1 [1]" in poisoned.epoch_now(("a", 0))
    clock.sleep(1)
    assert "None []" in poisoned.epoch_now(("a", 0))
    clock.sleep(YEAR)
    assert "None []" in poisoned.epoch_now(("b", 0))  # nobody had looked at it since the reset


def test_state_that_is_written_after_the_reset_lives_as_ever(poisoned: Job, clock: Clock) -> None:
    poisoned.started_again(reset=True)
    poisoned.epoch_now(("c", 5))
    clock.sleep(99)
    assert "5 [5]" in poisoned.epoch_now(("c", 0))
    clock.sleep(1)
    assert "None []" in poisoned.epoch_now(("c", 0))


def test_timers_of_the_wrong_time_fire_at_the_reset_and_those_that_they_set_when_they_are_due(
    poisoned: Job, clock: Clock
) -> None:
    wrong = time_of(poisoned)
    poisoned.started_again(reset=True)
    assert poisoned.epoch_now() == [f"timer {wrong + SECOND}"] * 2
    back = clock.wall
    clock.sleep(SECOND - 1)
    assert poisoned.epoch_now() == []
    clock.sleep(1)
    assert poisoned.epoch_now() == [f"timer {back + SECOND}"] * 2


def test_a_reset_that_crashed_before_its_commit_is_repeated_alike_without_the_option(
    poisoned: Job, clock: Clock
) -> None:
    poisoned.started_again(reset=True)
    planned = poisoned._time = clock.wall
    poisoned.fail_epoch("acknowledged")
    clock.sleep(SECOND)
    poisoned.started_again()
    assert len(poisoned.epoch_now(planned=planned)) == 2
    assert time_of(poisoned) == planned


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_what_is_restored_from_a_job_that_was_reset_expires(
    poisoned: Job, clock: Clock, tmp_path: Path, kind: str
) -> None:
    poisoned.started_again(reset=True)
    poisoned.epoch_now()
    folder = tmp_path / "job"
    path = checkpoint_of(folder) if kind == "checkpoint" else savepoint_of(folder, tmp_path / "sp")
    restored(path, tmp_path / "other", shape_of(poisoned), now_ms=clock.wall)
    with Job(tmp_path / "other", clock) as other:
        clock.sleep(99)
        assert "1 [1]" in other.epoch_now(("a", 0))
        clock.sleep(1)
        assert "None []" in other.epoch_now(("a", 0))


def test_a_lookup_in_a_checkpoint_of_a_job_that_was_reset_shows_what_the_job_sees(
    poisoned: Job, clock: Clock, tmp_path: Path
) -> None:
    def looked_up(number: int) -> list[Any]:
        snapshot = open_snapshot(checkpoint_of(tmp_path / "job", number))
        operator = snapshot.operator(UID)
        states = (operator.state("last"), operator.state("all"))
        return [as_python(state, find_rows(snapshot, operator, state, "b")) for state in states]

    poisoned.started_again(reset=True)
    poisoned.epoch_now(("a", 5))
    clock.sleep(99)
    poisoned.epoch_now(("a", 0))
    assert looked_up(1) == [1, {1: 1}]
    clock.sleep(1)
    poisoned.epoch_now(("a", 0))
    assert looked_up(2) == [None, {}]
    assert "None []" in poisoned.epoch_now(("b", 0))


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_what_has_expired_since_a_reset_does_not_come_back_without_a_time_to_live(
    poisoned: Job, clock: Clock, tmp_path: Path, kind: str
) -> None:
    poisoned.started_again(reset=True)
    poisoned.epoch_now()
    folder = tmp_path / "job"
    path = checkpoint_of(folder) if kind == "checkpoint" else savepoint_of(folder, tmp_path / "sp")
    with Job(tmp_path / "shape", clock, fading=False) as other:
        shape = shape_of(other)
    for later, seen in ((99, (1, {1: 1})), (100, (None, {}))):
        restored(path, tmp_path / f"after-{later}", shape, now_ms=clock.wall + later)
        with Job(tmp_path / f"after-{later}", clock, fading=False) as other:
            assert (other.state("last", "a"), other.state("all", "a")) == seen


def test_a_restore_of_an_old_snapshot_is_no_wrong_clock(job: Job, clock: Clock, tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path / "job")
    clock.wall += 5 * YEAR
    restored(path, tmp_path / "other", shape_of(job), now_ms=clock.wall)
    with Job(tmp_path / "other", clock) as other:
        other.epoch_now(("a", 0))
        assert time_of(other) == clock.wall


# Settings and clocks.


def test_limits_are_read_and_checked() -> None:
    settings = parse({"cairn.time.max-jump": "2 h", "cairn.time.max-downtime": "365 d", "cairn.time.reset": "true"})
    assert (settings.max_jump_ms, settings.max_downtime_ms, settings.time_reset) == (7_200_000, YEAR, True)
    for key in ("cairn.time.max-jump", "cairn.time.max-downtime"):
        with pytest.raises(InvalidInputError, match=key):
            parse({key: "1 s"})


def test_the_real_clocks_run_forward() -> None:
    before = (elapsed_seconds(), now_ms())
    assert elapsed_seconds() >= before[0]
    assert now_ms() > 50 * YEAR


def test_the_epoch_after_one_that_was_planned_before_a_long_stop_is_processed(tmp_path: Path) -> None:
    """The first batch is three days old when it is processed; between it and the next one no three days pass."""
    day = 86_400_000
    planned, now, passed = 10 * day, 13 * day, 0.0
    keeper = TimeKeeper(
        LocalFileSystem(str(tmp_path)), day, 90 * day, now=lambda: now + int(passed * 1000), elapsed=lambda: passed
    )

    def manifest(epoch: int, time_ms: int) -> Manifest:
        return Manifest("j", "i", epoch, f"c{epoch}", 1, epoch - 1, 128, "", 0, time_ms, [], [], {})

    parent = manifest(0, planned - 1000)
    first = keeper.decide(1, planned, parent)
    assert first.time_ms == planned
    repeated = manifest(1, planned)
    keeper.committed(repeated)
    passed = 1.0
    assert keeper.decide(2, now + 1000, repeated).time_ms == now + 1000
    following = manifest(2, now + 1000)
    keeper.committed(following)
    passed = 2.0
    with pytest.raises(EpochFailedError, match=r"max-jump"):
        keeper.decide(3, now + 5 * day, following)
