"""The job graph as records: what the job told of it at its start, or a chain of what is known of an older job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

FORWARD, HASH, REBALANCE, BROADCAST = "FORWARD", "HASH", "REBALANCE", "BROADCAST"
"""Flink's words for how rows come to an operator."""


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a vertex reads: the main output of another one, or the side output with a name."""

    id: str
    ship: str = FORWARD
    side: str = ""


class Vertex(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of the job graph. `kind` is source, function (without state), operator or sink."""

    id: str
    kind: str
    name: str
    inputs: list[Link] = []
    whole: bool = False
    """Of a sink: it gets the very rows that its one input puts out, with no Spark SQL in between."""


def graph_of(
    told: Any, sources: Sequence[str], operators: Sequence[tuple[str, str]], sinks: Sequence[dict[str, str]]
) -> list[Vertex]:
    """The graph that the job told, every vertex after those that it reads.

    A job of an earlier release told none: then its sources, operators (uid and name) and sinks stand in a row.
    """
    try:
        found = msgspec.convert(told or [], type=list[Vertex])
    except msgspec.ValidationError:
        found = []
    known: set[str] = set()
    graph = []
    for vertex in found:  # a link to nowhere, or back, is left out: what is drawn must end
        if vertex.id not in known:
            inputs = [link for link in vertex.inputs if link.id in known]
            graph.append(msgspec.structs.replace(vertex, inputs=inputs))
            known.add(vertex.id)
    return graph or _chain(sources, operators, sinks)


def _chain(
    sources: Sequence[str], operators: Sequence[tuple[str, str]], sinks: Sequence[dict[str, str]]
) -> list[Vertex]:
    made = [Vertex(f"source-{number}", "source", name) for number, name in enumerate(sources)]
    before = [Link(vertex.id, HASH) for vertex in made]
    for uid, name in operators:
        made.append(Vertex(uid, "operator", name, before))
        before = [Link(uid, HASH)]
    ends = [Link(link.id) for link in before]
    made += [Vertex(str(sink.get("uid", "")), "sink", str(sink.get("kind", "sink")), ends) for sink in sinks]
    return made
