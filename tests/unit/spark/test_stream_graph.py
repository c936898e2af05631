"""Which functions of a job are read more than once. Needs no Spark session: the graph alone is looked at."""

from __future__ import annotations

from typing import Any

from cairn import OutputTag
from cairn.spark.stream_graph import FrameNode, FunctionNode, Node, SqlNode, functions_of, shared_functions


def source() -> Node:
    frame: Any = object()
    return FrameNode(frame)


def function(name: str, *parents: Node) -> FunctionNode:
    return FunctionNode(name, parents, lambda frames, tagged, sides: frames[0], 2)


def derived(*parents: Node) -> SqlNode:
    return SqlNode(parents, lambda *frames: frames[0])


def shared(*roots: Node) -> set[str]:
    return {node.uid for node in shared_functions(roots)}


def test_a_chain_shares_nothing() -> None:
    first = function("first", source())
    second = function("second", first.main)
    assert shared(derived(second.main)) == set()
    assert [node.uid for node in functions_of([second.main])] == ["second", "first"]


def test_two_readers_share_a_function_and_not_what_lies_below_it() -> None:
    first = function("first", source())
    second = function("second", first.main)
    assert shared(derived(second.main), second.main) == {"second"}
    side = second.add_side(OutputTag("side", "int"))
    assert shared(side, second.main) == {"second"}
    assert shared(side) == set()


def test_a_union_with_itself_is_two_readers() -> None:
    first = function("first", source())
    assert shared(derived(first.main, first.main)) == {"first"}


def test_spark_sql_that_is_read_twice_reads_twice() -> None:
    first = function("first", source())
    middle = derived(first.main)
    assert shared(derived(middle), derived(middle)) == {"first"}


def test_diamond() -> None:
    top = function("top", source())
    left, right = function("left", top.main), function("right", top.main)
    bottom = function("bottom", left.main, right.main)
    assert shared(bottom.main) == {"top"}
    assert shared(bottom.main, left.main) == {"top", "left"}


def test_a_source_is_no_function() -> None:
    rows = source()
    assert shared(function("a", rows).main, function("b", rows).main, rows) == set()
