"""Casts of whole Arrow columns that keep every value as it is; all others are left to those who know what they mean.

Arrow itself makes a day of a time, a time of a number, text of anything, and nulls of the fields that a struct does not
have. What a function over whole batches puts out or into state is cast by cairn only where nothing can be lost or read
in another way; whatever else is wanted is one call of `pyarrow.compute.cast` in the function itself.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds


class CastError(ValueError):
    """Says which two types, and what to do; the caller says whose they are."""


def cast_exactly(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The column as another type with the same values, or a `CastError`."""
    if array.type == wanted:
        return array
    if not keeps_values(array.type, wanted):
        raise CastError(
            f"the values are {array.type}, the declared type is {wanted}, and cairn casts one to the other only where "
            "values stay as they are. Cast them yourself with pyarrow.compute.cast, or declare another type"
        )
    if kinds.is_null(array.type):
        return pa.nulls(len(array), wanted)
    plain = array.dictionary_decode() if kinds.is_dictionary(array.type) else array
    try:
        made = plain.cast(wanted)
    except pa.ArrowException as error:
        raise CastError(
            f"the values are {array.type}, the declared type is {wanted}: {error}. Make them fit yourself with "
            "pyarrow.compute, or declare another type"
        ) from None
    if _has_more_infinities(plain, made):
        raise CastError(
            f"the values are {array.type}, the declared type is {wanted}: one is too large for it and would become "
            "infinite. Bound them yourself with pyarrow.compute, or declare another type"
        )
    return made


def keeps_values(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's safe cast from one type to the other either keeps a value or fails.

    Of floating-point numbers it makes infinities, which `cast_exactly` looks for.
    """
    if given == wanted or kinds.is_null(given):
        return True
    if kinds.is_dictionary(given):
        return keeps_values(given.value_type, wanted)
    if kinds.is_integer(given):
        return bool(kinds.is_integer(wanted) or kinds.is_floating(wanted) or kinds.is_decimal(wanted))
    for family in (kinds.is_floating, kinds.is_decimal, kinds.is_duration, _is_text, _is_binary):
        if family(given):
            return bool(family(wanted))
    if kinds.is_timestamp(given):
        return kinds.is_timestamp(wanted) and (given.tz is None or wanted.tz is not None)  # without a zone it is UTC
    if _is_list(given):
        return _is_list(wanted) and keeps_values(given.value_type, wanted.value_type)
    if kinds.is_map(given):
        return (
            kinds.is_map(wanted)
            and keeps_values(given.key_type, wanted.key_type)
            and keeps_values(given.item_type, wanted.item_type)
        )
    if kinds.is_struct(given) and kinds.is_struct(wanted):
        of_given = {field.name: field.type for field in given}
        of_wanted = {field.name: field.type for field in wanted}
        unique = len(of_given) == given.num_fields and len(of_wanted) == wanted.num_fields
        return (
            unique
            and of_given.keys() == of_wanted.keys()
            and all(keeps_values(of_given[name], of_wanted[name]) for name in of_given)
        )
    return False


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _has_more_infinities(given: pa.Array, made: pa.Array) -> bool:
    """Whether a cast made infinities of numbers; the two columns differ in their types only."""
    if kinds.is_floating(made.type):
        return bool(kinds.is_floating(given.type)) and _infinities(made) > _infinities(given)
    if _is_list(made.type) and _is_list(given.type):
        return _has_more_infinities(given.flatten(), made.flatten())
    if kinds.is_map(made.type):
        pairs = zip(_entries(given), _entries(made), strict=True)
        return any(_has_more_infinities(one, other) for one, other in pairs)
    if kinds.is_struct(made.type) and kinds.is_struct(given.type):
        parts = dict(zip((field.name for field in given.type), given.flatten(), strict=True))
        of_made = zip((field.name for field in made.type), made.flatten(), strict=True)
        return any(_has_more_infinities(parts[name], part) for name, part in of_made)
    return False


def _infinities(array: pa.Array) -> int:
    return int(pc.sum(pc.is_inf(array)).as_py() or 0)


def _entries(maps: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Keys and items of a map column, which may be a slice of a longer one."""
    bounds = maps.offsets
    first, last = (bounds[0].as_py(), bounds[-1].as_py()) if len(bounds) else (0, 0)
    return maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
