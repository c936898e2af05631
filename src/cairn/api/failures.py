"""Spark's words for what went wrong, in ours, and what a failure leaves for the next start."""

from __future__ import annotations

import contextlib
import re

from cairn.api.restore import damage
from cairn.errors import CairnError, CorruptFileError, IncompatibleStateError
from cairn.model.checkpoint import Checkpoint
from cairn.storage import layout
from cairn.storage.checkpoints import CheckpointStore
from cairn.storage.filesystem import FileSystem


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


def note_damage(files: FileSystem, failure: CorruptFileError) -> CorruptFileError:
    """Leave a mark that makes the next start read every byte, and say so; returns the error to be shown.

    It names the newest checkpoint that does not need what the error names, if there is one.
    """
    with contextlib.suppress(CairnError, FileExistsError):  # without the mark the same error comes once more
        files.create(layout.DAMAGED, failure.message.encode())
    told = "The next start of the job reads every byte of its state"
    usable = None
    with contextlib.suppress(CairnError):
        usable = next((c for c in reversed(CheckpointStore(files).current()) if _spared(files, c, failure)), None)
    if usable is None:
        told += "; no checkpoint without that file is there, so bring it back from a copy first."
    else:
        path = f"{files.root}/{layout.checkpoint_folder(usable.id)}"
        told += (
            f" and, where some is damaged, goes back to the newest intact checkpoint: {path}, unless that is damaged, "
            f"too. To go back to it by hand, `cairn run JOB.py -s {path}`."
        )
    made = CorruptFileError(f"{failure.message.rstrip('. ')}. {told}", **failure.facts)
    made.__cause__ = failure.__cause__
    return made


def _spared(files: FileSystem, checkpoint: Checkpoint, failure: CorruptFileError) -> bool:
    """Whether a checkpoint is whole, as far as can be seen quickly, and does not need a file that the error names."""
    named = any(path in failure.message for path in checkpoint.files())
    return not named and not damage(files, checkpoint.manifest, checkpoint=checkpoint)
