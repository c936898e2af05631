"""Completed checkpoints: which are kept, what they need, and deleting those that are not kept any more."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from cairn.errors import CairnError, FencedError
from cairn.model.checkpoint import Checkpoint
from cairn.model.manifest import Manifest
from cairn.storage.checkpoints import CheckpointStore
from cairn.storage.cleanup import Pins, pins_of
from cairn.storage.manifests import Runs

_log = logging.getLogger("cairn.checkpoint")


class Retained:
    """The newest completed checkpoints of a job. A run that a newer one has overtaken deletes nothing."""

    def __init__(self, store: CheckpointStore, run: int, count: int) -> None:
        self._store = store
        self._run = run
        self._count = count
        self._runs = Runs(store.files)
        self._lock = threading.Lock()
        self._kept = store.all()
        self._doomed: list[Checkpoint] = []
        """No longer retained, but not deleted yet: still whole, so what they need must stay."""
        self._released: set[str] = set()

    @property
    def newest_epoch(self) -> int:
        """The epoch of the newest checkpoint, -1 if there is none."""
        with self._lock:
            return self._kept[-1].manifest.epoch if self._kept else -1

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
        return Pins(epochs, made.files.union(*(m.files() for m in making)), released)

    def delete_doomed(self) -> None:
        with self._lock:
            doomed = list(self._doomed)
        for checkpoint in doomed:
            if self.discard(checkpoint.id):
                with self._lock:
                    self._doomed.remove(checkpoint)
                    self._released |= checkpoint.files()

    def discard(self, number: int) -> bool:
        """Delete a checkpoint's folder; False if that did not work."""
        try:
            self._runs.check(self._run)
            self._store.discard(number)
        except FencedError:
            return False
        except (CairnError, OSError) as error:
            _log.warning("cannot delete checkpoint %d, which is not needed any more: %s", number, error)
            return False
        return True
