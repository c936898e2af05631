"""Deliberately broken versions of the protocol. The simulation must find each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from cairn.connectors.file_sink import FileSink
from cairn.coordinator import compactor, epoch_loop
from cairn.coordinator.acks import accept
from cairn.job import retention
from cairn.model.manifest import Garbage, TaskAck
from cairn.restore import newest_epoch, recovery, restored_epoch
from cairn.runtime import task
from cairn.snapshots import compact_task
from cairn.spark import savepoint_writer
from cairn.state import expiry, timer_table
from cairn.state.section_changes import changes_of
from cairn.storage import chain_merge as compaction_files
from cairn.storage import cleanup, layout
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.cleanup import Pins, collect, plan_garbage
from cairn.storage.manifest_store import ManifestStore
from cairn.storage.run_records import Runs
from cairn.testing.simulation import simulated_spark

Patch = pytest.MonkeyPatch


def fence_is_ignored(patch: Patch) -> None:
    patch.setattr(Runs, "check", lambda self, mine: None)


def no_look_after_the_commit(patch: Patch) -> None:
    """The state of the code before late runs were made harmless: the last look is before the create."""
    step = epoch_loop.EpochLoop.step

    class Blind:
        def check(self, mine: int) -> None:
            return None

    def wrapped(self: Any, name: str, epoch: int) -> None:
        if name == "committed":
            self._seeing, self._runs = self._runs, Blind()
        elif name in ("published", "begin") and hasattr(self, "_seeing"):
            self._runs = self._seeing
        step(self, name, epoch)

    patch.setattr(epoch_loop.EpochLoop, "step", wrapped)


def output_is_shown_before_the_commit(patch: Patch) -> None:
    planned = epoch_loop.EpochLoop._with_garbage

    def wrapped(self: Any, manifest: Any, pins: Any) -> Any:
        self._publish(manifest.sinks, manifest.epoch)
        return planned(self, manifest, pins)

    patch.setattr(epoch_loop.EpochLoop, "_with_garbage", wrapped)


def garbage_is_deleted_before_the_commit(patch: Patch) -> None:
    planned = epoch_loop.EpochLoop._with_garbage

    def wrapped(self: Any, manifest: Any, pins: Any) -> Any:
        made = planned(self, manifest, pins)
        collect(self._manifests, made.garbage)
        return made

    patch.setattr(epoch_loop.EpochLoop, "_with_garbage", wrapped)


def a_manifest_may_be_overwritten(patch: Patch) -> None:
    publish = ManifestStore.publish

    def wrapped(self: ManifestStore, manifest: Any) -> None:
        self.delete(manifest.epoch)
        publish(self, manifest)

    patch.setattr(ManifestStore, "publish", wrapped)


def a_restore_reuses_epoch_numbers(patch: Patch) -> None:
    for module in (recovery, restored_epoch):
        patch.setattr(module, "next_epoch", lambda snapshot, files: snapshot.epoch + 1)


def expiry_ignores_checkpoints(patch: Patch) -> None:
    def wrapped(manifests: Any, retained: int, pins: Pins, left: Garbage) -> Garbage:
        return plan_garbage(manifests, retained, Pins(released=pins.released), left)

    patch.setattr(epoch_loop, "plan_garbage", wrapped)


def expiry_ignores_inlined_state(patch: Patch) -> None:
    def wrapped(manifests: Any, retained: int, pins: Pins, left: Garbage) -> Garbage:
        planned = plan_garbage(manifests, retained, pins, left)
        return Garbage(planned.files, sorted(manifests)[:-retained])

    patch.setattr(epoch_loop, "plan_garbage", wrapped)


def expiry_keeps_one_epoch_less(patch: Patch) -> None:
    def wrapped(manifests: Any, retained: int, pins: Pins, left: Garbage) -> Garbage:
        return plan_garbage(manifests, max(1, retained - 1), pins, left)

    patch.setattr(epoch_loop, "plan_garbage", wrapped)


def snapshots_are_acknowledged_before_they_are_written(patch: Patch) -> None:
    write = compaction_files.write_snapshot

    class Nowhere:
        def create(self, path: str, data: Any) -> None:
            return None

    def wrapped(files: Any, path: str, *more: Any) -> Any:
        return write(Nowhere() if path.startswith("chk-") else files, path, *more)  # type: ignore[arg-type]

    patch.setattr(compact_task, "write_snapshot", wrapped)


def late_acknowledgements_count(patch: Patch) -> None:
    def wrapped(acks: list[TaskAck], context: Any, parallelism: Any) -> Any:
        newest: dict[Any, TaskAck] = {}
        for ack in acks:
            own = {"epoch": context.epoch, "run": context.run, "base_commit": context.parent_commit}
            newest[ack.uid, ack.subtask] = msgspec.structs.replace(ack, **own)
        return accept(list(newest.values()), context, parallelism)

    patch.setattr(epoch_loop, "accept", wrapped)


def rolling_forward_shows_nothing(patch: Patch) -> None:
    forward = epoch_loop.EpochLoop._roll_forward

    def wrapped(self: Any, epoch: int, began: float) -> None:
        sinks, self._publish = self._publish, lambda committables, epoch: None
        try:
            forward(self, epoch, began)
        finally:
            self._publish = sinks

    patch.setattr(epoch_loop.EpochLoop, "_roll_forward", wrapped)


def a_second_commit_of_a_sink_shows_again(patch: Patch) -> None:
    def wrapped(self: Any, data: list[dict[str, Any]], epoch: int) -> None:
        for move in data:
            target = move["to"]
            if self._files.exists(target):
                target = target.replace("part-", "part-", 1).replace(".json", "-again.json")
                self._files.create(target, self._files.read(move["to"]))
            else:
                self._files.move(move["from"], target)

    patch.setattr(FileSink, "commit", wrapped)


def sweeps_forget_checkpoints(patch: Patch) -> None:
    orphans = cleanup.orphans

    def wrapped(present: Any, manifests: Any, now: float, guard: float, pins: Pins) -> list[Any]:
        return orphans(present, manifests, now, -1e6, Pins())

    patch.setattr(cleanup, "orphans", wrapped)


def a_compaction_replaces_what_came_after_it(patch: Patch) -> None:
    shortened = compactor.Compactor.shortened

    def wrapped(self: Any, uid: str, chain: list[Any], epoch: int) -> list[Any]:
        made = shortened(self, uid, chain, epoch)
        return [handle for handle in made if handle.snapshot] if made != chain else chain

    patch.setattr(compactor.Compactor, "shortened", wrapped)


def the_working_store_is_ahead_of_the_commit(patch: Patch) -> None:
    write = task._write_delta

    def wrapped(uid: str, sections: Any, *more: Any) -> Any:
        actor = simulated_spark.Memory.scheduler.current
        for path, backend in (actor.worker.stores if actor is not None else {}).items():
            if path.endswith("values"):
                backend.apply([changes_of(section) for section in sections], backend.version())
        return write(uid, sections, *more)

    patch.setattr(task, "_write_delta", wrapped)


def recovery_takes_an_older_manifest(patch: Patch) -> None:
    newest = newest_epoch.newest_epoch

    def wrapped(files: Any, run: int | None = None) -> Any:
        found = newest(files, run)
        if found is None or not found.epoch or not files.exists(layout.epoch_path(found.epoch - 1)):
            return found
        return ManifestStore(files).load(found.epoch - 1)

    for module in (recovery, newest_epoch):
        patch.setattr(module, "newest_epoch", wrapped)


def checkpoints_go_before_the_next_is_complete(patch: Patch) -> None:
    complete = CheckpointStore.complete

    def wrapped(self: CheckpointStore, checkpoint: Any) -> None:
        for number in self.numbers():
            if number not in (checkpoint.retained or ()):
                self.discard(number)
        complete(self, checkpoint)

    patch.setattr(CheckpointStore, "complete", wrapped)


def a_request_makes_a_savepoint_every_time(patch: Patch) -> None:
    tokens = (f"{number:012x}" for number in itertools.count())
    patch.setattr(savepoint_writer, "request_token", lambda *named: next(tokens))


def a_savepoint_lacks_the_newest_changes(patch: Patch) -> None:
    work = savepoint_writer._work

    def wrapped(job_dir: str, manifest: Any, operator: Any, target: str) -> Any:
        older = msgspec.structs.replace(operator, chain=operator.chain[:-1] or operator.chain)
        return work(job_dir, manifest, older, target)

    patch.setattr(savepoint_writer, "_work", wrapped)


def an_attempt_at_a_savepoint_clears_the_directory(patch: Patch) -> None:
    patch.setattr(layout, "is_attempt", lambda name, token: True)


def discards_are_not_written_down(patch: Patch) -> None:
    patch.setattr(CheckpointStore, "record_discards", lambda self, run, numbers: None)


def discards_do_not_look_for_a_newer_run(patch: Patch) -> None:
    class Blind:
        def __init__(self, files: Any) -> None:
            pass

        def check(self, mine: int) -> None:
            return None

    patch.setattr(retention, "Runs", Blind)


def at_least_once_shows_only_what_is_rolled_forward(patch: Patch) -> None:
    run = epoch_loop.EpochLoop._run_epoch

    def wrapped(self: Any, frame: Any, epoch: int) -> None:
        if self._settings.checkpoints.mode == "AT_LEAST_ONCE" and not self._manifests.exists(epoch):
            self._publish = lambda committables, epoch: None
        try:
            run(self, frame, epoch)
        finally:
            self.__dict__.pop("_publish", None)

    patch.setattr(epoch_loop.EpochLoop, "_run_epoch", wrapped)


def timers_that_fired_are_not_removed(patch: Patch) -> None:
    fire = timer_table.TimerTable.fire

    def wrapped(self: Any, *given: Any) -> int:
        count = fire(self, *given)
        self._removed.clear()
        return count

    patch.setattr(timer_table.TimerTable, "fire", wrapped)


def state_expires_a_moment_late(patch: Patch) -> None:
    def expired(self: Any, time: int | None) -> bool:
        return time is not None and time + self.length + 20 <= self.clock

    patch.setattr(expiry.Ttl, "expired", expired)


SEEDS = {
    "fence_is_ignored": 1000,
    "no_look_after_the_commit": 1003,
    "output_is_shown_before_the_commit": 1000,
    "garbage_is_deleted_before_the_commit": 1001,
    "a_manifest_may_be_overwritten": 1009,
    "a_restore_reuses_epoch_numbers": 1003,
    "expiry_ignores_checkpoints": 1001,
    "expiry_ignores_inlined_state": 1001,
    "expiry_keeps_one_epoch_less": 1001,
    "snapshots_are_acknowledged_before_they_are_written": 1001,
    "late_acknowledgements_count": 1074,
    "rolling_forward_shows_nothing": 1011,
    "a_second_commit_of_a_sink_shows_again": 1005,
    "sweeps_forget_checkpoints": 1002,
    "a_compaction_replaces_what_came_after_it": 1001,
    "the_working_store_is_ahead_of_the_commit": 1001,
    "recovery_takes_an_older_manifest": 1001,
    "checkpoints_go_before_the_next_is_complete": 1001,
    "a_request_makes_a_savepoint_every_time": 1029,
    "a_savepoint_lacks_the_newest_changes": 1002,
    "an_attempt_at_a_savepoint_clears_the_directory": 1005,
    "discards_are_not_written_down": 1043,
    "discards_do_not_look_for_a_newer_run": 1071,
    "at_least_once_shows_only_what_is_rolled_forward": 1006,
    "timers_that_fired_are_not_removed": 1031,
    "state_expires_a_moment_late": 1036,
}
"""Seeds that found each mutation at once when they were written down. Where one does not any more, the tests search."""
MUTATIONS: list[Callable[[Patch], None]] = [
    fence_is_ignored,
    no_look_after_the_commit,
    output_is_shown_before_the_commit,
    garbage_is_deleted_before_the_commit,
    a_manifest_may_be_overwritten,
    a_restore_reuses_epoch_numbers,
    expiry_ignores_checkpoints,
    expiry_ignores_inlined_state,
    expiry_keeps_one_epoch_less,
    snapshots_are_acknowledged_before_they_are_written,
    late_acknowledgements_count,
    rolling_forward_shows_nothing,
    a_second_commit_of_a_sink_shows_again,
    sweeps_forget_checkpoints,
    a_compaction_replaces_what_came_after_it,
    the_working_store_is_ahead_of_the_commit,
    recovery_takes_an_older_manifest,
    checkpoints_go_before_the_next_is_complete,
    a_request_makes_a_savepoint_every_time,
    a_savepoint_lacks_the_newest_changes,
    an_attempt_at_a_savepoint_clears_the_directory,
    discards_are_not_written_down,
    discards_do_not_look_for_a_newer_run,
    at_least_once_shows_only_what_is_rolled_forward,
    timers_that_fired_are_not_removed,
    state_expires_a_moment_late,
]


@contextmanager
def broken(mutation: Callable[[Patch], None]) -> Iterator[None]:
    """The protocol with one mutation while the context lasts."""
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        yield
