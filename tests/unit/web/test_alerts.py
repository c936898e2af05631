"""The alert rules, played minute by minute by Prometheus' own `promtool` (deploy/prometheus/alerts.test.yml)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.support.patience import PATIENCE
from tests.support.servers.cache import NotAvailableError
from tests.support.servers.prometheus import promtool

RULES = Path(__file__).parents[3] / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def tool() -> str:
    try:
        return promtool()
    except NotAvailableError as error:
        print(f"the alert rules are not played: {error}")
        pytest.skip(f"no promtool: {error}")


def played(tool: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [tool, "test", "rules", "alerts.test.yml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_the_rules_fire_when_they_should_and_only_then(tool: str) -> None:
    done = played(tool, RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (" unless time() - cairn_last", " and time() - cairn_last"),
        ("(last_over_time(cairn_job_running[1d]) == 1) unless on (job) cairn_job_running", "cairn_job_running == 0"),
        ('{state=~"FAILED|CRASHED"}', '{state=~"FAILED"}'),
    ],
)
def test_a_rule_that_cannot_fire_is_found(tool: str, tmp_path: Path, was: str, becomes: str) -> None:
    text = (RULES / "alerts.yml").read_text()
    assert was in " ".join(text.split())
    broken = yaml.safe_load(text)
    for rule in broken["groups"][0]["rules"]:
        rule["expr"] = rule["expr"].replace(was, becomes)
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(broken))
    shutil.copy(RULES / "alerts.test.yml", tmp_path)
    assert played(tool, tmp_path).returncode != 0


def test_every_alert_is_played() -> None:
    rules = yaml.safe_load((RULES / "alerts.yml").read_text())["groups"][0]["rules"]
    text = (RULES / "alerts.test.yml").read_text()
    assert [rule["alert"] for rule in rules if rule["alert"] not in text] == []
