"""Compaction: a merged chain shows what the chain shows."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.coordinator.compactor import Compactor
from cairn.model.keygroups import KeyGroupRange
from cairn.model.manifest import Manifest, OperatorState, StateHandle, StateSpec
from cairn.model.types import Storage
from cairn.state.memory_backend import MemoryBackend
from cairn.state.section_changes import changes_of
from cairn.storage import chain_merge, state_file
from cairn.storage.chain_merge import compact, merged
from cairn.storage.state_file import ARROW_STORAGE, Section, StateFile, sorted_table

KEYS = [group.to_bytes(2, "big") + name for group in (0, 1, 5, 127) for name in (b"", b"a", b"\xff")]
ENTRIES = [b"", b"\x00", b"a", b"ab"]


def values(draw: Any, storage: Storage) -> Any:
    return draw({
        Storage.INT: st.integers(-(2**63), 2**63 - 1),
        Storage.FLOAT: st.floats(allow_nan=False),
        Storage.TEXT: st.text(max_size=5),
        Storage.BYTES: st.binary(max_size=5),
    }[storage])  # fmt: skip


@st.composite
def value_sections(draw: Any, storage: Storage, ttl: bool) -> Section:
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=8, unique=True))
    drawn = [None if draw(st.booleans()) else values(draw, storage) for _ in keys]
    columns: dict[str, Any] = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(drawn, ARROW_STORAGE[storage]),
    }
    if ttl:
        columns["time"] = pa.array([draw(st.integers(0, 100)) for _ in keys], pa.int64())
    return Section(f"value-{storage.value}", "value", storage, ttl, sorted_table(columns))


@st.composite
def entry_sections(draw: Any, kind: str, ttl: bool) -> Section:
    rows = draw(
        st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(ENTRIES)), min_size=1, max_size=10, unique=True)
    )
    cleared = draw(st.lists(st.sampled_from(KEYS), max_size=3, unique=True)) if kind != "timer" else []
    columns: dict[str, Any] = {
        "key": pa.array([*cleared, *(key for key, _ in rows)], pa.binary()),
        "entry": pa.array([*([None] * len(cleared)), *(entry for _, entry in rows)], pa.binary()),
        "value": pa.array(
            [*([None] * len(cleared)), *(None if draw(st.booleans()) else values(draw, Storage.BYTES) for _ in rows)],
            pa.binary(),
        ),
    }
    if ttl:
        columns["time"] = pa.array(
            [None if i < len(cleared) else i for i in range(len(cleared) + len(rows))], pa.int64()
        )
    return Section(f"{kind}-table", kind, Storage.BYTES, ttl, sorted_table(columns))


@st.composite
def deltas(draw: Any) -> list[Section]:
    """The sections of one delta: some of several tables."""
    candidates = [
        value_sections(Storage.INT, False),
        value_sections(Storage.TEXT, True),
        value_sections(Storage.FLOAT, False),
        entry_sections("map", True),
        entry_sections("list", False),
        entry_sections("timer", False),
    ]
    return [draw(made) for made in candidates if draw(st.booleans())]


def applied(sections: list[Section]) -> dict[str, list[tuple[bytes, bytes]]]:
    backend = MemoryBackend("")
    for section in sections:
        backend.apply([changes_of(section)], "1")
    tables = {section.table for section in sections}
    return {table: rows for table in sorted(tables) if (rows := list(backend.scan(table)))}


def run_compaction(
    chain: list[list[Section]], groups: KeyGroupRange, specs: dict[str, StateSpec], now: int = 0
) -> list[tuple[KeyGroupRange, list[Section]]]:
    files = {}
    handles = []
    for epoch, sections in enumerate(chain):
        data, checksum = state_file.encode(sections)
        handles.append(StateHandle(epoch, 0, 127, len(data), checksum, str(epoch)))
        files[str(epoch)] = StateFile(data, str(epoch), checksum, len(data))
    return list(compact(lambda handle: files[handle.path], handles, groups, specs, now))


@settings(max_examples=150, deadline=None)
@given(st.lists(deltas(), min_size=1, max_size=5), st.sampled_from([[127], [0, 127], [3, 60, 127]]), st.booleans())
def test_a_merged_chain_equals_the_chain(chain: list[list[Section]], ends: list[int], tiny: bool) -> None:
    start = 0
    found: list[Section] = []
    before = chain_merge.FILE_BYTES
    chain_merge.FILE_BYTES = 1 if tiny else before
    try:
        for end in ends:
            covered = run_compaction(chain, KeyGroupRange(start, end), {})
            assert covered[0][0].start == start
            assert covered[-1][0].end == end
            for one, two in pairwise(covered):
                assert two[0].start == one[0].end + 1
            for groups, sections in covered:
                for section in sections:
                    assert groups.contains(section.group)
                    assert section.data.column("value").null_count == 0
                    found.append(read_back(section))
            start = end + 1
    finally:
        chain_merge.FILE_BYTES = before
    expected = applied([section for delta in chain for section in delta])
    assert applied(found) == expected
    # Deltas that come after a snapshot apply to it as they did to the chain.
    again = applied(found + chain[-1])
    assert again == applied([section for delta in [*chain, chain[-1]] for section in delta])


def read_back(section: Section) -> Section:
    """A section as it comes out of a file."""
    data, checksum = state_file.encode([section])
    file = StateFile(data, "x", checksum, len(data))
    return file.read(file.sections[0])


@settings(max_examples=100, deadline=None)
@given(st.lists(deltas(), min_size=1, max_size=4), st.sampled_from([(0, 127), (0, 3), (1, 60)]))
def test_merging_all_key_groups_at_once_gives_the_same_sections_as_merging_one_after_the_other(
    chain: list[list[Section]], ends: tuple[int, int]
) -> None:
    snapshots = [
        section for _, sections in run_compaction(chain[:1], KeyGroupRange(0, 127), {}) for section in sections
    ]
    for files in (chain, [snapshots, *chain]):
        made = []
        for most in (1000, -1):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(chain_merge, "_FEW_ROWS", most)
                covered = run_compaction(files, KeyGroupRange(*ends), {})
            made.append([(groups, [read_back(section) for section in sections]) for groups, sections in covered])
        assert made[0] == made[1]


@pytest.mark.parametrize("most", [1000, -1])
def test_a_chain_may_be_compacted_again_with_snapshots_in_it(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(chain_merge, "_FEW_ROWS", most)
    first = [
        section
        for _, sections in run_compaction([[int_section({KEYS[0]: 1, KEYS[1]: 2})]], KeyGroupRange(0, 127), {})
        for section in sections
    ]
    chain = [first, [int_section({KEYS[0]: None, KEYS[3]: 5})]]
    again = [section for _, sections in run_compaction(chain, KeyGroupRange(0, 127), {}) for section in sections]
    assert applied(again) == applied([int_section({KEYS[1]: 2, KEYS[3]: 5})])


def int_section(pairs: dict[bytes, int | None], times: list[int] | None = None) -> Section:
    columns: dict[str, Any] = {
        "key": pa.array(list(pairs), pa.binary()),
        "value": pa.array(list(pairs.values()), pa.int64()),
    }
    if times is not None:
        columns["time"] = pa.array(times, pa.int64())
    return Section("v", "value", Storage.INT, times is not None, sorted_table(columns))


@pytest.mark.parametrize(("cleanup", "left"), [(True, [KEYS[2]]), (False, KEYS[:3])])
def test_expired_entries_are_dropped_when_asked(cleanup: bool, left: list[bytes]) -> None:
    section = int_section({KEYS[0]: 1, KEYS[1]: 2, KEYS[2]: 3}, [0, 900, 901])
    specs = {"v": StateSpec("v", "value", "bigint", ttl_ms=100, cleanup_at_snapshot=cleanup)}
    made = run_compaction([[section]], KeyGroupRange(0, 127), specs, now=1000)
    keys = [row["key"] for _, sections in made for s in sections for row in s.data.to_pylist()]
    assert keys == left


def test_nothing_is_left_of_what_was_removed() -> None:
    made = run_compaction([[int_section({KEYS[0]: 1})], [int_section({KEYS[0]: None})]], KeyGroupRange(0, 127), {})
    assert made == [(KeyGroupRange(0, 127), [])]
    assert merged([int_section({KEYS[0]: 1}).data.slice(0, 0)], entries=False).num_rows == 0


# Who decides when.


def manifest(epoch: int, length: int) -> Manifest:
    chain = [StateHandle(e, 0, 127, 1, f"x{e}", f"f{e}") for e in range(length)]
    return Manifest(
        "j", "i", epoch, "c", 1, epoch - 1, 128, "", 0, 0, [OperatorState("op", "op", 3, "k", [], chain)], [], {}
    )


def snapshot(epoch: int) -> StateHandle:
    return StateHandle(epoch, 0, 127, 1, "s", "snap", snapshot=True)


def test_long_chains_are_compacted_and_adopted_later() -> None:
    asked: list[int] = []

    def job(given: Manifest, operator: OperatorState, ranges: Any) -> list[StateHandle]:
        asked.append(given.epoch)
        assert [(r.start, r.end) for r in ranges] == [(0, 42), (43, 85), (86, 127)]
        return [snapshot(given.epoch)]

    compactor = Compactor(job, max_chain=4, background=False)
    compactor.consider(manifest(2, 3))
    assert asked == []
    compactor.consider(manifest(3, 4))
    compactor.consider(manifest(4, 5))
    assert asked == [3]
    chain = manifest(20, 6).operators[0].chain
    assert compactor.shortened("other", chain, 100) == chain
    assert compactor.shortened("op", chain, 4) == chain  # stores may still lag
    assert compactor.shortened("op", chain, 100) == [snapshot(3), *chain[4:]]
    assert compactor.shortened("op", chain, 100) == chain


def test_a_compaction_of_a_chain_that_is_gone_is_dropped() -> None:
    compactor = Compactor(lambda m, o, r: [snapshot(m.epoch)], 4, background=False)
    compactor.consider(manifest(3, 4))
    other = manifest(20, 6).operators[0].chain[2:]
    assert compactor.shortened("op", other, 100) == other


def test_a_failing_compaction_stops_nothing_and_is_tried_again_less_often() -> None:
    asked: list[int] = []

    def job(given: Manifest, operator: OperatorState, ranges: Any) -> list[StateHandle]:
        asked.append(given.epoch)
        raise RuntimeError("no")

    compactor = Compactor(job, 4, background=False)
    for epoch in range(3, 12):
        compactor.consider(manifest(epoch, epoch + 1))
    assert asked == [3, 7, 11]
    chain = manifest(20, 6).operators[0].chain
    assert compactor.shortened("op", chain, 100) == chain


# Memory.

_POOLS: list[Any] = []
"""A pool must outlive every buffer that came from it."""


def peak_of_a_merge(groups: int, rows: int, folder: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Peak memory of merging snapshots by group with a delta, both mapped from disk; and the bytes of the state."""
    monkeypatch.setattr(chain_merge, "FILE_BYTES", 1 << 16)
    text = "x" * 100

    def section(group: int, count: int, own: int) -> Section:
        keys = [group.to_bytes(2, "big") + f"key-{number:06d}".encode() for number in range(count)]
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array([text] * count, pa.string())}
        return Section("value", "value", Storage.TEXT, False, sorted_table(columns), own)

    handles = []
    state = 0
    for epoch, sections in enumerate([
        [section(group, rows, group) for group in range(groups)],
        [section(0, 10, -1)],
    ]):  # fmt: skip
        data, checksum = state_file.encode(sections)
        path = folder / f"{groups}-{epoch}.state"
        path.write_bytes(data)
        state += len(data)
        handles.append(StateHandle(epoch, 0, groups - 1, len(data), checksum, str(path), snapshot=epoch == 0))
    del sections, data
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:

        def open_file(handle: StateHandle) -> StateFile:
            return StateFile.open(handle.path, handle.checksum, handle.size)

        total = 0
        for _, portion in compact(open_file, handles, KeyGroupRange(0, groups - 1), {}, 0):
            total += sum(made.data.num_rows for made in portion)
            state_file.encode(portion)
        assert total == groups * rows
        return pool.max_memory() + tracemalloc.get_traced_memory()[1], state
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def test_memory_of_a_merge_follows_the_largest_group_not_the_state(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, small = peak_of_a_merge(4, 2000, tmp_path, monkeypatch)
    many, large = peak_of_a_merge(64, 2000, tmp_path, monkeypatch)
    assert large > 15 * small
    assert many < 1.3 * few, "sixteen times the state, the same memory"
    assert many < large / 4
    wide, _ = peak_of_a_merge(4, 8000, tmp_path, monkeypatch)
    assert wide > 2 * few, "larger groups do cost more: the measure is able to tell"
