"""The job graph as pages show it: sources, functions, operators and sinks, and who reads whom.

Spark SQL between them has no vertex of its own, as a chain of operators has none in Flink: `transform`, `union` and
`with_watermark` are passed through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cairn.logs import get_logger
from cairn.runtime.operator_spec import OperatorSpec
from cairn.spark.logical_plan import source_names
from cairn.spark.stream_graph import FrameNode, FunctionNode, Node, OutputNode, functions_of, hidden_functions
from cairn.view.job_graph import BROADCAST, FORWARD, HASH, REBALANCE, Link, Vertex

_log = get_logger("cairn.api")


def topology(
    sinks: Sequence[tuple[Node, str, str]], operators: Sequence[OperatorSpec], functions: Mapping[str, FunctionNode]
) -> list[dict[str, Any]]:
    """The graph as plain values. `sinks` are what each one reads, its uid and its kind.

    Pages show it, and nothing else depends on it: if it cannot be determined, it is empty and no error.
    """
    try:
        return _Walk(operators, functions).vertices(sinks)
    except Exception:  # noqa: BLE001 - the job must start, whatever Spark's plans look like
        _log.debug("the job graph cannot be determined", exc_info=True)
        return []


class _Walk:
    def __init__(self, operators: Sequence[OperatorSpec], functions: Mapping[str, FunctionNode]) -> None:
        self._operators = {spec.uid: spec for spec in operators}
        self._functions = functions
        self._made: dict[str, Vertex] = {}
        """By id, every vertex after those that it reads."""
        self._given: dict[Node, list[Link]] = {}

    def vertices(self, sinks: Sequence[tuple[Node, str, str]]) -> list[dict[str, Any]]:
        for node, uid, kind in sinks:
            whole = isinstance(node, OutputNode) and not node.function.sides
            self._made[uid] = Vertex(uid, "sink", kind, _once(self._origins(node)), whole)
        return [msgspec.to_builtins(vertex) for vertex in self._made.values()]

    def _origins(self, node: Node) -> list[Link]:
        """The vertices that the rows of a node come from."""
        if isinstance(node, OutputNode):
            self._visit(node.function)
            side = node.function.sides[node.number - 1].tag_id if node.number else ""
            return [Link(node.function.uid, side=side)]
        if isinstance(node, FrameNode):
            if node not in self._given:
                self._given[node] = self._sources(node)
            return self._given[node]
        return [link for parent in node.parents for link in self._origins(parent)]

    def _sources(self, node: FrameNode) -> list[Link]:
        """What a DataFrame of the user's reads: sources, or operators whose `df` it was made of."""
        inside = [self._functions[uid] for uid in dict.fromkeys(hidden_functions([node])) if uid in self._functions]
        below = {deeper for function in inside for deeper in functions_of(function.parents)}
        last = [function for function in inside if function not in below]
        if last:
            for function in last:
                self._visit(function)
            return [Link(function.uid) for function in last]
        links = []
        for name in source_names(node.df):
            number = sum(1 for vertex in self._made.values() if vertex.kind == "source")
            vertex = Vertex(f"source-{number}", "source", name)
            self._made[vertex.id] = vertex
            links.append(Link(vertex.id))
        return links

    def _visit(self, function: FunctionNode) -> None:
        if function.uid in self._made:
            return
        spec = self._operators.get(function.uid)
        inputs = [
            msgspec.structs.replace(link, ship=_ship(spec, place))
            for place, parent in enumerate(function.parents)
            for link in self._origins(parent)
        ]
        kind, name = ("function", function.label) if spec is None else ("operator", spec.name)
        self._made[function.uid] = Vertex(function.uid, kind, name or function.uid, _once(inputs))


def _ship(spec: OperatorSpec | None, place: int) -> str:
    if spec is None:
        return FORWARD
    if place and spec.broadcast:
        return BROADCAST
    return HASH if spec.key_types else REBALANCE


def _once(links: Sequence[Link]) -> list[Link]:
    return list(dict.fromkeys(links))
