"""Starting again: what goes on, what is refused, and that a refusal leaves everything intact."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.oracle import INPUT, OUTPUT, Oracle, Result, expected, numbered_rows, ship
from tests.support.patience import PATIENCE, until
from tests.support.permissions import bound_by_permissions
from tests.support.spark_lab import Lab

from cairn import (
    CairnError,
    CorruptFileError,
    FileSink,
    IncompatibleStateError,
    InvalidInputError,
    JobHandle,
    JobStatus,
    KeyedProcessFunction,
    NoopSink,
    RuntimeContext,
    StorageError,
    UserFunctionError,
    ValueStateDescriptor,
)
from cairn.coordinator import offset_log
from cairn.coordinator.compactor import Compactor
from cairn.model.manifest import DEFER_EPOCHS
from cairn.restore.source_logs import COMPACT_INTERVAL

pytestmark = pytest.mark.spark
ship(__name__)

ROWS = numbered_rows(240, 19, seed=7)


def test_a_second_start_with_nothing_new_says_so(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.feed(ROWS)
    lab.oracle()
    assert "resumes" not in caplog.text
    assert "nothing new" not in caplog.text
    lab.oracle()
    assert "job oracle resumes from epoch 0 (run 2)" in caplog.messages
    assert "job oracle has finished: no new input since epoch 0" in caplog.messages
    caplog.clear()
    env = lab.env().set_trigger(processing_time="0 seconds")
    lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle").sink_to(FileSink(str(lab.output)), uid="out")
    waiting = env.execute_async("oracle")
    until(lambda: "job oracle is waiting for input: no new input since epoch 0" in caplog.messages)
    waiting.cancel()


def test_restart_goes_on_at_any_parallelism(lab: Lab) -> None:
    for number, parallelism in enumerate((2, 2, 3, 1, 5, 2)):
        lab.feed(ROWS[number * 40 : number * 40 + 40], files=2)
        job = lab.oracle(parallelism=parallelism)
        assert job.restored_epoch == (None if number == 0 else number * 2 - 1)
        assert job.run == number + 1
    assert lab.written() == expected(ROWS)


def test_nothing_new_changes_nothing(lab: Lab) -> None:
    lab.feed(ROWS)
    lab.oracle()
    before = lab.manifests()
    job = lab.oracle()
    assert job.epochs() == []
    assert lab.manifests() == before
    assert lab.written() == expected(ROWS)


class OtherType(Oracle):
    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        runtime_context.get_state(ValueStateDescriptor("total", "string"))


class OtherTypeOnly(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "string"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Result]:
        yield value.key, value.seq, 0, 0, self.total.value() or ""


class MoreState(Oracle):
    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self.more = runtime_context.get_state(ValueStateDescriptor("more", "int"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Result]:
        self.more.update((self.more.value() or 0) + 1)
        yield from super().process_element(value, ctx)


def test_changed_state_type_is_refused(lab: Lab) -> None:
    lab.feed(ROWS[:100])
    lab.oracle()
    lab.feed(ROWS[100:])
    before = lab.manifests()
    with pytest.raises(
        IncompatibleStateError,
        match=r"operator 'oracle'.*state 'total': stored is a value of bigint, declared is a value of string.*intact",
    ):
        lab.oracle(function=OtherTypeOnly())
    assert lab.manifests() == before
    lab.oracle(function=MoreState())  # a new state beside the old ones is fine
    assert lab.written() == expected(ROWS)


def test_two_types_under_one_name_are_refused(lab: Lab) -> None:
    lab.feed(ROWS[:10])
    with pytest.raises(InvalidInputError, match=r"state name 'total' is already in use for a value of bigint"):
        lab.oracle(function=OtherType())


def test_changed_key_type_is_refused(lab: Lab) -> None:
    lab.feed(ROWS[:100])
    lab.oracle()
    lab.feed(ROWS[100:])
    env = lab.env()
    keyed = lab.stream(env).key_by("key", "seq")
    keyed.process(Oracle(), OUTPUT, uid="oracle").sink_to(FileSink(str(lab.output)), uid="out")
    with pytest.raises(IncompatibleStateError, match=r"operator 'oracle'.*keyed by.*now keys by.*intact"):
        env.execute("oracle")
    lab.oracle()
    assert lab.written() == expected(ROWS)


def test_unclaimed_state_is_refused_unless_told_otherwise(lab: Lab) -> None:
    lab.feed(ROWS[:50])
    lab.oracle()

    def renamed(**config: Any) -> None:
        env = lab.env(**config)
        lab.stream(env).key_by("key").count(uid="counted").sink_to(NoopSink(), uid="out")
        env.execute("oracle")

    with pytest.raises(
        IncompatibleStateError, match=r"state of 'oracle', which the job no longer has \(it has counted"
    ):
        renamed()
    lab.feed(ROWS[50:100])
    lab.oracle()
    assert lab.written() == expected(ROWS[:100])
    lab.feed(ROWS[100:])
    renamed(execution__state_recovery__ignore_unclaimed_state=True)
    assert [op.uid for op in lab.manifests()[-1].operators] == ["counted"]


class PassOn(KeyedProcessFunction):
    """Hands rows on unchanged, and counts them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "string"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[Any, ...]]:
        self.count.update((self.count.value() or "") + "I")
        yield tuple(value)


def test_state_follows_the_uid_when_operators_come_and_go(lab: Lab) -> None:
    def run(order: list[str], rows: list[Any]) -> None:
        lab.feed(rows, files=2)
        env = lab.env(execution__state_recovery__ignore_unclaimed_state=True)
        stream = lab.stream(env)
        for uid in order:
            if uid == "oracle":
                stream = stream.key_by("key").process(Oracle(), OUTPUT, uid=uid)
            else:
                stream = stream.key_by("key").process(PassOn(), stream.df.schema, uid=uid)
        stream.sink_to(FileSink(str(lab.output)), uid="out")
        env.execute("oracle")

    run(["oracle"], ROWS[:60])
    run(["before", "oracle"], ROWS[60:120])
    run(["oracle", "before"], ROWS[120:180])
    run(["oracle"], ROWS[180:])
    assert lab.written() == expected(ROWS)


def test_another_number_of_sources_is_refused(lab: Lab) -> None:
    lab.feed(ROWS[:100])
    lab.oracle()
    lab.feed(ROWS[100:])
    env = lab.env()
    (lab.folder / "other").mkdir()
    other = lab.source().union(lab.spark.readStream.schema(INPUT).json(str(lab.folder / "other")))
    checked = env.from_df(other).key_by("key").process(Oracle(), OUTPUT, uid="oracle")
    checked.sink_to(FileSink(str(lab.output)), uid="out")
    with pytest.raises(IncompatibleStateError, match=r"1 source.* now .*2"):
        env.execute("oracle")
    lab.oracle()
    assert lab.written() == expected(ROWS)


def test_directory_of_another_job_or_of_nobody(lab: Lab) -> None:
    lab.feed(ROWS[:20])
    lab.oracle("Oracle")
    with pytest.raises(InvalidInputError, match=r"belongs to the job 'Oracle', not to 'ORACLE'"):
        lab.oracle("ORACLE")
    foreign = lab.jobs / "foreign"
    foreign.mkdir()
    (foreign / "file").write_text("precious")
    with pytest.raises(InvalidInputError, match="not empty and holds no cairn job"):
        lab.oracle("foreign")
    assert os.listdir(foreign) == ["file"]


def test_manifests_gone(lab: Lab) -> None:
    lab.feed(ROWS[:50])
    lab.oracle()
    epochs = lab.jobs / "oracle" / "epochs"
    epochs.rename(lab.folder / "saved")
    with pytest.raises(CorruptFileError, match=r"committed batch 0, but the newest manifest is missing"):
        lab.oracle()
    (lab.folder / "saved").rename(epochs)
    lab.feed(ROWS[50:])
    lab.oracle()
    assert lab.written() == expected(ROWS)


def test_spark_log_gone(lab: Lab) -> None:
    lab.feed(ROWS[:50])
    lab.oracle()
    log = lab.jobs / "oracle" / "spark"
    log.rename(lab.folder / "saved")
    with pytest.raises(CorruptFileError, match=r"epoch 0 is committed, but Spark's log .* does not have batch 0"):
        lab.oracle()
    shutil.rmtree(log, ignore_errors=True)
    (lab.folder / "saved").rename(log)
    lab.feed(ROWS[50:])
    lab.oracle()
    assert lab.written() == expected(ROWS)


def test_newest_manifest_damaged(lab: Lab) -> None:
    lab.feed(ROWS[:100], files=3)
    lab.oracle()
    newest = lab.jobs / "oracle" / "epochs" / f"{2:020d}"
    saved = newest.read_bytes()
    newest.write_bytes(saved[:-1] + bytes([saved[-1] ^ 1]))
    with pytest.raises(CorruptFileError, match=r"checksum.*epoch 2 is the newest.*older epochs: 0, 1"):
        lab.oracle()
    newest.write_bytes(saved)
    lab.feed(ROWS[100:])
    lab.oracle()
    assert lab.written() == expected(ROWS)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_state_file_damaged(lab: Lab, damage: str) -> None:
    lab.feed(ROWS[:120], files=2)
    options: dict[str, Any] = {"execution__checkpointing__data_inline_threshold": "0"}
    lab.oracle(**options)
    shutil.rmtree(lab.folder / "stores")
    path = next(iter(sorted((lab.jobs / "oracle" / "shared" / "oracle").iterdir())))
    saved = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        middle = len(saved) // 2
        path.write_bytes(saved[:middle] if damage == "cut" else saved[:middle] + b"~~~~" + saved[middle + 4 :])
    lab.feed(ROWS[120:])
    with pytest.raises(CairnError, match=path.name):
        lab.oracle(**options)
    path.write_bytes(saved)
    lab.oracle(**options)
    assert lab.written() == expected(ROWS)


def test_directory_that_cannot_be_written(lab: Lab) -> None:
    """A file where the directory should be: no row is processed."""
    lab.feed(ROWS[:20])
    lab.jobs.write_text("a file")
    with pytest.raises(StorageError, match=str(lab.jobs)):
        lab.oracle()
    assert lab.written() == []


def test_read_only_directory(lab: Lab) -> None:
    lab.feed(ROWS[:20])
    lab.jobs.mkdir()
    lab.jobs.chmod(0o555)
    with bound_by_permissions(), pytest.raises(StorageError, match="permission denied"):
        lab.oracle()
    assert lab.written() == []
    lab.jobs.chmod(0o755)
    lab.oracle()
    assert len(lab.written()) == 20


def test_working_stores_deleted_or_damaged(lab: Lab) -> None:
    """Local stores are a cache: they are rebuilt from the durable files."""
    parts = [ROWS[:80], ROWS[80:160], ROWS[160:]]
    for number, part in enumerate(parts):
        lab.feed(part)
        job = lab.oracle()
        how = {metrics.store for _, _, metrics in job.epochs()[0].tasks}
        assert how == ({"empty"} if number == 0 else {"rebuilt"}), how
        stores = lab.folder / "stores"
        if number == 0:
            shutil.rmtree(stores)
        else:
            for path in stores.rglob("*"):
                if path.is_file():
                    path.write_bytes(b"not a store")
    assert lab.written() == expected(ROWS)


class TestCompaction:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compact between two epochs instead of beside them, so that every run does the same."""
        monkeypatch.setattr("cairn.spark.job_start.Compactor", partial(Compactor, background=False))

    def options(self, inline: str) -> dict[str, Any]:
        return {
            "cairn__compaction__max_chain": 3,
            "cairn__epochs__retained": 2,
            "execution__checkpointing__data_inline_threshold": inline,
        }

    def test_results_stay_exact_and_old_files_go(self, lab: Lab) -> None:
        rows = numbered_rows(300, 23, seed=3)
        options = self.options("0")
        epochs = 2 * DEFER_EPOCHS + 8
        lab.feed(rows[:180], files=epochs)
        lab.oracle(**options)
        manifests = lab.manifests(retained=2)
        assert [manifest.epoch for manifest in manifests] == [epochs - 2, epochs - 1]
        chain = manifests[-1].operators[0].chain
        assert any(handle.snapshot for handle in chain)
        assert len({handle.epoch for handle in chain}) <= DEFER_EPOCHS + 5
        named = set().union(*(manifest.files() for manifest in manifests))
        present = {path.name for path in (lab.jobs / "oracle" / "shared" / "oracle").iterdir()}
        unnamed = {f"shared/oracle/{name}" for name in present} - named
        assert all(".snapshot." in path for path in unnamed), "deltas that no manifest names"
        shutil.rmtree(lab.folder / "stores")
        lab.feed(rows[180:240], files=3)
        lab.oracle(parallelism=3, **options)
        lab.feed(rows[240:], files=3)
        lab.oracle(**options)
        assert lab.written() == expected(rows)

    def test_inlined_state_is_compacted_too(self, lab: Lab) -> None:
        rows = numbered_rows(200, 5, seed=4)
        options = self.options("1 mb")
        lab.feed(rows[:140], files=DEFER_EPOCHS + 8)
        lab.oracle(**options)
        assert lab.manifests(retained=2)[0].epoch > 0, "manifests go once their inlined bytes are compacted"
        shutil.rmtree(lab.folder / "stores")
        lab.feed(rows[140:])
        lab.oracle(**options)
        assert lab.written() == expected(rows)


def test_compaction_beside_the_stream(lab: Lab) -> None:
    rows = numbered_rows(300, 23, seed=3)
    for part in (rows[:160], rows[160:]):
        lab.feed(part, files=8)
        lab.oracle(cairn__compaction__max_chain=2, cairn__epochs__retained=3)
    lab.manifests(retained=3)
    assert lab.written() == expected(rows)


def test_default_directory_is_told(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.chdir(tmp_path)
    from cairn import StreamExecutionEnvironment

    lab.feed(ROWS[:10])
    env = StreamExecutionEnvironment.get_execution_environment(lab.spark).set_trigger(available_now=True)
    lab.stream(env).key_by("key").count(uid="c").sink_to(NoopSink())
    with caplog.at_level("WARNING", logger="cairn.api"):
        job = env.execute("told")
    assert "execution.checkpointing.dir" in caplog.text
    assert Path(job.directory) == tmp_path / "cairn-data" / "told"


def test_a_start_that_is_refused_does_not_stop_the_run_that_works(lab: Lab) -> None:
    """It takes no run number, so the one that has the job is not fenced."""
    lab.feed(ROWS[:40])
    env = lab.env().set_trigger(processing_time="0 seconds")
    checked = lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle")
    checked.sink_to(FileSink(str(lab.output)), uid="out")
    job = env.execute_async("oracle")
    try:
        _wait_for_rows(job, 40)
        other = lab.env()
        renamed = lab.stream(other).key_by("key").process(Oracle(), OUTPUT, uid="renamed")
        renamed.sink_to(NoopSink(), uid="out")
        with pytest.raises(IncompatibleStateError, match="'oracle'"):
            other.execute("oracle")
        lab.feed(ROWS[40:80])
        _wait_for_rows(job, 80)
    finally:
        job.cancel()
    assert lab.written() == expected(ROWS[:80])
    assert len(list((lab.jobs / "oracle" / "runs").iterdir())) == 1


def _wait_for_rows(job: JobHandle, rows: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while sum(report.rows_in for report in job.epochs()) < rows:
        assert time.monotonic() < deadline
        assert job.status() is JobStatus.RUNNING, job.exception()
        time.sleep(0.05)


def test_sources_logs_are_forced_to_disk_with_their_epoch(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest must not outlive the positions that it was made for."""
    forced: list[str] = []
    monkeypatch.setattr(offset_log, "sync", forced.append)
    lab.feed(ROWS[:40], files=2)
    lab.oracle()
    spark = lab.jobs / "oracle" / "spark"
    wanted = {
        spark / "metadata",
        *(spark / "offsets" / name for name in "01"),
        *(spark / "sources/0" / n for n in "01"),
    }
    assert {str(path) for path in wanted} <= set(forced)


def cut_off_a_plan(lab: Lab, job_dir: Path) -> None:
    """Leave what a crash leaves between the two steps of planning: the source's log names the new file, Spark's offset
    log does not."""
    log = job_dir / "spark" / "sources" / "0"
    entries = [line for path in log.iterdir() if path.name.isdigit() for line in path.read_text().splitlines()[1:]]
    known = {json.loads(line)["path"].removeprefix("file://") for line in entries}
    (file,) = {str(path) for path in lab.input.iterdir()} - known
    number = len(entries)
    mine = json.dumps({"path": f"file://{file}", "timestamp": int(os.path.getmtime(file) * 1000), "batchId": number})
    together = (number + 1) % COMPACT_INTERVAL == 0
    name = f"{number}.compact" if together else str(number)
    (log / name).write_text("\n".join(["v1", *(entries if together else ()), mine]))


@pytest.mark.parametrize("files", [2, COMPACT_INTERVAL - 1], ids=["plain entry", "compacted entry"])
def test_an_epoch_takes_as_many_files_as_it_may_after_a_crash_while_it_was_planned(lab: Lab, files: int) -> None:
    portions = [ROWS[number * 20 : number * 20 + 20] for number in range(files + 2)]
    for portion in portions[:files]:
        lab.feed(portion)
    lab.oracle()
    lab.feed(portions[files])
    cut_off_a_plan(lab, lab.jobs / "oracle")
    lab.feed(portions[files + 1])
    job = lab.oracle()
    assert [report.rows_in for report in job.epochs()] == [20, 20]
    assert lab.written() == expected(ROWS[: 20 * (files + 2)])


def test_the_first_epoch_takes_as_many_files_as_it_may_after_a_crash_while_it_was_planned(lab: Lab) -> None:
    lab.feed(ROWS[:20])
    with pytest.raises(UserFunctionError):
        lab.oracle(function=Refusing())
    offsets_log = lab.jobs / "oracle" / "spark" / "offsets"
    for name in ("0", ".0.crc"):
        (offsets_log / name).unlink()
    lab.feed(ROWS[20:40])
    job = lab.oracle()
    assert [report.rows_in for report in job.epochs()] == [20, 20]
    assert lab.written() == expected(ROWS[:40])


class Refusing(Oracle):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Result]:
        raise ValueError("no row is good enough")
