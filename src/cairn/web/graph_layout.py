"""Where the nodes of a graph go: layers by the longest way from a source, few crossings, no edge through a node.

The layout knows nothing of jobs or of drawing. `along` is the way from source to sink, `across` the other one; who
draws decides which of them is x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Place = tuple[float, float]
_SWEEPS = 6
_PASSING = 18.0
"""What an edge that passes a layer takes of it."""


@dataclass(frozen=True)
class Layout:
    """`places` are the corners of the nodes, `ways` the points that an edge (from, to) passes in layers between."""

    places: dict[str, Place]
    ways: dict[tuple[str, str], list[Place]]
    along: float
    across: float


def arrange(
    inputs: Mapping[str, Sequence[str]], along: float, across: float, gap_along: float, gap_across: float
) -> Layout:
    """Place nodes of the size `along` x `across`. `inputs` has every node after those that it reads."""
    layer: dict[str, int] = {}
    for node, parents in inputs.items():
        layer[node] = 1 + max((layer[parent] for parent in parents), default=-1)
    for node in reversed(list(inputs)):  # a source stands next to its first reader, not at the far end
        readers = [layer[reader] for reader, parents in inputs.items() if node in parents]
        if not inputs[node] and readers:
            layer[node] = min(readers) - 1
    columns: list[list[str]] = [[] for _ in range(1 + max(layer.values(), default=-1))]
    for node in inputs:
        columns[layer[node]].append(node)
    links, bends = _with_bends(inputs, layer, columns)
    _uncross(columns, links)
    depth = {name: _PASSING if name in bends else across for column in columns for name in column}
    middles = _spread(columns, links, depth, gap_across)
    top = min((middles[name] - depth[name] / 2 for name in depth), default=0.0)
    places: dict[str, Place] = {}
    points: dict[str, Place] = {}
    for number, column in enumerate(columns):
        start = number * (along + gap_along)
        for name in column:
            points[name] = (start + along / 2, middles[name] - top)
            if name not in bends:
                places[name] = (start, middles[name] - top - across / 2)
    ways: dict[tuple[str, str], list[Place]] = {
        (parent, node): [] for node, parents in inputs.items() for parent in parents
    }
    for name, edge in bends.items():
        ways[edge].append(points[name])
    deep = max((middles[name] - top + depth[name] / 2 for name in depth), default=0.0)
    return Layout(places, ways, max(0.0, len(columns) * (along + gap_along) - gap_along), deep)


def _with_bends(
    inputs: Mapping[str, Sequence[str]], layer: Mapping[str, int], columns: list[list[str]]
) -> tuple[list[tuple[str, str]], dict[str, tuple[str, str]]]:
    """Edges between neighbouring layers; a long edge gets a bend in every layer that it passes."""
    links: list[tuple[str, str]] = []
    bends: dict[str, tuple[str, str]] = {}
    for node, parents in inputs.items():
        for parent in dict.fromkeys(parents):
            before = parent
            for between in range(layer[parent] + 1, layer[node]):
                bend = f"\0{len(bends)}"
                bends[bend] = (parent, node)
                columns[between].append(bend)
                links.append((before, bend))
                before = bend
            links.append((before, node))
    return links, bends


def _neighbours(links: Sequence[tuple[str, str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    left: dict[str, list[str]] = {}
    right: dict[str, list[str]] = {}
    for start, end in links:
        left.setdefault(end, []).append(start)
        right.setdefault(start, []).append(end)
    return left, right


def _uncross(columns: list[list[str]], links: Sequence[tuple[str, str]]) -> None:
    """Sort each layer by the middle of its neighbours, to and fro. What has no neighbour stays where it is."""
    left, right = _neighbours(links)
    for sweep in range(_SWEEPS):
        toward = left if sweep % 2 == 0 else right
        for column in columns if toward is left else columns[::-1]:
            rank = {name: at for other in columns for at, name in enumerate(other)}

            def middle(name: str, rank: dict[str, int] = rank, toward: dict[str, list[str]] = toward) -> float:
                near = toward.get(name, [])
                return sum(rank[other] for other in near) / len(near) if near else rank[name]

            column.sort(key=middle)


def _spread(
    columns: Sequence[list[str]], links: Sequence[tuple[str, str]], depth: Mapping[str, float], gap: float
) -> dict[str, float]:
    """The middle of every node: as near to those of its neighbours as the others of its layer let it."""
    left, right = _neighbours(links)
    middles: dict[str, float] = {}
    for column in columns:
        at = 0.0
        for name in column:
            middles[name] = at + depth[name] / 2
            at += depth[name] + gap
        shift = (at - gap) / 2
        for name in column:
            middles[name] -= shift
    for sweep in range(2 * _SWEEPS):
        toward = left if sweep % 2 == 0 else right
        for column in columns if toward is left else columns[::-1]:
            wanted = {
                name: sum(middles[other] for other in toward[name]) / len(toward[name]) if toward.get(name)
                else middles[name]
                for name in column
            }  # fmt: skip
            middles.update(_apart(column, wanted, depth, gap))
    return middles


def _apart(
    column: Sequence[str], wanted: Mapping[str, float], depth: Mapping[str, float], gap: float
) -> dict[str, float]:
    """Wanted places with the order kept and nothing overlapping: halfway between pushing down and pushing up."""
    down: dict[str, float] = {}
    up: dict[str, float] = {}
    for at, name in enumerate(column):
        least = down[column[at - 1]] + (depth[column[at - 1]] + depth[name]) / 2 + gap if at else wanted[name]
        down[name] = max(wanted[name], least)
    for at in range(len(column) - 1, -1, -1):
        name = column[at]
        last = at == len(column) - 1
        most = wanted[name] if last else up[column[at + 1]] - (depth[column[at + 1]] + depth[name]) / 2 - gap
        up[name] = min(wanted[name], most)
    return {name: (down[name] + up[name]) / 2 for name in column}
