"""Time to live in whole tables: which rows of a state's table have not expired yet."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def alive(table: pa.Table, last_access: str, ttl_ms: int, now_ms: int) -> pa.Table:
    """The rows that have not expired, by the rule of `state/state_table.py`. A row without a time never expires."""
    if not last_access or not ttl_ms or table.num_rows == 0:
        return table
    micros = table.column(last_access).cast(pa.int64())
    since = max((now_ms - ttl_ms + 1) * 1000, -(1 << 62))
    fresh = pc.greater_equal(micros, pa.scalar(since, pa.int64()))
    return table.filter(pc.fill_null(fresh, True))
