"""Output rows of operators with side outputs or several readers: sorted by output, put into tagged Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cairn.errors import InternalError
from cairn.model.output_tags import FROM_COLUMN, TAG_COLUMN, output_column
from cairn.runtime.batches import OutputBuilder, is_aside, unknown_tag


@dataclass(frozen=True, slots=True)
class SideSpec:
    """One side output that the job reads."""

    tag: str
    output: pa.Schema
    bare: bool


class BareOutputBuilder(OutputBuilder):
    """The output of a function that puts out values of one column: whatever it emits is a value, never a row."""

    def build(self, rows: list[Any]) -> pa.RecordBatch:
        for row in rows:
            if is_aside(row):
                raise unknown_tag(self._operator, row[0], ())
        return super().build([(row,) for row in rows])


class TaggedBuilder(OutputBuilder):
    """Rows of the main output and `(OutputTag, value)` pairs, in any mixture, as tagged batches."""

    def __init__(self, operator: str, schema: pa.Schema, bare: bool, sides: Sequence[SideSpec], subtask: int) -> None:
        super().__init__(operator, schema)
        self._subtask = subtask
        self._names = tuple(side.tag for side in sides)
        self._numbers = {side.tag: number for number, side in enumerate(sides, 1)}
        of_sides = [_builder(operator, side.output, side.bare, side.tag) for side in sides]
        self._builders = [_builder(operator, schema, bare), *of_sides]
        structs = [pa.struct(list(part)) for part in (schema, *(side.output for side in sides))]
        fields = [pa.field(TAG_COLUMN, pa.int32()), pa.field(FROM_COLUMN, pa.int32())]
        self.tagged = pa.schema(
            fields + [pa.field(output_column(number), struct) for number, struct in enumerate(structs)]
        )

    def build(self, rows: list[Any]) -> pa.RecordBatch:
        outputs: list[list[Any]] = [[] for _ in self._builders]
        for row in rows:
            if is_aside(row):
                number = self._numbers.get(row[0].tag_id)
                if number is None:
                    raise unknown_tag(self._operator, row[0], self._names)
                outputs[number].append(row[1])
            else:
                outputs[0].append(row)
        built = [
            self.wrap(builder.build(mine), number)
            for number, (builder, mine) in enumerate(zip(self._builders, outputs, strict=True))
            if mine
        ]
        return built[0] if len(built) == 1 else pa.concat_batches(built)

    def check(self, batch: Any) -> pa.RecordBatch:
        return self.wrap(super().check(batch), 0)

    def aside(self, tag: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows for a side output, whose columns have the types of its own."""
        number = self._numbers.get(tag)
        if number is None:
            raise InternalError(f"operator '{self._operator}' has no side output '{tag}'")
        builder = self._builders[number]
        return self.wrap(builder.check(batch.rename_columns(builder.names)), number)

    def wrap(self, batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """Rows of one output as tagged rows."""
        count = batch.num_rows
        columns = [pa.repeat(pa.scalar(value, pa.int32()), count) for value in (number, self._subtask)]
        for place, field in enumerate(self.tagged):
            if place >= 2:
                mine = place - 2 == number
                struct = pa.StructArray.from_arrays(batch.columns, fields=list(field.type)) if mine else None
                columns.append(struct if struct is not None else pa.nulls(count, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.tagged)


def _builder(operator: str, schema: pa.Schema, bare: bool, side: str = "") -> OutputBuilder:
    return BareOutputBuilder(operator, schema, side) if bare else OutputBuilder(operator, schema, side)


def output_builder(
    operator: str, schema: pa.Schema, bare: bool, tagged: bool, sides: Sequence[SideSpec], subtask: int
) -> OutputBuilder:
    """What turns the rows that a function put out into the batches that Spark expects of it."""
    if tagged:
        return TaggedBuilder(operator, schema, bare, sides, subtask)
    if sides:
        raise InternalError(f"operator '{operator}' has side outputs, but its rows are not tagged")
    return _builder(operator, schema, bare)
