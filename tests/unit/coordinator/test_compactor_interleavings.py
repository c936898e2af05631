"""The compactor merges chains on a thread beside the epoch loop's, with their steps interleaved by a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.interleaved_runs import manifest, play
from tests.support.interleaving import Interleaving

from cairn.coordinator import (
    compactor,
)
from cairn.coordinator.compactor import Compactor
from cairn.errors import StorageError
from cairn.model.manifest import Manifest, OperatorState, StateHandle


class Merging:
    """Chains that grow by a file an epoch, and are merged on a thread beside the loop's."""

    adopted = 0

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.run = Interleaving(seed, [compactor])
        self.run.install(patch, compactor)
        self.compactor = Compactor(self._merge, 2)
        self.merged: list[StateHandle] = []
        self.chains: list[list[StateHandle]] = []

    def _merge(self, made: Manifest, operator: OperatorState, ranges: Any) -> list[StateHandle]:
        if self.run.random.random() < 0.3:
            raise StorageError("away")
        self.run.give_way()
        self.merged.append(StateHandle(made.epoch, 0, 127, 1, "c", f"merged-{made.epoch}", snapshot=True))
        return [self.merged[-1]]

    def epochs(self) -> None:
        chain: list[StateHandle] = []
        for epoch in range(40):
            chain = self.compactor.shortened("op", chain, epoch)
            chain = [*chain, StateHandle(epoch, 0, 127, 1, "c", f"delta-{epoch}")]
            self.chains.append(chain)
            made = manifest(epoch)
            state = msgspec.structs.replace(made.operators[0], chain=chain)
            self.compactor.consider(msgspec.structs.replace(made, operators=[state]))
            self.run.give_way()
        self.compactor.wait(100.0)

    def play(self) -> None:
        self.run.spawn("epochs", self.epochs)
        self.run.run()
        for epoch, chain in enumerate(self.chains):
            snapshots = [handle.epoch for handle in chain if handle.snapshot]
            Merging.adopted += bool(snapshots)
            covered = set(range(max(snapshots, default=-1) + 1)) | {h.epoch for h in chain if not h.snapshot}
            assert covered == set(range(epoch + 1)), f"the chain of epoch {epoch} lacks changes"


def merging(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
    Merging(seed, patch).play()


def test_compactor(tmp_path: Path) -> None:
    play(merging, tmp_path)
    assert Merging.adopted > 0
