"""The commands that look into snapshots, as `cairn` knows them; what they do is imported on use."""

from __future__ import annotations

from typing import Annotated

import typer

from cairn.cli.completion import snapshot_paths, state_names, uids
from cairn.cli.output import Output

PathArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="Savepoint, chk-<n> folder, or directory or name of a job.",
        autocompletion=snapshot_paths,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
UidArgument = Annotated[str, typer.Argument(metavar="UID", help="Uid of the operator.", autocompletion=uids)]
StateArgument = Annotated[str, typer.Argument(metavar="STATE", help="Name of the state.", autocompletion=state_names)]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="Number of rows to show.")]

state_app = typer.Typer(
    name="state", help="Inspect the state in savepoints and checkpoints.", no_args_is_help=True, rich_markup_mode=None
)


@state_app.command()
def ls(
    path: PathArgument,
    keys: Annotated[
        bool, typer.Option("--keys", "-k", help="Also count keys and show skew by key group and the biggest keys.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List operators and states."""
    from cairn.cli import state_queries

    raise typer.Exit(state_queries.ls(path, Output(as_json=as_json), keys))


@state_app.command()
def show(
    path: PathArgument,
    uid: Annotated[
        str | None,
        typer.Argument(
            metavar="[UID]", help="Uid of the operator; required if there are several.", autocompletion=uids
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Argument(
            metavar="[STATE]", help="Name of the state; required if there are several.", autocompletion=state_names
        ),
    ] = None,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Show some rows of a state."""
    from cairn.cli import state_queries as commands

    raise typer.Exit(commands.show(path, uid, state, limit, Output(as_json=as_json)))


@state_app.command()
def get(
    path: PathArgument,
    uid: UidArgument,
    state: StateArgument,
    key: Annotated[list[str], typer.Argument(metavar="KEY...", help="Key to look up, one value per key column.")],
    allow_pickled: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-pickled", metavar="UID.STATE", help="Unpickle this state. Unpickling can run arbitrary code."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state of one key."""
    from cairn.cli import state_queries as commands

    raise typer.Exit(commands.get(path, uid, state, key, allow_pickled or [], Output(as_json=as_json)))


@state_app.command()
def diff(
    path: PathArgument,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="Snapshot to compare with.", autocompletion=snapshot_paths)
    ],
    uid: Annotated[
        str | None, typer.Argument(metavar="[UID]", help="Compare only this operator.", autocompletion=uids)
    ] = None,
    state: Annotated[
        str | None,
        typer.Argument(
            metavar="[STATE]", help="Compare only this state, and show its rows.", autocompletion=state_names
        ),
    ] = None,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Compare two savepoints or checkpoints; exit code 1 if they differ."""
    from cairn.cli import state_queries as commands

    raise typer.Exit(commands.diff(path, other, uid, state, limit, Output(as_json=as_json)))


@state_app.command()
def export(
    path: PathArgument,
    uid: UidArgument,
    state: StateArgument,
    target: Annotated[str, typer.Argument(metavar="FILE", help="File to create: .parquet, .csv or .jsonl.")],
    raw_csv: Annotated[
        bool,
        typer.Option(
            "--raw-csv",
            help="Write text to a .csv file as it is stored. By default, text that a spreadsheet would interpret as a "
            "formula is prefixed with an apostrophe.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write all rows of a state to one file."""
    from cairn.cli import state_queries as commands

    raise typer.Exit(commands.export(path, uid, state, target, Output(as_json=as_json), raw_csv))


def verify(path: PathArgument, as_json: JsonOption = False) -> None:
    """Verify every byte of a savepoint or checkpoint."""
    from cairn.cli import snapshot_commands

    raise typer.Exit(snapshot_commands.verify(path, Output(as_json=as_json)))


def savepoint_dispose(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="Savepoint to delete, complete or incomplete.", autocompletion=snapshot_paths
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted without deleting it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also delete a savepoint that a job has claimed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a savepoint."""
    from cairn.cli import snapshot_commands

    raise typer.Exit(snapshot_commands.dispose_savepoint(path, yes, dry_run, force, Output(as_json=as_json)))


def add_to(app: typer.Typer) -> None:
    app.add_typer(state_app)
    app.command()(verify)
    app.command("savepoint-dispose")(savepoint_dispose)
