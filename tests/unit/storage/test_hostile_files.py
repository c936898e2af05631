"""Files of a job that are none: pipes, sockets, links, folders, devices and files without end keep nobody waiting."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from starlette.testclient import TestClient
from tests.support.rest_client import client_of
from tests.support.web_job import JOB, UID, make_job

from cairn.cli import checkpoint_commands, snapshot_commands, state_queries
from cairn.cli.list_command import list_jobs
from cairn.cli.output import Output
from cairn.coordinator.control import ask
from cairn.coordinator.offset_log import LocalOffsets
from cairn.errors import CairnError, CorruptFileError, FencedError
from cairn.restore.spark_logs import read_log
from cairn.state import local_stores
from cairn.storage import layout, regular_files, running_jobs
from cairn.storage.filesystem import LocalFileSystem, sync
from cairn.storage.manifest_store import load_identity
from cairn.storage.run_records import Runs
from cairn.storage.savepoint_folder import mapped, read_savepoint
from cairn.storage.state_file import StateFile
from cairn.view.job_reader import JobReader
from cairn.view.journal import Journal

SECONDS = 15
ROOM = 1 << 30
VAST = 6 << 30


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def endless(path: Path) -> None:
    path.symlink_to("/dev/tty" if os.path.exists("/dev/tty") else "/dev/zero")


def link(path: Path) -> None:
    kept = path.with_name(f".{path.name}.kept")
    kept.write_bytes(b"{}")
    path.symlink_to(kept)


def listener(path: Path) -> None:
    made = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        made.bind(path.name)
    finally:
        os.chdir(here)
        made.close()


def folder(path: Path) -> None:
    path.mkdir()


def vast(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(VAST)


KINDS: list[Callable[[Path], None]] = [fifo, device, endless, link, listener, folder, vast]
WORST = [fifo, vast]
FILES = [
    layout.JOB,
    layout.run_path(7),
    layout.web_path(7),
    layout.numbered(layout.EVENTS, 1),
    layout.numbered(layout.STATS, 1),
    layout.history_path(5),
    layout.epoch_path(4),
    layout.metadata_path(1),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("original")
    make_job(place)
    return place


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    """Two jobs: `harness`, and `other`, which is always well."""
    shutil.copytree(original, tmp_path / "jobs")
    shutil.copytree(original / JOB, tmp_path / "jobs" / "other")
    text = (tmp_path / "jobs" / "other" / "job.json").read_text()
    (tmp_path / "jobs" / "other" / "job.json").write_text(text.replace(f'"{JOB}"', '"other"'))
    return tmp_path / "jobs"


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Nothing in a test may wait for ever, or take memory for a whole vast file."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it hangs: nothing came of it within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def put(path: Path, make: Callable[[Path], None]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    make(path)
    return path


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("file", FILES)
def test_jobs_are_listed_whatever_lies_in_one_of_them(
    root: Path, file: str, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    put(root / JOB / file, make)
    list_jobs(str(root), False, None, Output(as_json=True))
    text = capsys.readouterr().out
    assert '"other"' in text
    assert JOB in text
    list_jobs(str(root), False, None, Output())
    assert "other" in capsys.readouterr().out


@pytest.mark.parametrize("make", KINDS)
def test_a_job_whose_identity_is_no_file_is_listed_as_damaged_with_the_cause(
    root: Path, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(root / JOB / layout.JOB, make)
    list_jobs(str(root), False, None, Output())
    told = " ".join(capsys.readouterr().out.split())
    assert "DAMAGED" in told
    assert "cannot be read" in told
    with pytest.raises(CorruptFileError, match="is refused") as refused:
        load_identity(LocalFileSystem(str(root / JOB)))
    assert str(path) in refused.value.message
    assert refused.value.facts["remedy"]


@pytest.mark.parametrize("make", WORST)
@pytest.mark.parametrize("file", FILES)
def test_pages_and_metrics_are_answered(root: Path, file: str, make: Callable[[Path], None]) -> None:
    put(root / JOB / file, make)
    web: TestClient = client_of(root)
    assert "other" in web.get("/").text
    assert 'job="other"' in web.get("/metrics").text
    assert web.get("/jobs/other").status_code == 200
    assert web.get(f"/jobs/{JOB}").status_code in (200, 500)
    assert web.get(f"/api/v1/jobs/{JOB}/checkpoints").status_code in (200, 500)


def failure_of(command: Callable[[], int]) -> CairnError | None:
    try:
        command()
    except CairnError as error:
        return error
    return None


@pytest.mark.parametrize("make", WORST)
@pytest.mark.parametrize("file", FILES)
def test_commands_on_the_job_end(
    root: Path, file: str, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    put(root / JOB / file, make)
    out = Output()
    commands: list[Callable[[], int]] = [
        lambda: checkpoint_commands.show_checkpoints(JOB, str(root), 10, out),
        lambda: state_queries.ls(str(root / JOB), out),
        lambda: state_queries.show(str(root / JOB), UID, "total", 5, out),
        lambda: snapshot_commands.verify(str(root / JOB), out),
    ]
    causes = [error.message for command in commands if (error := failure_of(command)) is not None]
    assert all(str(root / JOB) in cause for cause in causes)


@pytest.mark.parametrize("make", KINDS)
def test_a_savepoint_of_such_files_is_refused(root: Path, make: Callable[[Path], None]) -> None:
    place = next((root / "savepoints").iterdir())
    metadata = read_savepoint(str(place))
    file = metadata.operators[0].tables[0].files[0]
    put(place / file.path, make)
    with pytest.raises(CorruptFileError):
        mapped(str(place), file)
    put(place / layout.METADATA, make)
    with pytest.raises(CorruptFileError, match="is refused"):
        read_savepoint(str(place))
    with pytest.raises(CorruptFileError):
        state_queries.ls(str(place), Output())


@pytest.mark.parametrize("make", KINDS)
def test_a_state_file_that_is_none_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = put(tmp_path / "a.state", make)
    with pytest.raises(CorruptFileError):
        StateFile.open(str(path), "0" * 16, 100)


@pytest.mark.parametrize("make", KINDS)
def test_an_answer_of_a_job_that_is_none_is_refused(root: Path, make: Callable[[Path], None]) -> None:
    files = LocalFileSystem(str(root / JOB))
    put(root / JOB / "control" / "mine.done", make)
    with pytest.raises(CorruptFileError, match="is refused"):
        ask(files, {"action": "progress"}, 1.0, "mine")


@pytest.mark.parametrize("make", KINDS)
def test_logs_of_spark_that_are_none_are_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = put(tmp_path / "offsets" / "3", make)
    with pytest.raises(CorruptFileError):
        LocalOffsets(str(tmp_path)).read(3)
    with pytest.raises(CorruptFileError):
        read_log(str(path))


@pytest.mark.parametrize("make", [fifo, listener])
def test_forcing_a_pipe_to_disk_does_not_wait_for_a_writer(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = put(tmp_path / "pipe", make)
    with contextlib.suppress(OSError):  # what comes of it is the file system's to say
        sync(str(path))


@pytest.mark.parametrize("make", KINDS)
def test_notes_of_running_jobs_that_are_none_are_passed_over(
    root: Path, tmp_path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(running_jobs.SWITCH, "1")
    running_jobs.note_running(str(root / "other"))
    put(Path(running_jobs.folder()) / "aaaa.json", make)
    assert running_jobs.running_directories() == [str(root / "other")]


@pytest.mark.parametrize("make", KINDS)
def test_working_stores_of_a_job_whose_identity_is_none_are_kept(
    root: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    identity = load_identity(LocalFileSystem(str(root / JOB)))
    assert identity is not None
    place = tmp_path / "stores" / layout.store_folder(str(root / JOB), identity.incarnation)
    place.mkdir(parents=True)
    owner = {"job_dir": str(root / JOB), "incarnation": identity.incarnation}
    (place / local_stores._OWNER).write_text(json.dumps(owner))
    (live,) = local_stores.survey(str(tmp_path / "stores"))
    assert live.state == "live"
    put(root / JOB / layout.JOB, make)
    (unknown,) = local_stores.survey(str(tmp_path / "stores"))
    assert unknown.state == "hidden"


def test_a_newer_run_with_a_vast_record_still_fences_an_old_one(root: Path) -> None:
    put(root / JOB / layout.run_path(8), vast)
    with pytest.raises(FencedError, match="run 8"):
        Runs(LocalFileSystem(str(root / JOB))).check(7)


def test_what_is_left_out_of_the_events_is_told(root: Path) -> None:
    put(root / JOB / layout.numbered(layout.EVENTS, 1), vast)
    view = JobReader(str(root / JOB)).view()
    assert any("events" in text and "is refused" in text for text in view.damage)
    assert len(view.events) == 3


def test_no_more_events_are_read_than_a_job_can_have_left(root: Path) -> None:
    files = LocalFileSystem(str(root / JOB))
    for number in range(10, 1510):
        path = root / JOB / layout.numbered(layout.EVENTS, number)
        path.write_text('{"time_ms": 1, "run": 7, "kind": "note"}')
    (root / JOB / "events" / "not-a-number").write_text('{"time_ms": 1, "run": 7, "kind": "foreign"}')
    events = Journal(files).events()
    assert len(events) == 1000
    assert {event.kind for event in events} == {"note"}


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "grows"
    path.write_bytes(b"0123456789")
    assert regular_files.read(str(path), 10) == b"0123456789"
    real = os.fstat

    def before_it_grew(descriptor: int) -> os.stat_result:
        info = list(real(descriptor))
        info[6] = 5
        return os.stat_result(info)

    monkeypatch.setattr(os, "fstat", before_it_grew)
    with pytest.raises(CorruptFileError, match="at most 5 are read"):
        regular_files.read(str(path), 5)
