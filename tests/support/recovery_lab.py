"""A job that sums up numbers, with Spark's logs beside it, and its recovery."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.support.restore_lab import harness, newest, shape_of

from cairn import KeyedProcessFunction, ValueStateDescriptor
from cairn.config import Settings
from cairn.model.manifest import Manifest
from cairn.restore.recovery import Recovered, recover
from cairn.restore.restore_plan import JobShape
from cairn.restore.start_request import StartRequest
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore

HEAD = "v1\n" + json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})


class Sum(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.sum.update((self.sum.value() or 0) + value.n)
        yield value.key, str(self.sum.value())


def run(folder: Path, *amounts: int, **more: Any) -> JobShape:
    """An epoch for each amount; Spark's log as it would be then."""
    with harness(Sum(), folder, **more) as job:
        for amount in amounts:
            job.push(("a", amount))
            job.run_epoch()
        shape = shape_of(job)
    tell_spark(folder)
    return shape


def tell_spark(folder: Path, **changed: Any) -> Manifest:
    """Plan and commit the newest epoch in Spark's log, with other positions if they are given."""
    store = ManifestStore(LocalFileSystem(str(folder)))
    manifest = msgspec.structs.replace(newest(folder), **{"offsets": HEAD, **changed})
    store.delete(manifest.epoch)
    store.publish(manifest)
    for log, text in (("offsets", manifest.offsets), ("commits", "v1\n{}")):
        path = folder / manifest.spark / log / str(manifest.epoch)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return manifest


def start(folder: Path, shape: JobShape, sources: Sequence[str] | None = None, files: Any = None) -> Recovered:
    request = StartRequest(
        files or LocalFileSystem(str(folder)), "harness", "harness", Settings(), shape.parallelism, 128,
        list(shape.operators), sources=None if sources is None else lambda: sources,
    )  # fmt: skip
    return recover(request, now_ms=9000)


def total(folder: Path) -> int:
    with harness(Sum(), folder) as job:
        return int(job.state("sum", "a"))
