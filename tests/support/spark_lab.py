"""What the job tests share: folders, environments and file streams around one Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.support.oracle import INPUT, OUTPUT, Oracle, Row, write_file, write_files

from cairn import DataStream, FileSink, JobHandle, KeyedProcessFunction, StreamExecutionEnvironment
from cairn.model.manifest import Manifest
from cairn.spark.spark_query import SparkQuery
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import ManifestStore


class Lab:
    """A folder with an input, a place for jobs and a place for outputs."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.input = folder / "input"
        self.jobs = folder / "jobs"
        self.output = folder / "output"
        self._files = 0

    def env(self, parallelism: int = 2, **config: Any) -> StreamExecutionEnvironment:
        """An environment that runs what is there and finishes. Dots of option names are written as `__`."""
        options = {key.replace("__", ".").replace("_", "-"): value for key, value in config.items()}
        settings = {
            "execution.checkpointing.dir": str(self.jobs),
            "execution.checkpointing.local-backup.dirs": str(self.folder / "stores"),
            "parallelism.default": parallelism,
            "pipeline.max-parallelism": 16,
            "cairn.web.enabled": False,
            **options,
        }
        env = StreamExecutionEnvironment.get_execution_environment(self.spark, settings)
        return env.set_trigger(available_now=True)

    def feed(self, rows: list[Row], files: int = 1) -> None:
        """More files for the source: one epoch each."""
        write_files(self.input, rows, files, self._files)
        self._files += files

    def feed_file(self, rows: list[Any], columns: str) -> None:
        write_file(self.input, self._files, rows, columns)
        self._files += 1

    def source(self, columns: str = INPUT) -> DataFrame:
        self.input.mkdir(parents=True, exist_ok=True)
        reader = self.spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.input))

    def stream(self, env: StreamExecutionEnvironment, columns: str = INPUT) -> DataStream:
        return env.from_df(self.source(columns))

    def oracle(
        self, name: str = "oracle", parallelism: int = 2, function: KeyedProcessFunction | None = None, **config: Any
    ) -> JobHandle:
        """Run the oracle job over what the source has that is new."""
        env = self.env(parallelism, **config)
        checked = self.stream(env).key_by("key").process(function or Oracle(), OUTPUT, uid="oracle")
        checked.sink_to(FileSink(str(self.output)), uid="out")
        return env.execute(name)

    def written(self, folder: Path | None = None) -> list[tuple[Any, ...]]:
        """All rows that a plain reader finds, sorted."""
        path = folder or self.output
        if not any(path.glob("part-*")):
            return []
        return sorted(tuple(row) for row in self.spark.read.parquet(str(path)).collect())

    def run(self, stream: DataStream, name: str = "job") -> list[tuple[Any, ...]]:
        """Write a stream to a fresh folder and give back all rows, sorted with nulls first."""
        target = self.folder / f"rows-{name}"
        stream.sink_to(FileSink(str(target)), uid="out")
        stream.env.execute(name)
        if not any(target.glob("part-*")):
            return []
        rows = [tuple(row) for row in self.spark.read.parquet(str(target)).collect()]
        return sorted(rows, key=lambda row: [(value is not None, value) for value in row])

    def manifests(self, job_id: str = "oracle", retained: int = 10) -> list[Manifest]:
        """All manifests of a job, oldest first. Every file that a retained one names is there."""
        return intact_manifests(self.jobs / job_id, retained)


def query_of(job: JobHandle) -> Any:
    """Spark's own query of a job's newest run."""
    run = job._supervisor.current
    assert run is not None
    assert isinstance(run.query, SparkQuery)
    return run.query.streaming_query


def intact_manifests(job_dir: Path, retained: int = 10) -> list[Manifest]:
    """All manifests of a job, oldest first; fails if a retained one names a file or inlined bytes that are missing."""
    files = LocalFileSystem(str(job_dir))
    store = ManifestStore(files)
    manifests = [store.load(epoch) for epoch in store.epochs()]
    present = {manifest.epoch for manifest in manifests}
    for manifest in manifests[-retained:]:
        missing = [path for path in manifest.files() if not files.exists(path)]
        assert not missing, f"epoch {manifest.epoch} names missing files {missing}"
        assert manifest.inline_epochs() <= present, f"epoch {manifest.epoch} needs manifests that are gone"
    return manifests


def collection(
    lab: Lab, env: StreamExecutionEnvironment, rows: list[Any], columns: str, name: str = "rows"
) -> DataStream:
    """A stream of these rows in one epoch, in order, and of nothing in a second one."""
    for number, portion in enumerate((rows, [])):
        write_file(lab.folder / name, number, portion, columns)
    reader = lab.spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    return env.from_df(reader.json(str(lab.folder / name)))
