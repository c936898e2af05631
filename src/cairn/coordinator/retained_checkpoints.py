"""Completed checkpoints: which are kept, what they need, and deleting those that are no longer kept."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from cairn.coordinator.checkpoint_deletion import CheckpointDeletion
from cairn.coordinator.ports import Clock
from cairn.logs import get_logger
from cairn.model.checkpoint_records import Checkpoint
from cairn.model.manifest import Manifest
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.cleanup import Pins, pins_of

_log = get_logger("cairn.checkpoint")


class RetainedCheckpoints:
    """The newest completed checkpoints of a job. A run that a newer one has overtaken deletes nothing.

    Which checkpoints go is decided when another one is completed, whose metadata lists those that stay; only then are
    the others deleted, after a look whether a newer run has the job. So a later owner of the job agrees with a
    deletion that comes late.

    Checkpoints that a restore in place gave up count as older than all others: they are the first to go. With one that
    cannot be read no state file is deleted in this run. A later run that can read it, or no longer finds it, sweeps
    what is left then.

    Threads: shared by the epoch loop's and the coordinator's. What is kept is guarded by a lock of its own, which may
    be taken with the ledger's lock held and is not held during a call to the storage. `delete_doomed` belongs to the
    thread that holds the ledger's `work`.
    """

    def __init__(self, store: CheckpointStore, run: int, count: int, clock: Clock) -> None:
        self._count = count
        self._deletion = CheckpointDeletion(store, run, clock)
        self._lock = threading.Lock()
        self._hurry = False
        self._leftovers: list[int] = store.let_go()
        """Folders that were no checkpoint when the run began. If an overtaken run completes one of them now, it does
        not count: the run has written down which ones do. Used by `delete_doomed` only."""
        readable, self._unreadable = store.readable()
        if self._unreadable:
            _log.error(
                "%s in %s cannot be read, and nobody knows which state files that needs: this run deletes none, so the "
                "directory grows. Bring its _metadata back from a copy or remove the folder, and start the job again.",
                ", ".join(f"chk-{number}" for number in self._unreadable), store.files.root,
            )  # fmt: skip
        current = {checkpoint.id for checkpoint in store.current_of(readable)}
        self._given_up = frozenset(c.id for c in readable if c.id not in current)
        self._kept = sorted(readable, key=lambda checkpoint: (checkpoint.id in current, checkpoint.id))
        self._doomed: list[Checkpoint] = []
        """No longer retained, but not deleted yet: still whole, so what they need must stay."""
        self._failed: set[int] = set()
        """Checkpoints of this run that were never completed: what they have written is to be deleted."""
        self._released: set[str] = set()
        """Files of deleted checkpoints that no manifest has listed as garbage yet."""

    @property
    def newest_epoch(self) -> int:
        """The epoch of the newest checkpoint that was not given up, -1 if there is none."""
        with self._lock:
            newest = self._kept[-1] if self._kept else None
        return newest.manifest.epoch if newest is not None and newest.id not in self._given_up else -1

    def with_added(self, number: int) -> list[int]:
        """The numbers that are kept once this checkpoint is complete."""
        with self._lock:
            kept = [*(checkpoint.id for checkpoint in self._kept), number][-self._count :]
            return sorted([*kept, *self._unreadable])

    def add(self, checkpoint: Checkpoint) -> None:
        """Keep a new one; those that its metadata does not retain go."""
        retained = checkpoint.retained or ()
        with self._lock:
            self._doomed += [older for older in self._kept if older.id not in retained]
            self._kept = [*(older for older in self._kept if older.id in retained), checkpoint]

    def pins(self, making: Sequence[Manifest]) -> Pins:
        """What must not be deleted: what these checkpoints need, and the manifests of those in progress."""
        with self._lock:
            made = pins_of([*self._kept, *self._doomed])
            released = frozenset(self._released)
        epochs = made.epochs.union(*(m.inline_epochs() for m in making))
        files = made.files.union(*(m.files() for m in making))
        return Pins(epochs, files, released, every_file=bool(self._unreadable))

    def collected(self, files: Iterable[str]) -> None:
        """A committed manifest lists these files as garbage."""
        with self._lock:
            self._released.difference_update(files)

    def give_up(self, number: int) -> None:
        """A checkpoint of this run will not be completed. What it has written goes with the next deletions.

        Called once more when its snapshot has ended, which may write until then.
        """
        with self._lock:
            self._failed.add(number)

    def hurry(self) -> None:
        """The run ends: what could not be deleted is tried once more, however recent the last attempt was."""
        with self._lock:
            self._hurry = True

    def delete_doomed(self) -> None:
        """Delete what is no longer kept, and try again what could not be deleted before."""
        with self._lock:
            doomed, at_once = list(self._doomed), self._hurry
            failed, self._failed = sorted(self._failed), set()
        for number in failed:
            if not self._deletion.abandon(number, at_once):
                self.give_up(number)
        for number in list(self._leftovers):
            if self._deletion.discard(number, at_once):
                self._leftovers.remove(number)
        for checkpoint in doomed:
            if self._deletion.discard(checkpoint.id, at_once):
                with self._lock:
                    self._doomed = [other for other in self._doomed if other.id != checkpoint.id]
                    self._released |= checkpoint.files()
