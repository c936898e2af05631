"""What user code declares about its state: kind, name, types, time to live. Names and defaults as in PyFlink."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cairn.errors import InvalidInputError, StateTypeError
from cairn.model.ddl import as_type
from cairn.model.evolution import paths
from cairn.model.functions import AggregateFunction, ReduceFunction, reducing
from cairn.model.pyflink_names import PyFlinkNames
from cairn.model.types import DataType

_NAME = re.compile(r"[A-Za-z0-9][\w .\-]{0,127}", re.ASCII)


class Time:
    """A length of time, as PyFlink writes it."""

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = milliseconds

    def to_milliseconds(self) -> int:
        return self._milliseconds

    @staticmethod
    def milliseconds(milliseconds: int) -> Time:
        return Time(milliseconds)

    @staticmethod
    def seconds(seconds: int) -> Time:
        return Time(seconds * 1000)

    @staticmethod
    def minutes(minutes: int) -> Time:
        return Time(minutes * 60_000)

    @staticmethod
    def hours(hours: int) -> Time:
        return Time(hours * 3_600_000)

    @staticmethod
    def days(days: int) -> Time:
        return Time(days * 86_400_000)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Time) and other._milliseconds == self._milliseconds

    def __hash__(self) -> int:
        return hash(self._milliseconds)

    def __repr__(self) -> str:
        return f"Time({self._milliseconds} ms)"


class UpdateType(Enum):
    """What refreshes the timestamp of a value."""

    Disabled = 0
    OnCreateAndWrite = 1
    OnReadAndWrite = 2


class StateVisibility(Enum):
    """May an expired value still be returned while it has not been removed."""

    ReturnExpiredIfNotCleanedUp = 0
    NeverReturnExpired = 1


@dataclass(frozen=True, slots=True)
class StateTtlConfig(PyFlinkNames):
    """Time to live of one state, counted in the processing time of the epochs. Build it with `new_builder`.

    A value is expired when `last access + ttl <= now`. The time is kept per value, per list element and per map
    entry. Expired entries are dropped when they are touched, and, with `cleanup_full_snapshot()`, whenever the
    stored state is compacted into a snapshot.
    """

    ttl: Time
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    visibility: StateVisibility = StateVisibility.NeverReturnExpired
    cleanup_at_snapshot: bool = False

    UpdateType = UpdateType
    StateVisibility = StateVisibility

    @staticmethod
    def new_builder(ttl: Time) -> StateTtlConfigBuilder:
        return StateTtlConfigBuilder(ttl)

    @property
    def enabled(self) -> bool:
        return self.update_type is not UpdateType.Disabled

    @property
    def milliseconds(self) -> int:
        return self.ttl.to_milliseconds()


class StateTtlConfigBuilder(PyFlinkNames):
    """PyFlink's builder. Each call returns the builder."""

    def __init__(self, ttl: Time) -> None:
        self.set_ttl(ttl)
        self._update = UpdateType.OnCreateAndWrite
        self._visibility = StateVisibility.NeverReturnExpired
        self._at_snapshot = False

    def set_ttl(self, ttl: Time) -> StateTtlConfigBuilder:
        if getattr(ttl, "to_milliseconds", lambda: 0)() <= 0:
            raise InvalidInputError(f"a time to live is a positive Time such as Time.hours(1), not {ttl!r}")
        self._ttl = ttl
        return self

    def set_update_type(self, update_type: UpdateType) -> StateTtlConfigBuilder:
        self._update = update_type
        return self

    def update_ttl_on_create_and_write(self) -> StateTtlConfigBuilder:
        return self.set_update_type(UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> StateTtlConfigBuilder:
        return self.set_update_type(UpdateType.OnReadAndWrite)

    def set_state_visibility(self, visibility: StateVisibility) -> StateTtlConfigBuilder:
        self._visibility = visibility
        return self

    def never_return_expired(self) -> StateTtlConfigBuilder:
        return self.set_state_visibility(StateVisibility.NeverReturnExpired)

    def return_expired_if_not_cleaned_up(self) -> StateTtlConfigBuilder:
        return self.set_state_visibility(StateVisibility.ReturnExpiredIfNotCleanedUp)

    def use_processing_time(self) -> StateTtlConfigBuilder:
        """Processing time is the only one there is; the call is accepted for PyFlink's sake."""
        return self

    def cleanup_full_snapshot(self) -> StateTtlConfigBuilder:
        self._at_snapshot = True
        return self

    def cleanup_incrementally(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> StateTtlConfigBuilder:
        """Taken for `cleanup_full_snapshot`: expired values are removed by compaction, not row by row."""
        return self.cleanup_full_snapshot()

    def cleanup_in_rocksdb_compact_filter(
        self, query_time_after_num_entries: int, periodic_compaction_time: Time | None = None
    ) -> StateTtlConfigBuilder:
        """Taken for `cleanup_full_snapshot`: expired values are removed by compaction, on every backend."""
        return self.cleanup_full_snapshot()

    def disable_cleanup_in_background(self) -> StateTtlConfigBuilder:
        """Nothing runs in the background here; the call is accepted for PyFlink's sake."""
        return self

    def build(self) -> StateTtlConfig:
        return StateTtlConfig(self._ttl, self._update, self._visibility, self._at_snapshot)


class StateKind(Enum):
    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    RAW = "raw"


class StateDescriptor(PyFlinkNames):
    """Base of all descriptors: `kind`, `name`, the type of what is stored, and the time to live."""

    kind: StateKind

    def __init__(
        self, name: str, value_type: DataType | str | None, field_defaults: Mapping[str, Any] | None = None
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):  # type: ignore[redundant-expr]
            raise InvalidInputError(
                f"a state name is 1 to 128 letters, digits, blanks, '_', '-' or '.', starting with a letter or digit; "
                f"not {name!r}"
            )
        self.name = name
        self.value_type = as_type(value_type)
        self.key_type: DataType | None = None
        self.ttl: StateTtlConfig | None = None
        self.field_defaults = self._checked_defaults(field_defaults or {})

    def _checked_defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What fields get that a restored state lacks, by name; by a dotted path inside nested structs."""
        known = dict(paths(self.value_type))
        for path, value in given.items():
            if path not in known:
                fields = ", ".join(known) or "none"
                raise InvalidInputError(
                    f"state '{self.name}': field_defaults names '{path}', which is not a field of "
                    f"{self.value_type.ddl}; its fields are {fields}",
                    state=self.name,
                )
            if value is not None:
                try:
                    known[path].to_storage(value)
                except StateTypeError as error:
                    raise StateTypeError(
                        f"state '{self.name}': the default of field '{path}': {error.message}", state=self.name
                    ) from None
        return {path: value for path, value in given.items() if value is not None}

    def get_name(self) -> str:
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        if not isinstance(ttl_config, StateTtlConfig):
            raise InvalidInputError(f"state '{self.name}': enable_time_to_live takes a StateTtlConfig")
        self.ttl = ttl_config if ttl_config.enabled else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.value_type.ddl!r})"


class ValueStateDescriptor(StateDescriptor):
    kind = StateKind.VALUE

    def __init__(
        self,
        name: str,
        value_type_info: DataType | str | None = None,
        *,
        field_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, value_type_info, field_defaults)


class RawStateDescriptor(StateDescriptor):
    """Bytes that only the function itself understands."""

    kind = StateKind.RAW

    def __init__(self, name: str) -> None:
        super().__init__(name, "binary")


class ListStateDescriptor(StateDescriptor):
    kind = StateKind.LIST

    def __init__(
        self,
        name: str,
        elem_type_info: DataType | str | None = None,
        *,
        field_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, elem_type_info, field_defaults)


class MapStateDescriptor(StateDescriptor):
    kind = StateKind.MAP

    def __init__(
        self,
        name: str,
        key_type_info: DataType | str | None = None,
        value_type_info: DataType | str | None = None,
        *,
        field_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, value_type_info, field_defaults)
        self.key_type = as_type(key_type_info)
        if self.key_type.ddl.startswith(("array<", "map<")):
            raise InvalidInputError(f"state '{name}': {self.key_type.ddl} cannot be the type of map keys")
        if self.key_type.ddl == "pickle":
            raise InvalidInputError(
                f"state '{name}': name the type of its map keys, as in MapStateDescriptor('{name}', 'string', ...); "
                "pickled keys would be told apart by their bytes, which differ between equal objects"
            )


class ReducingStateDescriptor(StateDescriptor):
    kind = StateKind.REDUCING

    def __init__(
        self,
        name: str,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        type_info: DataType | str | None = None,
        *,
        field_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, type_info, field_defaults)
        if not isinstance(reduce_function, ReduceFunction) and not callable(reduce_function):
            raise TypeError("The input must be a ReduceFunction or a callable function!")
        self.reduce = reducing(reduce_function)


class AggregatingStateDescriptor(StateDescriptor):
    kind = StateKind.AGGREGATING

    def __init__(
        self,
        name: str,
        agg_function: AggregateFunction,
        state_type_info: DataType | str | None = None,
        *,
        field_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, state_type_info, field_defaults)
        if not isinstance(agg_function, AggregateFunction):
            raise TypeError("The input must be an AggregateFunction!")
        self.aggregate = agg_function
