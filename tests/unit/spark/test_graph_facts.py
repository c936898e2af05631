"""The job graph: from the streams of a job to records, and from records to a picture without overlaps."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.web_job import EVIL, UID, make_job

from cairn import OutputTag
from cairn.spark import graph_facts
from cairn.spark.stream_graph import FrameNode, FunctionNode, Node, SqlNode
from cairn.view.job_graph import Link, Vertex, graph_of
from cairn.view.job_reader import JobReader
from cairn.view.job_view import JobView
from cairn.web.graph_layout import Layout, arrange
from cairn.web.graph_svg import graph, source_words


def given(*names: str) -> FrameNode:
    frame: Any = names
    return FrameNode(frame)


def function(name: str, *parents: Node) -> FunctionNode:
    return FunctionNode(name, parents, lambda frames, tagged, sides: frames[0], 2, label=f"label of {name}")


def spec(uid: str, keyed: bool = True, broadcast: bool = False) -> Any:
    return SimpleNamespace(uid=uid, name=uid.title(), key_types=(("k", "int"),) * keyed, broadcast=(1,) * broadcast)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the graph without Spark; a DataFrame is the names of its sources, or `op:<uid>` for what is inside."""
    inside = {n: n[3:] for n in ("op:first", "op:second")}
    monkeypatch.setattr(graph_facts, "source_names", lambda frame: list(frame))
    monkeypatch.setattr(
        graph_facts, "hidden_functions", lambda nodes: [inside[n] for node in nodes for n in node.df if n in inside]
    )

    def make(sinks: list[tuple[Node, str, str]], specs: list[Any], functions: list[FunctionNode]) -> dict[str, Any]:
        made = graph_facts.topology(sinks, specs, {one.uid: one for one in functions})
        return {entry["id"]: entry for entry in made}

    return make


def links(entry: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(link["id"], link.get("ship", "FORWARD"), link.get("side", "")) for link in entry["inputs"]]


def test_union_broadcast_side_output_and_two_sinks(told: Any) -> None:
    left, right, rules = given("orders"), given("returns"), given("rules")
    cleaned = function("clean", SqlNode([left, right], lambda *frames: frames[0]))
    first = function("first", cleaned.main, rules)
    late = first.add_side(OutputTag("late", "int"))
    second = function("second", SqlNode([first.main], lambda frame: frame))
    sinks = [(second.main, "out", "files"), (late, "late-out", "table"), (first.main, "copy", "files")]
    made = told(sinks, [spec("first", broadcast=True), spec("second", keyed=False)], [cleaned, first, second])
    assert {name: entry["kind"] for name, entry in made.items()} == {
        "source-0": "source", "source-1": "source", "source-2": "source", "clean": "function", "first": "operator",
        "second": "operator", "out": "sink", "late-out": "sink", "copy": "sink",
    }  # fmt: skip
    assert made["clean"]["name"] == "label of clean"
    assert made["first"]["name"] == "First"
    assert links(made["clean"]) == [("source-0", "FORWARD", ""), ("source-1", "FORWARD", "")]
    assert links(made["first"]) == [("clean", "HASH", ""), ("source-2", "BROADCAST", "")]
    assert links(made["second"]) == [("first", "REBALANCE", "")]
    assert links(made["late-out"]) == [("first", "FORWARD", "late")]
    assert links(made["copy"]) == [("first", "FORWARD", "")]


def test_a_frame_made_of_an_operators_output_reads_the_operator(told: Any) -> None:
    first = function("first", given("orders"))
    second = function("second", given("op:first"))
    out = given("op:second", "op:first")
    made = told([(out, "out", "files")], [spec("first"), spec("second")], [first, second])
    # The one that the other reads already is not read once more; where it is not, both are.
    assert links(made["second"]) == [("first", "HASH", "")]
    assert ("second", "FORWARD", "") in links(made["out"])


def test_a_graph_that_cannot_be_told_is_no_error(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(frame: Any) -> list[str]:
        raise RuntimeError("the JVM says no")

    monkeypatch.setattr(graph_facts, "source_names", broken)
    assert told([(given("orders"), "out", "files")], [], []) == {}


def test_what_was_stored_is_checked() -> None:
    chain = graph_of(None, ["s"], [("a", "A"), ("b", "B")], [{"uid": "x", "kind": "files"}])
    assert [(v.id, [link.id for link in v.inputs]) for v in chain] == [
        ("source-0", []), ("a", ["source-0"]), ("b", ["a"]), ("x", ["b"]),
    ]  # fmt: skip
    assert graph_of([{"id": 7}], ["s"], [], []) == graph_of(None, ["s"], [], [])
    circle = [Vertex("a", "operator", "A", [Link("b")]), Vertex("b", "operator", "B", [Link("a"), Link("gone")])]
    told = graph_of(msgspec.to_builtins([*circle, circle[0]]), [], [], [])
    assert [(v.id, [link.id for link in v.inputs]) for v in told] == [("a", []), ("b", ["a"])]


def overlaps(layout: Layout, along: float, across: float) -> list[tuple[str, str]]:
    return [
        (one, two)
        for (one, (a, c)), (two, (b, d)) in itertools.combinations(layout.places.items(), 2)
        if abs(a - b) < along and abs(c - d) < across
    ]


def through(layout: Layout, along: float, across: float) -> list[tuple[tuple[str, str], str]]:
    """Edges that pass a layer inside of a node of it."""
    return [
        (edge, name)
        for edge, points in layout.ways.items()
        for a, c in points
        for name, (b, d) in layout.places.items()
        if b <= a <= b + along and d <= c <= d + across
    ]


@pytest.mark.parametrize("seed", range(40))
def test_no_node_overlaps_another_and_no_edge_passes_through_one(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"n{number}" for number in range(chance.randint(1, 14))]
    inputs = {
        name: chance.sample(names[:at], chance.randint(0, min(at, 3))) for at, name in enumerate(names)
    }  # fmt: skip
    layout = arrange(inputs, 100, 50, 40, 10)
    assert set(layout.places) == set(names)
    assert overlaps(layout, 100, 50) == []
    assert through(layout, 100, 50) == []
    for (start, end), points in layout.ways.items():
        stops = [layout.places[start][0], *(a for a, _ in points), layout.places[end][0]]
        assert stops == sorted(stops)
        assert stops[0] < stops[-1], "edges go one way"
    assert all(0 <= a <= layout.along - 100 and -0.01 <= c <= layout.across - 49.99 for a, c in layout.places.values())


def test_branches_that_do_not_cross_are_drawn_without_crossing() -> None:
    layout = arrange({"s": [], "t": [], "a": ["t"], "b": ["s"], "x": ["a"], "y": ["b"]}, 100, 50, 40, 10)
    across = {name: place[1] for name, place in layout.places.items()}
    assert (across["s"] < across["t"]) == (across["b"] < across["a"]) == (across["y"] < across["x"])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobView:
    return JobReader(str(make_job(tmp_path_factory.mktemp("jobs"), ended=""))).view()


def test_the_picture_has_every_vertex_and_every_edge_twice(job: JobView) -> None:
    drawn = str(graph(job))
    assert drawn.count("<svg") == 2  # wide and tall
    assert drawn.count('class="node ') == 2 * len(job.graph)
    assert drawn.count('class="arrow"') == 2 * sum(len({link.id for link in v.inputs}) for v in job.graph)
    assert drawn.count(f"/operators/{UID}") == 2
    assert "edge-broadcast" in drawn
    assert "side late" in drawn
    assert EVIL not in drawn
    for width, height in re.findall(r'<svg width="(\d+)" height="(\d+)"', drawn):
        assert int(width) > 0 < int(height)
    tall = int(re.findall(r'graph-tall.*?<svg width="(\d+)"', drawn)[0])
    assert tall <= 342, "two branches side by side fit a phone"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("FileStreamSource[file:/data/orders]", ("FileStreamSource", "/data/orders")),
        ("rate-micro-batch{82775e9ea61f}", ("rate-micro-batch", "")),
        ("KafkaV2[Subscribe[orders]]{0011223344}", ("KafkaV2", "Subscribe[orders")),
        ("cairn-collection{orders}", ("cairn-collection", "orders")),
        ("", ("", "")),
    ],
)
def test_sources_are_named_for_people(name: str, words: tuple[str, str]) -> None:
    assert source_words(name) == words


def test_old_jobs_and_huge_ones(job: JobView, tmp_path: Path) -> None:
    assert "has not committed an epoch yet" in str(graph(msgspec.structs.replace(job, graph=[])))
    many = [Vertex(f"v{number}", "function", "f") for number in range(500)]
    assert "500 vertices; see the table" in str(graph(msgspec.structs.replace(job, graph=many)))
