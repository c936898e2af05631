"""What the type of a stored state may become when a job is restored with other code (docs/design/0003-savepoints.md).

Types are compared as Spark DDL. `change` says whether one type can be reached from another, and what happens on the
way, in words; the columns themselves are converted in `state/type_conversion.py`. The type of a key never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from cairn.model.ddl import INTEGER_TYPES, parse_type
from cairn.model.manifest import StateSpec
from cairn.model.types import DataType

_DOUBLE_FROM = ("float", "tinyint", "smallint", "int")
ELEMENT = "element"
VALUE = "value"
"""How a path to a nested field names the items of an array and the values of a map."""


@dataclass(frozen=True, slots=True)
class TypeChange:
    """The way from one type to another: what changes, in words, and why it cannot be gone, if it cannot."""

    old: str
    new: str
    steps: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def none(self) -> bool:
        return self.old == self.new

    @property
    def allowed(self) -> bool:
        return not self.problems


class StateDeclaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state as the job's code declares it, and the values that fields get which the stored state lacks."""

    spec: StateSpec
    defaults: dict[str, bytes] = {}
    """Stored form of the default of each field, in MessagePack, by the path to the field."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """A stored state and the declaration that it is restored under."""

    old: StateSpec
    new: StateSpec
    types: TypeChange
    steps: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def none(self) -> bool:
        """Whether the stored bytes serve as they are. The length of a TTL and its clean-up are not in the bytes."""
        return self.old.signature == self.new.signature and self.old.name == self.new.name

    @property
    def allowed(self) -> bool:
        return not self.problems


def change(old: str, new: str) -> TypeChange:
    """What the rules say of a change from one type (DDL) to another."""
    if old == new:
        return TypeChange(old, new)
    steps: list[str] = []
    problems: list[str] = []
    _compare(parse_type(old), parse_type(new), "", steps, problems)
    return TypeChange(old, new, tuple(steps), tuple(problems))


def compare(old: StateSpec, new: StateSpec) -> StateChange:
    """What happens to a stored state that the code declares as `new`."""
    types = change(old.value_type, new.value_type)
    steps, problems = list(types.steps), list(types.problems)
    if old.kind != new.kind:
        problems.append(f"it is a {old.kind} state, and cannot become a {new.kind} state")
    if old.key_type != new.key_type and (old.key_type or new.key_type) and old.kind == new.kind:
        problems.append(f"its map keys are {old.key_type}, and cannot become {new.key_type}")
    if old.name != new.name:
        steps.insert(0, f"renamed from '{old.name}'")
    if bool(old.ttl_ms) != bool(new.ttl_ms):
        told = "switched on: values get the time of the restore" if new.ttl_ms else "switched off"
        steps.append(f"time to live {told}")
    elif old.ttl_ms != new.ttl_ms:
        steps.append(f"time to live {new.ttl_ms} ms instead of {old.ttl_ms} ms")
    return StateChange(old, new, types, tuple(steps), tuple(problems))


def _compare(old: DataType, new: DataType, where: str, steps: list[str], problems: list[str]) -> None:
    at = f"{where}: " if where else ""
    if old.ddl == new.ddl:
        return
    if old.fields and new.fields:
        _compare_fields(old, new, where, steps, problems)
    elif _is(old, "array") and _is(new, "array"):
        _compare(old.items[0], new.items[0], _inside(where, ELEMENT), steps, problems)
    elif _is(old, "map") and _is(new, "map"):
        if old.items[0].ddl != new.items[0].ddl:
            problems.append(f"{at}the keys of a map are {old.items[0].ddl} and cannot become {new.items[0].ddl}")
        _compare(old.items[1], new.items[1], _inside(where, VALUE), steps, problems)
    else:
        reason = _refusal(old.ddl, new.ddl)
        if reason is None:
            steps.append(f"{at}{old.ddl} becomes {new.ddl}")
        else:
            problems.append(f"{at}{old.ddl} cannot become {new.ddl}{reason}")


def _compare_fields(old: DataType, new: DataType, where: str, steps: list[str], problems: list[str]) -> None:
    before, after = dict(old.fields), dict(new.fields)
    kept = [name for name in before if name in after]
    for name in after:
        path = _inside(where, name)
        if name in before:
            _compare(before[name], after[name], path, steps, problems)
        else:
            steps.append(f"{path}: {after[name].ddl} added")
    steps.extend(f"{_inside(where, name)}: {before[name].ddl} removed" for name in before if name not in after)
    if not kept:
        names = ", ".join(before)
        problems.append(
            f"{where + ': ' if where else ''}no field is left of ({names}); a renamed field is one removed and one "
            "added, and would lose its values"
        )
    elif kept != [name for name in after if name in before]:
        steps.append(f"{where + ': ' if where else ''}fields reordered")


def _refusal(old: str, new: str) -> str | None:
    """Why a scalar cannot become another: empty for no particular reason, None if it can."""
    if old in INTEGER_TYPES and new in INTEGER_TYPES:
        return None if INTEGER_TYPES.index(new) > INTEGER_TYPES.index(old) else ": it is narrower"
    if new == "double" and old in _DOUBLE_FROM:
        return None
    if new == "double" and old == "bigint":
        return ": it would lose digits"
    if old == "double" and new == "float":
        return ": it is narrower"
    if old.startswith("decimal(") and new.startswith("decimal("):
        (precision, scale), (wider, finer) = _decimal(old), _decimal(new)
        return None if finer >= scale and wider - finer >= precision - scale else ": digits would not fit"
    if (old, new) == ("date", "timestamp_ntz"):
        return None
    if "pickle" in (old, new):
        return ": what is pickled has no type that could be converted"
    return ""


def _decimal(ddl: str) -> tuple[int, int]:
    precision, _, scale = ddl[8:-1].partition(",")
    return int(precision), int(scale)


def _is(dtype: DataType, word: str) -> bool:
    return dtype.ddl.startswith(f"{word}<")


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def paths(dtype: DataType, where: str = "") -> Iterator[tuple[str, DataType]]:
    """All fields of the structs in a type, by the path that names them."""
    if dtype.fields:
        for name, inner in dtype.fields:
            yield _inside(where, name), inner
            yield from paths(inner, _inside(where, name))
    elif _is(dtype, "array"):
        yield from paths(dtype.items[0], _inside(where, ELEMENT))
    elif _is(dtype, "map"):
        yield from paths(dtype.items[1], _inside(where, VALUE))


def both_schemas(old: StateSpec, new: StateSpec) -> str:
    """Two declarations under each other, a field a line, with a mark at the lines that differ."""
    before, after = _lines(old), _lines(new)
    width = max((len(line) for line in before.values()), default=0)
    shown = []
    for path in [*before, *(path for path in after if path not in before)]:
        left, right = before.get(path, ""), after.get(path, "")
        mark = " " if left == right else ("+" if not left else "-" if not right else "~")
        shown.append(f"  {mark} {left:{width}}  |  {right}".rstrip())
    return "\n".join(["    stored" + " " * max(1, width - 4) + "|  declared", *shown])


def _lines(spec: StateSpec) -> Mapping[str, str]:
    kind = f"{spec.kind} state{' with TTL' if spec.ttl_ms else ''}"
    if spec.key_type:
        kind += f", keys {spec.key_type}"
    dtype = parse_type(spec.value_type)
    fields: dict[str, Any] = dict(paths(dtype))
    lines = {"": f"{kind}: {spec.value_type if not fields else _word(dtype)}"}
    lines.update({path: f"{path}: {_word(inner)}" for path, inner in fields.items()})
    return lines


def _word(dtype: DataType) -> str:
    """A type without what the lines below it say."""
    if not any(True for _ in paths(dtype)):
        return dtype.ddl
    return dtype.ddl.partition("<")[0]
