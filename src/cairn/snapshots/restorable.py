"""What a job can be restored from: a savepoint or a `chk-<n>`, described in the same words."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

import xxhash

from cairn.errors import InvalidInputError, NotFoundError
from cairn.model.checkpoint_records import Checkpoint
from cairn.model.manifest import StateSpec
from cairn.model.savepoint_records import SavepointMetadata
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem, local_root
from cairn.storage.savepoint_folder import read_savepoint


@dataclass(frozen=True, slots=True)
class StoredOperator:
    """An operator as a snapshot has it."""

    uid: str
    name: str
    parallelism: int
    key_type: str
    states: tuple[StateSpec, ...]
    rows: int
    """Rows of a savepoint's tables, or entries in the files of a checkpoint (removals count there)."""
    empty: bool
    """It holds nothing that could be lost."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a restore begins. Exactly one of `checkpoint` and `savepoint` is there."""

    path: str
    files: LocalFileSystem
    """The job's directory that a checkpoint lies in, or the folder of a savepoint."""
    operators: tuple[StoredOperator, ...]
    checkpoint: Checkpoint | None = None
    savepoint: SavepointMetadata | None = None

    @property
    def what(self) -> str:
        return "checkpoint" if self.checkpoint is not None else "savepoint"

    @property
    def _facts(self) -> SavepointMetadata | Checkpoint:
        facts = self.savepoint or self.checkpoint
        if facts is None:
            raise InvalidInputError(f"{self.path} is neither a checkpoint nor a savepoint", path=self.path)
        return facts

    @property
    def number(self) -> int:
        return self._facts.id

    @property
    def job_id(self) -> str:
        return self._facts.job_id

    @property
    def incarnation(self) -> str:
        return (
            self.checkpoint.manifest.incarnation
            if self.checkpoint
            else self.savepoint.incarnation
            if self.savepoint
            else ""
        )

    @property
    def epoch(self) -> int:
        facts = self._facts
        return facts.epoch if isinstance(facts, SavepointMetadata) else facts.manifest.epoch

    @property
    def max_parallelism(self) -> int:
        facts = self._facts
        return facts.max_parallelism if isinstance(facts, SavepointMetadata) else facts.manifest.max_parallelism

    @property
    def offsets(self) -> str:
        facts = self._facts
        return facts.offsets if isinstance(facts, SavepointMetadata) else facts.manifest.offsets

    @property
    def in_flight(self) -> str:
        return self.checkpoint.in_flight if self.checkpoint else ""

    @property
    def watermark(self) -> int:
        facts = self._facts
        return facts.watermark if isinstance(facts, SavepointMetadata) else facts.manifest.watermark

    @property
    def time_ms(self) -> int:
        facts = self._facts
        return facts.time_ms if isinstance(facts, SavepointMetadata) else facts.manifest.time_ms

    @property
    def source_names(self) -> list[str]:
        facts = self._facts
        return facts.source_names if isinstance(facts, SavepointMetadata) else facts.manifest.source_names

    @property
    def drained(self) -> bool:
        return self.savepoint is not None and self.savepoint.drained

    @property
    def sources(self) -> str:
        """The folder with the logs of Spark's sources."""
        spark = self.checkpoint.manifest.spark if self.checkpoint else ""
        return os.path.join(self.files.root, spark, layout.SOURCES)

    def operator(self, uid: str) -> StoredOperator | None:
        return next((operator for operator in self.operators if operator.uid == uid), None)

    @property
    def origin(self) -> str:
        """Tells this snapshot from any other, also from one that lies at its path later: `<path>#<checksum>`."""
        metadata = layout.METADATA
        if self.checkpoint is not None:
            metadata = layout.metadata_path(self.checkpoint.id)
        return f"{self.path}#{xxhash.xxh3_64_hexdigest(self.files.read(metadata))}"

    def owner(self) -> dict[str, str] | None:
        """The job that a savepoint was handed to, if it was."""
        if self.savepoint is None or not self.files.exists(layout.CLAIMED):
            return None
        try:
            told = json.loads(self.files.read(layout.CLAIMED))
            return {str(key): str(value) for key, value in told.items()}
        except (ValueError, AttributeError):
            return {}


def folder_of(path: str) -> str:
    """The folder of the snapshot that a path names."""
    folder = local_root(path)
    return os.path.dirname(folder) if os.path.basename(folder) == layout.METADATA else folder


def find(path: str) -> Snapshot:
    """The snapshot that a path names: the folder of a savepoint or checkpoint, or the `_metadata` in it."""
    folder = folder_of(path)
    number = layout.checkpoint_number(os.path.basename(folder))
    if number is None:
        return _savepoint(folder)
    files = LocalFileSystem(os.path.dirname(folder))
    store = CheckpointStore(files)
    if number not in store.numbers():
        there = ", ".join(f"chk-{known}" for known in store.numbers()) or "none"
        raise NotFoundError(f"there is no completed checkpoint {folder}; completed there: {there}", path=path)
    return of_checkpoint(files, store.load(number))


def of_checkpoint(files: LocalFileSystem, checkpoint: Checkpoint) -> Snapshot:
    operators = tuple(
        StoredOperator(
            operator.uid, operator.name, operator.parallelism, operator.key_type, tuple(operator.states),
            sum(handle.rows for handle in operator.chain), not operator.chain and not operator.states,
        )
        for operator in checkpoint.manifest.operators
    )  # fmt: skip
    path = os.path.join(files.root, layout.checkpoint_folder(checkpoint.id))
    return Snapshot(path, files, operators, checkpoint=checkpoint)


def _savepoint(folder: str) -> Snapshot:
    if not os.path.lexists(os.path.join(folder, layout.METADATA)):
        raise NotFoundError(
            f"{folder} is no checkpoint and no savepoint: name the folder chk-<n> of a job, or a folder that holds the "
            f"{layout.METADATA} of a savepoint",
            path=folder,
        )
    metadata = read_savepoint(folder)
    operators = tuple(
        StoredOperator(
            operator.uid, operator.name, operator.parallelism, operator.key_type,
            tuple(table.spec for table in operator.tables), sum(table.rows for table in operator.tables),
            not any(table.rows for table in operator.tables),
        )
        for operator in metadata.operators
    )  # fmt: skip
    return Snapshot(folder, LocalFileSystem(folder), operators, savepoint=metadata)
