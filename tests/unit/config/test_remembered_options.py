"""A job remembers what it was configured with; what is set now wins; what a start will discard is said first."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.coordinator_lab import manifest
from typer.testing import CliRunner

from cairn import RestartStrategies, StreamExecutionEnvironment
from cairn.api.checkpoint_config import CheckpointConfig
from cairn.cli.main import app
from cairn.config import OPTIONS, CheckpointSettings, RememberedOption, Settings, parse, with_options
from cairn.config.remembered_options import REMEMBERED, recalled, value_of
from cairn.errors import InvalidInputError
from cairn.job.idle_start import NothingNew, tell_end
from cairn.job.retention import discard_all
from cairn.job.start_configuration import announce_discards, recall
from cairn.model.checkpoint_records import Checkpoint, CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.restore.recovery import Recovered
from cairn.spark.spark_query import SparkQuery
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import JobIdentity, ManifestStore, create_identity
from cairn.storage.run_records import RunRecord, Runs

RETAINED = "execution.checkpointing.num-retained"
INTERVAL = "execution.checkpointing.interval"


@pytest.fixture
def files(tmp_path: Path) -> LocalFileSystem:
    made = LocalFileSystem(str(tmp_path / "jobs" / "payments"))
    create_identity(made, "payments", "Payments", 128)
    return made


def started(files: LocalFileSystem, config: dict[str, Any] | None = None, **by_d: Any) -> Settings:
    """The settings of a start that is given these options in code and on the command line (`_` for `.` and `-`)."""
    told = {key.replace("__", ".").replace("_", "-"): value for key, value in by_d.items()}
    settings = recall(files, "Payments", parse(config or {}, told, origins=("config", "-D")))
    Runs(files).take(1, 0, settings.remembered)
    return settings


def test_a_later_start_keeps_what_an_earlier_one_was_given(
    files: LocalFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    started(files, {INTERVAL: "5 s"}, state__checkpoints__num_retained="5")
    caplog.clear()
    again = started(files)
    assert (again.checkpoints.num_retained, again.checkpoints.interval_ms) == (5, 5000)
    assert caplog.messages == [
        f"job Payments keeps its configuration of earlier runs: {INTERVAL}=5000 ms, {RETAINED}=5"
    ]
    assert started(files).checkpoints.num_retained == 5, "and so does the one after that"


def test_what_is_set_now_wins_and_is_said(files: LocalFileSystem, caplog: pytest.LogCaptureFixture) -> None:
    started(files, execution__checkpointing__num_retained=5)
    caplog.clear()
    assert started(files, execution__checkpointing__num_retained=1).checkpoints.num_retained == 1
    assert caplog.messages == [f"job Payments: {RETAINED}: 5 before, 1 now, from -D"]
    caplog.clear()
    assert started(files).checkpoints.num_retained == 1, "the newest value is the one that is remembered"


def test_what_is_set_in_code_is_remembered(files: LocalFileSystem) -> None:
    made: list[Settings] = [Settings()]
    CheckpointConfig(lambda: made[-1], made.append).set_max_retained_checkpoints(4)
    Runs(files).take(1, 0, recall(files, "Payments", made[-1]).remembered)
    assert Runs(files).configuration()[RETAINED] == RememberedOption(4, "code", run=1)
    assert started(files).checkpoints.num_retained == 4


def test_a_restart_strategy_of_the_code_is_remembered_with_its_numbers(files: LocalFileSystem) -> None:
    nobody: Any = None
    env = StreamExecutionEnvironment(nobody, Settings())
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 500))
    Runs(files).take(1, 0, recall(files, "Payments", env.definition.settings).remembered)
    assert {key: option.value for key, option in Runs(files).configuration().items()} == {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 3,
        "restart-strategy.fixed-delay.delay": 500,
    }
    assert started(files).restart == env.definition.settings.restart


def test_defaults_are_not_remembered(files: LocalFileSystem) -> None:
    started(files)
    assert Runs(files).configuration() == {}


@pytest.mark.parametrize("key", REMEMBERED)
def test_every_remembered_value_is_read_again_as_it_was(files: LocalFileSystem, key: str) -> None:
    values = {
        "mode": "AT_LEAST_ONCE", "externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION", "type": "fixed-delay",
        "backoff-multiplier": 2.5, "jitter-factor": 0.25, "attempts-before-reset-backoff": "infinite",
        "hidden-states": "a.b,c.*", "show-values": "false", "incremental": "true", "enabled": "true",
    }  # fmt: skip
    given = started(files, {key: values.get(key.rpartition(".")[2], 3_300)})
    again = started(files)
    assert value_of(again, key) == value_of(given, key)
    assert key in again.remembered


def test_nothing_secret_and_nothing_of_the_machine_is_stored(files: LocalFileSystem) -> None:
    kept_out = sorted(set(OPTIONS) - set(REMEMBERED))
    assert {"cairn.web.token", "execution.checkpointing.dir", "rest.port", "execution.state-recovery.path"} < set(
        kept_out
    )
    assert not [key for key in REMEMBERED if any(word in key for word in ("token", "dir", "port", "path", "address"))]
    secret = {
        "cairn.web.token": "SECRET", "spark.hadoop.fs.s3a.secret.key": "SECRET",
        "pipeline.global-job-parameters.password": "SECRET", "execution.checkpointing.savepoint-dir": "/SECRET",
        "execution.state-recovery.path": "/SECRET", RETAINED: 5,
    }  # fmt: skip
    started(files, secret)
    started(files)
    stored = [path for path in Path(files.root).rglob("*") if path.is_file()]
    assert len(stored) == 3
    assert not [path for path in stored if b"SECRET" in path.read_bytes()]


def test_a_remembered_value_that_does_not_fit_is_an_error_with_a_way_out(files: LocalFileSystem) -> None:
    started(files, execution__checkpointing__mode="AT_LEAST_ONCE")
    with pytest.raises(InvalidInputError, match=r"expected EXACTLY_ONCE.* remembers .*checkpointing\.mode.* with -D"):
        started(files, execution__checkpointing__unaligned__enabled="true")
    Runs(files).take(1, 0, {RETAINED: RememberedOption("many", "-D")})
    with pytest.raises(InvalidInputError, match=r"expected a whole number, found 'many'.* run.*0{19}2.*explicitly"):
        started(files)
    assert started(files, execution__checkpointing__num_retained=2).checkpoints.num_retained == 2


def test_records_of_other_releases_are_read(files: LocalFileSystem) -> None:
    files.create(
        "runs/00000000000000000001", b'{"run":1,"host":"h","pid":1,"started_ms":0,"parallelism":2,"token":"t"}'
    )
    assert Runs(files).configuration() == {}
    later = {"run": 2, "host": "h", "pid": 1, "started_ms": 0, "parallelism": 2, "more": [1]}
    option = {"value": 7, "origin": "-D", "run": 2, "more": 1}
    unknown = {"value": 1, "origin": "-D", "run": 2}
    later["configuration"] = {RETAINED: option, "cairn.of-the-future": unknown}
    files.create("runs/00000000000000000002", json.dumps(later).encode())
    assert started(files).checkpoints.num_retained == 7


def test_a_record_that_cannot_be_read_leaves_the_one_before(
    files: LocalFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    started(files, execution__checkpointing__num_retained=5)
    files.create("runs/00000000000000000002", b'{"run":')
    assert started(files).checkpoints.num_retained == 5
    assert "runs/00000000000000000002 cannot be read" in caplog.text


def test_the_directory_of_another_job_is_not_asked(files: LocalFileSystem) -> None:
    started(files, execution__checkpointing__num_retained=5)
    assert recall(files, "Orders", Settings()).checkpoints.num_retained == 1


def test_an_option_without_origin_counts_as_not_set() -> None:
    assert with_options(Settings(), {RETAINED: 2}, origin="").given == {}
    assert recalled(with_options(Settings(), {RETAINED: 2}), {}, "").remembered == {
        RETAINED: RememberedOption(2, "code")
    }


def test_the_configuration_is_shown_with_its_origins(files: LocalFileSystem, tmp_path: Path) -> None:
    started(files, {INTERVAL: "5 s"}, execution__checkpointing__num_retained=5)
    started(files, execution__checkpointing__num_retained=3)
    shown = CliRunner().invoke(app, ["config", "payments", "--dir", str(tmp_path / "jobs"), "--json"])
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    options = {option["key"]: (option["value"], option["origin"], option["run"]) for option in document["options"]}
    assert set(options) == set(REMEMBERED)
    assert options[INTERVAL] == (5000, "config", 1)
    assert options[RETAINED] == (3, "-D", 2)
    assert options["execution.checkpointing.mode"] == ("EXACTLY_ONCE", "default", None)
    text = CliRunner().invoke(app, ["config", "payments", "--dir", str(tmp_path / "jobs")]).stdout
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in text.splitlines()}
    assert lines[INTERVAL].split() == ["5000", "ms", "config", "in", "code,", "run", "1"]
    assert lines[RETAINED].split() == ["3", "-D,", "run", "2"]


# What a start will discard, and what is not discarded.


def with_checkpoints(folder: Path, *numbers: int, restores: list[tuple[int, int]] | None = None) -> CheckpointStore:
    """Checkpoints whose numbers are those of their epochs, and a newest epoch that went back as told."""
    store = CheckpointStore(LocalFileSystem(str(folder)))
    for number in numbers:
        info = CheckpointInfo(number, CheckpointStatus.COMPLETED, CheckpointType.CHECKPOINT, 0)
        store.complete(Checkpoint(number, "job", "Job", 1, manifest(number), info))
    if restores:
        ManifestStore(store.files).publish(restored_epoch(restores))
    return store


def restored_epoch(restores: list[tuple[int, int]], origin: str = "") -> Any:
    target, made = restores[-1]
    changes = {"run": 2, "restored": target, "parent": target, "abandoned": restores, "origin": origin}
    return msgspec.structs.replace(manifest(made), **changes)


def announced(store: CheckpointStore, restores: list[tuple[int, int]] | None = None, **settings: Any) -> str:
    newest = restored_epoch(restores) if restores else manifest(9)
    recovered = Recovered(JobIdentity("job", "Job", "inc", 128), RunRecord(2, "h", 1, 0, 1), newest)
    return announce_discards(store, "Job", recovered, CheckpointSettings(**settings))


def test_a_start_says_which_checkpoints_it_will_discard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = with_checkpoints(tmp_path, 1, 2, 3, 4, 5)
    said = announced(store, num_retained=2, retention="RETAIN_ON_CANCELLATION")
    assert f"discards chk-1, chk-2, chk-3, chk-4, since {RETAINED} is 2" in said
    assert "canceling" not in said
    assert [record.levelno for record in caplog.records if record.message == said] == [logging.WARNING]


def test_a_restore_in_place_says_what_it_will_discard_with_what_it_gave_up_first(tmp_path: Path) -> None:
    store = with_checkpoints(tmp_path, 1, 2, 3, 4, 5, restores=[(3, 9)])
    said = announced(store, [(3, 9)], num_retained=5, retention="RETAIN_ON_CANCELLATION")
    assert f"discards chk-4, since {RETAINED} is 5" in said
    said = announced(store, [(3, 9)], num_retained=1)
    assert "discards chk-1, chk-2, chk-3, chk-4, chk-5, since" in said
    assert "canceling the job discards all of them, since" in said
    assert "NO_EXTERNALIZED_CHECKPOINTS" in said


def test_the_usual_rotation_is_not_worth_a_word(tmp_path: Path) -> None:
    store = with_checkpoints(tmp_path, 1, 2, 3)
    assert announced(store, num_retained=3) == ""
    assert announced(with_checkpoints(tmp_path / "none"), [(3, 9)]) == ""


def test_the_end_of_a_job_leaves_the_checkpoint_that_it_went_back_to(tmp_path: Path) -> None:
    store = with_checkpoints(tmp_path, 1, 2, 3, 4, restores=[(2, 9)])
    discard_all(LocalFileSystem(str(tmp_path)), "Job", run=2)
    assert store.numbers() == [2]


@pytest.mark.parametrize("named", [2, 3])
def test_of_two_checkpoints_of_one_epoch_the_one_that_was_named_stays(tmp_path: Path, named: int) -> None:
    store = with_checkpoints(tmp_path, 1, 2)
    info = CheckpointInfo(3, CheckpointStatus.COMPLETED, CheckpointType.CHECKPOINT, 0)
    store.complete(Checkpoint(3, "job", "Job", 1, manifest(2), info))
    ManifestStore(store.files).publish(restored_epoch([(2, 9)], origin=f"{tmp_path}/chk-{named}#0123"))
    discard_all(LocalFileSystem(str(tmp_path)), "Job", run=2)
    assert store.numbers() == [named]


def test_a_checkpoint_of_its_own_takes_the_place_of_the_one_that_the_job_went_back_to(tmp_path: Path) -> None:
    store = with_checkpoints(tmp_path, 1, 2, 3, 10, restores=[(2, 9)])
    discard_all(LocalFileSystem(str(tmp_path)), "Job", run=2)
    assert store.numbers() == []


# What a start says when there is nothing to do.


def query_in(message: str) -> Any:
    return SparkQuery("Job", cast(StreamingQuery, SimpleNamespace(status={"message": message})))


def test_a_job_that_goes_on_and_waits_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    query = query_in("Getting offsets")
    idle = NothingNew("Job", 7, query, lambda: 0)
    idle.look()
    assert not caplog.messages
    query.streaming_query.status["message"] = "Waiting for data to arrive"
    idle.look()
    idle.look()
    assert caplog.messages == ["job Job is waiting for input: no new input since epoch 7"]


@pytest.mark.parametrize(("epoch", "epochs"), [(None, 0), (7, 1)], ids=["a first start", "something new"])
def test_a_job_with_something_to_do_says_nothing(
    epoch: int | None, epochs: int, caplog: pytest.LogCaptureFixture
) -> None:
    NothingNew("Job", epoch, query_in("Waiting for data to arrive"), lambda: epochs).look()
    tell_end("Job", epoch, epochs)
    assert not caplog.messages


def test_a_job_that_finishes_without_an_epoch_says_so(caplog: pytest.LogCaptureFixture) -> None:
    tell_end("Job", 7, 0)
    assert caplog.messages == ["job Job has finished: no new input since epoch 7"]
