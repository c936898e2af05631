"""Keeps chains short: when one has grown too long it is merged into snapshots, beside the stream.

The work runs as a Spark job of its own on a thread of its own; the stream continues. The result is adopted by the next
manifest, which names the snapshots instead of the files they replace. A compaction that fails or is cut off by a
crash leaves files that no manifest names; it is retried later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from cairn.logs import get_logger
from cairn.model.keygroups import KeyGroupRange, key_group_range
from cairn.model.manifest import DEFER_EPOCHS, Manifest, OperatorState, StateHandle

_log = get_logger("cairn.job")

CompactionJob = Callable[[Manifest, OperatorState, Sequence[KeyGroupRange]], list[StateHandle]]
"""Merges the chain of an operator, range by range, and returns the snapshots. Supplied by the Spark side."""

_MOST_PIECES = 16
PIECE_ROWS = 200_000
"""Rows that are worth a task of their own."""


def ranges_of(operator: OperatorState, max_parallelism: int) -> list[KeyGroupRange]:
    """The key-group ranges that an operator's state is worked on in: short tasks where there is much, few elsewhere."""
    rows = sum(handle.rows for handle in operator.chain)
    count = min(max_parallelism, _MOST_PIECES * operator.parallelism, max(operator.parallelism, rows // PIECE_ROWS))
    return [key_group_range(index, count, max_parallelism) for index in range(count)]


class Compactor:
    """One compaction at a time.

    Threads: `consider`, `shortened` and `wait` belong to the epoch loop's thread, or to the one that ends the run. The
    compaction has a thread of its own; its result and the count of failures are guarded by the lock.
    """

    def __init__(self, job: CompactionJob, max_chain: int, background: bool = True) -> None:
        self._job = job
        self._max_chain = max_chain
        self._background = background
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._finished: tuple[str, list[StateHandle], frozenset[StateHandle]] | None = None
        self._failures = 0

    def consider(self, manifest: Manifest) -> None:
        """Start a compaction of the longest chain if it is over the limit and none is running."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            limit = self._max_chain * (1 + self._failures)
            if self._finished is not None:
                return
        longest = max(manifest.operators, key=lambda op: _length(op.chain), default=None)
        if longest is None or _length(longest.chain) < limit:
            return
        if not self._background:
            self._run(manifest, longest)
            return
        self._thread = threading.Thread(
            target=self._run, args=(manifest, longest), name=f"cairn-compaction-{longest.uid}", daemon=True
        )
        self._thread.start()

    def _run(self, manifest: Manifest, operator: OperatorState) -> None:
        try:
            snapshots = self._job(manifest, operator, ranges_of(operator, manifest.max_parallelism))
        except Exception as error:  # noqa: BLE001 - whatever failed, the chain is complete without the compaction
            with self._lock:
                self._failures += 1
            _log.warning("compaction of operator %s failed, the chain stays as it is: %s", operator.uid, error)
            return
        with self._lock:
            self._failures = 0
            self._finished = (operator.uid, snapshots, frozenset(operator.chain))
        _log.info(
            "operator %s: %d files compacted into %d snapshots with %d entries",
            operator.uid, len(operator.chain), len(snapshots), sum(handle.rows for handle in snapshots),
        )  # fmt: skip

    def shortened(self, uid: str, chain: list[StateHandle], epoch: int) -> list[StateHandle]:
        """The chain with a finished compaction in place of what it replaces, once every working store is past it."""
        with self._lock:
            finished = self._finished
            if finished is None or finished[0] != uid or epoch - finished[1][0].epoch <= DEFER_EPOCHS + 1:
                return chain
            self._finished = None
        _, snapshots, replaced = finished
        if not replaced <= set(chain):
            return chain
        return snapshots + [handle for handle in chain if handle not in replaced]

    def wait(self, timeout: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout)


def _length(chain: Sequence[StateHandle]) -> int:
    return len({handle.epoch for handle in chain if not handle.snapshot})
