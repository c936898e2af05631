"""Completed checkpoints: which are kept, what they need, and deleting those that are not kept any more."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from cairn.coordinator.discards import Discards
from cairn.coordinator.parties import Clock
from cairn.errors import CairnError, FencedError
from cairn.model.checkpoint import Checkpoint
from cairn.model.manifest import Manifest
from cairn.storage.checkpoints import CheckpointStore
from cairn.storage.cleanup import Pins, pins_of
from cairn.storage.manifests import Runs

_log = logging.getLogger("cairn.checkpoint")


class Retained:
    """The newest completed checkpoints of a job. A run that a newer one has overtaken deletes nothing.

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

    def add(self, checkpoint: Checkpoint) -> None:
        """Keep a new one; the oldest goes if they are too many."""
        with self._lock:
            self._kept.append(checkpoint)
            self._doomed += self._kept[: -self._count]
            self._kept = self._kept[-self._count :]

    def doom(self, checkpoint: Checkpoint) -> None:
        """One that was completed and is not wanted any more."""
        with self._lock:
            self._doomed.append(checkpoint)

    def pins(self, making: Sequence[Manifest]) -> Pins:
        """What must not be deleted: what these checkpoints need, and those in the making."""
        with self._lock:
            made = pins_of([*self._kept, *self._doomed])
            released, self._released = frozenset(self._released), set()
        epochs = made.epochs.union(*(m.inline_epochs() for m in making))
        files = made.files.union(*(m.files() for m in making))
        return Pins(epochs, files, released, every_file=bool(self._unknown))

    def hurry(self) -> None:
        """The run ends: what could not be deleted is tried once more, however short ago that was."""
        self._hurry = True

    def delete_doomed(self) -> None:
        """Delete what is not kept any more, and try again what could not be deleted before."""
        with self._lock:
            doomed = list(self._doomed)
        for checkpoint in doomed:
            if self.discard(checkpoint.id):
                with self._lock:
                    self._doomed.remove(checkpoint)
                    self._released |= checkpoint.files()
        for number in set(self._discards.waiting()) - {checkpoint.id for checkpoint in doomed}:
            self.discard(number)

    def discard(self, number: int) -> bool:
        """Delete a checkpoint's folder; False if that did not work, or it is too soon to try again."""
        now = self._clock.monotonic_ms()
        if not (self._hurry or self._discards.due(number, now)):
            return False
        try:
            self._runs.check(self._run)
            self._store.discard(number)
        except FencedError:
            return False
        except (CairnError, OSError) as error:
            self._discards.failed(number, error, now)
            return False
        self._discards.done(number)
        return True
