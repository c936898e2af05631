"""What all commands share: options that may appear anywhere, the log, and errors other than cairn's."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output, json_line, print_traceback, usage_document
from cairn.text import one_line

_ANYWHERE = ("--no-color", "--quiet", "-q", "--verbose", "-v")
_OF_SCRIPTS = ("run", "plan")
"""Commands whose options may be meant for a script."""


def arranged(args: Sequence[str]) -> list[str]:
    """Arguments with the options that every command has before the command, where they are looked for.

    They may stand anywhere, except after `--`, and after `run` and `plan`, whose script may have options of that name.
    """
    end = args.index("--") if "--" in args else len(args)
    command = next((arg for arg in args[:end] if not arg.startswith("-")), "")
    if command in _OF_SCRIPTS:
        end = args.index(command)
    moved = [arg for arg in args[:end] if arg in _ANYWHERE]
    return [*moved, *(arg for arg in args[:end] if arg not in _ANYWHERE), *args[end:]]


def set_logging(verbose: bool) -> None:
    """How much of the log is shown: everything from INFO on, or errors only."""
    import logging

    logger = logging.getLogger("cairn")
    logger.setLevel(logging.INFO if verbose else logging.ERROR)
    if verbose and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


def told_as_error(error: Exception, out: Output, debug: bool) -> int:
    """Errors other than cairn's: those of Typer, for an invalid or aborted command, and bugs."""
    if isinstance(error, typer.Abort):
        print("Aborted!", file=sys.stderr)
        return ExitCode.FAILED
    if hasattr(error, "format_message") and hasattr(error, "show"):
        code = int(getattr(error, "exit_code", ExitCode.USAGE))
        if out.as_json:
            print(json_line(usage_document(error.format_message(), code)), file=sys.stderr)
        else:
            error.show()
        return code
    if debug:
        print_traceback(error)
    told = f"{type(error).__name__}: {error}"
    if out.as_json:
        print(json_line(usage_document(told, ExitCode.FAILED)), file=sys.stderr)
    else:
        print(one_line(f"error [internal]: {told}"), file=sys.stderr)
        print("  remedy: Run it again with --debug before the command to see the traceback.", file=sys.stderr)
    return ExitCode.FAILED
