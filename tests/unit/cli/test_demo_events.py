"""The epochs that `cairn demo` shows, however late the kill comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cairn.cli.demo import _Demo
from cairn.cli.output import Output


def epoch(number: int, again: bool = False) -> dict[str, object]:
    return {"event": "epoch", "epoch": number, "rows": 1, "keys": 1, "bytes": 1, "ms": 1, "again": again}


@pytest.mark.parametrize(
    "reported",
    [
        [epoch(0), epoch(1), epoch(2), epoch(3)],
        [epoch(0), epoch(1), epoch(3)],  # killed after the commit of epoch 2 and before its report
        [epoch(0), epoch(1), epoch(2), epoch(2, again=True), epoch(3)],  # killed after its report
        [epoch(0), epoch(1), epoch(2, again=True), epoch(3), epoch(4)],
    ],
)
def test_each_epoch_is_shown_once(
    reported: list[dict[str, object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = _Demo(tmp_path, epochs=4, rows=1, out=Output(as_json=True))
    for event in reported:
        demo._show(event)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["epoch"] for event in shown] == [0, 1, 2, 3]
