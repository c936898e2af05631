"""Foreign text (names, keys, values, causes of failures) made safe for whoever shows it.

Every page, terminal, notebook, log and table goes through these functions. JSON does not: it has escapes of its own.
"""

from __future__ import annotations

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_FORMULAS = tuple("=+-@\uff1d\uff0b\uff0d\uff20\t\r")


def printable(text: str) -> str:
    """Text of several lines without what a terminal would act upon: control characters, and those that turn writing."""
    if text.replace("\n", "").replace("\t", "").isprintable():  # as whole pages are
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else escaped(c) for c in text)


def one_line(text: str) -> str:
    """Text that cannot begin another line either."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _SHORT.get(c) or escaped(c) for c in text)


def escaped(character: str) -> str:
    """A character by its number, as Python writes it."""
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"


def no_formula(text: str) -> str:
    """Text of a CSV file with an apostrophe before it if a spreadsheet would take it for a formula (OWASP, CSV
    injection)."""
    return f"'{text}" if text.startswith(_FORMULAS) or text.lstrip().startswith(_FORMULAS) else text
