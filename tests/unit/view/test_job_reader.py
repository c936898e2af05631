"""The read model: what is told of a job from its directory alone."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.web_job import EVIL, JOB, START, UID, info, make_job

from cairn.coordinator.epoch_loop import EpochReport
from cairn.errors import NotFoundError
from cairn.model.checkpoint_records import CheckpointStatus
from cairn.model.manifest import TaskMetrics
from cairn.snapshots.resolver import open_snapshot
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore, CheckpointTotals
from cairn.storage.filesystem import LocalFileSystem
from cairn.view import job_documents, state_browser
from cairn.view.health import health_of
from cairn.view.job_graph import Link, Vertex
from cairn.view.job_lives import StartCount, lives_of, next_life
from cairn.view.job_reader import JobReader, end_of, find_readers, no_such_job, spread
from cairn.view.journal import EpochRecorder, Event, Journal


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_job(tmp_path_factory.mktemp("jobs"))


def test_a_finished_job_is_told_from_its_files(job: Path) -> None:
    view = JobReader(str(job)).view()
    assert (view.job_id, view.status, view.run, view.starts, view.restarts) == (JOB, "FINISHED", 7, 6, 1)
    assert view.ended_ms > 0
    assert not view.running
    assert [operator.uid for operator in view.operators] == [UID]
    operator = view.operators[0]
    assert (operator.rows_in, operator.rows_out, operator.timers) == (2400, 2400, 60)
    assert operator.skew == pytest.approx(0.5)
    # 20 epochs of 400 ms at work and 100 ms of waiting, in 19 seconds and one epoch's 540 ms.
    assert operator.busy == pytest.approx(8000 / 19_540, abs=0.001)
    assert operator.backpressured == pytest.approx(2000 / 19_540, abs=0.001)
    assert operator.level == "low"
    assert operator.state_bytes > 0
    assert {s.name for s in operator.states} >= {"total", "seen"}
    assert len(view.epochs) == 60


def test_the_checkpoints_are_counted_by_what_became_of_them(job: Path) -> None:
    told = JobReader(str(job)).view().checkpoints
    assert [found.id for found in told.history] == [5, 4, 3, 2, 1]
    assert (told.completed, told.failed, told.restored) == (4, 1, 1)
    latest, savepoint, failed = (
        told.latest("COMPLETED"),
        told.latest("COMPLETED", savepoint=True),
        told.latest("FAILED"),
    )
    assert latest is not None
    assert savepoint is not None
    assert failed is not None
    assert (latest.id, savepoint.id, failed.id) == (4, 5, 3)
    assert not latest.discarded
    one = told.find(1)
    assert one is not None
    assert one.discarded


def test_restores_say_what_changed(job: Path) -> None:
    newest, first = JobReader(str(job)).view().restores
    assert (newest.kind, newest.checkpoint, newest.before, newest.parallelism) == ("savepoint", 5, 4, 2)
    assert newest.rescaled
    assert not first.rescaled


@pytest.mark.parametrize(("kind", "status"), [("failed", "FAILED"), ("canceled", "CANCELED"), ("stopped", "FINISHED")])
def test_the_end_of_a_job_is_the_last_event_of_its_run(tmp_path: Path, kind: str, status: str) -> None:
    view = JobReader(str(make_job(tmp_path, ended=kind))).view()
    assert view.status == status
    assert health_of(view).level == ("bad" if kind == "failed" else "ended")


def test_a_job_whose_process_is_gone_has_crashed_and_one_whose_process_lives_runs(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    crashed = JobReader(str(make_job(tmp_path / "a", ended="", pid=gone.pid))).view()
    assert crashed.status == "CRASHED"
    assert health_of(crashed).level == "bad"
    running = JobReader(str(make_job(tmp_path / "b", ended=""))).view()
    assert running.status == "RUNNING"
    told = health_of(running)
    assert told.level == "bad"  # its checkpoints are years old
    assert any("three intervals" in reason for reason in told.reasons)


def test_a_job_that_is_fine_says_why_and_one_that_failed_lately_says_so(job: Path) -> None:
    view = JobReader(str(job)).view()
    now = START + 60_000
    told = {"status": "RUNNING", "now_ms": now, "config": {**view.config, "interval": 30_000}}
    quiet = msgspec.structs.replace(view, **told, events=[])
    fine = health_of(quiet)
    assert (fine.level, fine.verdict) == ("ok", "The job is healthy.")
    assert "42 rows per second" in fine.reasons[0]
    assert "Latest checkpoint: 4 (restorable)" in fine.reasons[1]
    for age, level in ((20_000, "warn"), (400_000, "ok")):
        failed = Event(now - age, 6, "restarting", "the cause")
        health = health_of(msgspec.structs.replace(quiet, events=[failed]))
        assert health.level == level
        assert any("It failed 20.0 s ago" in reason for reason in health.reasons) == (level == "warn")


def test_a_damaged_manifest_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = make_job(tmp_path)
    newest = max((folder / "epochs").iterdir())
    newest.write_bytes(newest.read_bytes()[:-3])
    view = JobReader(str(folder)).view()
    assert view.epoch == 3
    assert any(str(newest) in text for text in view.damage)


def test_a_job_of_another_cairn_and_folders_of_others_are_left_out(tmp_path: Path) -> None:
    make_job(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "job.json").write_text(
        '{"job_id": "x", "name": "x", "incarnation": "i", "max_parallelism": 1, "format_version": 99}'
    )
    assert list(find_readers(str(tmp_path))) == [JOB]
    with pytest.raises(NotFoundError, match="no directory"):
        find_readers(str(tmp_path / "nothing"))
    assert "did you mean 'harness'" in str(no_such_job("harnes", [JOB]))


def test_spread_is_flinks_eight_numbers() -> None:
    told = spread(list(range(1, 101)))
    assert (told.min, told.max, told.avg, told.p50, told.p99) == (1, 100, 50.5, 51, 100)
    assert spread([]).p999 == 0


def test_the_history_is_bounded_and_read_once(tmp_path: Path) -> None:
    store = CheckpointStore(LocalFileSystem(str(tmp_path)), history_kept=3)
    for number in range(1, 6):
        store.remember(info(number, START))
    first = store.history()
    assert [found.id for found in first] == [5, 4, 3]
    assert store._remembered
    assert store.history() == first


def test_checkpoints_are_counted_over_the_whole_life_of_the_job(tmp_path: Path) -> None:
    files = LocalFileSystem(str(tmp_path))
    failed = {"status": CheckpointStatus.FAILED, "path": ""}
    for first in (1, 6):  # each life has a store of its own
        store = CheckpointStore(files, history_kept=3)
        for number in range(first, first + 5):
            store.remember(info(number, START, **(failed if number % 5 == 2 else {})))
    assert [found.id for found in store.history()] == [10, 9, 8]
    assert store.totals() == CheckpointTotals(completed=8, failed=2)
    assert CheckpointStore(files).totals() == CheckpointTotals(completed=8, failed=2)


def test_a_history_of_before_they_were_counted_is_counted_as_it_is(tmp_path: Path) -> None:
    store = CheckpointStore(LocalFileSystem(str(tmp_path)))
    for number in (1, 2):
        store.files.create(layout.history_path(number), msgspec.json.encode(info(number, START)))
    assert store.totals() == CheckpointTotals(completed=2)
    store.remember(info(3, START))
    assert CheckpointStore(store.files).totals() == CheckpointTotals(completed=3)


def test_a_restart_follows_on_a_failure_and_a_start_does_not(tmp_path: Path) -> None:
    journal = Journal(LocalFileSystem(str(tmp_path)))
    expected = []
    for run, (end, alive, again) in enumerate(
        [
            ("finished", False, False),  # the first start of all
            ("restarting", False, False),
            ("failed", True, True),  # in the same process
            ("", False, True),
            ("", False, True),  # the one before crashed
            ("stopped", True, False),  # the one before lives: it was taken over
        ],
        1,
    ):
        told = next_life(journal.events(), alive, 1000 * run)
        journal.add(run, "started", **told)
        if end:
            journal.add(run, end)
        expected.append((told["after_failure"], again))
    assert [told for told, _ in expected] == [wanted for _, wanted in expected]
    assert lives_of(journal.events()) == StartCount(starts=3, restarts=3, begun_ms=6000)
    # The oldest events are let go, and nothing is forgotten with them.
    assert lives_of(journal.events()[-2:]) == StartCount(starts=3, restarts=3, begun_ms=6000)


def test_restarts_of_an_earlier_release_are_counted_by_how_the_runs_ended() -> None:
    kinds = [(1, "started"), (1, "restarting"), (2, "started"), (2, "stopped"), (3, "started"), (4, "started")]
    events = [Event(1000 * at, run, kind) for at, (run, kind) in enumerate(kinds, 1)]
    assert lives_of(events) == StartCount(starts=2, restarts=2, begun_ms=5000)


def test_a_failed_checkpoint_tells_its_cause(job: Path) -> None:
    told = job_documents.checkpoint(JobReader(str(job)).checkpoint(3))
    assert (told["status"], told["failure_message"], told["failure_reason"]) == ("FAILED", EVIL, "CHECKPOINT_EXPIRED")
    with pytest.raises(NotFoundError, match="no checkpoint 99"):
        JobReader(str(job)).checkpoint(99)


# State.


def test_a_key_is_found_in_every_retained_checkpoint(job: Path) -> None:
    masks = state_browser.Masks()
    found = state_browser.history_of_key(str(job), UID, "total", "user-3", masks)
    sums = {2: sum(n for n in range(60) if n % 7 == 3), 4: sum(n for n in range(100) if n % 7 == 3)}
    assert {(entry.checkpoint, int(entry.value)) for entry in found} == set(sums.items())
    nobody = state_browser.lookup(open_snapshot(str(job)), UID, "total", "nobody", masks)
    assert not nobody.present


def test_hidden_states_show_no_value_and_no_key(job: Path) -> None:
    masks = state_browser.Masks(["tested.tot*"])
    snapshot = open_snapshot(str(job))
    assert state_browser.lookup(snapshot, UID, "total", "user-3", masks).value == "(hidden)"
    assert state_browser.sample(snapshot, UID, "total", 3, masks) == [("(hidden)", "(hidden)")] * 3
    told = {entry.name: entry for entry in state_browser.summaries(snapshot, UID, state_browser.Masks(["tested.seen"]))}
    assert told["seen"].biggest == []
    assert told["total"].rows == 7


def test_states_are_measured_by_key_group(job: Path) -> None:
    told = {entry.name: entry for entry in state_browser.summaries(open_snapshot(str(job)), UID, state_browser.Masks())}
    assert (told["total"].keys, told["seen"].rows, sum(told["seen"].groups)) == (7, 100, 100)
    assert told["seen"].biggest[0][1] == 15
    assert told["seen"].counted


def test_more_rows_than_a_page_counts_are_not_counted(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_browser, "MOST_ROWS", 5)
    told = {entry.name: entry for entry in state_browser.summaries(open_snapshot(str(job)), UID, state_browser.Masks())}
    assert not told["seen"].counted


def test_two_checkpoints_are_compared(job: Path) -> None:
    older, newer = (open_snapshot(str(job / name)) for name in ("chk-2", "chk-4"))
    found = {d.state: d for d in state_browser.compare(older, newer, state_browser.Masks())}
    assert (found["total"].changed, found["total"].added) == (7, 0)
    assert (found["seen"].added, found["seen"].removed) == (40, 0)
    assert found["total"].samples[0][1] != found["total"].samples[0][2]


def test_more_rows_than_a_page_counts_are_not_compared(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_browser, "MOST_ROWS", 8)
    older, newer = (open_snapshot(str(job / name)) for name in ("chk-2", "chk-4"))
    found = {d.state: d for d in state_browser.compare(older, newer, state_browser.Masks())}
    assert (found["total"].counted, found["total"].changed) == (True, 7)
    assert (found["seen"].counted, found["seen"].added, found["seen"].samples) == (False, 0, [])


def test_what_is_cut_for_the_page_is_compared_whole(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_browser, "LONGEST_TEXT", 0)
    older, newer = (open_snapshot(str(job / name)) for name in ("chk-2", "chk-4"))
    found = {d.state: d for d in state_browser.compare(older, newer, state_browser.Masks())}
    assert (found["total"].changed, found["seen"].added) == (7, 40)


# The journal.


def report(epoch: int) -> EpochReport:
    metrics = TaskMetrics(rows_in=5, rows_out=4, times={"fetch": 10.0, "emit": 20.0}, began_ms=1000, ended_ms=1100)
    return EpochReport(epoch, 5, 4, 2, 2, 100, 120.0, 7, 9, tasks=((UID, 0, metrics),))


def test_epochs_are_written_down_in_chunks_and_summed_by_run(tmp_path: Path) -> None:
    journal = Journal(LocalFileSystem(str(tmp_path)))
    recorder = EpochRecorder(journal)
    recorder.begin(1)
    recorder.record(report(0))
    recorder.due()
    assert [chunk.totals[UID][0].rows_in for chunk in journal.chunks()] == [5]  # a run that is killed now is known
    for epoch in (1, 2):
        recorder.record(report(epoch))
    recorder.due()
    assert len(journal.chunks()) == 1  # it is not time yet
    recorder.begin(2)
    recorder.record(report(3))
    recorder.flush()
    _, first, second = journal.chunks()
    assert ([e.epoch for e in first.epochs], first.totals[UID][0].rows_in) == ([1, 2], 15)
    assert (second.run, second.totals[UID][0].rows_in) == (2, 5)
    load = second.epochs[0].operators[UID][0]
    assert (load.busy_ms, load.backpressured_ms) == (70.0, 20.0)
    assert [e.epoch for e in recorder.epochs()] == [0, 1, 2, 3]


def test_chunks_become_rarer_in_a_long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("cairn.view.journal.time.monotonic", lambda: clock[0])
    journal = Journal(LocalFileSystem(str(tmp_path)))
    recorder = EpochRecorder(journal)
    recorder.begin(1)
    written = []
    for second in range(1200):
        clock[0] = 1000.0 + second
        recorder.record(report(second))
        before = len(journal.chunks())
        recorder.due()
        if len(journal.chunks()) > before:
            written.append(second)
    assert written[:3] == [0, 3, 6]
    assert len(written) < 40
    assert written[-1] - written[-2] == 61


def test_rows_of_sources_come_after_their_epoch_and_count_for_it(tmp_path: Path) -> None:
    recorder = EpochRecorder(Journal(LocalFileSystem(str(tmp_path))))
    recorder.begin(1)
    for epoch in range(3):
        recorder.record(dataclasses.replace(report(epoch), sinks={"out": 4}))
    recorder.note(1, {"source-0": 7})
    recorder.note(2, {"source-0": 5})
    recorder.note(9, {"source-0": 1})  # an epoch that nobody knows counts all the same
    assert [epoch.ends for epoch in recorder.epochs()] == [
        {"out": 4}, {"out": 4, "source-0": 7}, {"out": 4, "source-0": 5},
    ]  # fmt: skip
    assert recorder.ends() == {"out": 12, "source-0": 13}
    recorder.flush()
    (chunk,) = Journal(LocalFileSystem(str(tmp_path))).chunks()
    assert (chunk.ends, chunk.epochs[1].ends["source-0"]) == ({"out": 12, "source-0": 13}, 7)
    recorder.begin(2)
    assert recorder.ends() == {}


def test_a_sink_that_does_not_count_gets_what_its_operator_puts_out(job: Path) -> None:
    view = JobReader(str(job)).view()
    link = [Link(UID)]
    whole = end_of(Vertex("a", "sink", "noop", link, whole=True), view.operators, view.epochs, {})
    assert (whole.rows, whole.rate) == (view.operators[0].rows_out, view.operators[0].out_rate)
    assert end_of(Vertex("a", "sink", "noop", link), view.operators, view.epochs, {}).rows is None
    assert view.ends["source-0"].rows == 2400
    assert view.ends["source-0"].rate == pytest.approx(800 / 19.54, abs=0.01)
    assert view.ends["source-1"].rate is None


def test_a_journal_that_cannot_be_written_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "events").write_text("a file where a folder should be")
    journal = Journal(LocalFileSystem(str(tmp_path)))
    for _ in range(3):
        journal.add(1, "started")
    assert len([r for r in caplog.records if "incomplete" in r.getMessage()]) == 1


def test_events_are_bounded_and_broken_ones_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cairn.view.journal.EVENTS_KEPT", 3)
    journal = Journal(LocalFileSystem(str(tmp_path)))
    for number in range(5):
        journal.add(number, "started")
    (tmp_path / "events" / "00000000000000000009").write_text("{")
    assert [event.run for event in journal.events()] == [2, 3, 4]
    assert all(isinstance(event, Event) for event in journal.events())
    assert CheckpointStatus.FAILED.value == "FAILED"
