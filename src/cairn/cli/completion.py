"""What the shell offers after a Tab: names of jobs. Must be quick and must never raise."""

from __future__ import annotations

import os

from cairn.config.settings import DEFAULT_DIRECTORY


def job_names(incomplete: str) -> list[str]:
    """Jobs of the default directory; their folders are named after their ids."""
    try:
        with os.scandir(DEFAULT_DIRECTORY) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name.startswith(incomplete) and os.path.exists(os.path.join(entry.path, "job.json"))
            )
    except OSError:
        return []
