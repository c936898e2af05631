"""What of a job's history a run continues from: `bases/<run>`, written once, before the run does anything else.

A run that was overtaken may still create a manifest or complete a checkpoint. What it adds after a newer run has
written its base does not count for anybody. See docs/design/0008-late-runs.md.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from cairn.errors import CorruptFileError, NotFoundError
from cairn.storage import layout
from cairn.storage.filesystem import FileSystem


class Base(msgspec.Struct, frozen=True):
    """The end of the history when a run took the job."""

    run: int
    epoch: int = -1
    """The newest committed epoch; -1 if there was none."""
    commit_id: str = ""
    checkpoints: list[int] = []
    """The completed checkpoints."""

    def voids(self, run: int, commit_id: str) -> bool:
        """Whether a manifest came too late. Of a run that found nothing there is nothing to protect: if an older run
        commits the first epoch after all, it counts until the newer one commits."""
        return self.epoch >= 0 and run < self.run and commit_id != self.commit_id


def record_base(files: FileSystem, base: Base) -> None:
    with suppress(FileExistsError):  # of the same run: its answer was lost
        files.create(layout.base_path(base.run), msgspec.json.encode(base))


def newest_base(files: FileSystem) -> Base | None:
    """The base of the newest run that has one. A listing may lag, so the next one is asked for by name."""
    numbers = sorted(n for n in (layout.number_of(info.path) for info in files.list(layout.BASES)) if n is not None)
    while files.exists(layout.base_path(following := numbers[-1] + 1 if numbers else 1)):
        numbers.append(following)
    for number in reversed(numbers):
        with suppress(NotFoundError, CorruptFileError, msgspec.MsgspecError):
            return msgspec.json.decode(files.read(layout.base_path(number)), type=Base)
    return None
