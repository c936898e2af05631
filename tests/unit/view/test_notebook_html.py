"""Displays in notebooks: compact, escaped, never longer than a screen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.web_job import EVIL, JOB, START, info, make_job

from cairn.api.savepoint import Savepoint
from cairn.errors import InvalidInputError
from cairn.snapshots.resolver import open_snapshot
from cairn.view.job_reader import JobReader
from cairn.view.notebook_html import ROWS, CheckpointTable, job_html, sparkline, table
from cairn.view.plots import plot


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_job(tmp_path_factory.mktemp("jobs"), ended="")


def test_a_job_says_whether_it_is_fine(folder: Path) -> None:
    text = job_html(JobReader(str(folder)).view())
    assert "running with problems" in text
    assert JOB in text
    assert "<svg" in text
    assert EVIL not in text
    assert text.count("<tr>") <= 6


def test_checkpoints_are_a_table_and_a_list() -> None:
    many = CheckpointTable([info(number, START + number) for number in range(40, 0, -1)])
    text = many._repr_html_()
    assert text.count("<tr>") == ROWS + 1
    assert "and 28 more" in text
    assert many[0].id == 40
    assert "no checkpoints" in CheckpointTable()._repr_html_()


def test_a_snapshot_lists_its_states(folder: Path) -> None:
    text = Savepoint(None, open_snapshot(str(folder)))._repr_html_()
    assert "total" in text
    assert "checkpoint of harness" in text


def test_everything_is_escaped() -> None:
    assert EVIL not in table([EVIL], [[EVIL]])
    assert "'" not in sparkline([1, 2], "a'b").split("aria-label=")[1].split("<polyline")[0][1:-2]
    assert sparkline([1], "one") == ""


def test_a_plot_without_matplotlib_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidInputError, match="matplotlib"):
        plot(JobReader(str(folder)).view())


def test_a_plot_is_a_figure_with_two_charts(folder: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed")
    made = plot(JobReader(str(folder)).view())
    assert isinstance(made, figure.Figure)
    assert [len(axes.lines) for axes in made.axes] == [3, 2]
