"""`cairn plan`: what a job would take over from a snapshot, without starting it.

The script is run up to `execute()`, as `cairn run` would run it; there the plan is made, and the script ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output
from cairn.cli.progress_bar import watching
from cairn.cli.run_command import run_job
from cairn.errors import InvalidInputError

if TYPE_CHECKING:
    from cairn.restore.restore_plan import RestorePlan


class _Planned(BaseException):
    """Ends the script. Not an `Exception`, so that no handler in it takes it for an error."""


def plan_job(job: Path, args: Sequence[str], config: dict[str, Any], *, debug: bool, out: Output) -> int:
    """Make and print the plan; exit code 6 if the restore would be refused."""
    from cairn.spark.job_start import plan_hooks

    made: list[RestorePlan] = []

    def hook(plan: RestorePlan) -> NoReturn:
        made.append(plan)
        raise _Planned

    plan_hooks.append(hook)
    try:
        with watching(out, f"planning the restore of {job.name}; nothing is started or changed", lambda: None):
            code = run_job(job, args, config, debug=debug, out=out)
    except _Planned:
        show(made[0], out)
        return ExitCode.OK if not made[0].problems else ExitCode.INCOMPATIBLE
    finally:
        plan_hooks.remove(hook)
    if code == ExitCode.OK:
        raise InvalidInputError(f"{job} ended without executing a job")
    return code


def show(plan: RestorePlan, out: Output) -> None:
    """The plan for people, or as one JSON document."""
    out.document(plan.document())
    snapshot = plan.snapshot
    out.line(f"{snapshot.kind} {snapshot.path}: job {snapshot.metadata.job_id}, epoch {snapshot.epoch}")
    for operator in plan.operators:
        stored = operator.stored
        renamed = f" (was {stored.uid})" if stored.uid != operator.uid else ""
        scaled = f", parallelism {stored.parallelism} -> {plan.parallelism}"
        scaled = scaled if stored.parallelism != plan.parallelism else f", parallelism {plan.parallelism}"
        out.line(f"  matched  {operator.uid}{renamed}: {stored.rows} rows{scaled}")
        for state in operator.states:
            told = {
                "same": "unchanged",
                "changed": "; ".join(state.steps),
                "carried": "no longer declared, kept",
                "unknown": "unknown until the job runs",
                "refused": "REFUSED",
            }[state.how]
            out.line(f"             {state.becomes.name}: {told}")
        for name in operator.new_states:
            out.line(f"             {name}: new, starts empty")
    for uid in plan.new:
        out.line(f"  new      {uid}: starts empty")
    for uid in plan.unclaimed:
        out.line(f"  missing  {uid}: not in the job")
    for number, match in enumerate(plan.sources.matches):
        origin = "starts at its beginning" if match.stored is None else f"continues from source {match.stored}"
        out.line(f"  source   {number} {match.name}: {origin}")
    for note in plan.notes:
        out.line(f"  note     {note}")
    for problem in plan.problems:
        first, *others = problem.split("\n")
        out.line(out.style("  refused  ", "red") + first)
        for line in others:
            out.line(f"           {line}")
    out.line(
        "The job can start from this snapshot." if not plan.problems else "The job cannot start from this snapshot."
    )
