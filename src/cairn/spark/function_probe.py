"""Asks the functions of a job which states they declare, in one Spark task: where they would run, not in the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from pyspark.sql import SparkSession

from cairn.runtime.declared_states import Declared, declared_states
from cairn.runtime.operator_spec import OperatorSpec


def probe(spark: SparkSession, specs: Sequence[OperatorSpec], parameters: Mapping[str, str]) -> dict[str, Declared]:
    """The declared states of every operator, by uid. What cannot be found out is told in `Declared.failure`."""
    known = {spec.uid: declared_states(spec, parameters) for spec in specs if spec.vectorised}
    asked = [spec for spec in specs if not spec.vectorised]
    told = dict(parameters)

    def ask(_: int) -> list[bytes]:
        return [msgspec.msgpack.encode(declared_states(spec, told)) for spec in asked]

    if asked:
        try:
            (answers,) = spark.sparkContext.parallelize([0], 1).map(ask).collect()
            found = [msgspec.msgpack.decode(raw, type=Declared) for raw in answers]
        except Exception as error:  # noqa: BLE001 - a worker that dies in open() is a failure of open()
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            found = [Declared(spec.uid, [], f"open() could not be run: {reason}") for spec in asked]
        known.update({answer.uid: answer for answer in found})
    return known
