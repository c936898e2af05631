"""Time to live: which values have expired, one by one for the handles of a task, and in whole tables of a snapshot.

Both follow one rule. A stored time that lies in the future counts as the moment at which processing time was last set
back (`cairn.time.reset`), or as the present if it never was. A value without a time never expires.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from cairn.model.descriptors import StateTtlConfig, StateVisibility, UpdateType


class Ttl:
    """Expiry as all handles see it: one clock per epoch, the batch time that the driver set."""

    __slots__ = ("clock", "length", "on_read", "reset", "show_expired")

    def __init__(self, config: StateTtlConfig, clock: int) -> None:
        self.reset = clock
        """What a stored time that lies in the future counts as: processing time was set back since it was stored."""
        self.length = config.milliseconds
        self.clock = clock
        self.on_read = config.update_type is UpdateType.OnReadAndWrite
        self.show_expired = config.visibility is StateVisibility.ReturnExpiredIfNotCleanedUp

    def expired(self, time: int | None) -> bool:
        if time is None:
            return False
        return (time if time <= self.clock else self.reset) + self.length <= self.clock


def alive(table: pa.Table, last_access: str, ttl_ms: int, now_ms: int, reset_ms: int = 0) -> pa.Table:
    """The rows that have not expired. `reset_ms` is when processing time was last set back, 0 for never."""
    if not last_access or not ttl_ms or table.num_rows == 0:
        return table
    micros = table.column(last_access).cast(pa.int64())
    since = max((now_ms - ttl_ms + 1) * 1000, -(1 << 62))
    fresh = pc.greater_equal(micros, pa.scalar(since, pa.int64()))
    if (reset_ms or now_ms) + ttl_ms <= now_ms:
        fresh = pc.and_(fresh, pc.less(micros, pa.scalar((now_ms + 1) * 1000, pa.int64())))
    return table.filter(pc.fill_null(fresh, True))
