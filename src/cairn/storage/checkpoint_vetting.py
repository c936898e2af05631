"""What the metadata of a checkpoint may say. It is looked at before anything is done with it.

Its checksum proves that it is as it was written, not who wrote it: a checkpoint may come from elsewhere, so none of its
numbers and names is believed. What its files hold is compared with it where they are read.
"""

from __future__ import annotations

from collections.abc import Iterator

from cairn.errors import CorruptFileError, IncompatibleStateError, InvalidInputError
from cairn.model.checkpoint_records import Checkpoint
from cairn.model.keygroups import MAX_PARALLELISM_LIMIT
from cairn.model.limits import MAX_TIME_MS, wrong_entry, wrong_numbers, wrong_state
from cairn.model.manifest import Manifest, OperatorState, StateHandle
from cairn.storage import layout


def check_checkpoint(checkpoint: Checkpoint, name: str) -> None:
    """Raise the error that names the file if it needs what this cairn does not have, contradicts itself, or points
    outside of the job's directory."""
    needed = checkpoint.manifest.requires
    if needed:
        raise IncompatibleStateError(
            f"{name} needs features that this cairn does not have: {', '.join(needed)}", path=name
        )
    why = next(_wrong(checkpoint), "")
    if why:
        raise CorruptFileError(f"{name} is refused: {why}", path=name)


def _wrong(checkpoint: Checkpoint) -> Iterator[str]:
    told, info = checkpoint.manifest, checkpoint.info
    why = wrong_numbers(told.epoch, told.time_ms, told.watermark)
    if why:
        yield why
    if not 1 <= told.max_parallelism <= MAX_PARALLELISM_LIMIT:
        yield f"a max parallelism of {told.max_parallelism} is impossible"
    if not (0 <= info.trigger_ms <= MAX_TIME_MS and 0 <= info.end_ms <= MAX_TIME_MS):
        yield f"triggered at {info.trigger_ms} and ended at {info.end_ms} milliseconds is impossible"
    if not layout.is_spark(told.spark):
        yield f"{told.spark!r} is not a folder of Spark's logs"
    if any(not -1 <= first <= last <= told.epoch for first, last in told.abandoned):
        yield f"it cannot have given up the epochs {told.abandoned}"
    for entry in (told.offsets, checkpoint.in_flight):
        # Without names of sources there may be none: then the text tells one epoch from another, and nothing else.
        why = wrong_entry(entry) if entry and (told.source_names or "\n" in entry) else ""
        if why:
            yield f"its source positions are not an entry of Spark's offset log: {why}"
    uids = [operator.uid for operator in told.operators]
    if len(set(uids)) != len(uids):
        yield "an operator appears twice"
    for operator in told.operators:
        yield from _wrong_operator(operator, told)


def _wrong_operator(operator: OperatorState, told: Manifest) -> Iterator[str]:
    if not 1 <= operator.parallelism <= told.max_parallelism:
        yield f"a parallelism of {operator.parallelism} of operator {operator.uid!r} is impossible"
    if not -1 <= operator.base <= told.epoch:
        yield f"operator {operator.uid!r} cannot have come into the job at epoch {operator.base}"
    names = [spec.name for spec in operator.states]
    if len(set(names)) != len(names):
        yield f"a state of operator {operator.uid!r} appears twice"
    try:
        layout.checked(operator.uid, "uid")
        for name in names:
            layout.table_folder(operator.uid, name)
    except InvalidInputError as error:
        yield error.message
    yield from filter(None, (wrong_state(spec, operator.key_type) for spec in operator.states))
    for handle in operator.chain:
        if _impossible(handle, told):
            yield f"a state file of operator {operator.uid!r} cannot be as it says: {handle}"


def _impossible(handle: StateHandle, told: Manifest) -> bool:
    return (
        bool(handle.path and not layout.is_state_path(handle.path))
        or not 0 <= handle.first_group <= handle.last_group < told.max_parallelism
        or not 0 <= handle.epoch <= told.epoch
        or min(handle.size, handle.rows) < 0
    )
