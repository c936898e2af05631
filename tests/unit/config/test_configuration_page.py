"""docs/configuration.md lists every option, in the words of `cairn.config.OPTIONS`."""

from __future__ import annotations

from pathlib import Path

from cairn.config import ALIASES, OPTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text().splitlines()


def test_every_option_has_its_row() -> None:
    wanted = [f"| `{key}` | {meaning} |" for key, (_, _, meaning) in OPTIONS.items()]
    missing = [row for row in wanted if row not in PAGE]
    assert not missing, "add or change these rows of docs/configuration.md:\n" + "\n".join(missing)


def test_every_older_name_has_its_row() -> None:
    missing = [f"| `{old}` | `{new}` |" for old, new in ALIASES.items() if f"| `{old}` | `{new}` |" not in PAGE]
    assert not missing, "add these rows to docs/configuration.md:\n" + "\n".join(missing)


def test_no_option_is_made_up() -> None:
    known = {*OPTIONS, "pipeline.global-job-parameters.<name>", "spark.<anything>"}
    start = PAGE.index("## Options")
    end = PAGE.index("## Older names")
    listed = {line.split("`")[1] for line in PAGE[start:end] if line.startswith("| `")}
    assert listed == known
