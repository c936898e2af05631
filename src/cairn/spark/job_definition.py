"""What a job consists of: streams write their operators and sinks here, and the start of the job reads it."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession

import cairn
from cairn.config import Settings
from cairn.connectors.sink_base import BaseSink
from cairn.errors import InvalidInputError, NotFoundError
from cairn.model import keygroups
from cairn.runtime.operator_spec import OperatorSpec
from cairn.snapshots.resolver import open_snapshot
from cairn.spark.stream_graph import FunctionNode, Node, forget_frames, hidden_functions
from cairn.spark.worker_tasks import collector
from cairn.storage import layout

_PACKAGE = os.path.dirname(os.path.abspath(cairn.__file__)) + os.sep


@dataclass(frozen=True, slots=True)
class AttachedSink:
    """A sink and the stream that it reads."""

    node: Node
    sink: BaseSink


class JobDefinition:
    """A job before it is started. Belongs to the thread that defines the job; a started job only reads it."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.settings = settings
        self.operators: list[OperatorSpec] = []
        self.functions: dict[str, FunctionNode] = {}
        """By uid: every Python function over streams, with state or without."""
        self.sinks: list[AttachedSink] = []
        self.timers = False
        """An operator has timers, so epochs must run although no rows arrive."""
        self.trigger: dict[str, Any] = {}
        """Spark's trigger, if the user has set one."""
        self.unbounded = False
        """A source was added that is not known to end."""
        self.executed = False
        self._uids: set[str] = set()
        self._stored_groups = 0
        """The maximum parallelism of the snapshot or the job that this one starts from; 0 if it is not known."""
        self._acks: Accumulator[list[bytes]] | None = None

    def change(self, **settings: Any) -> None:
        """Replace settings by their names."""
        self.settings = replace(self.settings, **settings)

    # Parallelism.

    @property
    def parallelism(self) -> int:
        return self._parallelism()[0]

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self._parallelism()[1]

    def _parallelism(self) -> tuple[int, int]:
        settings = self.settings
        parallelism = settings.parallelism or self.spark.sparkContext.defaultParallelism
        if settings.restore_path and not settings.max_parallelism and not self._stored_groups:
            with suppress(NotFoundError):  # the start refuses it, unless the job was restored from it before
                # As in Flink, unless it is set.
                self._stored_groups = open_snapshot(settings.restore_path, exact=True).max_parallelism
        groups = settings.max_parallelism or self._stored_groups or keygroups.default_max_parallelism(parallelism)
        keygroups.validate(parallelism, groups)
        return parallelism, groups

    def adopt_max_parallelism(self, stored: int) -> None:
        """Take over the maximum parallelism of the earlier runs, unless the user has set one.

        All frames are made again then. Frames that the user made of a stream's `df` cannot be: with these the job
        keeps its number, and the start refuses it.
        """
        nodes = [attached.node for attached in self.sinks]
        fixed = self.settings.max_parallelism or self._stored_groups
        if stored == self.max_parallelism or fixed or hidden_functions(nodes):
            return
        keygroups.validate(self.parallelism, stored)
        self._stored_groups = stored
        self.operators = [self.settled(spec) for spec in self.operators]
        forget_frames(nodes)

    def settled(self, spec: OperatorSpec) -> OperatorSpec:
        """The operator with the maximum parallelism that the job has by now."""
        return replace(spec, max_parallelism=self.max_parallelism)

    # Called by streams.

    def claim_uid(self, uid: str | None, base: str, what: str) -> str:
        """The uid of an operator, function or sink: the user's, or one that is generated from `base`."""
        if uid is None:
            if not self.settings.auto_uids and what in ("operator", "sink"):  # the others keep nothing under it
                raise InvalidInputError(f"the {what} '{base}' has no uid, and pipeline.auto-generate-uids is false")
            number = 1 + sum(1 for known in self._uids if known.startswith(f"auto-{base}-"))
            uid = f"auto-{base}-{number}"
            if what == "operator":
                warnings.warn(
                    f"operator '{base}' has no uid and is called '{uid}' by its place in the job. Set uid=...: its "
                    "state is found by the uid, and a generated one changes when operators are added or removed.",
                    stacklevel=_depth_of_caller(),
                )
        layout.checked(uid, f"{what} uid")
        if uid in self._uids:
            raise InvalidInputError(f"the uid '{uid}' is used twice; every operator and sink needs its own", uid=uid)
        self._uids.add(uid)
        return uid

    def refuse_operators(self, call: str) -> None:
        """Some settings must come before the first operator, which is made with them."""
        if self.operators:
            raise InvalidInputError(f"call {call} before the first operator is added")

    def add_operator(self, spec: OperatorSpec, timers: bool) -> None:
        self.operators.append(spec)
        self.timers = self.timers or timers

    def add_sink(self, node: Node, sink: BaseSink) -> None:
        self.sinks.append(AttachedSink(node, sink))

    def acks(self) -> Accumulator[list[bytes]]:
        """The accumulator that all tasks of the job acknowledge their epochs to."""
        if self._acks is None:
            self._acks = collector(self.spark.sparkContext)
        return self._acks


def _depth_of_caller() -> int:
    """The `stacklevel` of a warning of the calling function that points at the first line outside of cairn."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(_PACKAGE):
        frame, depth = frame.f_back, depth + 1
    return depth
