"""A driver's life over a job directory without Spark: what the tests of the epoch loop share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cairn.config import Settings
from cairn.coordinator.compactor import Compactor
from cairn.coordinator.epoch_loop import EpochLoop, EpochLoopSetup, OperatorPlan
from cairn.coordinator.offset_log import LocalOffsets
from cairn.errors import EpochFailedError, StorageError
from cairn.model.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from cairn.model.functions import KeyedProcessFunction
from cairn.restore.log_agreement import spark_batches
from cairn.restore.recovery import recover
from cairn.restore.start_request import StartRequest
from cairn.snapshots import compact_task
from cairn.state import working_store
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore
from cairn.testing.faults import FaultPlan, FaultyFileSystem
from cairn.testing.keyed_harness import UID, KeyedProcessHarness, LocalCluster, local_compaction

INPUT = "key string, n bigint"
OUTPUT = "key string, n bigint"
GROUPS = 16
EPOCHS: list[list[tuple[str, int]]] = [
    [("a", 1), ("b", 2), ("a", 3)],
    [("b", 4), ("c", 5)],
    [("a", 6), ("c", 7), ("d", 8)],
    [("d", 9)],
]


class Ledger(KeyedProcessFunction):
    """Keeps a total, a list and a map, and a timer that fires one epoch later."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))
        self.last = runtime_context.get_map_state(MapStateDescriptor("last", "string", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.n)
        self.seen.add(value.n)
        self.last.put("n", value.n)
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer(now + 500)
        yield value.key, self.total.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        self.last.remove("n")
        yield ctx.get_current_key(), -timestamp


def model(epochs: Sequence[Sequence[tuple[str, int]]]) -> tuple[dict[str, int], dict[str, list[int]], list[list[Any]]]:
    """What plain dicts say: totals, lists, and the sorted output of each epoch."""
    totals: dict[str, int] = {}
    seen: dict[str, list[int]] = {}
    outputs = []
    for epoch, rows in enumerate(epochs):
        before = {key for key, _ in epochs[epoch - 1]} if epoch else set()
        made: list[Any] = [(key, -(1000 * (epoch - 1) + 500)) for key in before]
        for key, n in rows:
            totals[key] = totals.get(key, 0) + n
            seen.setdefault(key, []).append(n)
            made.append((key, totals[key]))
        outputs.append(sorted(made))
    return totals, seen, outputs


class StoredSink:
    """Two phases over the job's own storage: rows travel in the manifest and are written when it is committed."""

    uid = "sink"
    kind = "stored"

    def __init__(self, files: Any) -> None:
        self.files = files
        self.fail: dict[str, int] = {}

    def prepare(self, frame: Any, epoch: int, attempt: str) -> Any:
        rows = [list(row) for row in frame]
        if self.fail.get("prepare") == epoch:
            raise EpochFailedError("the sink refused")
        return rows

    def commit(self, data: Any, epoch: int) -> None:
        if self.fail.get("commit") == epoch:
            raise StorageError("the sink is away")
        path = f"tables/out/{epoch:03d}"
        if not self.files.exists(path):
            self.files.create(path, json.dumps(sorted(data)).encode())
        else:
            assert json.loads(self.files.read(path)) == sorted(data)


class Loop(EpochLoop):
    hook: Callable[[str, int], None] | None = None

    def step(self, name: str, epoch: int) -> None:
        super().step(name, epoch)
        if self.hook is not None:
            self.hook(name, epoch)


class World:
    """A job directory, Spark's logs in it, and working stores: what outlives a crash of the driver."""

    def __init__(self, folder: Path, backend: str = "hashmap", parallelism: int = 2) -> None:
        self.root = folder / "job"
        self.local = folder / "local"
        self.parallelism = parallelism
        self.settings = Settings(
            directory=str(self.root), local_directory=str(self.local), backend=backend, inline_threshold=900,
            compaction_chain=2, epochs_retained=2,
        )  # fmt: skip
        self.cluster_type: type[LocalCluster] = LocalCluster
        self.hook: Callable[[str, int], None] | None = None
        self.sink_fails: dict[str, int] = {}

    def log(self, name: str, epoch: int) -> None:
        """What Spark writes: the plan of a batch, and later its commit."""
        path = self.root / "spark" / name / str(epoch)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1000 * epoch}
            path.write_text(f"v1\n{json.dumps(metadata)}\n{epoch}")

    def start(self, files: Any) -> Loop:
        recovered = recover(StartRequest(files, "job", "job", self.settings, self.parallelism, GROUPS, [UID]), now_ms=0)
        probe = KeyedProcessHarness(Ledger(), "key", INPUT, OUTPUT, self.settings.backend, self.parallelism, GROUPS)
        spec, shuffle = probe.spec, probe._shuffle
        probe.close()
        cluster = self.cluster_type(spec, shuffle, files)
        cluster.attempts = 1000 * recovered.run.run
        sink = StoredSink(files)
        sink.fail = self.sink_fails
        loop = Loop(
            EpochLoopSetup(
                files=files,
                identity=recovered.identity,
                run=recovered.run,
                operators=[OperatorPlan(UID, "ledger", self.parallelism)],
                sinks=[sink],
                cluster=cluster,
                offsets=LocalOffsets(str(self.root / "spark")),
                settings=self.settings,
                current=recovered.manifest,
                compactor=Compactor(local_compaction(files.root, recovered.run.run), 2, background=False),
            )
        )
        loop.hook = self.hook
        return loop

    def run(self, plan: FaultPlan | None = None, until: int = len(EPOCHS), files: Any = None) -> FaultyFileSystem:
        """One life of the driver: recover, then the batches that Spark would ask for."""
        files = files or FaultyFileSystem(LocalFileSystem(str(self.root)), plan)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compact_task, "open_filesystem", lambda url: files)
            loop = self.start(files)
            planned, committed = (spark_batches(str(self.root), name) for name in ("offsets", "commits"))
            epoch = planned[-1] if planned else 0  # as Spark does: the newest planned batch, or the one after it
            epoch += planned[-1:] == committed[-1:] and bool(planned)
            for number in range(epoch, until):
                self.log("offsets", number)
                loop.run_epoch(EPOCHS[number], number)
                self.log("commits", number)
        return files

    def check(self, epochs: int = len(EPOCHS)) -> None:
        """State and outputs are those of a run without faults, and what is retained is whole."""
        totals, seen, outputs = model(EPOCHS[:epochs])
        published = sorted((self.root / "tables" / "out").glob("*"))
        assert [json.loads(path.read_text()) for path in published] == [[list(row) for row in rows] for rows in outputs]
        manifests = ManifestStore(LocalFileSystem(str(self.root)))
        for epoch in manifests.epochs()[-self.settings.epochs_retained :]:
            manifest = manifests.load(epoch)
            assert all((self.root / path).is_file() for path in manifest.files())
            assert manifest.inline_epochs() <= set(manifests.epochs())
        assert manifests.epochs()[-1] == epochs - 1
        copied = self.root.parent / "copy"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(self.root, copied)
        with KeyedProcessHarness(
            Ledger(), "key", INPUT, OUTPUT, parallelism=3, max_parallelism=GROUPS, state_dir=copied
        ) as harness:
            for key, total in totals.items():
                assert harness.state("total", key) == total
                assert harness.state("seen", key) == seen[key]
            assert sorted(timer.key for timer in harness.timers()) == sorted({key for key, _ in EPOCHS[epochs - 1]})

    def lose_stores(self) -> None:
        for key in [key for key in working_store._resident if key.startswith(str(self.local))]:
            working_store._resident.pop(key)
        shutil.rmtree(self.local, ignore_errors=True)


def calls_of_a_run(tmp_path: Path) -> list[tuple[int, str, str]]:
    world = World(tmp_path)
    log = world.run().log
    world.lose_stores()
    return log
