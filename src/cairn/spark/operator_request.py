"""How streams add operators to a job: from the request of a method to the operator's specification and its node."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame

from cairn.errors import InvalidInputError
from cairn.model.descriptors import MapStateDescriptor
from cairn.model.output_tags import OutputTag
from cairn.runtime.batches import GROUP_COLUMN
from cairn.runtime.map_functions import SimpleSpec
from cairn.runtime.operator_kinds import PROCESS
from cairn.runtime.operator_spec import InputSpec, OperatorSpec
from cairn.spark.job_definition import JobDefinition
from cairn.spark.operator_plan import InputRows, group_by_partition, group_of, plain_names, to_subtasks, two_inputs
from cairn.spark.output_types import OutputType, arrow_schema_of, raw_schema, side_schema, side_specs
from cairn.spark.plan_checks import refuse_native_state
from cairn.spark.stream_graph import FunctionNode, OutputNode
from cairn.spark.stream_input import StreamInput, event_time_of
from cairn.spark.worker_tasks import OperatorTask, SimpleTask

Shuffle = Callable[[Sequence[DataFrame], OperatorSpec], DataFrame]
"""Brings the rows of an operator's inputs to its subtasks."""


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """The parameters of an operator that a method of a stream adds."""

    function: Any
    output: OutputType
    uid: str | None
    name: str
    kind: str = PROCESS
    """What runs the function: one of `runtime/operator_kinds.py`; without state, `map`, `filter`, `flat_map`, `key`."""
    timers: bool = False
    vectorised: bool = False
    """The function takes whole Arrow batches."""
    states: tuple[tuple[str, str], ...] = ()
    """Name and DDL of the value states of a vectorised function."""
    with_keys: bool = False
    """The function also sees the columns of key expressions."""
    broadcast: tuple[MapStateDescriptor, ...] = ()
    """The states of a broadcast second input."""


def add_operator(job: JobDefinition, request: OperatorRequest, stream: StreamInput) -> OutputNode:
    """Add an operator with one input, keyed or not, to the job. Returns its main output."""
    _check_input(stream)
    uid = _claim(job, request)
    schema = stream.rows(stream.node.frame()).schema
    key = stream.key
    spec = OperatorSpec(
        uid=uid,
        name=request.name,
        function=request.function,
        vectorised=request.vectorised,
        parallelism=job.parallelism,
        max_parallelism=job.max_parallelism,
        key_columns=tuple(schema.names.index(name) for name in key.names) if key is not None else (),
        key_types=key.types if key is not None else (),
        columns=tuple(schema.names if request.with_keys else stream.schema.names),
        output=arrow_schema_of(request.output.schema),
        event_time=event_time_of(schema),
        backend=job.settings.backend,
        states=request.states,
        kind=request.kind,
        bare_in=stream.bare and not request.vectorised,
        bare_out=request.output.bare,
    )

    def shuffled(frames: Sequence[DataFrame], now: OperatorSpec) -> DataFrame:
        rows = plain_names(stream.rows(frames[0]))
        if key is not None:
            group = group_of([rows.columns[place] for place in now.key_columns], now.max_parallelism)
        else:
            group = group_by_partition(now.parallelism, now.max_parallelism)
        return to_subtasks(rows.withColumn(GROUP_COLUMN, group), now.parallelism, now.max_parallelism)

    return _added(job, request, spec, [stream], shuffled)


def add_two_input_operator(
    job: JobDefinition, request: OperatorRequest, first: StreamInput, second: StreamInput
) -> OutputNode:
    """Add an operator with two inputs. Keyed if the first one is; the second one then is, too, unless broadcast."""
    _check_input(first)
    _check_input(second)
    uid = _claim(job, request)
    schemas = (first.schema, second.schema)
    key_types = first.key.types if first.key is not None else ()
    spec = OperatorSpec(
        uid=uid,
        name=request.name,
        function=request.function,
        vectorised=False,
        parallelism=job.parallelism,
        max_parallelism=job.max_parallelism,
        key_columns=tuple(range(len(key_types))),
        key_types=key_types,
        columns=tuple(schemas[0].names),
        output=arrow_schema_of(request.output.schema),
        event_time=event_time_of(schemas[0]),
        backend=job.settings.backend,
        kind=request.kind,
        bare_in=first.bare,
        bare_out=request.output.bare,
        second=InputSpec(tuple(schemas[1].names), event_time_of(schemas[1]), second.bare),
        broadcast=request.broadcast,
    )

    def shuffled(frames: Sequence[DataFrame], now: OperatorSpec) -> DataFrame:
        inputs = [
            InputRows(stream.rows(frame), stream.key.names if stream.key is not None else (), schema.names)
            for stream, frame, schema in zip((first, second), frames, schemas, strict=True)
        ]
        return two_inputs(inputs[0], inputs[1], now)

    return _added(job, request, spec, [first, second], shuffled)


def add_function(job: JobDefinition, request: OperatorRequest, stream: StreamInput) -> OutputNode:
    """Add a function without state to the job: `map`, `filter` or `flat_map`, or the function of a key."""
    uid = job.claim_uid(request.uid, slug(request.name), request.kind)
    check_pickles(request.function, uid)
    spec = SimpleSpec(
        uid=uid,
        kind=request.kind,
        function=request.function,
        columns=tuple(stream.schema.names),
        output=arrow_schema_of(request.output.schema),
        parallelism=job.parallelism,
        bare_in=stream.bare,
        bare_out=request.output.bare,
    )

    def make(frames: Sequence[DataFrame], tagged: bool, sides: Sequence[OutputTag]) -> DataFrame:
        task = SimpleTask(replace(spec, tagged=tagged, sides=side_specs(sides)) if tagged else spec)
        return plain_names(frames[0]).mapInArrow(task, raw_schema(request.output.schema, tagged, sides))

    node = job.functions[uid] = FunctionNode(uid, [stream.node], make, job.parallelism, request.name)
    return node.main


def _check_input(stream: StreamInput) -> None:
    if stream.key is None:  # a keyed stream was checked when it was made
        refuse_native_state(stream.node.frame())


def _claim(job: JobDefinition, request: OperatorRequest) -> str:
    uid = job.claim_uid(request.uid, slug(request.name), "operator")
    check_pickles(request.function, uid)
    return uid


def _added(
    job: JobDefinition, request: OperatorRequest, spec: OperatorSpec, inputs: Sequence[StreamInput], shuffled: Shuffle
) -> OutputNode:
    def make(frames: Sequence[DataFrame], tagged: bool, sides: Sequence[OutputTag]) -> DataFrame:
        now = job.settled(spec)
        task = replace(now, tagged=tagged, sides=side_specs(sides)) if tagged else now
        return shuffled(frames, now).mapInArrow(
            OperatorTask(task, job.acks()), raw_schema(request.output.schema, tagged, sides)
        )

    job.add_operator(spec, request.timers)
    parents = [stream.node for stream in inputs]
    node = job.functions[spec.uid] = FunctionNode(spec.uid, parents, make, spec.parallelism)
    return node.main


def side_output(main: OutputNode, tag: OutputTag) -> OutputNode:
    """The side output of a function; added to it if it does not have it yet."""
    function = main.function
    for number, known in enumerate(function.sides, 1):
        if known == tag:
            if known.ddl != tag.ddl:
                raise InvalidInputError(
                    f"operator '{function.uid}': the side output '{known.tag_id}' has type ({known.ddl}) already "
                    f"and cannot also have type ({tag.ddl})"
                )
            return function.outputs[number]
    side_schema(tag)  # fails here if Spark does not know the type
    return function.add_side(tag)


def slug(name: str) -> str:
    """A name as a part of a generated uid."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "operator"


def check_pickles(function: Any, uid: str) -> None:
    """A function that cannot travel to the workers is refused where it is defined."""
    try:
        cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidInputError(
            f"operator '{uid}': its function cannot be sent to the Spark workers ({type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else error!r}). Do not keep a Spark session, "
            "lock, socket or open file in it; make such things in open().",
            uid=uid,
        ) from error
