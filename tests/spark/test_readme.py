"""The program of the README runs as printed, and does what the sentence below it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.programs import Program
from tests.support.readme_program import README, program, totals

LINES_BEFORE_THE_FOLD = 30


def test_first_screen_holds_the_commands_the_program_and_what_survives() -> None:
    top = "\n".join(README.read_text().splitlines()[: LINES_BEFORE_THE_FOLD - 1])
    for wanted in ("make demo", "make test", "pip install", "env.execute(", "kill it by any means"):
        assert wanted in top
    assert len(program().splitlines()) <= 17


def test_links_lead_somewhere() -> None:
    root = README.parent
    pages = [README, *root.glob("docs/**/*.md"), *root.glob("examples/*.md"), *root.glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.spark
@pytest.mark.kill
def test_program_goes_on_after_a_kill(tmp_path: Path) -> None:
    script = tmp_path / "payments.py"
    script.write_text(program())
    runs = []
    for _ in range(2):
        with Program(script, tmp_path) as run:
            runs.append(totals(run.wait_for(lambda lines: len(totals(lines)) >= 5)))
            run.kill()
    before, after = runs
    assert max(before) < min(after)
    for user in range(3):
        exact = [sum(range(user, user + 3 * count, 3)) for count in range(1, 1000)]
        places = [exact.index(total) for (_, who), total in sorted((before | after).items()) if who == user]
        assert places == sorted(set(places))
