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
from cairn.cli.exit_codes import ExitCode, exit_code
from cairn.cli.output import QUIET_VARIABLE, Output
from cairn.cli.state_commands import add_to
from cairn.config.settings import CONFIG_VARIABLE, DEFAULT_ADDRESS, DEFAULT_PORT
from cairn.errors import CairnError

app = typer.Typer(
    name="cairn",
    help="Flink's state and fault tolerance for PySpark Structured Streaming.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 success, 1 failure, 2 usage error, 3 not found, 4 conflict, 5 damaged state, 6 incompatible, "
        "7 storage, 130 interrupted. --no-color, -q and -v may appear anywhere; for run and plan, before the command."
    ),
)

DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

ScriptArgument = Annotated[str, typer.Argument(metavar="JOB.py", help="The script that defines and executes the job.")]
ScriptArguments = Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")]
SubtasksOption = Annotated[
    int | None, typer.Option("--parallelism", "-p", min=1, metavar="N", help="Number of subtasks of each operator.")
]
MasterOption = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark master, for example local[4].")
]
SettingsOption = Annotated[
    list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="Set a configuration option; may be repeated.")
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.1, metavar="S", help="Seconds to wait for the job.")]

RestoreOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        "-s",
        metavar="PATH",
        help="Start from this savepoint, checkpoint (a chk-<n> folder) or job.",
        autocompletion=snapshot_paths,
    ),
]
LostOption = Annotated[
    bool,
    typer.Option("--allow-non-restored-state", help="Drop the state of operators that the job no longer has."),
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
    no_color: Annotated[bool, typer.Option("--no-color", help="Disable colours, like NO_COLOR.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print cairn's log as well.")] = False,
) -> None:
    if debug:
        os.environ[_DEBUG_VARIABLE] = "1"
    if no_color:
        os.environ["NO_COLOR"] = "1"
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose cannot be combined.")
    if quiet:
        os.environ[QUIET_VARIABLE] = "1"
    if quiet or verbose:
        set_logging(verbose)


@app.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Unknown options and everything after `--` are passed to the script.",
)
def run(
    job: ScriptArgument,
    args: ScriptArguments = None,
    parallelism: SubtasksOption = None,
    master: MasterOption = None,
    settings: SettingsOption = None,
    restore: RestoreOption = None,
    allow_lost: LostOption = False,
    claim_mode: Annotated[
        str | None,
        typer.Option("--claim-mode", metavar="MODE", help="Who owns the snapshot: you (NO_CLAIM) or the job (CLAIM)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON, one per line.")] = False,
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
    job: ScriptArgument,
    args: ScriptArguments = None,
    parallelism: SubtasksOption = None,
    master: MasterOption = None,
    settings: SettingsOption = None,
    restore: RestoreOption = None,
    allow_lost: LostOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what a restore would do, without starting the job."""
    from cairn.cli.plan_command import plan_job

    if restore is None:
        raise typer.BadParameter("Pass the snapshot to start from: -s PATH.")
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
    from cairn.cli.run_command import job_config, parse_settings

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
    raise typer.BadParameter(f"No such option: {option}.{hint} Options of the script follow JOB.py.")


JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Name, id, id prefix or directory of the job.", autocompletion=job_names),
]
DirOption = Annotated[
    str | None,
    typer.Option("--dir", metavar="DIR", help="Directory of all jobs. [cairn-data, then your running jobs]"),
]


@app.command()
def checkpoints(
    job: JobArgument,
    directory: DirOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="Maximum number of checkpoints to show.")
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints of a job, newest first."""
    from cairn.cli.checkpoint_commands import show_checkpoints

    raise typer.Exit(show_checkpoints(job, directory, limit, Output(as_json=as_json)))


@app.command()
def config(job: JobArgument, directory: DirOption = None, as_json: JsonOption = False) -> None:
    """Show the configuration that a job remembers."""
    from cairn.cli.config_command import show_config

    raise typer.Exit(show_config(job, directory, Output(as_json=as_json)))


@app.command()
def checkpoint(
    job: JobArgument,
    directory: DirOption = None,
    full: Annotated[
        bool | None,
        typer.Option("--full/--incremental", help="Take a full or an incremental checkpoint. [as configured]"),
    ] = None,
    timeout: TimeoutOption = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Take a checkpoint of a running job and wait for it."""
    from cairn.cli.checkpoint_commands import take_checkpoint

    raise typer.Exit(take_checkpoint(job, directory, full, timeout, Output(as_json=as_json)))


RequestOption = Annotated[
    str | None,
    typer.Option("--request-id", metavar="ID", help="The same id always gives the same savepoint."),
]


@app.command()
def savepoint(
    job: JobArgument,
    target: Annotated[
        str | None,
        typer.Argument(metavar="DIR", help="Directory in which the savepoint is created. [configured in the job]"),
    ] = None,
    directory: DirOption = None,
    timeout: TimeoutOption = 3600.0,
    request: RequestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a savepoint of a running job and wait for it."""
    from cairn.cli.job_commands import take_savepoint

    raise typer.Exit(take_savepoint(job, directory, target, timeout, request, Output(as_json=as_json)))


@app.command()
def stop(
    job: JobArgument,
    target: Annotated[
        str | None,
        typer.Option(
            "--savepoint-dir",
            metavar="DIR",
            help="Directory in which the savepoint is created. [configured in the job]",
        ),
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Fire all event-time timers first; for jobs that are not resumed.")
    ] = False,
    directory: DirOption = None,
    timeout: TimeoutOption = 3600.0,
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
    timeout: TimeoutOption = 600.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would happen without changing anything.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Cancel a running job without a savepoint."""
    from cairn.cli.job_commands import cancel_job, confirm_cancel

    out = Output(as_json=as_json)
    if confirm_cancel(job, directory, yes, dry_run, out):
        raise typer.Exit(cancel_job(job, directory, timeout, out))


@app.command("list")
def list_(
    directory: DirOption = None,
    running: Annotated[bool, typer.Option("--running", "-r", help="Show running jobs only.")] = False,
    watch: Annotated[
        float | None, typer.Option("--watch", min=0.2, metavar="S", help="Refresh every S seconds.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs with their status, health and web page."""
    from cairn.cli.list_command import list_jobs

    raise typer.Exit(list_jobs(directory, running, watch, Output(as_json=as_json)))


@app.command()
def ui(
    directory: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="Directory of all jobs, or of one job. [cairn-data]")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port; if it is in use, the next free port.")
    ] = DEFAULT_PORT,
    address: Annotated[
        str,
        typer.Option(
            "--bind", metavar="ADDRESS", help="Address to listen on; any address other than loopback requires --token."
        ),
    ] = DEFAULT_ADDRESS,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", envvar="CAIRN_WEB_TOKEN", metavar="TEXT", help="Token that changes require. [a new token]"
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse all changes.")] = False,
    hide: Annotated[
        list[str] | None, typer.Option("--hide", metavar="UID.STATE", help="Hide the values of this state; * for any.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve the web page for all jobs of a directory."""
    from cairn.cli.ui_command import serve_directory, settings_of

    settings = settings_of(address, port, token, read_only, hide or [])
    raise typer.Exit(serve_directory(directory, settings, Output(as_json=as_json)))


@app.command("plan-memory")
def plan_memory(
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="Savepoint, chk-<n> folder or job to measure.")
    ] = None,
    keys: Annotated[int | None, typer.Option("--keys", min=0, metavar="N", help="Total number of keys.")] = None,
    entry_bytes: Annotated[
        int | None, typer.Option("--entry-bytes", min=1, metavar="N", help="Bytes per key, including its state.")
    ] = None,
    touched: Annotated[
        int | None, typer.Option("--touched", min=0, metavar="N", help="Number of distinct keys per epoch. [all]")
    ] = None,
    parallelism: Annotated[
        int, typer.Option("--parallelism", "-p", min=1, metavar="N", help="Number of subtasks.")
    ] = 4,
    slots: Annotated[int, typer.Option("--slots", min=1, metavar="N", help="Number of subtasks per host.")] = 4,
    backend: Annotated[str, typer.Option("--backend", metavar="NAME", help="lmdb, rocksdb or hashmap.")] = "lmdb",
    as_json: JsonOption = False,
) -> None:
    """Estimate the memory and disk that state needs."""
    from cairn.cli.memory_command import show_plan

    raise typer.Exit(show_plan(path, keys, entry_bytes, touched, parallelism, slots, backend, Output(as_json=as_json)))


add_to(app)


@app.command()
def doctor(
    as_json: JsonOption = False,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="Directory of all jobs. [cairn-data]")
    ] = None,
    local_dir: Annotated[
        str | None,
        typer.Option("--local-dir", metavar="DIR", help="Directory of the working stores. [temporary directory]"),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean-stores", help="List the working stores of this host, and those of jobs that no longer exist."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --clean-stores: remove the stores of jobs that no longer exist.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the small job on local Spark.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="S", help="Timeout of the small job in seconds.")
    ] = 180.0,
) -> None:
    """Check that this machine can run jobs."""
    from cairn.cli.doctor import clean_stores, configured, run_doctor
    from cairn.cli.run_command import job_config

    config = job_config(parallelism=None, master=None, settings={}, inherited=os.environ.get(CONFIG_VARIABLE))
    default_data, default_local = configured(config)
    if yes and not clean:
        raise typer.BadParameter("--yes requires --clean-stores")
    if clean:
        raise typer.Exit(clean_stores(local_dir or default_local, yes, Output(as_json=as_json)))
    seconds = None if quick else timeout
    raise typer.Exit(run_doctor(data_dir or default_data, local_dir or default_local, seconds, Output(as_json=as_json)))


@app.command()
def demo(
    epochs: Annotated[int, typer.Option("--epochs", min=1, metavar="N", help="Number of epochs.")] = 10,
    rows: Annotated[int, typer.Option("--rows", min=1, metavar="N", help="Rows per epoch.")] = 20_000,
    folder: Annotated[
        str | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Empty directory for the files of the demo, which are kept. [a temporary directory]",
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON, one per line.")] = False,
) -> None:
    """Kill and restart a job, and check the result."""
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
