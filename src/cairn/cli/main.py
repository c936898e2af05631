"""The commands of `cairn`, and the way from an error to an exit code.

Nothing heavy is imported here: `cairn --help` must answer at once, so each command imports what it needs when it
runs. Plain help is used instead of rich's for the same reason.
"""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cairn.cli.common import arranged, set_logging, told_as_error
from cairn.cli.completion import job_names, snapshot_paths
from cairn.cli.output import QUIET_VARIABLE, ExitCode, Output, exit_code
from cairn.cli.state_commands import add_to
from cairn.errors import CairnError

app = typer.Typer(
    name="cairn",
    help="Flink-like keyed state for PySpark Structured Streaming.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 fine, 1 failed, 2 usage, 3 not found, 4 conflict, 5 damaged state, 6 incompatible, "
        "7 storage, 130 interrupted. --no-color, -q and -v may stand anywhere; for run and plan, before the command."
    ),
)

DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

RestoreOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        "-s",
        metavar="PATH",
        help="Start from this savepoint or checkpoint (a chk-<n> folder).",
        autocompletion=snapshot_paths,
    ),
]
LostOption = Annotated[
    bool,
    typer.Option("--allow-non-restored-state", help="Drop stored state of operators that the job has no more."),
]

_DEBUG_VARIABLE = "CAIRN_DEBUG"


def _debug_wanted() -> bool:
    return os.environ.get(_DEBUG_VARIABLE, "") not in ("", "0")


def _print_version(wanted: bool) -> None:
    if wanted:
        from cairn import __version__

        print(f"cairn {__version__}")
        raise typer.Exit


@app.callback()
def common(
    debug: DebugOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours, as with NO_COLOR.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only results and errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also what cairn logs while it works.")] = False,
) -> None:
    if debug:
        os.environ[_DEBUG_VARIABLE] = "1"
    if no_color:
        os.environ["NO_COLOR"] = "1"
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other.")
    if quiet:
        os.environ[QUIET_VARIABLE] = "1"
    if quiet or verbose:
        set_logging(verbose)


@app.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Options that cairn does not know go to the script, and so does everything after `--`.",
)
def run(
    job: Annotated[str, typer.Argument(metavar="JOB.py", help="The script that defines and executes the job.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")] = None,
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", "-p", min=1, metavar="N", help="Subtasks of each operator.")
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark master, for example local[4].")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="A configuration key; may be repeated.")
    ] = None,
    restore: RestoreOption = None,
    allow_lost: LostOption = False,
    claim_mode: Annotated[
        str | None,
        typer.Option("--claim-mode", metavar="MODE", help="Who owns the snapshot then: NO_CLAIM or CLAIM."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what happens as JSON, a line each.")] = False,
    debug: DebugOption = False,
) -> None:
    """Run a job script."""
    from cairn.cli.run_command import run_job

    given = {} if claim_mode is None else {"execution.state-recovery.claim-mode": claim_mode}
    config = _job_options(job, parallelism, master, settings, restore, allow_lost, given)
    out = Output(as_json=as_json)
    raise typer.Exit(run_job(Path(job), args or (), config, debug=debug or _debug_wanted(), out=out))


@app.command(context_settings={"ignore_unknown_options": True})
def plan(
    job: Annotated[str, typer.Argument(metavar="JOB.py", help="The script that defines and executes the job.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")] = None,
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", "-p", min=1, metavar="N", help="Subtasks of each operator.")
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark master, for example local[4].")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="A configuration key; may be repeated.")
    ] = None,
    restore: RestoreOption = None,
    allow_lost: LostOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Say what a job would take over from a snapshot, without starting it."""
    from cairn.cli.plan_command import plan_job

    if restore is None:
        raise typer.BadParameter("Name the snapshot to start from: -s PATH.")
    config = _job_options(job, parallelism, master, settings, restore, allow_lost, {})
    out = Output(as_json=as_json)
    raise typer.Exit(plan_job(Path(job), args or (), config, debug=debug or _debug_wanted(), out=out))


def _job_options(
    job: str,
    parallelism: int | None,
    master: str | None,
    settings: list[str] | None,
    restore: str | None,
    allow_lost: bool,
    given: dict[str, str],
) -> dict[str, Any]:
    """The configuration that a script is run with."""
    from cairn.cli.run_command import CONFIG_VARIABLE, job_config, parse_settings

    if job.startswith("-"):
        _refuse_option(job)
    told = {**parse_settings(settings or ()), **given}
    if restore is not None:
        told["execution.state-recovery.path"] = restore
    if allow_lost:
        told["execution.state-recovery.ignore-unclaimed-state"] = "true"
    inherited = os.environ.get(CONFIG_VARIABLE)
    return job_config(parallelism=parallelism, master=master, settings=told, inherited=inherited)


def _refuse_option(option: str) -> None:
    """An unknown option before the script cannot be meant for the script."""
    near = difflib.get_close_matches(
        option, ["--parallelism", "--master", "--from", "--claim-mode", "--debug", "--help"]
    )
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise typer.BadParameter(f"No such option: {option}.{hint} Options of the script stand after JOB.py.")


JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Name, id prefix or directory of the job.", autocompletion=job_names),
]
DirOption = Annotated[
    str | None,
    typer.Option("--dir", metavar="DIR", help="Directory of all jobs. [cairn-data, and where jobs of yours run]"),
]


@app.command()
def checkpoints(
    job: JobArgument,
    directory: DirOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="How many to show.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints of a job, newest first; it need not be running."""
    from cairn.cli.checkpoint_commands import show_checkpoints

    raise typer.Exit(show_checkpoints(job, directory, limit, Output(as_json=as_json)))


@app.command()
def config(job: JobArgument, directory: DirOption = None, as_json: JsonOption = False) -> None:
    """Show the configuration that a job remembers, and where each value comes from."""
    from cairn.cli.config_command import show_config

    raise typer.Exit(show_config(job, directory, Output(as_json=as_json)))


@app.command()
def checkpoint(
    job: JobArgument,
    directory: DirOption = None,
    full: Annotated[
        bool | None, typer.Option("--full/--incremental", help="Write all state anew, or only name it. [as configured]")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, metavar="S", help="Seconds to wait.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Take a checkpoint of a running job now, and wait for it."""
    from cairn.cli.checkpoint_commands import take_checkpoint

    raise typer.Exit(take_checkpoint(job, directory, full, timeout, Output(as_json=as_json)))


RequestOption = Annotated[
    str | None,
    typer.Option("--request-id", metavar="ID", help="Asking again with the same one gives the same savepoint."),
]


@app.command()
def savepoint(
    job: JobArgument,
    target: Annotated[
        str | None, typer.Argument(metavar="DIR", help="Where it gets a folder of its own. [as the job is configured]")
    ] = None,
    directory: DirOption = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, metavar="S", help="Seconds to wait.")] = 3600.0,
    request: RequestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a savepoint of a running job, and wait for it."""
    from cairn.cli.job_commands import take_savepoint

    raise typer.Exit(take_savepoint(job, directory, target, timeout, request, Output(as_json=as_json)))


@app.command()
def stop(
    job: JobArgument,
    target: Annotated[
        str | None, typer.Option("--savepoint-dir", metavar="DIR", help="Where the savepoint goes. [as configured]")
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Fire all event-time timers first; the job is not meant to be resumed then.")
    ] = False,
    directory: DirOption = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, metavar="S", help="Seconds to wait.")] = 3600.0,
    request: RequestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a running job with a savepoint."""
    from cairn.cli.job_commands import stop_job

    raise typer.Exit(stop_job(job, directory, target, drain, timeout, request, Output(as_json=as_json)))


@app.command()
def cancel(
    job: JobArgument,
    directory: DirOption = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, metavar="S", help="Seconds to wait.")] = 600.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End a running job without a savepoint; its running epoch is finished first."""
    from cairn.cli.job_commands import cancel_job, confirm_cancel

    out = Output(as_json=as_json)
    if confirm_cancel(job, directory, yes, dry_run, out):
        raise typer.Exit(cancel_job(job, directory, timeout, out))


@app.command("list")
def list_(
    directory: DirOption = None,
    running: Annotated[bool, typer.Option("--running", "-r", help="Only jobs that run.")] = False,
    watch: Annotated[
        float | None, typer.Option("--watch", min=0.2, metavar="S", help="Print again every so many seconds.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs: whether they run, whether they are fine, where their pages are."""
    from cairn.cli.list_command import list_jobs

    raise typer.Exit(list_jobs(directory, running, watch, Output(as_json=as_json)))


@app.command()
def ui(
    directory: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="Directory of all jobs, or of one. [cairn-data]")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="The next free one is taken.")
    ] = 8081,
    address: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS", help="An open address needs --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option("--token", envvar="CAIRN_WEB_TOKEN", metavar="TEXT", help="[a new one]")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Change nothing.")] = False,
    hide: Annotated[
        list[str] | None, typer.Option("--hide", metavar="UID.STATE", help="Do not show values; * for any.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve the web page for jobs that run, have ended or have crashed."""
    from cairn.cli.ui_command import serve_directory, settings_of

    settings = settings_of(address, port, token, read_only, hide or [])
    raise typer.Exit(serve_directory(directory, settings, Output(as_json=as_json)))


@app.command("plan-memory")
def plan_memory(
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="A savepoint, chk-<n> or job to measure.")
    ] = None,
    keys: Annotated[int | None, typer.Option("--keys", min=0, metavar="N", help="Keys in all.")] = None,
    entry_bytes: Annotated[
        int | None, typer.Option("--entry-bytes", min=1, metavar="N", help="Bytes of a key and its state.")
    ] = None,
    touched: Annotated[
        int | None, typer.Option("--touched", min=0, metavar="N", help="Keys of an epoch. [all]")
    ] = None,
    parallelism: Annotated[int, typer.Option("--parallelism", "-p", min=1, metavar="N", help="Subtasks.")] = 4,
    slots: Annotated[int, typer.Option("--slots", min=1, metavar="N", help="Subtasks that a host runs.")] = 4,
    backend: Annotated[str, typer.Option("--backend", metavar="NAME", help="lmdb, rocksdb or hashmap.")] = "lmdb",
    as_json: JsonOption = False,
) -> None:
    """Estimate memory and local disk for a job's state."""
    from cairn.cli.memory_command import show_plan

    raise typer.Exit(show_plan(path, keys, entry_bytes, touched, parallelism, slots, backend, Output(as_json=as_json)))


add_to(app)


@app.command()
def doctor(
    as_json: JsonOption = False,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="Where jobs keep their checkpoints. [cairn-data]")
    ] = None,
    local_dir: Annotated[
        str | None, typer.Option("--local-dir", metavar="DIR", help="Where tasks keep their working state. [temp dir]")
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean-stores", help="Instead, list the working stores here, and which jobs are gone.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --clean-stores: remove the working stores of jobs that are gone.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the small job on local Spark.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="S", help="Seconds that the small job may take.")
    ] = 180.0,
) -> None:
    """Check that this machine can run jobs; a small one is run."""
    from cairn.cli.doctor import clean_stores, configured, run_doctor
    from cairn.cli.run_command import CONFIG_VARIABLE, job_config

    config = job_config(parallelism=None, master=None, settings={}, inherited=os.environ.get(CONFIG_VARIABLE))
    default_data, default_local = configured(config)
    if yes and not clean:
        raise typer.BadParameter("--yes goes with --clean-stores")
    if clean:
        raise typer.Exit(clean_stores(local_dir or default_local, yes, Output(as_json=as_json)))
    seconds = None if quick else timeout
    raise typer.Exit(run_doctor(data_dir or default_data, local_dir or default_local, seconds, Output(as_json=as_json)))


@app.command()
def demo(
    epochs: Annotated[int, typer.Option("--epochs", min=1, metavar="N", help="Epochs to run.")] = 10,
    rows: Annotated[int, typer.Option("--rows", min=1, metavar="N", help="Rows of each epoch.")] = 20_000,
    folder: Annotated[
        str | None, typer.Option("--dir", metavar="DIR", help="An empty directory to work in, kept. [temporary]")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what happens as JSON, a line each.")] = False,
) -> None:
    """Run a job on local Spark, kill it by force, start it again, and compare the result."""
    from cairn.cli.demo import run_demo

    raise typer.Exit(run_demo(epochs, rows, folder, keep, Output(as_json=as_json)))


def main() -> int:
    """The console entry: runs the command that `sys.argv` names and returns its exit code."""
    args = arranged(sys.argv[1:])
    as_json = "--json" in (args[: args.index("--")] if "--" in args else args)
    out = Output(as_json=as_json)
    try:
        ended = app(args, prog_name="cairn", standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except CairnError as error:
        out.error(error, debug=_debug_wanted())
        return exit_code(error)
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback for people who did not ask
        return told_as_error(error, out, _debug_wanted())
    return ended if isinstance(ended, int) else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
