"""What an epoch consists of: the manifest, the files it names, and what a task is told and tells.

These are plain frozen records. `storage/manifest_store.py` writes and reads them, `coordinator/` makes them,
`runtime/` obeys and answers with them. Fields may be added with defaults; a reader ignores fields that it does
not know; anything that an older reader must not ignore is named in `Manifest.requires`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cairn.model.keygroups import KeyGroupRange

FORMAT_VERSION = 1
NO_WATERMARK = -(1 << 63)
DEFER_EPOCHS = 8
"""How many epochs a working store may lag behind in what it has applied (it reads the rest through). A chain is
shortened only where no store lags any more, so that none has to be rebuilt for it."""


BROADCAST = "broadcast"
LIST = "operator-list"
UNION = "operator-union"
OPERATOR_KINDS = (LIST, UNION, BROADCAST)
"""States that belong to a subtask rather than to keys."""
_SECTIONS = {
    "map": "map", "list": "list", "timer": "timer",
    LIST: "list", UNION: "list", BROADCAST: "map",
}  # fmt: skip


class StateSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One registered state of an operator, as stored. Two specs are compatible when `signature` is equal."""

    name: str
    kind: str
    value_type: str
    key_type: str = ""
    ttl_ms: int = 0
    cleanup_at_snapshot: bool = False

    @property
    def has_entries(self) -> bool:
        """Stored as entries (maps, lists, timers) rather than as one value per key."""
        return self.kind in _SECTIONS

    @property
    def section_kind(self) -> str:
        """The kind of the sections of state files that hold it (docs/format.md)."""
        return _SECTIONS.get(self.kind, "value")

    @property
    def of_subtask(self) -> bool:
        """It belongs to subtasks, not to keys: its rows have a key group and no key."""
        return self.kind in OPERATOR_KINDS

    @property
    def signature(self) -> str:
        types = f"{self.key_type} -> {self.value_type}" if self.key_type else self.value_type
        return f"{self.kind} of {types}{' with TTL' if self.ttl_ms else ''}"


class StateHandle(msgspec.Struct, frozen=True, omit_defaults=True):
    """One state file (or bytes kept in the manifest of `epoch`) with the changes or the whole of a key-group range.

    `path` is relative to the job directory and empty for inlined bytes. `size` and `checksum` are those of the
    whole file. `snapshot` files replace everything before them in their range; deltas add to it.
    """

    epoch: int
    first_group: int
    last_group: int
    size: int
    checksum: str
    path: str = ""
    snapshot: bool = False
    rows: int = 0

    @property
    def groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.first_group, self.last_group)


class OperatorState(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that is known of one operator: its key, its states, and the chain of files that holds them, oldest first."""

    uid: str
    name: str
    parallelism: int
    key_type: str
    states: list[StateSpec]
    chain: list[StateHandle]
    base: int = -1
    """The epoch that was committed when the operator came into the job. What a working store holds from before that
    belongs to an earlier life of the uid, whose state was dropped."""


class SinkCommittable(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a sink needs to make this epoch's output visible. Only the sink reads `data`."""

    uid: str
    kind: str
    data: msgspec.Raw = msgspec.Raw(b"\xc0")


class Garbage(msgspec.Struct, frozen=True, omit_defaults=True):
    """State files and manifests that nothing needs once the manifest that lists them is committed."""

    files: list[str] = []
    epochs: list[int] = []


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The one commit point of an epoch. See `docs/design.md`, "Invariants"."""

    job_id: str
    incarnation: str
    epoch: int
    commit_id: str
    run: int
    parent: int
    max_parallelism: int
    offsets: str
    """Text of Spark's offset log entry for this epoch: source positions, watermark, batch time."""
    watermark: int
    time_ms: int
    operators: list[OperatorState]
    sinks: list[SinkCommittable]
    lineage: dict[int, str]
    """Commit ids of the epochs that the chains still reach back to: a working store at one of them can catch up."""
    inlined: dict[str, bytes] = {}
    """State bytes of this epoch that were too small for a file, by `inline_key`."""
    requires: list[str] = []
    restored: int = 0
    """Of an epoch that a restore made: the checkpoint that it stands for. It ran no rows of its own."""
    spark: str = "spark"
    """The folder of the job's directory that is Spark's checkpointLocation; every restore makes a new one."""
    source_names: list[str] = []
    """What each source reads, in the order of the positions in `offsets`; empty if that is not known."""
    abandoned: list[tuple[int, int]] = []
    """The restores in place, oldest first: the epoch that each went back to (-1 for one of elsewhere), and the epoch
    that it made. See `gave_up`."""
    origin: str = ""
    """The snapshot that the job was last told to start from, `<path>#<checksum>`; later epochs carry it on."""
    time_reset_ms: int = 0
    """The time that processing time was last set back to; 0: never. Stored times that lie in the future count as this
    one; later epochs carry it on."""
    garbage: Garbage = Garbage()
    """What may be deleted once this manifest is committed. Nothing else is ever deleted while a job runs."""

    @property
    def order(self) -> tuple[int, int]:
        """The place in the job's history. A manifest with a higher epoch of an older run does not count."""
        return self.run, self.epoch

    def operator(self, uid: str) -> OperatorState | None:
        return next((op for op in self.operators if op.uid == uid), None)

    def files(self) -> set[str]:
        """Every state file that this manifest needs, relative to the job directory."""
        return {handle.path for op in self.operators for handle in op.chain if handle.path}

    def inline_epochs(self) -> set[int]:
        """Epochs whose manifests hold bytes that this one needs."""
        return {handle.epoch for op in self.operators for handle in op.chain if not handle.path}


def gave_up(restores: Sequence[tuple[int, int]], epoch: int) -> bool:
    """Whether restores in place left an epoch behind: the history is walked back from its end, restore by restore.

    A restore that was left behind itself counts no more, so going back to an epoch that was given up takes it, and what
    led to it, into the history again.
    """
    end: int | None = None
    for target, made in sorted(restores, key=lambda pair: pair[1], reverse=True):
        if end is not None and made > end:
            continue
        if epoch >= made:
            break
        if epoch > target:
            return True
        end = target
    return False


def inline_key(uid: str, first_group: int) -> str:
    return f"{uid}/{first_group}"


class EpochContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the driver tells every task of an epoch, as a Spark local property."""

    job_dir: str
    local_dir: str
    job_id: str
    incarnation: str
    run: int
    epoch: int
    watermark: int
    time_ms: int
    parent: int = -1
    """The committed epoch whose manifest a task starts from; -1 when there is none."""
    parent_commit: str = ""
    run_token: str = ""
    inline_threshold: int = 20 * 1024
    show_values: bool = False
    parameters: dict[str, str] = {}
    checkpoint: int = 0
    """The newest checkpoint whose barrier this epoch carries, or 0."""
    notices: list[tuple[int, bool]] = []
    """Checkpoints that ended since the last epoch: number, and whether it completed."""
    end_of_time: bool = False
    """The last epoch of a job that is drained: after its rows every event-time timer fires, also those they set."""
    row_watermark: int | None = None
    """The watermark up to the last row of that epoch, where it is another one than in the end."""
    own_stores: bool = False
    """Without local recovery: working stores are this run's own, and those of earlier runs are removed."""
    time_reset_ms: int = 0
    """As in the manifest."""
    fire_all: bool = False
    """Processing time was set back to the time of this epoch: all processing-time timers fire."""
    write_portion: int = 0
    """Bytes that one call to the storage writes; 0 for all at once."""

    @property
    def seen_watermark(self) -> int:
        """The watermark that the rows of the epoch see."""
        return self.watermark if self.row_watermark is None else self.row_watermark


class TaskMetrics(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a task spent its time (milliseconds) and what went through it."""

    rows_in: int = 0
    rows_out: int = 0
    keys: int = 0
    timers_fired: int = 0
    changed: int = 0
    delta_bytes: int = 0
    store: str = ""
    """How the working store came to its version: warm, caught-up, rebuilt, empty."""
    restored_rows: int = 0
    times: dict[str, float] = {}
    began_ms: int = 0
    ended_ms: int = 0
    """Wall clock of the task's host when it started and when its changes were durable."""
    stage: int = -1
    """The Spark stage that the task belongs to; -1 where there is none."""
    retries: int = 0
    """Storage calls that were retried."""
    bytes_in: int = 0
    """What the rows that came in took in memory."""


class TaskAck(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one finished task attempt tells the driver. Everything that it names is durable by then."""

    uid: str
    subtask: int
    epoch: int
    run: int
    attempt: int
    base_commit: str
    key_type: str
    handle: StateHandle | None
    states: list[StateSpec]
    metrics: TaskMetrics
    inlined: bytes = b""
    store_failures: list[str] = []
