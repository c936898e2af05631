"""The graph of a job: what its streams are made of, so that the final plan runs every Python function once.

A stream's DataFrame exists as soon as the stream does, made as if it had one reader. When the job starts it is known
how often each function's output is read. Where that is more than once, or where there are side outputs, the frames
are made again: the function then puts out tagged rows (`model/output_tags.py`), and a shuffle after it that all readers
have in common makes Spark run it once (`exchanged`). See docs/design/0004-streams.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from cairn.model.output_tags import FROM_COLUMN, TAG_COLUMN, OutputTag, output_column
from cairn.spark.logical_plan import plan_nodes
from cairn.spark.worker_tasks import FUNCTION_PREFIX


class Node(ABC):
    """Something that gives rows. `frame()` makes it as if it had one reader."""

    def __init__(self, parents: Sequence[Node]) -> None:
        self.parents = tuple(parents)
        self._frame: DataFrame | None = None

    def frame(self) -> DataFrame:
        if self._frame is None:
            self._frame = self.build(_Prototypes())
        return self._frame

    @abstractmethod
    def build(self, plan: Build) -> DataFrame:
        """The rows, with those of the parents as the plan gives them."""


class FrameNode(Node):
    """A DataFrame of the user's."""

    def __init__(self, df: DataFrame) -> None:
        super().__init__(())
        self._frame = df
        self.df = df

    def build(self, plan: Build) -> DataFrame:
        return self.df


class SqlNode(Node):
    """Spark SQL over other streams."""

    def __init__(self, parents: Sequence[Node], function: Callable[..., DataFrame]) -> None:
        super().__init__(parents)
        self.function = function

    def build(self, plan: Build) -> DataFrame:
        return self.function(*[plan.frame(parent) for parent in self.parents])


Maker = Callable[[Sequence[DataFrame], bool, Sequence[OutputTag]], DataFrame]
"""Makes the frame of a function from those of its inputs: tagged or not, with these side outputs."""


class FunctionNode(Node):
    """A Python function over one or two streams, with state or without. Read through its outputs."""

    def __init__(self, uid: str, parents: Sequence[Node], make: Maker, parallelism: int, label: str = "") -> None:
        super().__init__(parents)
        self.uid = uid
        self.label = label
        """What pages call it; an operator with state has its name in its spec."""
        self.make = make
        self.parallelism = parallelism
        self.sides: list[OutputTag] = []
        self.awaits_watermark = False
        """Its rows come when the watermark has moved, as those of event-time windows do."""
        self.main = OutputNode(self, 0)
        self.outputs = [self.main]

    def add_side(self, tag: OutputTag) -> OutputNode:
        self.sides.append(tag)
        self._frame = None
        for output in self.outputs:
            output._frame = None
        self.outputs.append(OutputNode(self, len(self.sides)))
        return self.outputs[-1]

    def build(self, plan: Build) -> DataFrame:
        frames = [plan.frame(parent) for parent in self.parents]
        if not plan.tagged(self):
            return self.make(frames, False, ())
        raw = self.make(frames, True, self.sides)
        return exchanged(raw, self.parallelism, len(self.outputs)) if self in plan.shared else raw


class OutputNode(Node):
    """The main output of a function (number 0), or one of its side outputs."""

    def __init__(self, function: FunctionNode, number: int) -> None:
        super().__init__([function])
        self.function = function
        self.number = number

    def build(self, plan: Build) -> DataFrame:
        raw = plan.frame(self.function)
        return self.read(raw, self.function in plan.shared) if plan.tagged(self.function) else raw

    def read(self, raw: DataFrame, shared: bool = False) -> DataFrame:
        """The rows of this output out of tagged ones.

        Behind a shared shuffle the condition must stay where it is: pushed below, it would make the shuffle differ
        from that of the other readers. Spark does not move a condition that is not deterministic.
        """
        mine = f"{TAG_COLUMN} = {self.number}"
        if shared:
            mine = f"CASE WHEN spark_partition_id() >= 0 THEN {mine} END"
        return raw.filter(F.expr(mine)).select(f"{output_column(self.number)}.*")


class Build:
    """One way to make the frames of a graph: the functions in `shared` run once for all their readers."""

    def __init__(self, shared: frozenset[FunctionNode] = frozenset()) -> None:
        self.shared = shared
        self._frames: dict[Node, DataFrame] = {}

    def tagged(self, function: FunctionNode) -> bool:
        return bool(function.sides) or function in self.shared

    def frame(self, node: Node) -> DataFrame:
        frame = self._frames.get(node)
        if frame is None:
            frame = self._frames[node] = node.build(self)
        return frame


class _Prototypes(Build):
    """Frames as if every function had one reader. Each node keeps its own."""

    def frame(self, node: Node) -> DataFrame:
        return node.frame()


def tagged_schema(outputs: Sequence[StructType]) -> StructType:
    """The columns of tagged rows, given the columns of each output."""
    fields = [StructField(TAG_COLUMN, IntegerType()), StructField(FROM_COLUMN, IntegerType())]
    return StructType(fields + [StructField(output_column(i), schema) for i, schema in enumerate(outputs)])


def exchanged(raw: DataFrame, parallelism: int, outputs: int) -> DataFrame:
    """A shuffle that all readers of a function have in common, so that Spark runs what lies below it once.

    Every row goes to the partition with the number of the subtask that made it. The expression names every column,
    else Spark would leave out below the shuffle what one reader does not need, and the shuffles would differ.
    """
    rest = " + ".join(f"int(isnull({output_column(number)}))" for number in range(outputs))
    place = f"int(CASE WHEN {TAG_COLUMN} >= 0 THEN {FROM_COLUMN} ELSE {rest} END)"
    return raw.repartitionById(parallelism, F.expr(place))


def shared_functions(roots: Sequence[Node]) -> frozenset[FunctionNode]:
    """The functions that would run more than once if each of these nodes were read once."""
    order = _consumers_first(roots)
    times = dict.fromkeys(order, 0)
    for root in roots:
        times[root] += 1
    shared = set()
    for node in order:
        if isinstance(node, FunctionNode) and times[node] > 1:
            shared.add(node)
            times[node] = 1
        for parent in node.parents:
            times[parent] += times[node]
    return frozenset(shared)


def functions_of(roots: Sequence[Node]) -> list[FunctionNode]:
    return [node for node in _consumers_first(roots) if isinstance(node, FunctionNode)]


def _consumers_first(roots: Sequence[Node]) -> list[Node]:
    """All nodes below these, every node before its parents."""
    done: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node in done:
            return
        for parent in node.parents:
            visit(parent)
        done[node] = None

    for root in roots:
        visit(root)
    return list(reversed(done))


def forget_frames(roots: Sequence[Node]) -> None:
    """Have all frames made again that are not the user's own."""
    for node in _consumers_first(roots):
        if not isinstance(node, FrameNode):
            node._frame = None


def hidden_functions(roots: Sequence[Node]) -> list[str]:
    """Uids of cairn's functions inside DataFrames that users made from `stream.df`, once for every occurrence."""
    uids: list[str] = []
    for node in _consumers_first(roots):
        if isinstance(node, FrameNode):
            for plan in plan_nodes(node.df):
                name = str(plan.functionExpr().toString()) if plan.nodeName() == "MapInArrow" else ""
                if name.startswith(FUNCTION_PREFIX):
                    uids.append(name[len(FUNCTION_PREFIX) :].split("(")[0])
    return uids
