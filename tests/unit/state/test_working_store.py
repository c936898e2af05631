"""The working store: however a copy came to be, it shows what the chain of committed files shows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.state_lab import BACKENDS, Lab

from cairn.errors import CorruptFileError, EpochFailedError, InternalError, StorageError
from cairn.model.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from cairn.model.types import Storage
from cairn.state import store_copy, working_store
from cairn.state.backend import DamagedStoreError, load_backend
from cairn.state.lmdb_backend import LmdbBackend
from cairn.state.memory_backend import MemoryBackend
from cairn.state.section_changes import changes_of
from cairn.storage.state_file import Section, grouped_table
from cairn.testing.faults import flip_bit, truncate

ON_DISK = ["lmdb", "rocksdb"]
KEYS = [f"key {number}" for number in range(7)]


def lab_of(backend: str, **settings: Any) -> Lab:
    return Lab(
        ValueStateDescriptor("v", "bigint"),
        ListStateDescriptor("l", "bigint"),
        MapStateDescriptor("m", "bigint", "bigint"),
        on_timer=lambda s, c: None,
        backend=backend,
        **settings,
    )


def write(lab: Lab, number: int, keys: list[str] = KEYS) -> None:
    """One epoch in which every key changes in each of its states."""

    def step(states: Any, ctx: Any) -> None:
        states.v.update(number)
        states.l.add(number)
        states.m.put(number, number)
        states.m.remove(number - 2)
        ctx.timer_service().register_event_time_timer(10**6 + number)

    for key in keys:
        lab.later(key, step)
    lab.run_epoch()


def check(lab: Lab, count: int, keys: list[str] = KEYS) -> None:
    """Every key is as `write` 0 to `count` - 1 left it."""
    for key in keys:
        assert lab.state("v", key) == count - 1, key
        assert lab.state("l", key) == list(range(count))
        assert lab.state("m", key) == {number: number for number in range(max(0, count - 2), count)}
    assert len(lab.timers()) == count * len(keys)


def how(lab: Lab) -> list[str]:
    """How the stores of the last epoch came to their version."""
    return [metrics.store for _, _, metrics in lab.reports[-1].tasks]


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "rebuil" in record.getMessage()]


def store_folders(lab: Lab) -> Iterator[Path]:
    for part in (working_store.VALUES, working_store.ENTRIES):
        yield from sorted(path for path in Path(lab.local_directory).rglob(f"*-{part}") if path.is_dir())


@pytest.fixture(params=BACKENDS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with lab_of(request.param) as made:
        yield made


@pytest.fixture(params=ON_DISK)
def disk_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with lab_of(request.param) as made:
        yield made


def test_warm_stores_equal_cold_ones(lab: Lab) -> None:
    for number in range(12):
        write(lab, number)
        assert set(how(lab)) <= {"warm", "caught-up", "rebuilt" if number < 2 else "caught-up", "empty"}
    assert how(lab) == ["caught-up"]
    check(lab, 12)
    lab.restart()
    check(lab, 12)
    write(lab, 12)
    check(lab, 13)


def test_an_epoch_without_changes_leaves_the_store_warm(lab: Lab) -> None:
    write(lab, 0)
    for _ in range(12):
        lab.run_epoch()
    check(lab, 1)
    lab.restart(keep_stores=True)
    lab.run_epoch()
    check(lab, 1)


def test_a_failed_epoch_does_not_touch_the_store(lab: Lab) -> None:
    write(lab, 0)
    for at in ("announced", "prepared", "acknowledged"):
        lab.later(KEYS[0], lambda s, c: s.v.update(99), lambda s, c: s.l.add(99), lambda s, c: s.m.clear())
        lab.fail_epoch(at)
        check(lab, 1)
        lab.restart(keep_stores=True)
        lab.discard()
        check(lab, 1)
    write(lab, 1)
    check(lab, 2)


@pytest.mark.parametrize("lag", [1, 9, 12])
def test_a_store_that_was_away_for_some_epochs_catches_up(disk_lab: Lab, lag: int, tmp_path: Path) -> None:
    """Leaves a host at one version and comes back some epochs later."""
    lab = disk_lab
    for number in range(3):
        write(lab, number)
    shutil.copytree(lab.local_directory, tmp_path / "old")
    for number in range(3, 3 + lag):
        write(lab, number)
    shutil.rmtree(lab.local_directory)
    shutil.copytree(tmp_path / "old", lab.local_directory)
    write(lab, 3 + lag)
    assert how(lab) == ["caught-up"]
    check(lab, 4 + lag)


def test_a_stale_store_of_a_lost_lineage_is_rebuilt(disk_lab: Lab, tmp_path: Path) -> None:
    """The same epoch number, committed twice: only the commit id tells that the copy is of the lost one."""
    lab = disk_lab
    for number in range(3):
        write(lab, number)
    shutil.copytree(lab.files.root, tmp_path / "job")
    write(lab, 99)
    lab.run_epoch()  # brings the stores to the lost epoch
    for _ in range(10):
        lab.run_epoch()
    runs = sorted((Path(lab.files.root) / "runs").iterdir())
    shutil.rmtree(Path(lab.files.root) / "epochs")
    shutil.copytree(tmp_path / "job" / "epochs", Path(lab.files.root) / "epochs")
    assert runs
    lab.restart(keep_stores=True)
    check(lab, 3)
    write(lab, 3)
    check(lab, 4)


def test_a_store_of_another_job_is_thrown_away(disk_lab: Lab) -> None:
    lab = disk_lab
    write(lab, 0)
    lab.run_epoch()
    for folder in store_folders(lab):
        mark = folder / "identity.json"
        mark.write_text(json.dumps(json.loads(mark.read_text()) | {"incarnation": "another"}))
    write(lab, 1)
    assert how(lab) == ["rebuilt"]
    check(lab, 2)


def test_a_store_from_before_a_reboot_is_thrown_away(disk_lab: Lab) -> None:
    lab = disk_lab
    write(lab, 0)
    lab.run_epoch()
    for folder in store_folders(lab):
        mark = folder / "identity.json"
        mark.write_text(json.dumps(json.loads(mark.read_text()) | {"boot": "an earlier one"}))
    write(lab, 1)
    assert how(lab) == ["rebuilt"]
    check(lab, 2)


def test_a_half_written_mark_is_no_mark(disk_lab: Lab) -> None:
    lab = disk_lab
    write(lab, 0)
    lab.run_epoch()
    for folder in store_folders(lab):
        truncate(folder / "identity.json", 5)
    write(lab, 1)
    check(lab, 2)


@pytest.mark.parametrize("what", ["folder", "contents", "root"])
def test_a_deleted_folder_is_rebuilt(disk_lab: Lab, what: str) -> None:
    lab = disk_lab
    write(lab, 0)
    lab.run_epoch()
    if what == "root":
        shutil.rmtree(lab.local_directory)
    for folder in list(store_folders(lab)):
        if what == "folder":
            shutil.rmtree(folder)
        else:
            for path in folder.iterdir():
                if path.name != "identity.json":
                    path.unlink() if path.is_file() else shutil.rmtree(path)
    write(lab, 1)
    assert how(lab) == ["rebuilt"]
    check(lab, 2)


@pytest.mark.parametrize("damage", ["magic", "garbage", "half", "page", "empty"])
@pytest.mark.parametrize("part", [working_store.VALUES, working_store.ENTRIES])
def test_a_damaged_lmdb_store_is_rebuilt_with_a_warning(
    damage: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    with lab_of("lmdb") as lab:
        for number in range(10):
            write(lab, number)
        (folder,) = [path for path in store_folders(lab) if path.name.endswith(part)]
        file = folder / "data.mdb"
        if damage == "magic":
            for page in (0, 1):
                flip_bit(file, page * 4096 + 16)
        elif damage == "garbage":
            file.write_bytes(b"\x5a" * 50_000)
        elif damage == "half":
            truncate(file, file.stat().st_size // 2)
        elif damage == "page":
            truncate(file, 4096)
        else:
            truncate(file, 0)
        check(lab, 10)
        write(lab, 10)
        check(lab, 11)
        if damage != "empty":
            assert failures(caplog)


def test_a_store_that_fails_while_it_is_read_is_rebuilt_by_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    with lab_of("lmdb") as lab:
        for number in range(10):
            write(lab, number)
        with monkeypatch.context() as patch:

            def broken(*args: Any) -> Any:
                raise DamagedStoreError("a bad page")

            patch.setattr(LmdbBackend, "getter", lambda self, table: broken)
            lab.later("never seen", lambda s, c: s.m.get(1))
            with pytest.raises(DamagedStoreError):
                lab.run_epoch()
        lab.discard()
        write(lab, 10)
        assert how(lab) == ["rebuilt"]
        check(lab, 11)


def test_a_build_that_was_cut_off_leaves_nothing(disk_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-built copy must not shine through a later one, whose chain may no longer hold the removals."""
    lab = disk_lab
    lab.later("gone", lambda s, c: s.v.update(1), lambda s, c: s.m.put(1, 1))
    lab.run_epoch()
    lab.restart()
    monkeypatch.setattr(working_store, "_LOAD_ROWS", 1)
    kind = load_backend(lab.spec.backend)
    plain = kind.apply

    def cut_off(self: Any, changes: Any, version: str | None) -> None:
        if version is not None:
            raise KeyboardInterrupt
        plain(self, changes, version)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "apply", cut_off)
        with pytest.raises(KeyboardInterrupt):
            lab.state("v", "gone")
    # The same directory, its history replaced by one in which the key never existed.
    manifest = lab.manifest
    assert manifest is not None
    operator = manifest.operators[0]
    lab._loop.current = msgspec.structs.replace(
        manifest, operators=[msgspec.structs.replace(operator, chain=[])], inlined={}
    )
    assert lab.state("v", "gone") is None
    assert lab.state("m", "gone") == {}


def test_a_straggler_of_an_older_run_is_refused(disk_lab: Lab) -> None:
    """A task of the old run wakes up after the new run has moved the store on."""
    lab = disk_lab
    for number in range(3):
        write(lab, number)
    old_context = lab.cluster.context
    old_cluster = lab.cluster
    assert old_context is not None
    lab.restart()
    for number in range(3, 15):
        write(lab, number)
    rows = lab._shuffle.split(lab._shuffle.batch([], 128), 1, 128)[0]
    before = {path: path.read_bytes() for path in Path(lab.files.root).rglob("*") if path.is_file()}
    with pytest.raises(EpochFailedError, match="straggler of run 1"):
        old_cluster.run_subtask(0, rows)
    after = {path: path.read_bytes() for path in Path(lab.files.root).rglob("*") if path.is_file()}
    assert after == before
    check(lab, 15)


def test_a_missing_file_of_the_chain_stops_the_job_and_its_return_heals_it(lab: Lab, tmp_path: Path) -> None:
    lab._settings = replace(lab._settings, inline_threshold=0)
    lab._loop._setup = replace(lab._loop._setup, settings=lab._settings)
    for number in range(3):
        write(lab, number)
    files = sorted((Path(lab.files.root) / "shared").rglob("*.state"))
    assert len(files) == 3
    shutil.move(files[1], tmp_path / "kept")
    lab.restart()
    with pytest.raises(CorruptFileError, match=r"is missing"):
        lab.state("v", KEYS[0])
    lab.later(KEYS[0], lambda s, c: s.v.update(5))
    with pytest.raises(CorruptFileError, match=r"is missing"):
        lab.run_epoch()
    lab.discard()
    shutil.move(tmp_path / "kept", files[1])
    check(lab, 3)


@pytest.mark.parametrize("place", [0, 100, -1, -30])
def test_a_damaged_file_of_the_chain_stops_the_job(place: int) -> None:
    with lab_of("lmdb", inline_threshold=0) as made:
        for number in range(3):
            write(made, number)
        files = sorted((Path(made.files.root) / "shared").rglob("*.state"))
        flip_bit(files[1], place)
        made.restart()
        with pytest.raises(CorruptFileError, match=files[1].name):
            made.state("v", KEYS[0])


@pytest.mark.parametrize("steps", [(1, 4, 3), (3, 5, 1, 8), (64, 7), (128, 1)])
def test_rescaling_finds_every_key_and_timer(steps: tuple[int, ...]) -> None:
    with lab_of("hashmap", parallelism=steps[0]) as lab:
        write(lab, 0)
        for number, parallelism in enumerate(steps[1:], 1):
            lab.restart(parallelism)
            check(lab, number)
            write(lab, number)
            check(lab, number + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rescaling_with_stores_left_over_from_each_parallelism(backend: str) -> None:
    with lab_of(backend, parallelism=1) as lab:
        for number, parallelism in enumerate([1, 4, 3, 1, 4]):
            lab.restart(parallelism, keep_stores=True)
            write(lab, number)
            check(lab, number + 1)


@pytest.mark.parametrize("together", [True, False])
def test_rows_of_another_subtask_are_refused(together: bool) -> None:
    with lab_of("hashmap", parallelism=4) as lab:
        write(lab, 0)
        shuffle = lab._shuffle
        lab.script.steps.append(lambda s, c: s.v.update(77))
        rows = [(key, len(lab.script.steps) - 1) for key in KEYS]
        parts = shuffle.split(shuffle.batch(rows, 128), 4, 128)
        batches = [batch for part in parts for batch in part]
        if together:
            batches = [pa.concat_batches(batches)]
        with pytest.raises(InternalError, match="the shuffle is broken"):
            lab.cluster.run_subtask(0, batches)
        check(lab, 1)


def test_large_epochs_are_read_through_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than a layer needs, with and without keys that only the backend knows."""
    monkeypatch.setattr(working_store, "_LAYER_ROWS", 4)
    with lab_of("lmdb") as lab:
        for number in range(25):
            write(lab, number, KEYS[: 4 + number % 4])
            lab.later(KEYS[number % 3], lambda s, c: s.v.clear())
            lab.run_epoch()
        expected = {key: max(number for number in range(25) if key in KEYS[: 4 + number % 4]) for key in KEYS}
        for number in range(25):
            # cleared after write `number`, unless written later
            key = KEYS[number % 3]
            if expected[key] <= number:
                expected[key] = -1
        for key, value in expected.items():
            assert lab.state("v", key) == (None if value < 0 else value)
        warm = {key: lab.state("v", key) for key in KEYS}
        lab.restart()
        assert {key: lab.state("v", key) for key in KEYS} == warm


def test_a_symbolic_link_in_place_of_a_store_is_refused(disk_lab: Lab, tmp_path: Path) -> None:
    lab = disk_lab
    write(lab, 0)
    lab.run_epoch()
    for folder in list(store_folders(lab)):
        shutil.rmtree(folder)
        folder.symlink_to(tmp_path)
    lab.later(KEYS[0], lambda s, c: s.v.value())
    with pytest.raises(StorageError, match="symbolic link"):
        lab.run_epoch()


@pytest.mark.parametrize("backend", ["hashmap", "lmdb"])
def test_compacted_chains_show_the_same(backend: str) -> None:
    with lab_of(backend, compaction_chain=3, parallelism=2) as made:
        for number in range(40):
            write(made, number, KEYS[:3])
        manifest = made.manifest
        assert manifest is not None
        assert any(handle.snapshot for handle in manifest.operators[0].chain)
        check(made, 40, KEYS[:3])
        made.restart(3)
        check(made, 40, KEYS[:3])
        write(made, 40, KEYS[:3])
        check(made, 41, KEYS[:3])


def test_a_rebuild_writes_every_key_once_and_values_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever order the deltas have: sorted writes are what keeps a large copy fast, to build and to read."""
    written: list[bytes] = []
    plain = LmdbBackend.apply

    def apply(self: LmdbBackend, changes: Any, version: str | None) -> None:
        changes = list(changes)
        written.extend(key for change in changes if change.table == "v" for key, _ in change.puts)
        assert not any(change.deletes for change in changes)
        plain(self, changes, version)

    keys = [f"key {number * 7919 % 1000}" for number in range(300)]
    with lab_of("lmdb") as lab:
        for number in range(3):
            write(lab, number, keys[number * 100 :])
        lab.do(keys[5], lambda s, c: s.v.clear())
        lab.restart()
        monkeypatch.setattr(LmdbBackend, "apply", apply)
        lab.run_epoch()
    assert written == sorted(written)
    assert len(set(written)) == len(written) == 299


NAMES = [bytes([0, number]) + b"key" for number in range(6)]
LAYER = st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(-(2**63), 2**63 - 1), max_size=6)


@settings(max_examples=200, deadline=None)
@given(
    stored=LAYER, layers=st.lists(LAYER, max_size=4), wanted=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    ttl=st.booleans(),
)  # fmt: skip
def test_few_values_are_found_where_many_are(
    stored: dict[bytes, int | None], layers: list[dict[bytes, int | None]], wanted: list[bytes], ttl: bool
) -> None:
    def section(rows: dict[bytes, int | None], age: int) -> Section:
        columns = {"key": pa.array(rows, pa.binary()), "value": pa.array(rows.values(), pa.int64())}
        if ttl:
            columns["time"] = pa.array([None if value is None else age for value in rows.values()], pa.int64())
        return Section("v", "value", Storage.INT, ttl, grouped_table(columns))

    backend = MemoryBackend("")
    backend.apply([changes_of(section(stored, 0))], "1")
    copy = store_copy.StoreCopy(backend, [section(rows, age) for age, rows in enumerate(layers, 1)], None, None)
    shown = {key: (value, age) for age, rows in enumerate([stored, *layers]) for key, value in rows.items()}
    expected = [shown.get(key, (None, None)) for key in wanted]
    for few in (64, -1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_copy, "_FEW_ROWS", few)
            values, times = copy.values("v", pa.array(wanted, pa.binary()), Storage.INT, ttl)
        assert values.to_pylist() == [value for value, _ in expected]
        assert values.type == pa.int64()
        if ttl:
            assert times is not None
            assert times.to_pylist() == [None if value is None else age for value, age in expected]
        else:
            assert times is None
