"""Declared types of state values, keys and outputs, and how each is stored.

A type is written as Spark DDL (`"bigint"`, `"struct<a:int,b:string>"`) or with `Types.*`. Every type has a
*storage kind*: what a value is while it lives in state. Plain scalars are stored as themselves, so reading and
writing them costs nothing; everything that could be changed in place is stored as bytes and decoded anew at each
read, which is why a change that is not written back is never seen again, on any backend.

Not known here: Arrow and Spark types, DDL texts (`model/ddl.py`), and how bytes are laid out in files (`storage/`).
"""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec

from cairn.errors import InvalidInputError, StateTypeError
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.rows import row_class


class Storage(Enum):
    """What a stored value is made of. The four kinds are the whole vocabulary of state files and backends."""

    INT = "int"
    FLOAT = "float"
    TEXT = "text"
    BYTES = "bytes"


_UTC = dt.UTC
EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=_UTC)
EPOCH_NTZ = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - timestamp_ntz has no zone
_EPOCH_DAY = dt.date(1970, 1, 1)
MICROSECOND = dt.timedelta(microseconds=1)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

_INT_RANGES = {
    "tinyint": (-(1 << 7), (1 << 7) - 1),
    "smallint": (-(1 << 15), (1 << 15) - 1),
    "int": (-(1 << 31), (1 << 31) - 1),
    "bigint": (-(1 << 63), (1 << 63) - 1),
}


def _misfit(value: object, ddl: str, why: str = "") -> StateTypeError:
    shown = repr(value)
    shown = shown if len(shown) <= 120 else shown[:117] + "..."
    return StateTypeError(
        f"{shown} ({type(value).__name__}) does not fit type '{ddl}'{': ' + why if why else ''}", value=shown, type=ddl
    )


@dataclass(frozen=True, slots=True)
class DataType:
    """One declared type. Equal when the DDL is equal; `ddl` is the canonical text that manifests keep.

    `to_storage(value)` checks the value and gives its stored form (raises `StateTypeError`);
    `from_storage(stored)` gives the user's value back, a fresh object whenever the value could be changed in place.
    """

    ddl: str
    storage: Storage
    to_storage: Callable[[Any], Any]
    from_storage: Callable[[Any], Any]
    exact: type | None = None
    """The Python class whose instances are stored unchanged, if there is one."""
    low: int = 0
    high: int = -1
    """Bounds of an integer type; `low > high` when there are none."""
    fields: tuple[tuple[str, DataType], ...] = ()
    items: tuple[DataType, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataType) and other.ddl == self.ddl

    def __hash__(self) -> int:
        return hash(self.ddl)

    def __reduce__(self) -> tuple[Any, ...]:
        return _revived, (self.ddl,)  # its functions hold encoders, which cannot travel to workers

    def __repr__(self) -> str:
        return f"DataType({self.ddl!r})"

    @property
    def plain(self) -> bool:
        """True when the stored form is the user's value itself."""
        return self.exact is not None


def _revived(ddl: str) -> DataType:
    from cairn.model.ddl import parse_type  # it is built on this module

    return parse_type(ddl)


def _same(value: Any) -> Any:
    return value


def _int_type(name: str) -> DataType:
    low, high = _INT_RANGES[name]

    def check(value: Any) -> int:
        if value.__class__ is not int:
            if isinstance(value, (bool, float, str, bytes)) or not hasattr(value, "__index__"):
                raise _misfit(value, name)
            value = value.__index__()
        if not low <= value <= high:
            raise _misfit(value, name, f"outside {low}..{high}")
        return int(value)

    return DataType(name, Storage.INT, check, _same, int, low, high)


def _float_check(name: str) -> Callable[[Any], float]:
    pack = struct.Struct("<f")

    def check(value: Any) -> float:
        if (
            isinstance(value, (bool, str, bytes))
            or not hasattr(value, "__float__")
            or isinstance(value, decimal.Decimal)
        ):
            raise _misfit(value, name)
        try:
            number = float(value)
        except OverflowError:
            raise _misfit(value, name, "too large") from None
        if name == "double":
            return number
        try:
            return float(pack.unpack(pack.pack(number))[0])
        except OverflowError:
            raise _misfit(value, name, "too large for 32 bits") from None

    return check


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _misfit(value, "string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _misfit(value, "string", "it holds a lone surrogate, which UTF-8 cannot express") from None
    return str(value)


def _binary(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _misfit(value, "binary")
    return bytes(value)


def _boolean(value: Any) -> int:
    if value is True or value is False or type(value).__name__ in ("bool_", "bool"):  # the latter is NumPy's, too
        return int(value)
    raise _misfit(value, "boolean")


def _date(value: Any) -> int:
    if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
        raise _misfit(value, "date")
    return (value - _EPOCH_DAY).days


def _timestamp(value: Any) -> int:
    if not isinstance(value, dt.datetime):
        raise _misfit(value, "timestamp")
    if value.tzinfo is None:
        value = value.replace(tzinfo=_UTC)
    return int((value - EPOCH_UTC) // MICROSECOND)


def _timestamp_ntz(value: Any) -> int:
    if not isinstance(value, dt.datetime) or value.tzinfo is not None:
        raise _misfit(value, "timestamp_ntz", "" if not isinstance(value, dt.datetime) else "it has a time zone")
    return int((value - EPOCH_NTZ) // MICROSECOND)


def decimal_type(precision: int, scale: int) -> DataType:
    name = f"decimal({precision},{scale})"
    quantum = decimal.Decimal(1).scaleb(-scale)
    context = decimal.Context(prec=precision, rounding=decimal.ROUND_HALF_UP)

    def check(value: Any) -> str:
        if isinstance(value, (bool, float)) or not isinstance(value, (int, decimal.Decimal)):
            raise _misfit(value, name)
        try:
            fitted = decimal.Decimal(value).quantize(quantum, context=context)
        except decimal.InvalidOperation:
            raise _misfit(value, name, f"more than {precision} digits") from None
        if not fitted.is_finite():
            raise _misfit(value, name)
        return str(fitted or abs(fitted))  # there is one zero, as in Spark

    return DataType(name, Storage.TEXT, check, decimal.Decimal)


def _pickle(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:
        raise _misfit(value, "pickle", f"it cannot be pickled ({error})") from error


def _nested(ddl: str, pack: Callable[[Any], Any], unpack: Callable[[Any], Any], **parts: Any) -> DataType:
    def to_storage(value: Any) -> bytes:
        return _encode(pack(value))

    def from_storage(stored: bytes) -> Any:
        return unpack(_decode(stored))

    return DataType(ddl, Storage.BYTES, to_storage, from_storage, **parts)


def _pack_of(inner: DataType) -> Callable[[Any], Any]:
    """Nested values are packed whole: a null stays null, everything else takes its stored form."""
    to_storage = inner.to_storage
    return lambda value: None if value is None else to_storage(value)


def _unpack_of(inner: DataType) -> Callable[[Any], Any]:
    from_storage = inner.from_storage
    if from_storage is _same:
        return _same
    return lambda stored: None if stored is None else from_storage(stored)


def array_type(item: DataType) -> DataType:
    ddl = f"array<{item.ddl}>"
    pack_item, unpack_item = _pack_of(item), _unpack_of(item)

    def pack(value: Any) -> list[Any]:
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
            raise _misfit(value, ddl)
        return [pack_item(v) for v in value]

    return _nested(ddl, pack, lambda packed: [unpack_item(v) for v in packed], items=(item,))


def map_type(key: DataType, value: DataType) -> DataType:
    ddl = f"map<{key.ddl},{value.ddl}>"
    if not _hashable(key):
        raise InvalidInputError(f"{key.ddl} cannot be the key of a map: Python has no dict with such keys")
    pack_key, unpack_key = _pack_of(key), _unpack_of(key)
    pack_value, unpack_value = _pack_of(value), _unpack_of(value)

    def pack(entries: Any) -> list[Any]:
        if not isinstance(entries, Mapping):
            raise _misfit(entries, ddl)
        return [[pack_key(k), pack_value(v)] for k, v in entries.items()]

    return _nested(ddl, pack, lambda packed: {unpack_key(k): unpack_value(v) for k, v in packed}, items=(key, value))


def _hashable(dtype: DataType) -> bool:
    return not dtype.items and all(_hashable(inner) for _, inner in dtype.fields)


def struct_type(fields: Sequence[tuple[str, DataType]]) -> DataType:
    ddl = "struct<" + ",".join(f"{_quoted(name)}:{inner.ddl}" for name, inner in fields) + ">"
    names = [name for name, _ in fields]
    if len(set(names)) != len(names):
        raise InvalidInputError(f"a field name appears twice in type '{ddl}'")
    packs = [_pack_of(inner) for _, inner in fields]
    unpacks = [_unpack_of(inner) for _, inner in fields]
    row = row_class(tuple(names))

    def pack(value: Any) -> list[Any]:
        if isinstance(value, Mapping):
            if set(value) - set(names):
                raise _misfit(value, ddl, f"unknown field {min(set(value) - set(names))!r}")
            if set(names) - set(value):
                raise _misfit(value, ddl, f"field {min(set(names) - set(value))!r} is missing")
            value = [value[name] for name in names]
        if not isinstance(value, (tuple, list)):
            raise _misfit(value, ddl)
        if len(value) != len(packs):
            raise _misfit(value, ddl, f"it has {len(value)} fields, not {len(packs)}")
        return [p(v) for p, v in zip(packs, value, strict=True)]

    def unpack(packed: Any) -> Any:
        return row([u(v) for u, v in zip(unpacks, packed, strict=True)])

    return _nested(ddl, pack, unpack, fields=tuple(fields))


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"


@lru_cache(maxsize=64)
def scalar(name: str) -> DataType:
    if name in _INT_RANGES:
        return _int_type(name)
    if name == "double":
        return DataType(name, Storage.FLOAT, _float_check(name), _same, float)
    if name == "float":
        return DataType(name, Storage.FLOAT, _float_check(name), _same)
    if name == "string":
        return DataType(name, Storage.TEXT, _text, _same, str)
    if name == "binary":
        return DataType(name, Storage.BYTES, _binary, _same, bytes)
    if name == "boolean":
        return DataType(name, Storage.INT, _boolean, bool)
    if name == "date":
        return DataType(name, Storage.INT, _date, lambda days: _EPOCH_DAY + dt.timedelta(days=days))
    if name == "timestamp":
        return DataType(name, Storage.INT, _timestamp, lambda us: EPOCH_UTC + dt.timedelta(microseconds=us))
    if name == "timestamp_ntz":
        return DataType(name, Storage.INT, _timestamp_ntz, lambda us: EPOCH_NTZ + dt.timedelta(microseconds=us))
    raise InvalidInputError(f"'{name}' is not a scalar type")


PICKLE = DataType("pickle", Storage.BYTES, _pickle, pickle.loads)


class Types(PyFlinkNames):
    """PyFlink's type names. Each gives the same `DataType` as its DDL text."""

    @staticmethod
    def STRING() -> DataType:
        return scalar("string")

    @staticmethod
    def CHAR() -> DataType:
        """A single character is a text in Python and in Spark."""
        return scalar("string")

    @staticmethod
    def BOOLEAN() -> DataType:
        return scalar("boolean")

    @staticmethod
    def BYTE() -> DataType:
        return scalar("tinyint")

    @staticmethod
    def SHORT() -> DataType:
        return scalar("smallint")

    @staticmethod
    def INT() -> DataType:
        return scalar("int")

    @staticmethod
    def LONG() -> DataType:
        return scalar("bigint")

    @staticmethod
    def FLOAT() -> DataType:
        return scalar("float")

    @staticmethod
    def DOUBLE() -> DataType:
        return scalar("double")

    @staticmethod
    def BIG_INT() -> DataType:
        return decimal_type(38, 0)

    @staticmethod
    def BIG_DEC() -> DataType:
        return decimal_type(38, 18)

    @staticmethod
    def INSTANT() -> DataType:
        return scalar("timestamp")

    @staticmethod
    def SQL_DATE() -> DataType:
        return scalar("date")

    @staticmethod
    def SQL_TIMESTAMP() -> DataType:
        return scalar("timestamp_ntz")

    @staticmethod
    def PRIMITIVE_ARRAY(item: DataType) -> DataType:
        return scalar("binary") if item.ddl == "tinyint" else array_type(item)

    @staticmethod
    def BASIC_ARRAY(item: DataType) -> DataType:
        return array_type(item)

    @staticmethod
    def OBJECT_ARRAY(item: DataType) -> DataType:
        return array_type(item)

    @staticmethod
    def LIST(item: DataType) -> DataType:
        return array_type(item)

    @staticmethod
    def MAP(key: DataType, value: DataType) -> DataType:
        return map_type(key, value)

    @staticmethod
    def ROW(types: Sequence[DataType]) -> DataType:
        return struct_type([(f"f{i}", inner) for i, inner in enumerate(types)])

    @staticmethod
    def ROW_NAMED(names: Sequence[str], types: Sequence[DataType]) -> DataType:
        if len(names) != len(types):
            raise InvalidInputError(f"ROW_NAMED got {len(names)} names and {len(types)} types")
        return struct_type(list(zip(names, types, strict=True)))

    @staticmethod
    def TUPLE(types: Sequence[DataType]) -> DataType:
        return struct_type([(f"f{i}", inner) for i, inner in enumerate(types)])

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> DataType:
        return PICKLE
