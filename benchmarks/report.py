"""The table for people and the JSON for machines."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyspark
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.measure import Plan, Series
from benchmarks.suites import Check

_PROFILED = ("process-lmdb", "process-hashmap", "process-rocksdb", "process-batch", "sum")


@dataclass(frozen=True)
class Line:
    """One measured check."""

    name: str
    measures: str
    value: float | None = None
    unit: str = ""
    spread: tuple[float, float] | None = None
    against: str = ""
    against_value: float | None = None
    against_spread: tuple[float, float] | None = None
    ratio: float | None = None
    target: str = ""
    met: bool = False
    epochs: int = 0
    detail: str = ""
    error: str = ""


def judge(check: Check, found: Mapping[str, Series]) -> Line:
    target = f"{'<=' if check.at_most else '>='} {check.target:g}"
    missing = Series(error="not measured")
    ours = found.get(check.ours, missing)
    theirs = found.get(check.against, missing) if check.against else None
    for name, series in ((check.ours, ours), (check.against, theirs)):
        if series is not None and (series.error or not series.values):
            error = f"{name}: {series.error or 'no epoch was measured'}"
            return Line(check.name, check.measures, against=check.against, target=target, error=error)
    if check.kind in ("plain", "memory", "millis") or theirs is None:
        unit = {"memory": "MiB", "millis": "ms"}.get(check.kind, "keys/s")
        value, spread = ours.median, _spread(ours, rate=False)
        return Line(
            check.name, check.measures, value, unit, spread, ratio=value / check.target, target=target,
            met=value <= check.target if check.at_most else value >= check.target, epochs=len(ours.values),
        )  # fmt: skip
    rate = check.kind == "rate"
    value, beside = (ours.rate, theirs.rate) if rate else (ours.median, theirs.median)
    ratio = value - beside if check.kind == "added" else value / beside
    detail = ""
    same = found.get(check.same_size)
    if same is not None and same.values and not same.error:
        detail = f"{same.rate / theirs.rate:.1f} with {same.rows:,} rows on both sides"
    tuned = found.get(check.tuned)
    if tuned is not None and tuned.values and not tuned.error:
        detail = f"{ours.rate / tuned.rate:.2f} of {check.tuned} ({tuned.rate:,.0f} rows/s)"
    return Line(
        name=check.name,
        measures=check.measures,
        value=value,
        unit={"rate": "rows/s", "bytes": "bytes"}.get(check.kind, "ms"),
        spread=_spread(ours, rate),
        against=check.against,
        against_value=beside,
        against_spread=_spread(theirs, rate),
        ratio=ratio,
        target=target + (" ms more" if check.kind == "added" else ""),
        met=ratio <= check.target if check.at_most else ratio >= check.target,
        epochs=len(ours.values),
        detail=detail,
    )


def _spread(series: Series, rate: bool) -> tuple[float, float]:
    numbers = [series.rows / millis * 1000 for millis in series.values] if rate else series.values
    return min(numbers), max(numbers)


def show(console: Console, lines: Sequence[Line]) -> None:
    table = Table(title="medians of the measured epochs; in brackets lowest and highest", show_lines=True)
    for column in ("name", "measured"):
        table.add_column(column)
    for column in ("value", "beside it", "ratio", "target", "met"):
        table.add_column(column, justify="right")
    for line in lines:
        if line.error:
            table.add_row(
                line.name,
                f"{line.measures}\n[red]{escape(line.error)}[/]",
                "",
                line.against,
                "",
                line.target,
                "[red]failed[/]",
            )
            continue
        beside = f"{line.against}\n{_shown(line.against_value, line.unit, line.against_spread)}" if line.against else ""
        table.add_row(
            line.name,
            line.measures + (f"\n{line.detail}" if line.detail else ""),
            _shown(line.value, line.unit, line.spread),
            beside,
            f"{line.ratio:.2f}" if not line.target.endswith("more") else f"{line.ratio:+.0f} ms",
            line.target,
            "[green]yes[/]" if line.met else "[red]no[/]",
        )  # fmt: skip
    console.print(table)


def _shown(value: float | None, unit: str, spread: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    text = f"{value:,.0f} {unit}"
    return text if spread is None else f"{text}\n[{spread[0]:,.0f}..{spread[1]:,.0f}]".replace("[", "\\[")


def show_profile(console: Console, found: Mapping[str, Series]) -> None:
    """Milliseconds by step: of the tasks the mean over the subtasks, of both the median over the measured epochs."""
    names = [name for name in _PROFILED if name in found and found[name].steps]
    if not names:
        return
    table = Table(title="milliseconds by step")
    table.add_column("step")
    for name in names:
        table.add_column(name, justify="right")
    steps = dict.fromkeys(step for name in names for step in found[name].steps)
    for step in steps:
        numbers = [found[name].steps.get(step) for name in names]
        table.add_row(step, *[f"{statistics.median(spent):,.1f}" if spent else "" for spent in numbers])
    table.add_row("epoch", *[f"{found[name].median:,.1f}" for name in names])
    console.print(table)


def write(path: Path, lines: Sequence[Line], found: Mapping[str, Series], plan: Plan, quick: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.name == "bench-results":
        (path.parent / ".gitignore").write_text("*\n")
    content = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),
        "python": platform.python_version(),
        "spark": pyspark.__version__,
        "plan": asdict(plan),
        "rows": [asdict(line) for line in lines],
        "series": {name: asdict(series) for name, series in found.items()},
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
