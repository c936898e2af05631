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
        help="A savepoint, a chk-<n> folder, or a job's directory or name.",
        autocompletion=snapshot_paths,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
UidArgument = Annotated[str, typer.Argument(metavar="UID", help="The operator's uid.", autocompletion=uids)]
StateArgument = Annotated[str, typer.Argument(metavar="STATE", help="The state's name.", autocompletion=state_names)]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="How many rows to show.")]

state_app = typer.Typer(
    name="state", help="Look into savepoints and checkpoints.", no_args_is_help=True, rich_markup_mode=None
)


@state_app.command()
def ls(
    path: PathArgument,
    keys: Annotated[
        bool, typer.Option("--keys", "-k", help="Read the rows: keys, skew by key group, biggest keys.")
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
        str | None, typer.Argument(metavar="[UID]", help="The operator, if there are several.", autocompletion=uids)
    ] = None,
    state: Annotated[
        str | None,
        typer.Argument(metavar="[STATE]", help="The state, if there are several.", autocompletion=state_names),
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
    key: Annotated[list[str], typer.Argument(metavar="KEY...", help="One value for each key column.")],
    allow_pickled: Annotated[
        list[str] | None,
        typer.Option("--allow-pickled", metavar="UID.STATE", help="Open pickles of this state: runs what is in them."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state of one key."""
    from cairn.cli import state_queries as commands

    raise typer.Exit(commands.get(path, uid, state, key, allow_pickled or [], Output(as_json=as_json)))


@state_app.command()
def diff(
    path: PathArgument,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The later one.", autocompletion=snapshot_paths)],
    uid: Annotated[str | None, typer.Argument(metavar="[UID]", help="Only this operator.", autocompletion=uids)] = None,
    state: Annotated[
        str | None,
        typer.Argument(metavar="[STATE]", help="Only this state, with its rows.", autocompletion=state_names),
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
    target: Annotated[str, typer.Argument(metavar="FILE", help="A new .parquet, .csv or .jsonl file.")],
    raw_csv: Annotated[
        bool,
        typer.Option(
            "--raw-csv",
            help="Write text to a .csv file as it is stored. By default, text that a spreadsheet would take for a "
            "formula gets an apostrophe before it.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write all rows of a state to one file."""
    from cairn.cli import state_queries as commands

    raise typer.Exit(commands.export(path, uid, state, target, Output(as_json=as_json), raw_csv))


def verify(path: PathArgument, as_json: JsonOption = False) -> None:
    """Compare every byte of a savepoint or checkpoint with its checksums."""
    from cairn.cli import snapshot_commands

    raise typer.Exit(snapshot_commands.verify(path, Output(as_json=as_json)))


def savepoint_dispose(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A savepoint, or one that was never finished.", autocompletion=snapshot_paths
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also one that a job has claimed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a savepoint."""
    from cairn.cli import snapshot_commands

    raise typer.Exit(snapshot_commands.dispose_savepoint(path, yes, dry_run, force, Output(as_json=as_json)))


def add_to(app: typer.Typer) -> None:
    app.add_typer(state_app)
    app.command()(verify)
    app.command("savepoint-dispose")(savepoint_dispose)
