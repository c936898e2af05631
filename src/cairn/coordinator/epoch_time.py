"""Which processing time and which watermark an epoch has.

The watermark is that of the sources, as Spark's offset log has it; it never runs back. The processing time is Spark's
batch time, unless the clock that it came from was wrong.

Processing time never runs back (docs/design.md), so one epoch with a clock that is years ahead would make it stand
still for years: no timer fires, no state expires. What can be known decides:

* Between two epochs of one process the monotonic clock says how much time passed. A batch time that is further ahead
  than that by more than `max_jump_ms` is refused.
* After a start, and after an epoch that was planned long before it was processed, nobody knows how long the job was
  stopped. A batch time that is ahead of the newest epoch by more than `max_downtime_ms` is refused. If the clock says
  something plausible by now, the batch was planned while it was wrong, and the epoch gets the time of now instead.
* A job whose time is ahead of the clock can be set back, once, by `reset`.

A decision against the batch time is stored before the epoch runs, so that a repetition of the epoch sees the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from cairn.coordinator.offset_log import OffsetEntry
from cairn.errors import CorruptFileError, EpochFailedError
from cairn.logs import get_logger
from cairn.model.manifest import Manifest
from cairn.storage import layout
from cairn.storage.filesystem import FileSystem

_log = get_logger("cairn.job")

_instants: dict[str, tuple[str, float]] = {}
"""By directory of a job: the commit that this process made last, and the monotonic time of its epoch. It outlives a
run that is restarted in the process."""


class EpochTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """The processing time of an epoch."""

    time_ms: int
    batch_ms: int
    """What Spark's offset log says."""
    reset: bool = False
    """Time was set back to it, from a time that was wrong."""


def elapsed_seconds() -> float:
    """A monotonic clock; on Linux it includes the time that the host is suspended."""
    boot: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class TimeKeeper:
    """Decides on the processing time of each epoch of one run.

    Threads: owned by the epoch loop's.
    """

    def __init__(
        self,
        files: FileSystem,
        max_jump_ms: int,
        max_downtime_ms: int,
        reset: bool = False,
        now: Callable[[], int] = now_ms,
        elapsed: Callable[[], float] = elapsed_seconds,
    ) -> None:
        self._files = files
        self._max_jump_ms = max_jump_ms
        self._max_downtime_ms = max_downtime_ms
        self._reset = reset
        self._now = now
        self._elapsed = elapsed
        self._instant = 0.0
        self._planned_long_ago = False
        """The batch of the epoch was planned at another time, before a crash say: the time between its batch and the
        next one is not the time that passes between the two epochs."""
        self._begun = False
        self._warned = False

    def decide(self, epoch: int, batch_ms: int, parent: Manifest | None) -> EpochTime:
        """The time of an epoch that continues `parent`, with the batch time that Spark's log has for it."""
        self._instant = self._elapsed()
        self._planned_long_ago = abs(self._now() - batch_ms) > self._max_jump_ms
        first, self._begun = not self._begun, True
        written = self._written(epoch, batch_ms) if first else None  # only the first one may be a repetition
        if written is not None:
            return written
        if parent is None:
            return EpochTime(batch_ms, batch_ms)
        if parent.time_ms - batch_ms > self._max_jump_ms:
            if self._reset:
                _log.error(
                    "Processing time is set back from %s, the time of epoch %d, to %s, as cairn.time.reset says. All "
                    "processing-time timers fire in epoch %d.",
                    _moment(parent.time_ms), parent.epoch, _moment(batch_ms), epoch,
                )  # fmt: skip
                return self._write(epoch, EpochTime(batch_ms, batch_ms, reset=True))
            self._warn(parent, batch_ms)
        if parent.restored or self._plausible(batch_ms, parent):
            return EpochTime(max(batch_ms, parent.time_ms), batch_ms)
        now = self._now()
        if first and batch_ms - now > self._max_jump_ms and now - parent.time_ms <= self._max_downtime_ms:
            right = max(now, parent.time_ms)
            _log.error(
                "Epoch %d was planned at %s according to a wrong clock; the current time is %s. The epoch is processed "
                "with the current time.",
                epoch, _moment(batch_ms), _moment(right),
            )  # fmt: skip
            return self._write(epoch, EpochTime(right, batch_ms))
        raise self._refused(epoch, batch_ms, parent)

    def committed(self, manifest: Manifest) -> None:
        """The epoch that was decided on last is committed."""
        if self._planned_long_ago:
            _instants.pop(self._files.root, None)
        else:
            _instants[self._files.root] = (manifest.commit_id, self._instant)

    def _warn(self, parent: Manifest, batch_ms: int) -> None:
        if not self._warned:
            self._warned = True
            _log.error(
                "Processing time stands still: epoch %d was processed at %s, but the clock of the driver's host shows "
                "%s. Until the clock catches up, no processing-time timer fires and no state expires. If the clock is "
                "correct now, start the job once with -D cairn.time.reset=true.",
                parent.epoch, _moment(parent.time_ms), _moment(batch_ms),
            )  # fmt: skip

    def _passed(self, parent: Manifest) -> int | None:
        """Milliseconds since the parent was processed, if this process did that."""
        commit, instant = _instants.get(self._files.root, ("", 0.0))
        return int((self._instant - instant) * 1000) if commit == parent.commit_id else None

    def _plausible(self, batch_ms: int, parent: Manifest) -> bool:
        ahead = batch_ms - parent.time_ms
        passed = self._passed(parent)
        return ahead <= self._max_downtime_ms if passed is None else ahead - passed <= self._max_jump_ms

    def _refused(self, epoch: int, batch_ms: int, parent: Manifest) -> EpochFailedError:
        passed = self._passed(parent)
        if passed is None:
            known, option, limit = (
                "a job is rarely stopped for that long",
                "cairn.time.max-downtime",
                self._max_downtime_ms,
            )
        else:
            known = f"{_length(passed)} have passed since then by the monotonic clock"
            option, limit = "cairn.time.max-jump", self._max_jump_ms
        return EpochFailedError(
            f"epoch {epoch} has the batch time {_moment(batch_ms)}, {_length(batch_ms - parent.time_ms)} after epoch "
            f"{parent.epoch} ({_moment(parent.time_ms)}), and {known}: the clock of the driver's host seems to be "
            "wrong. Processing time never runs back, so this epoch could make it stand still for as long. The epoch is "
            "refused; nothing was changed. Correct the clock and start the job again. If it is correct, start the job "
            f"once with a larger -D {option} (now {_length(limit)}).",
            remedy="Correct the clock of the driver's host, then start the job again.",
            epoch=epoch,
        )

    def _written(self, epoch: int, batch_ms: int) -> EpochTime | None:
        path = layout.time_path(epoch, batch_ms)
        if not self._files.exists(path):
            return None
        try:
            return msgspec.json.decode(self._files.read(path), type=EpochTime)
        except msgspec.MsgspecError as error:
            where = f"{self._files.root}/{path}"
            raise CorruptFileError(
                f"{where}, which has the processing time of epoch {epoch}, cannot be read ({error}). The epoch is not "
                "committed, so the file can be moved away; the time is then determined again.",
                path=where,
            ) from error

    def _write(self, epoch: int, decided: EpochTime) -> EpochTime:
        """Keep a decision. If there is one already, by a run that was overtaken, it counts."""
        try:
            self._files.create(layout.time_path(epoch, decided.batch_ms), msgspec.json.encode(decided))
        except FileExistsError:
            return self._written(epoch, decided.batch_ms) or decided
        return decided


def time_of(keeper: TimeKeeper | None, epoch: int, batch_ms: int, parent: Manifest | None) -> EpochTime:
    """The time of an epoch. Without a keeper the clock is trusted, as in tests that set it."""
    if keeper is not None:
        return keeper.decide(epoch, batch_ms, parent)
    return EpochTime(batch_ms if parent is None else max(batch_ms, parent.time_ms), batch_ms)


def watermark_of(parent: Manifest | None, entry: OffsetEntry) -> int:
    """The watermark of an epoch. It never runs back, also across runs."""
    return max(entry.watermark, parent.watermark) if parent is not None else entry.watermark


def _moment(millis: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(millis / 1000))
    except (OverflowError, ValueError, OSError):
        return f"{millis} ms since 1970"


def _length(millis: int) -> str:
    seconds = millis / 1000
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} seconds"
