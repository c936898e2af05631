"""The task that brings state of a checkpoint into a job: it merges one range, converts its states and writes snapshots.

States that need no conversion go from section to section; the others pass through `state/typed_tables.py`.
Memory follows the largest key group.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from cairn.errors import CairnError, CorruptFileError
from cairn.model.ddl import parse_keys
from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import OperatorState, StateHandle, StateSpec
from cairn.runtime.operator_state import without_waiting
from cairn.snapshots.moved_range import MovedRange
from cairn.state.expiry import alive
from cairn.state.section_changes import ChainFiles
from cairn.state.typed_tables import table_schema, to_section, to_table
from cairn.storage import layout
from cairn.storage.chain_merge import compact, write_snapshot
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import open_filesystem
from cairn.storage.manifest_store import writer_of
from cairn.storage.state_file import Section, StateFile


@dataclass(frozen=True, kw_only=True)
class RewriteWork(MovedRange):
    """A range of a checkpoint to be brought into a job; `operator` is an `OperatorState`."""

    source_dir: str
    checkpoint: int


def rewrite_range(work: RewriteWork) -> list[bytes]:
    """Returns encoded `StateHandle`s of snapshots that cover the range."""
    operator = msgspec.msgpack.decode(work.operator, type=OperatorState)
    groups = KeyGroupRange(work.first_group, work.last_group)
    files = open_filesystem(work.job_dir)
    handles = [handle for handle in operator.chain if handle.groups.intersects(groups)]
    specs = {spec.name: spec for spec in operator.states}
    writer = writer_of(files, work.uid, work.run)
    made = []
    for covered, sections in compact(_opener(work, operator.uid), handles, groups, specs, work.now_ms):
        path = layout.snapshot_path(work.uid, work.epoch, work.run, covered.start, uuid.uuid4().hex[:8])
        rewritten = list(_rewritten(work, operator, specs, sections))
        made.append(msgspec.msgpack.encode(write_snapshot(files, path, work.epoch, covered, rewritten, writer)))
    return made


def _rewritten(
    work: RewriteWork, operator: OperatorState, specs: Mapping[str, StateSpec], sections: Sequence[Section]
) -> Iterator[Section]:
    by_state: dict[str, list[Section]] = {}
    for section in sections:
        by_state.setdefault(section.table, []).append(section)
    keys = parse_keys(operator.key_type)
    for state, parts in by_state.items():
        stored, wanted = specs.get(state), work.states.get(state)
        if stored is None or wanted is None:
            raise CorruptFileError(f"operator '{operator.uid}' has rows of the undeclared state '{state}'")
        if stored.signature == wanted.signature:
            for part in parts:
                yield Section(wanted.name, part.kind, part.storage, part.ttl, part.data, part.group)
            continue
        first = parts[0]
        whole = Section(state, first.kind, first.storage, first.ttl, pa.concat_tables([part.data for part in parts]))
        columns, _ = table_schema(keys, stored)
        try:
            table = to_table(without_waiting(whole, stored), keys, stored)
            if not wanted.ttl_ms:  # with the time to live goes the time: what has expired must not come back
                table = alive(table, columns.last_access, stored.ttl_ms, work.now_ms, work.time_reset_ms)
            convert = work.converters.get(state)
            if convert is not None:
                at = table.column_names.index(columns.value)
                table = table.set_column(at, columns.value, convert(table.column(at)))
            yield to_section(table, columns, keys, wanted, work.max_parallelism, work.now_ms)
        except CairnError as error:
            raise type(error)(f"operator '{operator.uid}', {error.message}", **error.facts) from error


def _opener(work: RewriteWork, uid: str) -> Callable[[StateHandle], StateFile]:
    files = open_filesystem(work.source_dir)
    checkpoint = CheckpointStore(files).load(work.checkpoint)
    state_files = ChainFiles(files, None, checkpoint.manifest.incarnation)

    def opened(handle: StateHandle) -> StateFile:
        if handle.path:
            return state_files.open(uid, handle)
        data = checkpoint.inlined_bytes(uid, handle)
        if data is None:
            raise CorruptFileError(f"{checkpoint.info.path} lacks the state of operator '{uid}'", uid=uid)
        return state_files.inlined(uid, handle, data, f"inlined in checkpoint {work.checkpoint}")

    return opened
