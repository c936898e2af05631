"""The loggers of cairn. Their records hold no control characters and begin no second line, whoever handles them.

Names, causes and answers of other systems go into the log. A line break in them would forge a line, an escape sequence
would steer the terminal of whoever reads it.
"""

from __future__ import annotations

import logging

from cairn.text import one_line, printable

_formatter = logging.Formatter()


class ForeignText(logging.Filter):
    """Belongs to the logger and not to a handler, so that the handlers of applications see safe records, too."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if not message.isprintable():
            record.msg, record.args = one_line(message), None
        if record.exc_info and record.exc_info[0] is not None:
            # Formatters take the text that is there. Its lines are indented: none looks like a record of its own.
            trace = printable(_formatter.formatException(record.exc_info))
            record.exc_text = "\n".join(f"  {line}" for line in trace.split("\n"))
        return True


_safe = ForeignText()


def get_logger(name: str) -> logging.Logger:
    """The logger of a part of cairn, such as `cairn.storage`."""
    logger = logging.getLogger(name)
    logger.addFilter(_safe)
    return logger
