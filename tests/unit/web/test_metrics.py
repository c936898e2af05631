"""`/metrics`, and the dashboard and alert rules that live on it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.web_job import JOB, UID, make_job

from cairn.view.job_reader import JobReader
from cairn.web.metrics import exposition

DEPLOY = Path(__file__).parents[3] / "deploy"
_NAME = re.compile(r"\bcairn_[a-z_]+")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return exposition([JobReader(str(make_job(tmp_path_factory.mktemp("jobs"), ended=""))).view()]).decode()


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_the_values_are_those_of_the_job(text: str) -> None:
    found = samples(text)
    assert found["cairn_job_running"] == {(JOB,): 1}
    assert found["cairn_job_restarts_total"] == {(JOB,): 1}
    assert found["cairn_job_starts_total"] == {(JOB,): 6}
    assert [state for (_, state), value in found["cairn_job_state"].items() if value] == ["RUNNING"]
    assert len(found["cairn_job_state"]) == 8
    assert found["cairn_job_start_timestamp_seconds"][(JOB,)] > 1.7e9
    assert found["cairn_last_checkpoint_id"] == {(JOB,): 4}
    assert found["cairn_last_checkpoint_duration_seconds"] == {(JOB,): pytest.approx(0.034)}
    assert found["cairn_checkpoint_interval_seconds"] == {(JOB,): 10}
    assert found["cairn_checkpoints_total"] == {(JOB, "completed"): 4, (JOB, "failed"): 1}
    assert found["cairn_checkpoints_in_progress"] == {(JOB,): 0}
    assert found["cairn_operator_records_in_total"] == {(JOB, UID): 2400, (JOB, "out"): 2280}
    assert found["cairn_operator_records_out_total"] == {(JOB, UID): 2400, (JOB, "source-0"): 2400}
    assert found["cairn_operator_busy_ratio"][JOB, UID] == pytest.approx(0.409, abs=0.001)


def test_each_metric_has_a_help_text_and_a_unit(text: str) -> None:
    for family in text_string_to_metric_families(text):
        assert len(family.documentation) > 10, family.name
        assert family.name.startswith("cairn_")
        assert not re.search(r"_(ms|millis|kb|mb)(_|$)", family.name), "base units only"


def test_labels_are_these_and_never_a_key(text: str) -> None:
    labels = {n for f in text_string_to_metric_families(text) for s in f.samples for n in s.labels}
    assert labels == {"job", "operator", "result", "state"}
    assert "user-3" not in text


def test_an_empty_server_has_no_samples_and_is_well_formed() -> None:
    assert [
        family.samples for family in text_string_to_metric_families(exposition([]).decode()) if family.samples
    ] == []


@pytest.mark.parametrize("path", ["grafana/cairn.json", "prometheus/alerts.yml"])
def test_dashboard_and_alerts_use_metrics_that_there_are(path: str, text: str) -> None:
    used = set(_NAME.findall((DEPLOY / path).read_text()))
    assert used
    known = {*samples(text), *(family.name for family in text_string_to_metric_families(text))}
    assert used <= known, used - known


def test_the_dashboard_has_panels_that_do_not_overlap() -> None:
    told = json.loads((DEPLOY / "grafana" / "cairn.json").read_text())
    places = [
        (x, y)
        for panel in told["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in told["panels"]}) == len(told["panels"])


def test_each_alert_says_what_happened_and_what_to_do() -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {"CairnNoCheckpoint", "CairnCheckpointsFail", "CairnStateGrows", "CairnJobGone"} <= {
        rule["alert"] for rule in rules
    }
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "action"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
