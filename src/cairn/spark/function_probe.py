"""Finds out which states the functions of a job declare, in one Spark task: where they would run, not in the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from pyspark.sql import SparkSession

from cairn.runtime.declared_states import Declared, declared_states
from cairn.runtime.operator_spec import OperatorSpec


def probe(spark: SparkSession, specs: Sequence[OperatorSpec], parameters: Mapping[str, str]) -> dict[str, Declared]:
    """The declared states of every operator, by uid. If `open()` fails, `Declared.failure` says why."""
    known = {spec.uid: declared_states(spec, parameters) for spec in specs if spec.vectorised}
    probed = [spec for spec in specs if not spec.vectorised]
    job_parameters = dict(parameters)

    def open_all(_: int) -> list[bytes]:
        return [msgspec.msgpack.encode(declared_states(spec, job_parameters)) for spec in probed]

    if probed:
        try:
            (encoded,) = spark.sparkContext.parallelize([0], 1).map(open_all).collect()
            declared = [msgspec.msgpack.decode(raw, type=Declared) for raw in encoded]
        except Exception as error:  # noqa: BLE001 - a worker that dies in open() is a failure of open()
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            declared = [Declared(spec.uid, [], f"open() could not be run: {reason}") for spec in probed]
        known.update({states.uid: states for states in declared})
    return known
