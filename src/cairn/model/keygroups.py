"""Which key group a key belongs to, and which subtask owns a key group.

Key groups are the unit in which state is stored and moved between subtasks. The range formulas are Flink's. The
key group of a key is `pmod(hash(key columns), max_parallelism)` with Spark SQL's `hash`, so that the JVM can compute
it for a whole column before the shuffle; Flink would run a second murmur over Java's `hashCode`, which is not done
here because Spark's hash is well mixed already. This module holds the same hash in Python, for looking up single
keys without Spark. It is part of the stored format: the results must never change.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import operator
import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from cairn.errors import InvalidInputError, StateTypeError
from cairn.model.types import EPOCH_NTZ, EPOCH_UTC, MICROSECOND

MIN_DEFAULT_MAX_PARALLELISM = 128
MAX_PARALLELISM_LIMIT = 32768

SPARK_HASH_SEED = 42


# ---------------------------------------------------------------- ranges


class KeyGroupRange(msgspec.Struct, frozen=True):
    """The key groups `start` to `end`, both included."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end < MAX_PARALLELISM_LIMIT:
            raise InvalidInputError(
                f"A key-group range needs 0 <= start <= end < {MAX_PARALLELISM_LIMIT}, got {self.start} to {self.end}.",
                start=self.start,
                end=self.end,
            )

    def __len__(self) -> int:
        return self.end - self.start + 1

    def contains(self, key_group: int) -> bool:
        return self.start <= key_group <= self.end

    def intersects(self, other: KeyGroupRange) -> bool:
        return self.start <= other.end and other.start <= self.end


def default_max_parallelism(parallelism: int) -> int:
    """Flink's choice when none is configured: half as much again, as a power of two, between 128 and 32768."""
    _check_number("Parallelism", "parallelism", parallelism)
    wanted = parallelism + parallelism // 2
    rounded = 1 << (wanted - 1).bit_length()
    return min(max(rounded, MIN_DEFAULT_MAX_PARALLELISM), MAX_PARALLELISM_LIMIT)


def validate(parallelism: int, max_parallelism: int) -> None:
    """Raise InvalidInputError unless `1 <= parallelism <= max_parallelism <= 32768`."""
    _check_number("Max parallelism", "max_parallelism", max_parallelism)
    _check_number("Parallelism", "parallelism", parallelism)
    if parallelism > max_parallelism:
        raise InvalidInputError(
            f"Parallelism {parallelism} is above the max parallelism {max_parallelism}: each subtask needs at least "
            f"one key group. Use {max_parallelism} or less; the max parallelism of stored state is fixed.",
            parallelism=parallelism,
            max_parallelism=max_parallelism,
        )


def key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The key groups that subtask number `subtask` (from 0) owns."""
    validate(parallelism, max_parallelism)
    if not 0 <= subtask < parallelism:
        raise InvalidInputError(
            f"There is no subtask {subtask} at parallelism {parallelism}; subtasks are numbered 0 to "
            f"{parallelism - 1}.",
            subtask=subtask,
            parallelism=parallelism,
        )
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask (from 0) that owns `key_group`; the inverse of `key_group_range`."""
    validate(parallelism, max_parallelism)
    if not 0 <= key_group < max_parallelism:
        raise InvalidInputError(
            f"There is no key group {key_group} at max parallelism {max_parallelism}; key groups are numbered 0 to "
            f"{max_parallelism - 1}.",
            key_group=key_group,
            max_parallelism=max_parallelism,
        )
    return key_group * parallelism // max_parallelism


def _check_number(what: str, name: str, value: int) -> None:
    if type(value) is not int or not 1 <= value <= MAX_PARALLELISM_LIMIT:
        raise InvalidInputError(
            f"{what} must be a whole number from 1 to {MAX_PARALLELISM_LIMIT}, got {value!r}.", **{name: value}
        )


# ---------------------------------------------------------------- keys


def key_group(values: Sequence[Any], types: Sequence[str], max_parallelism: int) -> int:
    """The key group of the key with these column values, whose Spark types are given as DDL names.

    Equal to `pmod(hash(column, ...), max_parallelism)` in Spark SQL. Raises StateTypeError when a value does not fit
    its type, and InvalidInputError when a type cannot be part of a key.
    """
    _check_number("Max parallelism", "max_parallelism", max_parallelism)
    return spark_hash(values, types) % max_parallelism


def spark_hash(values: Sequence[Any], types: Sequence[str], seed: int = SPARK_HASH_SEED) -> int:
    """Spark SQL's `hash` of a row: a signed 32-bit number. A null column leaves the hash as it was.

    `seed` is what the columns before these came to, as a number without sign.
    """
    if len(values) != len(types) or not types:
        raise InvalidInputError(
            f"A key needs one value for each key column: {len(types)} column types, {len(values)} values.",
            types=tuple(types),
        )
    h = seed
    for value, ddl_type in zip(values, types, strict=True):
        if value is not None:
            h = _column_hasher(ddl_type)(value, h)
    return h - 0x1_0000_0000 if h >= 0x8000_0000 else h


_Hasher = Callable[[Any, int], int]
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_STRING = re.compile(r"string|(?:varchar|char|character)\(\s*\d+\s*\)")
_INTEGERS = {
    "tinyint": 8,
    "byte": 8,
    "smallint": 16,
    "short": 16,
    "int": 32,
    "integer": 32,
    "bigint": 64,
    "long": 64,
}
_LARGEST_LONG_PRECISION = 18
_EPOCH_DATE = dt.date(1970, 1, 1).toordinal()
_EXACT = decimal.Context(prec=100)


@lru_cache(maxsize=256)
def _column_hasher(ddl_type: str) -> _Hasher:
    name = ddl_type.strip().lower()
    if name in _INTEGERS:
        return _integer_hasher(name, _INTEGERS[name])
    if _STRING.fullmatch(name):
        return _hash_string
    if match := _DECIMAL.fullmatch(name):
        return _decimal_hasher(name, int(match[1] or 10), int(match[2] or 0))
    hasher = _FIXED_TYPES.get(name)
    if hasher is None:
        raise InvalidInputError(
            f"A column of type {ddl_type!r} cannot be part of a key. Use boolean, an integer type, float, double, "
            "decimal, string, binary, date or timestamp; cast or split the column before key_by.",
            type=ddl_type,
        )
    return hasher


def _unfit(value: Any, type_name: str, why: str) -> StateTypeError:
    return StateTypeError(
        f"Key value {value!r} ({type(value).__name__}) does not fit the column type {type_name}: {why}.",
        type=type_name,
    )


def _hash_boolean(value: Any, seed: int) -> int:
    plain = _plain(value)
    if not isinstance(plain, bool):
        raise _unfit(value, "boolean", "True or False is needed")
    return _hash_int32(int(plain), seed)


def _integer_hasher(type_name: str, bits: int) -> _Hasher:
    limit = 1 << (bits - 1)
    mix = _hash_int64 if bits == 64 else _hash_int32

    def hash_integer(value: Any, seed: int) -> int:
        number = _whole(value, type_name)
        if not -limit <= number < limit:
            raise _unfit(value, type_name, f"it must be from {-limit} to {limit - 1}")
        return mix(number, seed)

    return hash_integer


def _hash_float(value: Any, seed: int) -> int:
    number = _real(value, "float")
    if math.isnan(number):
        return _hash_int32(0x7FC0_0000, seed)
    try:
        packed = struct.pack("<f", number)
    except OverflowError:
        raise _unfit(value, "float", "it is too large for 32 bits") from None
    # A value too small for 32 bits becomes zero, so zero is tested after the rounding. Minus zero counts as zero.
    (bits,) = struct.unpack("<I", packed)
    return _hash_int32(0 if bits == 0x8000_0000 else bits, seed)


def _hash_double(value: Any, seed: int) -> int:
    number = _real(value, "double")
    if math.isnan(number):
        return _hash_int64(0x7FF8_0000_0000_0000, seed)
    (bits,) = struct.unpack("<Q", struct.pack("<d", number + 0.0))  # -0.0 + 0.0 is 0.0
    return _hash_int64(bits, seed)


def _hash_string(value: Any, seed: int) -> int:
    if not isinstance(value, str):
        raise _unfit(value, "string", "a str is needed")
    try:
        return _hash_bytes(value.encode(), seed)
    except UnicodeEncodeError:
        raise _unfit(value, "string", "it contains half of a surrogate pair, which has no UTF-8 form") from None


def _hash_binary(value: Any, seed: int) -> int:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _unfit(value, "binary", "bytes are needed")
    return _hash_bytes(bytes(value), seed)


def _hash_date(value: Any, seed: int) -> int:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return _hash_int32(value.toordinal() - _EPOCH_DATE, seed)
    raise _unfit(value, "date", "a datetime.date is needed")


def _hash_timestamp(value: Any, seed: int) -> int:
    if isinstance(value, dt.datetime) and value.utcoffset() is not None:
        return _hash_int64((value - EPOCH_UTC) // MICROSECOND, seed)
    if isinstance(value, dt.datetime):
        raise _unfit(value, "timestamp", "it has no time zone, so it is not one point in time; give it a tzinfo")
    return _hash_int64(_micros(value, "timestamp"), seed)


def _hash_timestamp_ntz(value: Any, seed: int) -> int:
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            raise _unfit(value, "timestamp_ntz", "the type has no time zone; use value.replace(tzinfo=None)")
        return _hash_int64((value - EPOCH_NTZ) // MICROSECOND, seed)
    return _hash_int64(_micros(value, "timestamp_ntz"), seed)


def _decimal_hasher(type_name: str, precision: int, scale: int) -> _Hasher:
    if not 1 <= precision <= 38 or scale > precision:
        raise InvalidInputError(
            f"Type {type_name!r} is not a Spark decimal: 1 <= precision <= 38 and 0 <= scale <= precision are needed.",
            type=type_name,
        )

    def hash_decimal(value: Any, seed: int) -> int:
        if isinstance(value, decimal.Decimal) and value.is_finite():
            shifted = value.scaleb(scale, _EXACT)
        elif isinstance(value, int) and not isinstance(value, bool):
            shifted = decimal.Decimal(value).scaleb(scale, _EXACT)
        else:
            raise _unfit(value, type_name, "a finite decimal.Decimal is needed")
        unscaled = int(shifted)
        if unscaled != shifted:
            raise _unfit(value, type_name, f"it has more than {scale} digits after the point")
        if abs(unscaled) >= 10**precision:
            raise _unfit(value, type_name, f"it has more than {precision} digits")
        if precision <= _LARGEST_LONG_PRECISION:
            return _hash_int64(unscaled, seed)
        # The shortest two's complement form, as java.math.BigInteger.toByteArray gives it.
        bit_length = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
        return _hash_bytes(unscaled.to_bytes(bit_length // 8 + 1, "big", signed=True), seed)

    return hash_decimal


_FIXED_TYPES: dict[str, _Hasher] = {
    "boolean": _hash_boolean,
    "float": _hash_float,
    "real": _hash_float,
    "double": _hash_double,
    "binary": _hash_binary,
    "date": _hash_date,
    "timestamp": _hash_timestamp,
    "timestamp_ltz": _hash_timestamp,
    "timestamp_ntz": _hash_timestamp_ntz,
}


def _plain(value: Any) -> Any:
    """A numpy scalar as the Python value it stands for; anything else as it is."""
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def _whole(value: Any, type_name: str) -> int:
    if isinstance(value, bool):
        raise _unfit(value, type_name, "a whole number is needed")
    try:
        return operator.index(value)
    except TypeError:
        raise _unfit(value, type_name, "a whole number is needed") from None


def _real(value: Any, type_name: str) -> float:
    plain = _plain(value)
    if isinstance(plain, (int, float)) and not isinstance(plain, bool):
        try:
            return float(plain)
        except OverflowError:
            raise _unfit(value, type_name, "it is too large") from None
    raise _unfit(value, type_name, "a number is needed")


def _micros(value: Any, type_name: str) -> int:
    """Timestamps may also be given as Spark stores them: microseconds since 1970."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unfit(value, type_name, "a datetime.datetime, or microseconds since 1970, is needed")
    if not -(1 << 63) <= value < 1 << 63:
        raise _unfit(value, type_name, "it is outside the range of 64 bits")
    return value


# ---------------------------------------------------------------- Murmur3 x86_32 in Spark's variant
#
# All numbers below are unsigned 32-bit; inputs may be negative and are masked. Spark differs from the standard in
# one point: each byte after the last whole word is widened with its sign and mixed like a word of its own.

_U32 = 0xFFFF_FFFF


def _mix(h: int, word: int) -> int:
    k = (word * 0xCC9E_2D51) & _U32
    k = ((k << 15) | (k >> 17)) & _U32
    h ^= (k * 0x1B87_3593) & _U32
    h = ((h << 13) | (h >> 19)) & _U32
    return (h * 5 + 0xE654_6B64) & _U32


def _finish(h: int, length: int) -> int:
    h ^= length
    h ^= h >> 16
    h = (h * 0x85EB_CA6B) & _U32
    h ^= h >> 13
    h = (h * 0xC2B2_AE35) & _U32
    return h ^ (h >> 16)


def _hash_int32(value: int, seed: int) -> int:
    return _finish(_mix(seed, value & _U32), 4)


def _hash_int64(value: int, seed: int) -> int:
    return _finish(_mix(_mix(seed, value & _U32), (value >> 32) & _U32), 8)


def _hash_bytes(data: bytes, seed: int) -> int:
    h = seed
    length = len(data)
    aligned = length - length % 4
    for word in struct.unpack_from(f"<{aligned // 4}I", data):
        h = _mix(h, word)
    for byte in data[aligned:]:
        h = _mix(h, byte if byte < 0x80 else byte | 0xFFFF_FF00)
    return _finish(h, length)
