"""What commands print: data on stdout, messages and errors on stderr, colour only where it is wanted.

One `Output` is made per command. It knows nothing of the commands themselves.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from cairn.cli.exit_codes import ExitCode, exit_code
from cairn.errors import CairnError, remedy
from cairn.text import one_line, printable

_COLOUR = re.compile(r"(\x1b\[(?:0|1|3[0-7]|9[0-7])m)")
"""What `typer.style` makes of a colour."""


_CAUSE_LINES = 24
QUIET_VARIABLE = "CAIRN_QUIET"
"""Set by --quiet."""


def _shown(text: str, stream: TextIO, safe: Callable[[str], str] = one_line) -> str:
    """A line as it may be printed: only the colours that `Output.style` makes are left, and only on a terminal."""
    if text.isprintable():
        return text
    if not wants_colour(stream):
        return safe(text)
    return "".join(part if _COLOUR.fullmatch(part) else safe(part) for part in _COLOUR.split(text))


def json_text(value: Any) -> str:
    """A JSON document for people and programs: what is not printable is escaped, which means the same to both."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def json_line(value: Any) -> str:
    """A JSON document in one line."""
    return json.dumps(value, default=str)


def problem_document(error: CairnError) -> dict[str, Any]:
    """An error as a problem document (RFC 9457), as REST tells it; `location` is the line of user code to look at."""
    facts = error.facts
    where = {name: facts[name] for name in ("file", "line", "function") if name in facts}
    return {
        "type": f"urn:cairn:error:{error.code}",
        "title": error.code.replace("-", " "),
        "detail": error.message,
        "code": error.code,
        "remedy": remedy(error) or "",
        "exit_code": int(exit_code(error)),
        "location": where or None,
        "cause": str(facts["traceback"]) if facts.get("traceback") else None,
    }


def usage_document(text: str, code: int) -> dict[str, Any]:
    """A problem document for an invalid command or an unexpected error."""
    kind = "usage" if code == ExitCode.USAGE else "internal"
    told = {"type": f"urn:cairn:error:{kind}", "title": kind, "detail": text, "code": kind}
    return {**told, "remedy": "", "exit_code": code, "location": None, "cause": None}


def quiet_wanted() -> bool:
    return os.environ.get(QUIET_VARIABLE, "") not in ("", "0")


def wants_colour(stream: TextIO) -> bool:
    """Colour on a terminal, unless NO_COLOR (no-color.org) or TERM=dumb says otherwise."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output:
    """Prints the result of one command. With `as_json` the only thing on stdout is JSON; an error is JSON on stderr."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet_wanted()

    def line(self, text: str = "") -> None:
        """A line of the result, for people; line breaks in it are shown as `\\n`. Nothing is printed when the result is
        JSON."""
        if not self.as_json:
            print(_shown(text, sys.stdout))

    def document(self, value: Any) -> None:
        """The whole result, for programs. Nothing is printed when the result is text."""
        if self.as_json:
            print(json_text(value))

    @property
    def columns(self) -> int:
        """How wide tables may be: as the terminal is, or wide enough for their text in a pipe."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else 240

    def table(self, table: Any) -> None:
        """A table of rich; plain text in a pipe, whatever the environment says of colours."""
        from rich.console import Console

        if sys.stdout.isatty():
            console = Console(no_color=not wants_colour(sys.stdout), highlight=False)
        else:
            console = Console(width=self.columns, no_color=True, highlight=False, force_terminal=False)
        console.print(table)

    def event(self, value: dict[str, Any]) -> None:
        """Something that happened, in one line, for programs. Nothing is printed when the result is text."""
        if self.as_json:
            print(json_line(value), flush=True)

    def message(self, text: str) -> None:
        """A line about the work that is not its result; --quiet leaves it out."""
        if not self.quiet:
            self._say(text)

    def _say(self, text: str, safe: Callable[[str], str] = one_line) -> None:
        print(_shown(text, sys.stderr, safe), file=sys.stderr, flush=True)

    def style(self, text: str, colour: str, *, stream: TextIO | None = None) -> str:
        if not wants_colour(stream or sys.stdout):
            return text
        import typer

        return typer.style(text, fg=colour, bold=True)

    def error(self, error: CairnError, *, debug: bool = False) -> None:
        """What failed, why and what to do next; the traceback only when asked for."""
        if debug:
            print_traceback(error)
        if self.as_json:
            self._say(json_line(problem_document(error)))
            return
        head = self.style(f"error [{error.code}]:", "red", stream=sys.stderr)
        self._say(f"{head} {_indent(error.message)}", printable)
        cause = error.facts.get("traceback") or error.facts.get("cause") or error.__cause__
        if cause is not None:
            text = f"{type(cause).__name__}: {cause}" if isinstance(cause, BaseException) else str(cause)
            self._say(f"  cause:  {_indent(text if debug else _shortened(text))}", printable)
        advice = remedy(error)
        if advice:
            self._say(f"  remedy: {_indent(advice)}", printable)


def print_traceback(error: BaseException) -> None:
    """On stderr, as Python prints it, without what a terminal would act upon."""
    print(printable("".join(traceback.format_exception(error)).rstrip()), file=sys.stderr)


def _shortened(text: str) -> str:
    """The end of a long traceback, where its cause stands, or the beginning of other long text."""
    lines = text.strip().splitlines()
    if len(lines) <= _CAUSE_LINES:
        return text
    left = f"... ({len(lines) - _CAUSE_LINES} more lines; --debug shows them)"
    if lines[0].startswith("Traceback"):
        return "\n".join([lines[0], left, *lines[1 - _CAUSE_LINES :]])
    return "\n".join([*lines[:_CAUSE_LINES], left])


def _indent(text: str) -> str:
    """Text of several lines, of which none after the first begins where lines of cairn do."""
    return text.strip().replace("\n", "\n          ")
