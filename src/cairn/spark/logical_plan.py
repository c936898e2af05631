"""Spark's analyzed plan of a DataFrame: its nodes, and the sources that it reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from cairn.restore.source_matching import FILES, again, source_name


def plan_nodes(frame: DataFrame) -> Iterator[Any]:
    """The nodes of a plan, each before its children, and these from left to right."""
    todo = [frame._jdf.queryExecution().analyzed()]
    while todo:
        node = todo.pop()
        yield node
        children = node.children()
        todo.extend(children.apply(i) for i in reversed(range(children.size())))


def source_names(frame: DataFrame) -> list[str]:
    """What the sources of a plan read, in the order of the positions that Spark logs.

    A relation that is used twice in the same form is one source with two positions (`restore/source_matching.py`).
    """
    relations: list[tuple[Any, int]] = []
    names: list[str] = []
    for node in plan_nodes(frame):
        if not (node.children().isEmpty() and node.isStreaming()):
            continue
        first = next((number for known, number in relations if node.equals(known)), None)
        if first is None:
            relations.append((node, len(names)))
        named = node.getClass().getSimpleName().startswith("StreamingRelation")
        name = _source_name(node) if named else str(node.nodeName())
        names.append(name if first is None else again(first))
    return names


def _source_name(node: Any) -> str:
    if node.getClass().getSimpleName() == "StreamingRelation":
        entries = node.dataSource().options().iterator()
        options = {}
        while entries.hasNext():
            entry = entries.next()
            options[str(entry._1())] = str(entry._2())
    else:
        entries = node.extraOptions().asCaseSensitiveMap().entrySet().toArray()  # py4j ends an iterator by an error
        places = [entries[place] for place in range(len(entries))]
        options = {str(entry.getKey()): str(entry.getValue()) for entry in places}
    name = str(node.sourceName())
    path = name.removeprefix(f"{FILES}[").removesuffix("]")
    if name.startswith(f"{FILES}[") and not path.startswith("/") and ":" not in path:
        name = f"{FILES}[{os.path.abspath(path)}]"  # from another working directory it would be another place
    return source_name(name, options)
