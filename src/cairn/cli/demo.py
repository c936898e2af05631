"""`cairn demo`: a job on local Spark is killed by force in the middle of an epoch, starts again, and is exact.

1. Start the job (`cli/demo_job.py`) as a process of its own and print a line for each epoch.
2. When half of the epochs are committed and the next one is being written, send SIGKILL to every process of the job.
3. Start the same command again; it continues from the last committed epoch.
4. Compute the expected result in plain Python, and compare it with the output files and with the stored state.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cairn.cli.doctor import Status, check_java, check_pandas, check_pyspark
from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output
from cairn.config.settings import CONFIG_VARIABLE
from cairn.errors import EpochFailedError, InternalError, InvalidInputError
from cairn.storage.running_jobs import SWITCH

JOB = "demo"
OPERATOR = "totals"
SINK = "payments"
USERS = 1000
SHAPE = 1
_PATIENCE = 120.0
_SHOWN_USERS = 5


def user_of(number: int) -> str:
    """Who made payment `number`."""
    return f"user-{number * 48271 % USERS:03d}"


def amount_of(number: int) -> int:
    """The amount of payment `number`."""
    return number * 31 % 97 + 1


USER_SQL = f"concat('user-', lpad(string(value * 48271 % {USERS}), 3, '0'))"
AMOUNT_SQL = "value * 31 % 97 + 1"


def run_demo(
    epochs: int = 10,
    rows: int = 20_000,
    folder: str | None = None,
    keep: bool = False,
    out: Output | None = None,
) -> int:
    """Run the demonstration; 0 only if the result is exact."""
    out = out or Output()
    for check in (check_java(), check_pyspark(), check_pandas()):
        if check.status is Status.FAIL:
            raise EpochFailedError(f"the demo cannot run: {check.name}: {check.detail}", remedy=check.remedy)
    place = _place(folder)
    keep = keep or folder is not None
    try:
        exact = _Demo(place, epochs, rows, out).run()
    except KeyboardInterrupt:
        out.message("interrupted")
        return ExitCode.INTERRUPTED
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)
    if not out.as_json:
        _suggest(place if keep else None, out)
    return ExitCode.OK if exact else ExitCode.FAILED


def _place(folder: str | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="cairn-demo-"))
    place = Path(folder).expanduser().absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InvalidInputError(
            f"{place} is not an empty directory.", remedy="Choose another --dir, or remove it first."
        )
    place.mkdir(parents=True, exist_ok=True)
    return place


class _Demo:
    def __init__(self, place: Path, epochs: int, rows: int, out: Output) -> None:
        self._place = place
        self._epochs = epochs
        self._rows = rows
        self._out = out
        self._newest = -1

    def run(self) -> bool:
        out = self._out
        victim = self._epochs // 2
        out.line(f"{self._epochs} epochs of {self._rows:,} payments; state: a total and a count per user; local Spark")
        out.line(f"directory: {self._place}")
        out.line()
        out.line(f"{'epoch':>6} {'rows':>10} {'keys':>8} {'bytes':>12} {'ms':>8}")
        with JobProcess(self._place, self._epochs, self._rows) as job:
            for event in job.events(until=lambda: self._is_being_written(victim)):
                self._show(event)
            killed = job.kill()
            for event in job.remaining_events():
                self._show(event)
        if not killed:
            raise InternalError(f"the demo could not kill its job during epoch {victim}")
        when = "right after the commit" if self._is_committed(victim) else "in the middle"
        out.event({"event": "killed", "epoch": victim, "processes": killed, "committed": self._is_committed(victim)})
        out.line(f"       kill -9 of all {killed} processes of the job, {when} of epoch {victim}")
        out.line("       restarting ...")
        with JobProcess(self._place, self._epochs, self._rows) as job:
            for event in job.events():
                if event["event"] == "started" and not out.as_json:
                    restored = event["restored"]
                    whence = "empty state" if restored is None else f"epoch {restored}, the last committed epoch"
                    out.line(f"       run {event['run']} resumes from {whence}")
                self._show(event)
        out.line()
        return report(self._place, self._epochs * self._rows, out)

    def _show(self, event: dict[str, Any]) -> None:
        if event["event"] != "epoch":
            self._out.event(event)
            return
        epoch = int(event["epoch"])
        if epoch >= self._epochs or epoch <= self._newest:
            return
        if epoch > self._newest + 1:  # the kill came after the commit and before the report
            self._show({"event": "epoch", "epoch": epoch - 1, "again": True})
        self._newest = epoch
        self._out.event(event)
        if event["again"]:
            self._out.line(f"{epoch:>6} was committed before the kill")
        else:
            self._out.line(
                f"{epoch:>6} {event['rows']:>10,} {event['keys']:>8,} {event['bytes']:>12,} {event['ms']:>8,}"
            )

    def _is_committed(self, epoch: int) -> bool:
        from cairn.storage.layout import epoch_path

        return (self._place / "jobs" / JOB / epoch_path(epoch)).exists()

    def _is_being_written(self, epoch: int) -> bool:
        """True once tasks of the epoch write their output, which is before its commit."""
        if self._newest < epoch - 1:
            return False  # do not poll the job's files constantly
        from cairn.storage import layout

        staged = self._place / "out" / layout.OUTPUT_STAGING
        return any(staged.glob(f"*/{epoch}-*/_temporary/0/_temporary/*"))


class JobProcess:
    """One start of the job: a session of processes, the JVM and the Python workers among them."""

    def __init__(self, place: Path, epochs: int, rows: int, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._log = place / "job.log"
        command = [sys.executable, "-m", "cairn.cli.demo_job", "--dir", str(place)]
        command += ["--epochs", str(epochs), "--rows", str(rows)]
        environment = {k: v for k, v in os.environ.items() if k not in (CONFIG_VARIABLE, "SPARK_CONF_DIR")}
        environment[SWITCH] = "0"  # nothing is written outside the demo's directory
        environment["PYTHONPATH"] = os.pathsep.join([p for p in sys.path if p])
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=environment,
                start_new_session=True, text=True,
            )  # fmt: skip
        self._lines: list[str] = []
        self._seen = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    def events(self, until: Any = lambda: False) -> Iterator[dict[str, Any]]:
        """The events of the job, until it ends or `until()` is true. Raises if the job fails on its own."""
        deadline = time.monotonic() + self._patience
        while True:
            stop = until()
            ended = not self._reader.is_alive()
            while self._seen < len(self._lines):
                line = self._lines[self._seen]
                self._seen += 1
                if line.startswith("{"):
                    yield json.loads(line)
                deadline = time.monotonic() + self._patience
            if stop:
                return
            if ended:
                if self._process.wait() != 0:
                    raise EpochFailedError(f"the job ended unexpectedly:\n{self._tail()}", remedy="Run: cairn doctor")
                return
            if time.monotonic() > deadline:
                raise EpochFailedError(f"nothing has happened for {self._patience:.0f} seconds:\n{self._tail()}")
            time.sleep(0.005)

    def remaining_events(self) -> Iterator[dict[str, Any]]:
        """Events that the job reported between the last look at them and its end."""
        self._reader.join(10)
        for line in self._lines[self._seen :]:
            with contextlib.suppress(json.JSONDecodeError):  # the kill may cut the last line
                if line.startswith("{"):
                    yield json.loads(line)

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-15:]) or "it said nothing"

    def kill(self) -> int:
        """SIGKILL to every process of the session; returns to how many."""
        killed = 0
        for _ in range(2):  # a second look finds what was forked during the first
            for pid in _session(self._process.pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            self._process.wait()
        return killed

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(self, *reason: object) -> None:
        self.kill()
        self._reader.join(10)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()


def _session(leader: int) -> list[int]:
    """The live processes of a session. Spark's Python workers have a process group of their own."""
    try:
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,sess=,stat="], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        rows = [line.split() for line in listed]
        return [int(pid) for pid, session, state in rows if session == str(leader) and not state.startswith("Z")]
    except (OSError, ValueError, subprocess.CalledProcessError):
        return [leader]


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """What a run left behind, counted from its files."""

    rows: int
    distinct: int
    duplicates: int
    missing: int
    foreign: int
    wrong_amounts: int
    wrong_steps: int
    output_sums: dict[str, int]
    state_sums: dict[str, int]
    state_counts: dict[str, int]


def read_back(place: Path, expected_rows: int) -> DemoOutcome:
    """Read the output with pyarrow and the state from its durable files; the job is over."""
    import numpy as np
    import pyarrow.parquet as pq

    files = sorted(path for path in (place / "out").glob("part-*.parquet"))
    table = pq.ParquetDataset([str(path) for path in files]).read()
    numbers = table.column("n").to_numpy()
    amounts = table.column("amount").to_numpy()
    users = np.array(table.column("user").to_pylist())
    counts = table.column("count").to_numpy()
    totals = table.column("total").to_numpy()
    distinct = np.unique(numbers)
    wanted = [(user_of(n), amount_of(n)) for n in numbers.tolist()]
    wrong = sum(pair != (u, a) for pair, u, a in zip(wanted, users.tolist(), amounts.tolist(), strict=True))

    # Per user the counts must be 1, 2, 3, ... and each total the one before it plus the amount.
    order = np.lexsort((counts, users))
    first = np.concatenate(([True], users[order][1:] != users[order][:-1])) if len(order) else np.zeros(0, bool)
    count_steps = np.diff(counts[order], prepend=0)
    total_steps = np.diff(totals[order], prepend=0)
    count_steps[first], total_steps[first] = counts[order][first], totals[order][first]
    wrong_steps = int(((count_steps != 1) | (total_steps != amounts[order])).sum())
    ends = np.flatnonzero(np.append(first[1:], True)) if len(order) else np.zeros(0, int)
    output_sums = {str(users[order][i]): int(totals[order][i]) for i in ends}
    state = stored_state(place)
    return DemoOutcome(
        rows=len(numbers),
        distinct=len(distinct),
        duplicates=len(numbers) - len(distinct),
        missing=expected_rows - int(((distinct >= 0) & (distinct < expected_rows)).sum()),
        foreign=int(((distinct < 0) | (distinct >= expected_rows)).sum()),
        wrong_amounts=wrong,
        wrong_steps=wrong_steps,
        output_sums=output_sums,
        state_sums=state["total"],
        state_counts=state["count"],
    )


def stored_state(place: Path) -> dict[str, dict[str, int]]:
    """The job's state by name and user, from the files that the newest manifest names."""
    from cairn.model.keygroups import KeyGroupRange
    from cairn.state.section_changes import ChainFiles
    from cairn.storage.chain_merge import compact
    from cairn.storage.filesystem import LocalFileSystem
    from cairn.storage.manifest_store import ManifestStore

    files = LocalFileSystem(str(place / "jobs" / JOB))
    manifest = ManifestStore(files).newest()
    found: dict[str, dict[str, int]] = {"total": {}, "count": {}}
    if manifest is None or (operator := manifest.operator(OPERATOR)) is None:
        return found
    opener = ChainFiles(files, manifest)
    everything = KeyGroupRange(0, manifest.max_parallelism - 1)
    specs = {spec.name: spec for spec in operator.states}
    for _, sections in compact(lambda h: opener.open(OPERATOR, h), operator.chain, everything, specs, manifest.time_ms):
        for section in sections:
            keys = section.data.column("key").to_pylist()
            values = section.data.column("value").to_pylist()
            found[section.table].update({key[2:].decode(): value for key, value in zip(keys, values, strict=True)})
    return found


def expected(rows: int) -> tuple[dict[str, int], dict[str, int]]:
    """The total and the count of every user after so many payments, in plain Python."""
    sums: dict[str, int] = {}
    counts: dict[str, int] = {}
    for number in range(rows):
        user = user_of(number)
        sums[user] = sums.get(user, 0) + amount_of(number)
        counts[user] = counts.get(user, 0) + 1
    return sums, counts


def exact(wanted: tuple[dict[str, int], dict[str, int]], found: DemoOutcome) -> bool:
    """Whether state and output hold every payment once and nothing else."""
    wrong = found.duplicates + found.missing + found.foreign + found.wrong_amounts + found.wrong_steps
    return not wrong and wanted == (found.state_sums, found.state_counts) and wanted[0] == found.output_sums


def report(place: Path, expected_rows: int, out: Output) -> bool:
    """Print expected against found; True if everything is equal."""
    from rich.table import Table

    sums, counts = expected(expected_rows)
    found = read_back(place, expected_rows)

    table = Table(title="Expected (plain Python) and actual results (files on disk)", title_justify="left")
    for name in ("", "expected", "in the state", "in the output", ""):
        table.add_column(name, justify="left" if not name else "right")
    exact = True
    checks: list[dict[str, Any]] = []

    def line(name: str, expected: int, in_state: int | None, in_output: int | None) -> None:
        nonlocal exact
        good = in_state in (None, expected) and in_output in (None, expected)
        exact = exact and good
        checks.append({"name": name, "expected": expected, "state": in_state, "output": in_output, "exact": good})
        shown = ["" if n is None else f"{n:,}" for n in (expected, in_state, in_output)]
        table.add_row(name, *shown, "[green]exact[/green]" if good else "[red]WRONG[/red]")

    for user in sorted(sums)[:_SHOWN_USERS]:
        line(f"total of {user}", sums[user], found.state_sums.get(user, 0), found.output_sums.get(user, 0))
    table.add_section()
    line("users", len(sums), len(found.state_sums), len(found.output_sums))
    line("sum of all totals", sum(sums.values()), sum(found.state_sums.values()), sum(found.output_sums.values()))
    line("rows", expected_rows, sum(found.state_counts.values()), found.rows)
    table.add_section()
    line("users with a wrong total", 0, _differences(sums, found.state_sums), _differences(sums, found.output_sums))
    line("users with a wrong count", 0, _differences(counts, found.state_counts), None)
    line("duplicate rows", 0, None, found.duplicates)
    line("missing rows", 0, None, found.missing)
    line("unknown or changed rows", 0, None, found.foreign + found.wrong_amounts)
    line("wrong running totals", 0, None, found.wrong_steps)
    out.event({
        "event": "summary", "version": SHAPE, "exit_code": 0 if exact else 1, "exact": exact, "directory": str(place),
        "checks": checks,
    })  # fmt: skip
    if not out.as_json:
        out.table(table)
    out.line("The result is exact: nothing was lost or duplicated." if exact else "The result is WRONG.")
    return exact


def _differences(expected: dict[str, int], found: dict[str, int]) -> int:
    return sum(expected.get(user) != found.get(user) for user in expected.keys() | found.keys())


def _suggest(kept: Path | None, out: Output) -> None:
    out.line()
    if kept is not None:
        out.line(f"Everything is kept in {kept}: output in out/, state in jobs/demo/.")
    out.line("Try next:")
    again = "cairn demo --epochs 20 --rows 100000"
    out.line(f"  {again:<40} the same with more data" + ("" if kept else " (--keep keeps the files)"))
    out.line(f"  {'cairn run examples/fraud_rules.py':<40} rules that change, states and timers per card")
    out.line(f"  {'cairn doctor':<40} check this machine before running jobs of your own")
