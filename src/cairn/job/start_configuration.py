"""What a start takes over from earlier runs of the job, and what it will discard: said before anything happens."""

from __future__ import annotations

from cairn.config import CheckpointSettings, Settings
from cairn.config.remembered_options import overrides, recalled, taken_over
from cairn.job.retention import keeps_checkpoints
from cairn.logs import get_logger
from cairn.restore.recovery import Recovered
from cairn.storage import layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import FileSystem
from cairn.storage.manifest_store import load_identity
from cairn.storage.run_records import Runs

_log = get_logger("cairn.job")


def recall(files: FileSystem, name: str, settings: Settings) -> Settings:
    """The settings of a start: what is set now, else what the job remembers, else the defaults. Says what differs."""
    identity = load_identity(files)
    if identity is None or identity.name != name:
        return recalled(settings, {}, files.root)
    runs = Runs(files)
    known = runs.configuration()
    effective = recalled(settings, known, f"{files.root}/{layout.run_path(runs.newest())}")
    for change in overrides(effective, known):
        _log.warning("job %s: %s", name, change)
    remembered = taken_over(effective, known)
    if remembered:
        _log.warning("job %s keeps its configuration of earlier runs: %s", name, ", ".join(remembered))
    return effective


def announce_discards(store: CheckpointStore, name: str, recovered: Recovered, settings: CheckpointSettings) -> str:
    """Say which checkpoints of earlier runs this one will discard, and when; returns what was said.

    That one old checkpoint goes for each new one is what the retention is for, and is not mentioned, except after a
    restore in place: whoever goes back may want to go back once more.
    """
    manifest = recovered.manifest
    restored = manifest is not None and manifest.run == recovered.run.run and manifest.restored > 0
    if not restored and len(store.numbers()) <= settings.num_retained:
        return ""
    numbers = _order(store)
    if not numbers:
        return ""
    said = []
    going = numbers[: max(0, len(numbers) + 1 - settings.num_retained)]
    if going:
        said.append(
            f"the next completed checkpoint discards {_listed(going)}, since execution.checkpointing.num-retained is "
            f"{settings.num_retained}"
        )
    if not keeps_checkpoints(settings.retention, canceled=True, failure=None):
        said.append(
            f"canceling the job discards all of them, since execution.checkpointing.externalized-checkpoint-retention "
            f"is {settings.retention}"
        )
    if not said:
        return ""
    text = (
        f"job {name} has {_listed(numbers)} of earlier runs: {'; '.join(said)}. To keep them, set the option with -D."
    )
    _log.warning("%s", text)
    return text


def _order(store: CheckpointStore) -> list[int]:
    """Readable checkpoints in the order in which they go: first those that a restore in place gave up."""
    checkpoints = store.all()
    current = {checkpoint.id for checkpoint in store.current_of(checkpoints)}
    return sorted((checkpoint.id for checkpoint in checkpoints), key=lambda number: (number in current, number))


def _listed(numbers: list[int]) -> str:
    names = [layout.checkpoint_folder(number) for number in sorted(numbers)]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
