"""Spark's words for what went wrong, in ours."""

from __future__ import annotations

import re

from cairn.errors import IncompatibleStateError


def other_sources(text: str) -> IncompatibleStateError | None:
    """What Spark means when the number of sources is not that of its log."""
    found = re.search(r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\]", text)
    if found is None:
        return None
    return IncompatibleStateError(
        f"the job was started with {found.group(1)} source(s) and now has {found.group(2)}; their positions are kept "
        "by number, so it cannot go on. Read as many sources as before: a stream that feeds two branches counts twice, "
        "and the first operator with on_timer adds one. Or stop it with a savepoint and start from that: there, "
        "sources may change. The stored state is intact.",
    )


def first_lines(text: str) -> str:
    """The beginning of a long text."""
    return "\n".join(text.strip().splitlines()[:8])
