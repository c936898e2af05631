"""What a checkpoint consists of, and what is told of it: plain frozen records (docs/design/0002-checkpoints.md)."""

from __future__ import annotations

from enum import Enum

import msgspec

from cairn.model.manifest import Manifest, StateHandle, inline_key


class CheckpointStatus(Enum):
    """Flink's words."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class CheckpointType(Enum):
    CHECKPOINT = "CHECKPOINT"
    UNALIGNED_CHECKPOINT = "UNALIGNED_CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"


class FailureReason(Enum):
    """Why a checkpoint failed; `counts` says whether it counts against the tolerated failures, as in Flink."""

    EXPIRED = "CHECKPOINT_EXPIRED"
    FINALIZE = "FINALIZE_CHECKPOINT_FAILURE"
    ASYNC = "CHECKPOINT_ASYNC_EXCEPTION"
    SUBSUMED = "CHECKPOINT_SUBSUMED"
    TASK_FAILURE = "TASK_FAILURE"
    SHUTDOWN = "CHECKPOINT_COORDINATOR_SHUTDOWN"
    NOT_RUNNING = "NOT_ALL_REQUIRED_TASKS_RUNNING"
    TOO_MANY = "TOO_MANY_CHECKPOINT_REQUESTS"

    @property
    def counts(self) -> bool:
        return self in (FailureReason.EXPIRED, FailureReason.FINALIZE, FailureReason.ASYNC)


class SubtaskStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """One subtask's part in a checkpoint. Times are milliseconds."""

    index: int
    ack_ms: int
    """When its changes were durable: the wall clock of its host. The trigger, if they were before that."""
    start_delay_ms: float = 0.0
    """From the trigger to the start of the task; 0 when the task was running already."""
    alignment_ms: float = 0.0
    """From the end of the first to the end of the last upstream task of the epoch's shuffle; 0 if there was one."""
    sync_ms: float = 0.0
    """Collecting the changes and making them durable, while the task does nothing else; 0 if they were before the
    trigger."""
    async_ms: float = 0.0
    """From the cut until its snapshot, written beside the stream, is durable; 0 for an incremental checkpoint."""
    written_bytes: int = 0
    """Bytes written since the checkpoint before."""
    full_bytes: int = 0
    """Bytes of all files that hold the state of its key groups."""
    records: int = 0
    """Rows that the task took in, in the epoch of the barrier."""


class OperatorStats(msgspec.Struct, frozen=True, omit_defaults=True):
    uid: str
    name: str
    subtasks: list[SubtaskStats]
    """Those that have acknowledged: all of them once the checkpoint is complete."""
    parallelism: int = 0
    """How many subtasks must acknowledge; 0 in statistics of before this was told, which have them all."""

    @property
    def acknowledged(self) -> int:
        return len(self.subtasks)

    @property
    def total(self) -> int:
        return max(self.parallelism, len(self.subtasks))

    @property
    def skew(self) -> float:
        """How uneven the rows are, from 0 (even) to 1 (all in one subtask)."""
        counts = [subtask.records for subtask in self.subtasks]
        total = sum(counts)
        if total == 0 or len(counts) < 2:
            return 0.0
        mean = total / len(counts)
        return sum(abs(count - mean) for count in counts) / (2 * total * (1 - 1 / len(counts)))


class CheckpointInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is told of a checkpoint: while it runs, in the history, over any interface."""

    id: int
    status: CheckpointStatus
    type: CheckpointType
    trigger_ms: int
    full: bool = False
    epoch: int = -1
    end_ms: int = 0
    """When it was completed or given up; 0 while it is in progress."""
    path: str = ""
    """Folder of a completed checkpoint or savepoint."""
    failure: str = ""
    reason: FailureReason | None = None
    discarded: bool = False
    """Completed, but no longer retained."""
    operators: list[OperatorStats] = []
    in_flight_bytes: int = 0
    """Of an unaligned checkpoint: what it keeps of the running epoch, which is the range of its rows, not the rows."""
    request: str = ""
    """Of a savepoint: who asked for it. Asking again with the same text gives the same savepoint."""
    savepoint_bytes: int = 0
    """Of a savepoint: bytes of all its files, those that belong to no operator included."""
    parts_done: int = 0
    parts: int = 0
    """Of a savepoint in progress: how many of its parts are written, and how many there are."""

    @property
    def duration_ms(self) -> int:
        return max(0, self.end_ms - self.trigger_ms) if self.end_ms else 0

    @property
    def written_bytes(self) -> int:
        return sum(subtask.written_bytes for operator in self.operators for subtask in operator.subtasks)

    @property
    def full_bytes(self) -> int:
        return sum(subtask.full_bytes for operator in self.operators for subtask in operator.subtasks)

    @property
    def acknowledged(self) -> int:
        """Subtasks, of all operators, that have done their part."""
        return sum(operator.acknowledged for operator in self.operators)

    @property
    def total(self) -> int:
        """Subtasks, of all operators, that must do their part."""
        return sum(operator.total for operator in self.operators)


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """`chk-<n>/_metadata`: everything that is needed to start from here."""

    id: int
    job_id: str
    name: str
    run: int
    manifest: Manifest
    info: CheckpointInfo
    in_flight: str = ""
    """Of an unaligned checkpoint: the running epoch's entry of Spark's offset log, which a restore replays first."""
    inlined: dict[int, dict[str, bytes]] = {}
    """State bytes that lie in the manifests of these earlier epochs, by `inline_key`."""
    retained: list[int] | None = None
    """The checkpoints that are kept from the moment this one is complete, itself included; older ones that are missing
    here are discarded. None in checkpoints of older releases."""
    requires: list[str] = []

    def files(self) -> set[str]:
        """Every state file that the checkpoint needs, relative to the job's directory."""
        return self.manifest.files()

    def inlined_bytes(self, uid: str, handle: StateHandle) -> bytes | None:
        """The bytes of a handle that has no file."""
        key = inline_key(uid, handle.first_group)
        if handle.epoch == self.manifest.epoch:
            return self.manifest.inlined.get(key)
        return self.inlined.get(handle.epoch, {}).get(key)
