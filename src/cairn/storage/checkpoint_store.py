"""Checkpoints as files: complete, verify at every read, list and discard them. See `docs/design/0002`.

A `_metadata` file is `"CAIRNCK1"`, the xxh3-64 of the body (8 bytes), the body's length (4 bytes) and the body in
MessagePack. A folder without it is no checkpoint, nor is one that the history has let go (docs/design/0008): a newer
checkpoint does not retain it, a run discarded it when it ended, or an overtaken run completed it too late.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec

from cairn.errors import CairnError, CorruptFileError, IncompatibleStateError, NotFoundError, StorageError
from cairn.logs import get_logger
from cairn.model.checkpoint_records import Checkpoint, CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.model.manifest import gave_up
from cairn.storage import layout, record_file
from cairn.storage.checkpoint_vetting import check_checkpoint
from cairn.storage.filesystem import FileInfo, FileSystem
from cairn.storage.manifest_store import JobIdentity, ManifestStore, load_identity
from cairn.storage.run_bases import Base, newest_base

_log = get_logger("cairn.storage")
_MAGIC = b"CAIRNCK"
_VERSION = b"1"
HISTORY_KEPT = 1000
READER_SECONDS = 3600.0
_LOOK_AHEAD = 16
"""How many numbers in a row may have been given to checkpoints that failed without one being overlooked."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    return record_file.seal(_MAGIC, _VERSION, checkpoint)


def decode_checkpoint(data: bytes, name: str) -> Checkpoint:
    """The checkpoint in these bytes; an error that names the file if they are cut, changed, foreign, too new, or say
    what cannot be."""
    if not data.startswith(_MAGIC):
        raise CorruptFileError(f"{name} is not a checkpoint of cairn", path=name)
    checkpoint = record_file.unseal(data, _VERSION, Checkpoint, name)
    check_checkpoint(checkpoint, name)
    return checkpoint


class CheckpointTotals(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many checkpoints and savepoints of a job have ended, by how they did."""

    completed: int = 0
    failed: int = 0

    def ended(self) -> int:
        return self.completed + self.failed

    def plus(self, info: CheckpointInfo) -> CheckpointTotals:
        done = info.status is CheckpointStatus.COMPLETED
        return CheckpointTotals(self.completed + int(done), self.failed + int(not done))

    def at_least(self, found: Sequence[CheckpointInfo]) -> CheckpointTotals:
        """At least as many as have statistics."""
        done = sum(1 for info in found if info.status is CheckpointStatus.COMPLETED)
        return CheckpointTotals(max(self.completed, done), max(self.failed, len(found) - done))


@dataclass(frozen=True, slots=True)
class _Facts:
    """What decides whether a checkpoint counts."""

    run: int
    retained: list[int] | None


class _CountedInfo(msgspec.Struct, frozen=True):
    totals: CheckpointTotals = CheckpointTotals()


def _read_history(data: bytes) -> tuple[CheckpointInfo, CheckpointTotals]:
    return msgspec.json.decode(data, type=CheckpointInfo), msgspec.json.decode(data, type=_CountedInfo).totals


class CheckpointStore:
    """The checkpoints of one job."""

    def __init__(self, files: FileSystem, history_kept: int = HISTORY_KEPT) -> None:
        self.files = files
        self._history_kept = history_kept
        self._remembered: dict[str, tuple[CheckpointInfo, CheckpointTotals]] = {}
        """Files of the history that were read already; they never change."""
        self._last: tuple[tuple[list[str], set[int]], list[CheckpointInfo]] | None = None
        """The newest answer of `history`, and what it was made from."""
        self._totals: CheckpointTotals | None = None
        """Of all checkpoints that ended, as this store has counted on; None until it has."""
        self._identity: JobIdentity | None = None
        self._facts: dict[int, _Facts | None] = {}
        """What `_metadata` says of other checkpoints; it never changes."""

    def complete(self, checkpoint: Checkpoint) -> None:
        """The one step that makes the checkpoint exist."""
        self.files.create(layout.metadata_path(checkpoint.id), encode_checkpoint(checkpoint))

    def load(self, number: int) -> Checkpoint:
        path = layout.metadata_path(number)
        checkpoint = decode_checkpoint(self.files.read(path), f"{self.files.root}/{path}")
        if checkpoint.id != number:
            raise CorruptFileError(f"{self.files.root}/{path} holds checkpoint {checkpoint.id}", path=path)
        self._refuse_foreign(checkpoint, f"{self.files.root}/{path}")
        return checkpoint

    def _refuse_foreign(self, checkpoint: Checkpoint, name: str) -> None:
        """What another job made is no checkpoint of this one, wherever it was copied to: its state is not this job's,
        and its pickles are not to be trusted."""
        mine = self._identity = self._identity or load_identity(self.files)
        if mine is not None and not mine.made(checkpoint.manifest.incarnation, checkpoint.job_id):
            raise CorruptFileError(
                f"{name} is refused: it was created by another job ('{checkpoint.job_id}', "
                f"{checkpoint.manifest.incarnation}), but is in the directory of '{mine.job_id}' ({mine.incarnation}). "
                "Directories were mixed up: move the folder back to the directory of its job.",
                path=name,
            )

    def numbers(self) -> list[int]:
        """Completed checkpoints, ascending, without those that the history has let go."""
        present = [number for number in self._folders() if self.files.exists(layout.metadata_path(number))]
        if not present:
            return []
        base = newest_base(self.files)
        discarded = self._discarded(base)
        kept = [number for number in present if number not in discarded and not self._too_late(number, base)]
        for number in reversed(kept):
            facts = self._facts_of(number)
            if facts is not None and facts.retained is not None:
                return [other for other in kept if other >= number or other in facts.retained]
        return kept

    def let_go(self) -> list[int]:
        """Folders that are no checkpoint: never completed, or completed and let go by the history."""
        return sorted(set(self._folders()) - set(self.numbers()))

    def _too_late(self, number: int, base: Base | None) -> bool:
        """Whether a run completed a checkpoint after a newer run had written down those that it continues with."""
        if base is None or number in base.checkpoints:
            return False
        facts = self._facts_of(number)
        return facts is not None and facts.run < base.run

    def _facts_of(self, number: int) -> _Facts | None:
        """None for a checkpoint that is damaged: whether it counts is not known, so it does."""
        if number not in self._facts:
            try:
                checkpoint = self.load(number)
                self._facts[number] = _Facts(checkpoint.run, checkpoint.retained)
            except (CorruptFileError, IncompatibleStateError, NotFoundError):
                return None
        return self._facts[number]

    def _discarded(self, base: Base | None = None) -> set[int]:
        """The checkpoints that runs discarded when they ended, without those that a newer run counts on."""
        discarded: set[int] = set()
        for info in self.files.list(layout.DISCARDS):
            with suppress(NotFoundError, msgspec.MsgspecError):
                numbers = set(msgspec.json.decode(self.files.read(info.path), type=list[int]))
                late = base is not None and (layout.number_of(info.path) or 0) < base.run
                discarded |= numbers - set(base.checkpoints) if late and base is not None else numbers
        return discarded

    def record_discards(self, run: int, numbers: Sequence[int]) -> None:
        """Record that the ending run discards these checkpoints. From here on they do not count."""
        self.files.create(layout.discards_path(run), msgspec.json.encode(list(numbers)))

    def _folders(self) -> list[int]:
        """Folders of checkpoints, ascending. A listing may lag behind, so the next numbers are asked for by name."""
        listed = {layout.checkpoint_number(name) for name in self.files.folders("")}
        found = {number for number in listed if number is not None}
        ahead = max(found, default=0)
        number = ahead + 1
        while number <= ahead + _LOOK_AHEAD:
            if self.files.exists(layout.metadata_path(number)):
                found.add(number)
                ahead = number
            number += 1
        return sorted(found)

    def all(self) -> list[Checkpoint]:
        """All completed checkpoints that can be read, oldest first; the others are logged and skipped."""
        return self.readable()[0]

    def readable(self) -> tuple[list[Checkpoint], list[int]]:
        """`all()`, and the numbers of those that are damaged, another job's or too new: nobody knows what they need.

        Storage that fails is no damage: its error is raised.
        """
        found = []
        unknown = []
        for number in self.numbers():
            try:
                found.append(self.load(number))
            except NotFoundError:
                continue  # deleted meanwhile
            except StorageError:
                raise
            except CairnError as error:
                _log.warning("checkpoint %d is left out: %s", number, error)
                unknown.append(number)
        return found, unknown

    def current(self) -> list[Checkpoint]:
        """`all()` without those that a restore in place gave up: taken after what it went back to, and before it."""
        return self.current_of(self.all())

    def current_of(self, found: Sequence[Checkpoint]) -> list[Checkpoint]:
        restores = ManifestStore(self.files).restores() if found else []
        return [c for c in found if not gave_up(restores, c.manifest.epoch)]

    def next_number(self) -> int:
        """Above every number that was ever used."""
        history = (layout.number_of(info.path) for info in self.files.list(layout.HISTORY))
        known = (number for number in history if number is not None)
        return max([0, *self._folders(), *self._discarded(), *known]) + 1

    def discard(self, number: int) -> None:
        """Delete a checkpoint, `_metadata` first: from then on it is none. What it shared stays.

        One that is being read stays: `StorageError` says so, and it can be retried later.
        """
        reader = next(iter(self.readers(number)), None)
        if reader is not None:
            raise StorageError(
                f"checkpoint {number} in {self.files.root} is being read (see {reader.path}); it can be deleted when "
                f"its reader has finished, or {READER_SECONDS // 60:.0f} minutes after the reader started",
                path=reader.path,
            )
        self.files.delete(layout.metadata_path(number))
        self._delete_folder(number)

    def readers(self, number: int) -> list[FileInfo]:
        """The marks of those who read a checkpoint. One that was left by a reader which died counts for an hour."""
        marks = self.files.list(layout.checkpoint_folder(number))
        young = time.time() - READER_SECONDS
        return [m for m in marks if m.path.rsplit("/", 1)[-1].startswith(layout.READING) and m.modified > young]

    @contextmanager
    def hold(self, number: int) -> Iterator[None]:
        """Keep a checkpoint from being deleted while it is read, also by a job that runs elsewhere.

        In a directory that cannot be written nobody deletes either, so failing to leave a mark is no error.
        """
        mark = layout.reader_path(number, uuid.uuid4().hex[:12])
        try:
            self.files.create(mark, b"")
        except StorageError as error:
            _log.debug("checkpoint %d is read without a mark: %s", number, error)
            yield
            return
        try:
            if number not in self.numbers():
                raise NotFoundError(f"checkpoint {number} in {self.files.root} was discarded just now; choose another")
            yield
        finally:
            with suppress(CairnError):
                self.files.delete(mark)
                if not self.files.exists(layout.metadata_path(number)):
                    self.files.prune(layout.checkpoint_folder(number))

    def abandon(self, number: int, run: int) -> None:
        """Delete what a run wrote for a checkpoint that it gave up. Another run may have taken the number since."""
        folder = layout.checkpoint_folder(number)
        for info in self.files.walk(folder):
            if layout.run_of_full_snapshot(info.path) == run:
                self.files.delete(info.path)
        self.files.prune(folder)

    def _delete_folder(self, number: int) -> None:
        folder = layout.checkpoint_folder(number)
        for info in self.files.walk(folder):
            self.files.delete(info.path)
        self.files.prune(folder)

    # History.

    def remember(self, info: CheckpointInfo) -> None:
        """Keep the statistics of an ended checkpoint. Never fails a job: statistics are worth less than the stream."""
        try:
            self._totals = (self._totals or self.totals(before=info.id)).plus(info)
            told = msgspec.to_builtins(info) | {"totals": msgspec.to_builtins(self._totals)}
            self.files.create(layout.history_path(info.id), msgspec.json.format(msgspec.json.encode(told)))
            kept = self.files.list(layout.HISTORY)
            for old in kept[: -self._history_kept]:
                self.files.delete(old.path)
        except (CairnError, OSError) as error:
            _log.warning("the statistics of checkpoint %d could not be kept: %s", info.id, error)

    def totals(self, before: int | None = None) -> CheckpointTotals:
        """How many checkpoints and savepoints have ended in the job's life, also those whose statistics are gone.

        Each file of the history has the count up to itself. One that was written without is counted as it is found.
        With `before`, only numbers below it are: that one has just ended and is not to be counted yet.
        """
        found = [info for info in self.history() if before is None or info.id < before]
        told = max(
            (totals for _, totals in self._remembered.values()), key=CheckpointTotals.ended, default=CheckpointTotals()
        )
        return told.at_least(found)

    def history(self) -> list[CheckpointInfo]:
        """Ended checkpoints, newest first. Completed ones that are no longer retained are marked as discarded."""
        retained = set(self.numbers())
        files = self.files.list(layout.HISTORY)
        made_from = ([file.path for file in files], retained)
        if self._last is not None and self._last[0] == made_from:
            return list(self._last[1])
        found: dict[int, CheckpointInfo] = {}
        known, self._remembered = self._remembered, {}
        for file in files:
            try:
                info, counted = known.get(file.path) or _read_history(self.files.read(file.path))
            except (NotFoundError, CorruptFileError, msgspec.MsgspecError):
                continue  # removed meanwhile, cut off by a crash, or not ours: statistics only
            self._remembered[file.path] = info, counted
            own = info.type is not CheckpointType.SAVEPOINT  # a savepoint is its owner's, wherever it lies
            gone = own and info.path != "" and info.id not in retained
            found[info.id] = msgspec.structs.replace(info, discarded=gone) if gone else info
        for number in retained - set(found):
            try:
                found[number] = self.load(number).info
            except CairnError:
                continue
        newest_first = [found[number] for number in sorted(found, reverse=True)]
        self._last = (made_from, newest_first)
        return list(newest_first)
