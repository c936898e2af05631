"""Savepoints from elsewhere: damaged, foreign, too new, hostile. Each is refused with its cause, before any harm."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.savepoint_tables import load, make_job, make_savepoint, rewrite, vouch

from cairn.errors import (
    CairnError,
    CorruptFileError,
    IncompatibleStateError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from cairn.model.checkpoint_records import Checkpoint, CheckpointInfo, CheckpointStatus, CheckpointType
from cairn.model.ddl import parse_type
from cairn.model.limits import wrong_type
from cairn.model.manifest import Manifest
from cairn.model.savepoint_records import SavepointMetadata, SourceFile
from cairn.restore.source_logs import copy_source, positions_of
from cairn.snapshots.lookup import find_rows
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.verification import verify_savepoint, verify_snapshot
from cairn.storage import savepoint_folder
from cairn.storage.checkpoint_store import decode_checkpoint, encode_checkpoint
from cairn.testing.faults import Crash, Fault, FaultPlan, FaultyFileSystem, flip_bit, truncate

REFUSED = (CorruptFileError, IncompatibleStateError, NotFoundError)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hostile")
    return make_savepoint(folder / "job", make_job(folder / "job", count=40), folder / "sp", pieces=1)


@pytest.fixture
def copy(original: str, tmp_path: Path) -> str:
    target = tmp_path / "copy"
    shutil.copytree(original, target)
    return str(target)


def everything(path: str) -> None:
    """Whatever a reader may do."""
    snapshot = open_snapshot(path)
    problems = verify_snapshot(snapshot)
    if problems:
        raise CorruptFileError(problems[0].why)
    for operator in snapshot.operators.values():
        for state in operator.states.values():
            find_rows(snapshot, operator, state, ("u7", 0))


def test_every_cut_and_every_flipped_bit_of_the_metadata_is_refused(original: str) -> None:
    data = Path(original, "_metadata").read_bytes()
    for size in range(len(data)):
        with pytest.raises(REFUSED):
            savepoint_folder.decode_savepoint(data[:size], "x")
    for offset in range(len(data)):
        for bit in (0, 7):
            changed = bytearray(data)
            changed[offset] ^= 1 << bit
            with pytest.raises(REFUSED):
                savepoint_folder.decode_savepoint(bytes(changed), "x")
    with pytest.raises(CorruptFileError):
        savepoint_folder.decode_savepoint(data + b"\0", "x")


def test_flipped_bits_and_cuts_of_tables_are_found_by_every_reader(copy: str, original: str, tmp_path: Path) -> None:
    rng = random.Random(3)
    parts = sorted(Path(copy).rglob("*.parquet"))
    for number in range(60):
        part = rng.choice(parts)
        whole = part.read_bytes()
        if number % 3 == 0:
            truncate(part, rng.choice([0, 1, len(whole) // 2, len(whole) - 1]))
        else:
            flip_bit(part, rng.randrange(len(whole)), rng.randrange(8))
        with pytest.raises(CorruptFileError, match="damaged"):
            load(copy, tmp_path / "o")
        assert [problem.path for problem in verify_savepoint(copy)] == [str(part.relative_to(copy))]
        with pytest.raises(CorruptFileError):
            everything(copy)
        part.write_bytes(whole)
    everything(copy)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_are_taken_for_metadata(data: bytes) -> None:
    with pytest.raises(REFUSED):
        savepoint_folder.decode_savepoint(data, "x")
    body = b"CAIRNSV1" + xxhash.xxh3_64_digest(data) + len(data).to_bytes(4, "little") + data
    with pytest.raises(REFUSED):
        savepoint_folder.decode_savepoint(body, "x")


def test_foreign_and_newer_formats_are_named(copy: str) -> None:
    data = Path(copy, "_metadata").read_bytes()
    cases = {
        b"PAR1" + data[4:]: "does not begin with CAIRNSV",
        b"CAIRNCK1" + data[8:]: "a checkpoint's metadata",
        b"CAIRNSV2" + data[8:]: "this cairn reads format",
    }
    for changed, words in cases.items():
        Path(copy, "_metadata").write_bytes(changed)
        with pytest.raises(REFUSED, match=words):
            open_snapshot(copy)
    metadata = savepoint_folder.decode_savepoint(data, "x")
    vouch(copy, msgspec.structs.replace(metadata, requires=["time-travel"]))
    with pytest.raises(IncompatibleStateError, match="needs features that this cairn does not have: time-travel"):
        open_snapshot(copy)


PATHS = ["../../etc/passwd", "/etc/passwd", "tables/op/total/../../../x.parquet", "tables/op/other/x.parquet",
         "tables/op/total/.x.parquet", "tables/op/total/x.parquet\0", "tables\\op\\total\\x.parquet", "",
         "tables/op/total/x.txt", "tables/op/total//x.parquet", "tables/%2e%2e/total/x.parquet", "~/x.parquet",
         "tables/op/total/" + "x" * 300 + ".parquet", "file:///etc/passwd"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_are_not_on_the_allow_list_are_refused(copy: str, path: str) -> None:
    def redirect(metadata: SavepointMetadata) -> SavepointMetadata:
        files = metadata.operators[0].tables[0].files
        files[0] = msgspec.structs.replace(files[0], path=path)
        return metadata

    refused(copy, redirect, "is not a path of a file")
    source = msgspec.structs.replace(savepoints_of(copy), sources=[SourceFile(path, 1, "0")])
    Path(copy, "_metadata").write_bytes(savepoint_folder.encode_savepoint(source))
    with pytest.raises(CorruptFileError, match="is not a path"):
        open_snapshot(copy)


def savepoints_of(path: str) -> SavepointMetadata:
    """The metadata, without the checks."""
    return msgspec.msgpack.decode(Path(path, "_metadata").read_bytes()[20:], type=SavepointMetadata)


def refused(
    copy: str, change: Callable[[SavepointMetadata], SavepointMetadata], words: str, also_dispose: bool = True
) -> None:
    before = Path(copy, "_metadata").read_bytes()
    vouch(copy, change(savepoints_of(copy)))
    with pytest.raises(CairnError, match=words):
        everything(copy)
    if also_dispose:
        with pytest.raises(CairnError):
            savepoint_folder.dispose(copy)
    Path(copy, "_metadata").write_bytes(before)


def test_metadata_that_contradicts_itself_is_refused(copy: str) -> None:
    def operators(**change: Any) -> Callable[[SavepointMetadata], SavepointMetadata]:
        def changed(metadata: SavepointMetadata) -> SavepointMetadata:
            one = msgspec.structs.replace(metadata.operators[0], **change)
            return msgspec.structs.replace(metadata, operators=[one])

        return changed

    def file(**change: Any) -> Callable[[SavepointMetadata], SavepointMetadata]:
        def changed(metadata: SavepointMetadata) -> SavepointMetadata:
            files = metadata.operators[0].tables[0].files
            files[0] = msgspec.structs.replace(files[0], **change)
            return metadata

        return changed

    refused(copy, operators(uid="../up"), "cannot be used")
    refused(copy, lambda m: msgspec.structs.replace(m, max_parallelism=10**9), "max parallelism of 1000000000")
    refused(copy, lambda m: msgspec.structs.replace(m, operators=[*m.operators, *m.operators]), "appears twice")
    refused(copy, file(rows=-1), "numbers of .* are impossible")
    refused(copy, file(first_group=3, last_group=2), "impossible")
    refused(copy, file(last_group=99), "impossible")


def test_types_that_nest_or_name_the_unknown_are_refused(copy: str) -> None:
    def typed(ddl: str) -> Callable[[SavepointMetadata], SavepointMetadata]:
        def changed(metadata: SavepointMetadata) -> SavepointMetadata:
            tables = metadata.operators[0].tables
            tables[0] = msgspec.structs.replace(tables[0], spec=msgspec.structs.replace(tables[0].spec, value_type=ddl))
            return metadata

        return changed

    refused(copy, typed("os.system"), "does not know", also_dispose=False)
    refused(copy, typed("array<" * 60_000), "does not know", also_dispose=False)
    refused(
        copy, typed("struct<" + ",".join(f"a{i}:array<int>" for i in range(3)) + ">"), "columns are", also_dispose=False
    )
    refused(copy, typed("string"), "columns are", also_dispose=False)


def test_numbers_and_positions_that_cannot_be_are_refused_by_name(copy: str) -> None:
    """Nothing in a savepoint brings a job to the end of its numbers, or raises an error that names nothing."""

    def changed(**fields: Any) -> Callable[[SavepointMetadata], SavepointMetadata]:
        return lambda metadata: msgspec.structs.replace(metadata, **fields)

    for epoch in ((1 << 63) - 1, 10**12, -5):
        refused(copy, changed(epoch=epoch), f"epoch {epoch} is impossible")
    for time_ms in (-1, 1 << 62):
        refused(copy, changed(time_ms=time_ms), f"a time of {time_ms} milliseconds is impossible")
    refused(copy, changed(watermark=1 << 63), "watermark")
    refused(copy, changed(id=-1), "number -1")
    refused(copy, changed(created_ms=1 << 60), "is impossible")
    for line in ("not json", "[" * 100_000, '{"logOffset":', "9" * 5000):
        refused(copy, changed(offsets=f"v1\n{{}}\n-\n{line}"), "the position of source 1 is no JSON")
    for position in ('{"logOffset":-7}', '{"logOffset":"x"}', '{"logOffset":1.5}', '{"logOffset":1e400}'):
        refused(copy, changed(offsets=f"v1\n{{}}\n{position}"), "the position of source 0 is impossible")


def test_a_deep_type_is_refused_wherever_it_comes_from() -> None:
    parse_type("array<" * 60 + "int" + ">" * 60)
    with pytest.raises(InvalidInputError, match="nested more than 64 deep"):
        parse_type("array<" * 3000 + "int" + ">" * 3000)
    wide = "struct<" + ",".join(f"a{n}:array<int>" for n in range(200)) + ">"
    assert wrong_type(wide) == ""
    assert len(parse_type(wide).fields) == 200


def test_positions_and_logs_of_sources_that_cannot_be(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / "0").write_text('v1\n{"path":"file:///a","timestamp":1,"batchId":0}')
    with pytest.raises(CorruptFileError, match="no longer contains batch 1"):  # and not after a look at each of them
        copy_source(str(log), str(tmp_path / "copy"), {"logOffset": 3 * 10**12}, 10)
    with pytest.raises(CorruptFileError, match=r"positions cannot be read: .*source 0 is no JSON"):
        positions_of("v1\n{}\nnot json")
    for line in ("{", "[]", '{"batchId":"x","path":"p"}', '{"batchId":1e400,"path":"p"}'):
        (log / "1").write_text(f"v1\n{line}")
        with pytest.raises(CorruptFileError, match="is not a log of Spark's file source"):
            copy_source(str(log), str(tmp_path / "copy"), {"logOffset": 1}, 10)


def test_a_checkpoint_with_an_impossible_epoch_is_refused() -> None:
    manifest = Manifest("j", "i", 1 << 62, "c", 1, 0, 128, "", 0, 0, [], [], {})
    info = CheckpointInfo(1, CheckpointStatus.COMPLETED, CheckpointType.CHECKPOINT, 0)
    data = encode_checkpoint(Checkpoint(1, "j", "j", 1, manifest, info))
    with pytest.raises(CorruptFileError, match="epoch 4611686018427387904 is impossible"):
        decode_checkpoint(data, "x")


def test_links_and_odd_files_are_refused(copy: str, tmp_path: Path) -> None:
    part = next(Path(copy, "tables/op/total").iterdir())
    outside = tmp_path / "outside.parquet"
    shutil.copy(part, outside)
    part.unlink()
    part.symlink_to(outside)
    with pytest.raises(CorruptFileError, match="symbolic link"):
        load(copy, tmp_path / "o")
    part.unlink()
    shutil.copy(outside, part)
    folder = part.parent
    moved = tmp_path / "moved"
    folder.rename(moved)
    folder.symlink_to(moved)
    with pytest.raises(CorruptFileError, match="symbolic link"):
        everything(copy)
    savepoint_folder.dispose(copy)
    assert part.name in os.listdir(moved), "what lies outside is not deleted"
    Path(copy).mkdir(exist_ok=True)
    Path(copy, "_metadata").symlink_to("/dev/zero")
    with pytest.raises(CorruptFileError, match="not a regular file"):
        open_snapshot(copy)


def test_absurd_sizes_are_refused_before_anything_is_read(copy: str, tmp_path: Path) -> None:
    with open(Path(copy, "_metadata"), "r+b") as file:
        file.truncate(1 << 40)  # sparse: no disk is used
    with pytest.raises(CorruptFileError, match="at most"):
        open_snapshot(copy)


def test_a_text_that_hides_its_size_behind_a_dictionary_is_refused(copy: str, tmp_path: Path) -> None:
    rewrite(copy, "by page", lambda table: table)
    everything(copy)
    metadata = savepoint_folder.read_savepoint(copy)
    table = metadata.operators[0].table("by page")
    assert table is not None
    full = os.path.join(copy, table.files[0].path)
    pq.write_table(pq.read_table(full), full, use_dictionary=True)
    data = Path(full).read_bytes()
    table.files[0] = msgspec.structs.replace(table.files[0], size=len(data), checksum=xxhash.xxh3_64_hexdigest(data))
    vouch(copy, metadata)
    with pytest.raises(CorruptFileError, match="dictionary encoded, which could hide any size"):
        load(copy, tmp_path / "o")


def test_a_file_that_is_no_parquet_is_refused(copy: str, tmp_path: Path) -> None:
    metadata = savepoint_folder.read_savepoint(copy)
    files = metadata.operators[0].tables[0].files
    for data in (b"", b"PAR1" * 40, b"\x80\x05" + b"x" * 100):
        Path(copy, files[0].path).write_bytes(data)
        files[0] = msgspec.structs.replace(files[0], size=len(data), checksum=xxhash.xxh3_64_hexdigest(data))
        vouch(copy, metadata)
        with pytest.raises(CorruptFileError, match="is no Parquet file"):
            load(copy, tmp_path / "o")


def test_a_crash_at_any_step_leaves_no_savepoint_or_a_whole_one(original: str, tmp_path: Path) -> None:
    metadata = savepoint_folder.read_savepoint(original)
    for call in range(1, 12):
        for after in (False, True):
            target = tmp_path / f"t{call}{after}"
            begun = savepoint_folder.SavepointFolder.begin(str(target))
            for file in savepoint_folder.named_files(metadata):
                full = Path(begun.path, file.path)
                full.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(original, file.path), full)
            plan = FaultPlan([Fault("crash", call=call, after=after)])
            faulty = FaultyFileSystem(begun._target, plan)
            try:
                path = savepoint_folder.SavepointFolder(faulty, begun.token).complete(metadata)
                assert verify_savepoint(path) == []
            except (Crash, StorageError):
                for found, _ in savepoint_folder.list_savepoints(str(target)):
                    assert verify_savepoint(found) == []
                visible = [name for name in os.listdir(target) if not name.startswith(".")]
                assert all(savepoint_folder.is_savepoint(str(target / name)) for name in visible)


def test_rows_decode_to_what_was_written_or_not_at_all(copy: str) -> None:
    """A Parquet file whose pages were damaged and vouched for again gives an error or rows, never a crash."""
    rng = random.Random(9)
    metadata = savepoint_folder.read_savepoint(copy)
    files = metadata.operators[0].tables[0].files
    full = Path(copy, files[0].path)
    whole = full.read_bytes()
    for _ in range(80):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        full.write_bytes(data)
        files[0] = msgspec.structs.replace(files[0], checksum=xxhash.xxh3_64_hexdigest(bytes(data)))
        vouch(copy, metadata)
        try:
            everything(copy)
        except CairnError:
            continue
    assert isinstance(pq.read_table(pa.BufferReader(whole)), pa.Table)
