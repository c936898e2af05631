"""The program in the README, and the totals that it prints."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
ROW = re.compile(r"(\d+)> user=(\d), total=(\d+)")


def program() -> str:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def totals(lines: list[str]) -> dict[tuple[int, int], int]:
    """The last total of each user in each epoch that was printed whole. Within an epoch rows come in any order."""
    cut = {int(line.split(">")[0]) for line in lines if "> ... and" in line}
    found: dict[tuple[int, int], int] = {}
    for match in filter(None, map(ROW.match, lines)):
        epoch, user, total = map(int, match.groups())
        if epoch not in cut:
            found[epoch, user] = max(total, found.get((epoch, user), 0))
    return found
