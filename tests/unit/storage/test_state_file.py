"""State files: what is written is read back; what is damaged is never read as something else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cairn.errors import CorruptFileError
from cairn.model.keygroups import KeyGroupRange
from cairn.model.types import Storage
from cairn.storage import state_file
from cairn.storage.state_file import ARROW_STORAGE, Section, StateFile, rows_of, sorted_table
from cairn.testing.faults import truncate


def key(group: int, name: bytes) -> bytes:
    return group.to_bytes(2, "big") + name


def value_section(table: str, storage: Storage, pairs: dict[bytes, Any], group: int = -1) -> Section:
    columns = {
        "key": pa.array(list(pairs), pa.binary()),
        "value": pa.array(list(pairs.values()), ARROW_STORAGE[storage]),
    }
    return Section(table, "value", storage, False, sorted_table(columns), group)


SECTIONS = [
    value_section("int", Storage.INT, {key(5, b"b"): 1, key(0, b"a"): None, key(300, b"\xff"): -(2**63)}),
    value_section("float", Storage.FLOAT, {key(1, b""): 1.5}),
    value_section("text", Storage.TEXT, {key(1, b"x"): "", key(2, b"x"): "é"}),
    Section(
        "map",
        "map",
        Storage.BYTES,
        True,
        sorted_table(
            {
                "key": pa.array([key(1, b"k")] * 3, pa.binary()),
                "entry": pa.array([b"b", None, b""], pa.binary()),
                "value": pa.array([b"1", None, b""], pa.binary()),
                "time": pa.array([5, None, 6], pa.int64()),
            }
        ),
    ),
]
DATA, CHECKSUM = state_file.encode(SECTIONS)


def opened(data: bytes, size: int | None = None) -> StateFile:
    return StateFile(data, "it", CHECKSUM, len(DATA) if size is None else size)


def contents(file: StateFile) -> list[Any]:
    return [(info.table, info.kind, info.storage, info.ttl, file.read(info).data.to_pylist()) for info in file.sections]


EXPECTED = [(s.table, s.kind, s.storage.value, s.ttl, s.data.to_pylist()) for s in SECTIONS]


def test_round_trip() -> None:
    assert contents(opened(DATA)) == EXPECTED
    assert EXPECTED[0][4][0]["key"] == key(0, b"a")
    assert [row["entry"] for row in EXPECTED[3][4]] == [None, b"", b"b"]


def test_the_same_content_gives_the_same_bytes() -> None:
    assert state_file.encode(SECTIONS) == (DATA, CHECKSUM)


def test_an_empty_file() -> None:
    data, checksum = state_file.encode([])
    assert StateFile(data, "it", checksum, len(data)).sections == []


@pytest.mark.parametrize("groups", [(0, 0), (0, 5), (1, 4), (5, 300), (6, 299), (301, 400), (0, 32767)])
def test_reading_a_range(groups: tuple[int, int]) -> None:
    file = opened(DATA)
    found = file.read(file.sections[0], KeyGroupRange(*groups)).data.to_pylist()
    assert found == [row for row in EXPECTED[0][4] if groups[0] <= int.from_bytes(row["key"][:2], "big") <= groups[1]]


def test_a_range_of_nothing() -> None:
    table = SECTIONS[0].data.slice(0, 0)
    assert rows_of(table, KeyGroupRange(0, 5)).num_rows == 0


def test_every_truncation_is_seen() -> None:
    for size in range(len(DATA)):
        with pytest.raises(CorruptFileError, match="state file it is damaged"):
            opened(DATA[:size])
        if size:
            with pytest.raises(CorruptFileError):
                contents(opened(DATA[:size], size))
    with pytest.raises(CorruptFileError):
        opened(DATA + b"\0")


def test_every_flipped_bit_is_seen_or_harmless() -> None:
    harmless = 0
    for offset in range(len(DATA)):
        for bit in (0, 3, 7):
            damaged = bytearray(DATA)
            damaged[offset] ^= 1 << bit
            try:
                found = contents(opened(bytes(damaged)))
            except CorruptFileError:
                continue
            assert found == EXPECTED
            harmless += 1
    assert harmless <= 3 * 64 * len(SECTIONS)  # padding between sections


def test_another_file_in_its_place_is_seen() -> None:
    other, _ = state_file.encode([*SECTIONS[:3], value_section("int", Storage.INT, {key(5, b"b"): 2})])
    with pytest.raises(CorruptFileError):
        StateFile(other, "it", CHECKSUM, len(other))


@pytest.mark.parametrize("size", [0, 1, -1])
def test_a_damaged_file_on_disk_is_named(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.state"
    path.write_bytes(DATA)
    assert contents(StateFile.open(str(path), CHECKSUM, len(DATA))) == EXPECTED
    truncate(path, size)
    with pytest.raises(CorruptFileError, match=r"x\.state is damaged"):
        StateFile.open(str(path), CHECKSUM, len(DATA))
    path.unlink()
    with pytest.raises(CorruptFileError, match=r"x\.state is missing"):
        StateFile.open(str(path), CHECKSUM, len(DATA))


def test_a_lying_footer_is_bounded() -> None:
    """A footer that points outside of the file, with a checksum that fits it."""
    import msgspec
    import xxhash

    infos = [msgspec.structs.replace(info, offset=10**12, length=10**12) for info in opened(DATA).sections]
    footer = msgspec.msgpack.encode(infos)
    digest = xxhash.xxh3_64(footer)
    data = state_file.MAGIC + footer + len(footer).to_bytes(4, "little") + digest.digest() + state_file.END
    file = StateFile(data, "it", digest.hexdigest(), len(data))
    with pytest.raises(CorruptFileError):
        contents(file)


@pytest.mark.parametrize("seed", range(12))
def test_the_order_of_keys_is_that_of_their_bytes(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = [b"\x00\x01\xff", b"ab", bytes(range(256))][seed % 3]
    start = rng.choice([b"", b"\x00\x07user-", b"x" * 40])
    count = rng.choice([1, 63, 64, 500, 3000])
    longest = rng.choice([1, 7, 8, 9, 30])
    made = {start + bytes(rng.choices(alphabet, k=rng.randrange(longest + 1))) for _ in range(count)}
    keys = rng.sample(sorted(made), len(made))
    array = pa.array([b"before", *keys, b"after"], pa.binary())[1:-1]
    assert array.take(state_file.key_order(array)).to_pylist() == sorted(keys)


def test_the_order_of_keys_with_repetitions_and_of_none() -> None:
    keys = [b"same key", b"same key", b"other"] * 100
    assert pa.array(keys).take(state_file.key_order(pa.array(keys))).to_pylist() == sorted(keys)
    assert len(state_file.key_order(pa.array([], pa.binary()))) == 0
