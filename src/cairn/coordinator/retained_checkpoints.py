"""Completed checkpoints: which are kept, what they need, and deleting those that are not kept any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from cairn.coordinator.failed_discards import Discards
from cairn.coordinator.ports import Clock
from cairn.errors import CairnError, FencedError
from cairn.logs import get_logger
from cairn.model.checkpoint_records import Checkpoint
from cairn.model.manifest import Manifest
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.cleanup import Pins, pins_of
from cairn.storage.manifest_store import Runs

_log = get_logger("cairn.checkpoint")


class Retained:
    """The newest completed checkpoints of a job. A run that a newer one has overtaken deletes nothing.

    Which checkpoints go is decided when another one is completed, whose metadata lists those that stay; only then are
    the others deleted, after a look whether a newer run has the job. So whoever owns the job later agrees with a
    deletion that comes late. Deletions are made by one thread at a time, which the coordinator sees to; the rest may be
    called from any thread.

    Checkpoints that a restore in place gave up count as older than all others: they are the first to go. With one that
    cannot be read no state file is deleted, in this run; a later one that can read it, or does not find it any more,
    sweeps what is left then.
    """

    def __init__(self, store: CheckpointStore, run: int, count: int, clock: Clock) -> None:
        self._store = store
        self._run = run
        self._count = count
        self._clock = clock
        self._discards = Discards()
        self._attempts: set[int] = set()
        """Checkpoints of this run that were given up: what they have written is to be deleted."""
        self._leftovers: list[int] = store.let_go()
        """Folders that were no checkpoint when the run began. If an overtaken run completes one of them now, it does
        not count: the run has written down which ones do."""
        self._hurry = False
        self._runs = Runs(store.files)
        self._lock = threading.Lock()
        found, self._unknown = store.readable()
        if self._unknown:
            _log.error(
                "%s in %s cannot be read, and nobody knows which state files that needs: this run deletes none, so the "
                "directory grows. Bring its _metadata back from a copy or remove the folder, and start the job again.",
                ", ".join(f"chk-{number}" for number in self._unknown), store.files.root,
            )  # fmt: skip
        current = {checkpoint.id for checkpoint in store.current_of(found)}
        self._given_up = frozenset(c.id for c in found if c.id not in current)
        self._kept = sorted(found, key=lambda checkpoint: (checkpoint.id in current, checkpoint.id))
        self._doomed: list[Checkpoint] = []
        """No longer retained, but not deleted yet: still whole, so what they need must stay."""
        self._released: set[str] = set()

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
            return sorted([*kept, *self._unknown])

    def add(self, checkpoint: Checkpoint) -> None:
        """Keep a new one; those that its metadata does not retain go."""
        retained = checkpoint.retained or ()
        with self._lock:
            self._doomed += [older for older in self._kept if older.id not in retained]
            self._kept = [*(older for older in self._kept if older.id in retained), checkpoint]

    def pins(self, making: Sequence[Manifest]) -> Pins:
        """What must not be deleted: what these checkpoints need, and those in the making."""
        with self._lock:
            made = pins_of([*self._kept, *self._doomed])
            released = frozenset(self._released)
        epochs = made.epochs.union(*(m.inline_epochs() for m in making))
        files = made.files.union(*(m.files() for m in making))
        return Pins(epochs, files, released, every_file=bool(self._unknown))

    def collected(self, files: Iterable[str]) -> None:
        """A committed manifest lists these files as garbage."""
        with self._lock:
            self._released.difference_update(files)

    def give_up(self, number: int) -> None:
        """A checkpoint of this run will not be completed. What it has written goes with the next deletions."""
        with self._lock:
            self._attempts.add(number)

    def hurry(self) -> None:
        """The run ends: what could not be deleted is tried once more, however short ago that was."""
        self._hurry = True

    def delete_doomed(self) -> None:
        """Delete what is not kept any more, and try again what could not be deleted before."""
        with self._lock:
            doomed, attempts = list(self._doomed), sorted(self._attempts)
        for number in attempts:
            if self._tried(number, partial(self._store.abandon, number, self._run)):
                with self._lock:
                    self._attempts.discard(number)
        for number in list(self._leftovers):
            if self._discarded(number):
                self._leftovers.remove(number)
        for checkpoint in doomed:
            if self._discarded(checkpoint.id):
                with self._lock:
                    self._doomed = [other for other in self._doomed if other.id != checkpoint.id]
                    self._released |= checkpoint.files()

    def _discarded(self, number: int) -> bool:
        """Delete a checkpoint's folder; False if that did not work, or it is too soon to try again."""

        def delete() -> None:
            self._runs.check(self._run)
            self._store.discard(number)

        return self._tried(number, delete)

    def _tried(self, number: int, delete: Callable[[], None]) -> bool:
        now = self._clock.monotonic_ms()
        if not (self._hurry or self._discards.due(number, now)):
            return False
        try:
            delete()
        except FencedError:
            return False
        except (CairnError, OSError) as error:
            self._discards.failed(number, error, now)
            return False
        self._discards.done(number)
        return True
