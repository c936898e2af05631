"""`python -m benchmarks.readme RESULTS.json ...`: put the figures of runs into the README, between its two marks.

Of a line that several runs measured, the last one counts; a line is always one run's own, limit and all. The README
shows what was measured and nothing else: this is the only way its table is written.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_START, _END = "<!-- bench:start -->", "<!-- bench:end -->"
_INTRODUCTION = """\
Medians of `make bench` on {day} ({runs}), with Python {python} and Spark {spark} on {cores} cores.
Each epoch has {rows:,} rows with {keys:,} string keys ({nested:,} for maps and lists) and one output row per input row.
State is durable on a local disk; the parallelism is 2. The *limit* is the same job with a function that only passes
rows through: same source, shuffle and sink, no state, Spark's default settings. cairn starts its queries with settings
that make Spark send narrow rows to Python faster; the ratio in brackets is relative to the limit with these settings.

| benchmark | measured | compared with | ratio | target | met |
| --- | --- | --- | --- | --- | --- |"""
_CLOSING = """
Seconds per epoch: limit {limit:.2f}, with cairn's settings {tuned:.2f}, `sum` {sum:.2f}, `process` {process:.2f}.
The rest of `process` is Python itself: a function call, a generator and two state calls for every row."""


def main() -> int:
    runs = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    if not runs:
        print("which results?", file=sys.stderr)
        return 2
    results = merged(runs)
    readme = _ROOT / "README.md"
    text = readme.read_text()
    pattern = re.compile(re.escape(_START) + ".*?" + re.escape(_END), re.DOTALL)
    if results["quick"] or len(pattern.findall(text)) != 1:
        print("the results are of a quick run, or the README has no place for them", file=sys.stderr)
        return 1
    readme.write_text(pattern.sub(lambda _: f"{_START}\n{section(results)}\n{_END}", text))
    return 0


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One set of results from several runs."""
    rows: dict[str, Any] = {}
    series: dict[str, Any] = {}
    for run in runs:
        rows |= {row["name"]: row for row in run["rows"]}
        series |= run["series"]
    told = "one run" if len(runs) == 1 else f"{len(runs)} runs"
    quick = any(run["quick"] for run in runs)
    return {**runs[-1], "rows": list(rows.values()), "series": series, "quick": quick, "runs": told}


def section(results: dict[str, Any]) -> str:
    plan = results["plan"]
    head = _INTRODUCTION.format(
        day=results["at"][:10],
        python=results["python"],
        spark=results["spark"],
        cores=results["cores"],
        runs=results["runs"],
        rows=plan["rows"],
        keys=plan["keys"],
        nested=plan["nested_keys"],
    )
    lines = [head, *map(line, results["rows"])]
    spent = {
        name: statistics.median(found["values"]) / 1000 for name, found in results["series"].items() if found["values"]
    }
    if {"limit", "limit-tuned", "sum", "process-lmdb"} <= set(spent):
        limit, tuned = spent["limit"], spent["limit-tuned"]
        lines.append(_CLOSING.format(limit=limit, tuned=tuned, sum=spent["sum"], process=spent["process-lmdb"]))
    return "\n".join(lines)


def line(row: dict[str, Any]) -> str:
    """One measured check as a row of the table."""
    target = row["target"].replace("<=", "≤").replace(">=", "≥")
    if row["error"]:
        return f"| {row['measures']} | failed: {row['error']} | | | {target} | **no** |"
    measured = f"{row['value']:,.0f} {row['unit']}"
    beside = f"{row['against']}: {row['against_value']:,.0f} {row['unit']}" if row["against"] else ""
    ratio = f"+{row['ratio']:.0f} ms" if "more" in target else f"{row['ratio']:.2f}"
    if "-tuned" in row["detail"]:
        ratio += f" ({row['detail'].split()[0]})"
    met = "yes" if row["met"] else "**no**"
    return f"| {row['measures']} | {measured} | {beside} | {ratio} | {target} | {met} |"


if __name__ == "__main__":
    sys.exit(main())
