"""Manifests and the job's identity: created once, checked always."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from cairn.errors import CorruptFileError, IncompatibleStateError, NotFoundError
from cairn.model.manifest import Manifest, OperatorState, SinkCommittable, StateHandle, StateSpec
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import (
    IncompleteManifestError,
    ManifestStore,
    create_identity,
    decode_manifest,
    encode_manifest,
    load_identity,
)


def manifest(epoch: int = 0, **changes: Any) -> Manifest:
    made = Manifest(
        job_id="j", incarnation="i", epoch=epoch, commit_id=f"c{epoch}", run=1, parent=epoch - 1, max_parallelism=128,
        offsets="v1\n{}\n5", watermark=7, time_ms=8,
        operators=[
            OperatorState(
                "op", "Op", 2, "k string", [StateSpec("v", "value", "bigint", ttl_ms=5)],
                [StateHandle(epoch, 0, 127, 10, "abc", rows=3)],
            )
        ],
        sinks=[SinkCommittable("s", "file", msgspec.Raw(msgspec.msgpack.encode([1, "x"])))],
        lineage={epoch - 1: "before"}, inlined={"op/0": b"bytes"},
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def same(found: Manifest, expected: Manifest) -> bool:
    return msgspec.msgpack.encode(found) == msgspec.msgpack.encode(expected)


def test_round_trip(tmp_path: Path) -> None:
    store = ManifestStore(LocalFileSystem(str(tmp_path)))
    assert store.epochs() == []
    for epoch in (0, 1, 10):
        store.publish(manifest(epoch))
    assert store.epochs() == [0, 1, 10]
    assert same(store.load(10), manifest(10))
    assert msgspec.msgpack.decode(store.load(0).sinks[0].data) == [1, "x"]
    store.delete(1)
    store.delete(1)
    assert store.epochs() == [0, 10]
    with pytest.raises(NotFoundError):
        store.load(1)


def test_a_commit_happens_once(tmp_path: Path) -> None:
    store = ManifestStore(LocalFileSystem(str(tmp_path)))
    store.publish(manifest(3))
    with pytest.raises(FileExistsError):
        store.publish(manifest(3, commit_id="another"))
    assert store.load(3).commit_id == "c3"


def test_every_truncation_is_an_unfinished_manifest() -> None:
    data = encode_manifest(manifest())
    for size in range(len(data)):
        with pytest.raises(IncompleteManifestError, match="cut short"):
            decode_manifest(data[:size], "m")


def test_every_flipped_bit_is_damage_and_never_an_unfinished_manifest() -> None:
    data = encode_manifest(manifest())
    for offset in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << bit
            try:
                found = decode_manifest(bytes(damaged), "m")
            except IncompleteManifestError:
                raise AssertionError(f"bit {bit} of byte {offset} makes a committed epoch look unfinished") from None
            except (CorruptFileError, IncompatibleStateError):
                continue
            assert same(found, manifest())


def test_bytes_after_the_end_are_damage() -> None:
    with pytest.raises(CorruptFileError):
        decode_manifest(encode_manifest(manifest()) + b"x", "m")


def test_a_newer_format_is_refused_with_both_versions() -> None:
    data = bytearray(encode_manifest(manifest()))
    data[7:8] = b"2"
    with pytest.raises(IncompatibleStateError, match=r"format b'2'; this cairn reads format 1"):
        decode_manifest(bytes(data), "m")


def framed(body: bytes) -> bytes:
    return b"CAIRNMF1" + xxhash.xxh3_64_digest(body) + len(body).to_bytes(4, "little") + body


def test_unknown_fields_are_ignored_and_unknown_requirements_are_not() -> None:
    plain = msgspec.msgpack.decode(encode_manifest(manifest())[20:])
    plain["colour"] = "blue"
    assert same(decode_manifest(framed(msgspec.msgpack.encode(plain)), "m"), manifest())
    plain["requires"] = ["time-travel"]
    with pytest.raises(IncompatibleStateError, match="time-travel"):
        decode_manifest(framed(msgspec.msgpack.encode(plain)), "m")


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x80", b"\x93\x01\x02\x03", b"\x81\xa5epoch\xa1x", b"\x91" * 5000])
def test_a_body_that_is_no_manifest_is_damage(body: bytes) -> None:
    with pytest.raises(CorruptFileError):
        decode_manifest(framed(body), "m")


def test_a_manifest_under_the_wrong_name_is_refused(tmp_path: Path) -> None:
    files = LocalFileSystem(str(tmp_path))
    files.create(f"epochs/{5:020d}", encode_manifest(manifest(4)))
    with pytest.raises(CorruptFileError, match="holds the manifest of epoch 4"):
        ManifestStore(files).load(5)


def test_foreign_files_are_no_epochs(tmp_path: Path) -> None:
    store = ManifestStore(LocalFileSystem(str(tmp_path)))
    store.publish(manifest(1))
    for name in ("5", "x" * 20, f"{7:020d}.unfinished-1", ".x.tmp", "README"):
        (tmp_path / "epochs" / name).write_text("")
    (tmp_path / "epochs" / f"{9:020d}").mkdir()
    assert store.epochs() == [1]


def test_setting_aside(tmp_path: Path) -> None:
    store = ManifestStore(LocalFileSystem(str(tmp_path)))
    store.publish(manifest(1))
    moved = store.set_aside(1, 7)
    assert (tmp_path / moved).is_file()
    assert not store.exists(1)
    store.publish(manifest(1))


def test_identity(tmp_path: Path) -> None:
    files = LocalFileSystem(str(tmp_path))
    assert load_identity(files) is None
    made = create_identity(files, "j", "Job", 128)
    assert load_identity(files) == made
    assert create_identity(files, "other", "Other", 64) == made
    path = tmp_path / "job.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(IncompatibleStateError, match="format 2; this cairn reads up to 1"):
        load_identity(files)
    path.write_text("{")
    with pytest.raises(CorruptFileError, match=r"job\.json cannot be read"):
        load_identity(files)
