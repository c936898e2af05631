"""Decides which acknowledgements of tasks count. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cairn.errors import EpochFailedError, IncompatibleStateError
from cairn.model.manifest import EpochContext, StateSpec, TaskAck


def accept(acks: Iterable[TaskAck], context: EpochContext, parallelism: Mapping[str, int]) -> dict[str, list[TaskAck]]:
    """The one acknowledgement of every subtask of every operator, by uid in the order of subtasks.

    * Of another epoch or run: late, ignored.
    * Started from another commit than the driver named: the epoch fails.
    * More than one per subtask (a stage that ran again, an output read twice): the newest attempt counts, provided
      that all of them made the same changes; otherwise readers of the output may have seen either, and the epoch fails.
    * None for a subtask (only a part of the output was read): the epoch fails.
    """
    newest: dict[tuple[str, int], TaskAck] = {}
    for ack in acks:
        if ack.epoch != context.epoch or ack.run != context.run:
            continue
        if ack.base_commit != context.parent_commit:
            raise EpochFailedError(
                f"operator '{ack.uid}', subtask {ack.subtask}: it started from commit {ack.base_commit or 'none'} "
                f"instead of {context.parent_commit or 'none'}; epoch {context.epoch} is refused",
                uid=ack.uid,
            )
        known = newest.get((ack.uid, ack.subtask))
        if known is not None and _changes(known) != _changes(ack):
            raise EpochFailedError(
                f"operator '{ack.uid}', subtask {ack.subtask}: two attempts of epoch {context.epoch} made different "
                "changes (rows came in another order, or the function is not deterministic), so what was read of the "
                "first may not fit the second. The epoch is refused; start the job again to repeat it.",
                uid=ack.uid,
            )
        if known is None or ack.attempt > known.attempt:
            newest[ack.uid, ack.subtask] = ack
    accepted: dict[str, list[TaskAck]] = {}
    for uid, count in parallelism.items():
        missing = [subtask for subtask in range(count) if (uid, subtask) not in newest]
        if missing:
            raise EpochFailedError(
                f"operator '{uid}': {len(missing)} of {count} subtasks did not finish epoch {context.epoch} (first: "
                f"{missing[0]}). A sink that reads only a part of its rows, or an operator whose output no sink reads, "
                "causes this; the epoch is refused, the last "
                "committed one is intact.",
                uid=uid,
            )
        accepted[uid] = [newest[uid, subtask] for subtask in range(count)]
    return accepted


def _changes(ack: TaskAck) -> tuple[str, int] | None:
    """The checksum covers all that the attempt changed. The size does not serve: a file also names its attempt."""
    return None if ack.handle is None else (ack.handle.checksum, ack.handle.rows)


def merged_states(acks: Iterable[TaskAck]) -> list[StateSpec]:
    """The states of an operator as all its subtasks declared them."""
    merged: dict[str, StateSpec] = {}
    for ack in acks:
        for spec in ack.states:
            known = merged.setdefault(spec.name, spec)
            if known.signature != spec.signature:
                raise IncompatibleStateError(
                    f"operator '{ack.uid}', state '{spec.name}': one subtask declared a {known.signature}, another a "
                    f"{spec.signature}; declare states alike in every subtask",
                    uid=ack.uid,
                )
    return sorted(merged.values(), key=lambda spec: spec.name)
