"""`python -m benchmarks`: run the suites, each in a child process of its own, and report.

Ends with 1 if something failed or, at full size, a target was missed; the small sizes of `--quick` only try things out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.measure import QUICK, Bench, Plan, Series, first_line, interleave, session
from benchmarks.report import judge, show, show_profile, write
from benchmarks.suites import SUITES, Check, checks

_ROOT = Path(__file__).resolve().parent.parent
_WIDTH = 160
_DEFAULT_JSON = _ROOT / "bench-results" / "latest.json"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure cairn beside its limits.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try out that everything runs")
    parser.add_argument("--only", default="", metavar="NAME,...", help="names of lines or suites; default: all")
    parser.add_argument("--profile", action="store_true", help="also print where the time of an epoch goes")
    parser.add_argument("--json", type=Path, default=_DEFAULT_JSON, metavar="FILE", help="where the results go")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--variants", default="", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    plan = QUICK if arguments.quick else Plan()
    if arguments.child:
        _child(arguments.child, arguments.variants.split(","), arguments.work, plan)
        return 0
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    selected = _selected(checks(plan), arguments.only)
    if arguments.list:
        for check in selected:
            console.print(f"{check.name} ({check.suite}): {check.measures}", highlight=False)
        return 0
    found: dict[str, Series] = {}
    for name in SUITES:
        needed = set().union(*[check.needs() for check in selected if check.suite == name])
        if needed:
            console.print(f"suite {name}: {', '.join(sorted(needed))}", highlight=False)
            found |= _run_suite(name, needed, plan, arguments.quick, console)
    lines = [judge(check, found) for check in selected]
    show(console, lines)
    if arguments.profile:
        show_profile(console, found)
    write(arguments.json, lines, found, plan, arguments.quick)
    failed = any(line.error for line in lines)
    missed = any(not line.met for line in lines)
    return int(failed or (missed and not arguments.quick))


def _selected(known: Sequence[Check], only: str) -> list[Check]:
    names = [name.strip() for name in only.split(",") if name.strip()]
    allowed = {check.name for check in known} | set(SUITES)
    unknown = [name for name in names if name not in allowed]
    if unknown:
        sys.exit(f"there is no {', '.join(unknown)}; names are {', '.join(sorted(allowed))}")
    return [check for check in known if not names or check.name in names or check.suite in names]


def _run_suite(name: str, needed: set[str], plan: Plan, quick: bool, console: Console) -> dict[str, Series]:
    """Run one suite in a process of its own. What it measured before it failed is kept."""
    work = Path(tempfile.mkdtemp(prefix=f"cairn-bench-{name}-"))
    log = work / "log.txt"
    command = [sys.executable, "-m", "benchmarks", "--child", name, "--variants", ",".join(sorted(needed))]
    command += ["--work", str(work), *(["--quick"] if quick else [])]
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    error = ""
    try:
        with log.open("w") as output:
            child = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=output, stderr=output)
            try:
                if child.wait(plan.suite_seconds) != 0:
                    error = f"the process of suite {name} ended with {child.returncode}"
            except subprocess.TimeoutExpired:
                error = f"suite {name} took more than {plan.suite_seconds:.0f} s"
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
        results = work / "results.json"
        found = msgspec.json.decode(results.read_bytes(), type=dict[str, Series]) if results.exists() else {}
        if error or any(series.error for series in found.values()):
            kept = Path(tempfile.gettempdir()) / f"cairn-bench-{name}.log"
            shutil.copyfile(log, kept)
            console.print(f"suite {name} had failures; its log is {kept}", markup=False, highlight=False)
        for variant in sorted(needed):
            series = found.setdefault(variant, Series())
            if error and not series.values and not series.error:
                series.error = error
        return found
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _child(name: str, variants: list[str], work: Path, plan: Plan) -> None:
    """One suite: all of its variants in one JVM, in turns."""
    suite = SUITES[name]
    bench = Bench(session(), work, plan)
    results: dict[str, Series] = {}

    def save(found: dict[str, Series]) -> None:
        results.update(found)
        part = work / "results.json.part"
        part.write_bytes(msgspec.json.encode(results))
        part.replace(work / "results.json")

    if suite.prepare is not None:
        try:
            suite.prepare(bench)
        except Exception as error:  # noqa: BLE001 - reported in the table
            save({variant: Series(error=first_line(error)) for variant in variants})
            return
    once = {variant: run for variant, run in suite.once.items() if variant in variants}
    interleave(bench, once, suite.once_rounds(plan), save)
    turns = {variant: run for variant, run in suite.variants.items() if variant in variants}
    interleave(bench, turns, suite.rounds(plan), save)
    bench.spark.stop()


if __name__ == "__main__":
    sys.exit(main())
