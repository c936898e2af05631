"""The job graph as SVG: from left to right on a wide page, from top to bottom on a narrow one. No script is needed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from cairn.quantities import count, rate
from cairn.view.job_graph import FORWARD, Link, Vertex
from cairn.view.job_view import JobView, OperatorView
from cairn.web.graph_layout import Layout, Place, arrange

_IDLE, _BUSY, _BLOCKED = (0x5D, 0xB1, 0xFF), (0xEE, 0x64, 0x64), (0x88, 0x88, 0x88)
_IDLE_EDGE, _BUSY_EDGE, _BLOCKED_EDGE = (0x18, 0x90, 0xFF), (0xEE, 0x22, 0x22), (0, 0, 0)
"""Flink's colours of a node of the job graph, and of its border."""
_HEIGHT, _LINE = 112, 16.5
_MOST = 300
"""More vertices than this are a table, not a picture."""
_WORDS = {"function": "function, no state"}

Colour = tuple[int, int, int]


def colour_of(operator: OperatorView) -> str:
    """Flink's blend: from blue to red by how busy, then to grey by how backpressured."""
    return _blended(operator, _IDLE, _BUSY, _BLOCKED)


def border_of(operator: OperatorView) -> str:
    return _blended(operator, _IDLE_EDGE, _BUSY_EDGE, _BLOCKED_EDGE)


def _blended(operator: OperatorView, idle: Colour, busy: Colour, blocked: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*blend(blend(idle, busy, operator.busy), blocked, operator.backpressured))


def blend(start: Colour, end: Colour, share: float) -> Colour:
    share = min(1.0, max(0.0, share))
    mixed = [round(a + (b - a) * share) for a, b in zip(start, end, strict=True)]
    return mixed[0], mixed[1], mixed[2]


def graph(job: JobView) -> Markup:
    """Both pictures; the style sheet shows the one that fits the page."""
    if not job.graph:
        return Markup('<p class="empty">The job has not committed an epoch yet.</p>')
    if len(job.graph) > _MOST:
        return Markup('<p class="empty">The graph has {} vertices; see the table below.</p>').format(len(job.graph))
    return _picture(job, down=False) + _picture(job, down=True)


def _picture(job: JobView, down: bool) -> Markup:
    inputs = {vertex.id: [link.id for link in vertex.inputs] for vertex in job.graph}
    wide = 164.0 if down else 180.0
    high = float(_HEIGHT)
    layout = arrange(inputs, high, wide, 40, 12) if down else arrange(inputs, wide, high, 64, 18)
    parts: list[Markup] = []
    for vertex in job.graph:
        parts += [_edge(layout, link, vertex.id, wide, high, down) for link in _merged(vertex.inputs)]
    parts += [_node(job, vertex, _turned(layout.places[vertex.id], down), wide, high) for vertex in job.graph]
    across, along = layout.across + 2, layout.along + 2
    width, height = (across, along) if down else (along, across)
    return Markup(
        '<div class="graph {}" tabindex="0" role="region" aria-label="Job graph">'
        '<svg width="{}" height="{}" viewBox="-1 -1 {} {}" role="group" aria-label="{}">{}</svg></div>'
    ).format(
        "graph-tall" if down else "graph-wide", round(width), round(height), round(width), round(height),
        f"Job graph with {len(job.graph)} vertices", Markup("").join(parts),
    )  # fmt: skip


def _merged(links: Sequence[Link]) -> list[Link]:
    """One line for each pair of vertices; its label tells of all that flows there."""
    found: dict[str, list[Link]] = {}
    for link in links:
        found.setdefault(link.id, []).append(link)
    return [
        Link(name, ", ".join(dict.fromkeys(link.ship for link in same if link.ship != FORWARD)),
             ", ".join(dict.fromkeys(link.side for link in same if link.side)))
        for name, same in found.items()
    ]  # fmt: skip


def _turned(place: Place, down: bool) -> Place:
    return (place[1], place[0]) if down else place


def _edge(layout: Layout, link: Link, end: str, wide: float, high: float, down: bool) -> Markup:
    along, across = (high, wide) if down else (wide, high)
    start_at, end_at = layout.places[link.id], layout.places[end]
    stops: list[Place] = [(start_at[0] + along, start_at[1] + across / 2)]
    for middle, side in layout.ways[link.id, end]:  # straight through a layer, curved between two
        stops += [(middle - along / 2, side), (middle + along / 2, side)]
    stops.append((end_at[0] - 4, end_at[1] + across / 2))
    path = "M{} {}".format(*_rounded(_turned(stops[0], down)))
    for at in range(1, len(stops)):
        (a0, c0), (a1, c1) = stops[at - 1], stops[at]
        if at % 2:
            half = (a0 + a1) / 2
            bend = [_rounded(_turned(point, down)) for point in ((half, c0), (half, c1), (a1, c1))]
            path += " C" + " ".join(f"{x} {y}" for x, y in bend)
        else:
            path += " L{} {}".format(*_rounded(_turned((a1, c1), down)))
    tip = _rounded(_turned((stops[-1][0] + 4, stops[-1][1]), down))
    arrow = "l-4 -7 h8 z" if down else "l-7 -4 v8 z"
    words = " · ".join(filter(None, [link.ship, f"side {link.side}" if link.side else ""]))
    label = Markup("")
    if words:
        (a0, c0), (a1, c1) = stops[-2], stops[-1]
        x, y = _rounded(_turned(((a0 + a1) / 2, (c0 + c1) / 2), down))
        label = Markup('<text class="edge-text" x="{}" y="{}">{}<title>{}</title></text>').format(
            x, y - (0 if down else 5), _short(words, 24 if down else 12), words
        )
    kind = " edge-broadcast" if "BROADCAST" in link.ship else " edge-side" if link.side else ""
    return Markup('<path class="edge{}" d="{}"/><path class="arrow" d="M{} {} {}"/>{}').format(
        kind, path, tip[0], tip[1], arrow, label
    )


def _rounded(place: Place) -> Place:
    return round(place[0], 1), round(place[1], 1)


def source_words(name: str) -> tuple[str, str]:
    """What Spark calls a source, and of what: FileStreamSource and its folder, without the digest of its options."""
    found = re.fullmatch(r"(\w[\w .-]*)(.*)", name, re.DOTALL)
    if found is None:
        return name, ""
    detail = re.sub(r"\{[0-9a-f]{8,}\}$", "", found[2]).strip("[]{}")
    return found[1].strip(), detail.removeprefix("file:").strip()


def shown_name(vertex: Vertex) -> str:
    return " ".join(filter(None, source_words(vertex.name))) if vertex.kind == "source" else vertex.name


def _lines(job: JobView, vertex: Vertex) -> list[str]:
    operator = job.operator(vertex.id)
    if operator is None and vertex.kind == "source":
        kind, detail = source_words(vertex.name)
        return [kind, vertex.id, *([detail] if detail else []), *_flow(job, vertex.id, "out")]
    if operator is None and vertex.kind == "sink":
        return [vertex.name, f"uid {vertex.id}", "sink", *_flow(job, vertex.id, "in")]
    if operator is None:
        word = "no epoch committed yet" if vertex.kind == "operator" else _WORDS.get(vertex.kind, vertex.kind)
        return [vertex.name, f"uid {vertex.id}", word]
    if not operator.recorded:
        return [operator.name, f"uid {operator.uid}", f"parallelism {operator.parallelism}", "rows unknown"]
    return [
        operator.name,
        f"uid {operator.uid}",
        f"parallelism {operator.parallelism} · skew {operator.skew:.0%}",
        f"in {count(operator.rows_in)} · out {count(operator.rows_out)}",
        f"Backpressured (max): {operator.backpressured:.0%}",
        f"Busy (max): {operator.busy:.0%}",
    ]


def _flow(job: JobView, name: str, way: str) -> list[str]:
    """Rows of a source or sink so far and per second, where they are counted."""
    end = job.ends.get(name)
    if end is None or end.rows is None:
        return []
    return [f"{way} {count(end.rows)} rows", *([f"{rate(end.rate)} rows/s"] if end.rate is not None else [])]


def _node(job: JobView, vertex: Vertex, place: Place, wide: float, high: float) -> Markup:
    x, y = _rounded(place)
    lines = _lines(job, vertex)
    first = y + (high - len(lines) * _LINE) / 2 + 12
    most = (int((wide - 16) / 8.4), int((wide - 12) / 6.05))  # characters that fit, also in a wide font
    text = Markup("").join(
        Markup('<text class="{}" x="{}" y="{}">{}</text>').format(
            "node-text" if at else "node-name", x + 9, round(first + at * _LINE, 1), _short(line, most[bool(at)])
        )
        for at, line in enumerate(lines)
    )
    operator = job.operator(vertex.id)
    fill, border = (colour_of(operator), border_of(operator)) if operator is not None else ("#ffffff", "#d5dbe0")
    box = Markup(
        '<rect class="node node-{}" x="{}" y="{}" width="{}" height="{}" rx="6" fill="{}" stroke="{}"/>'
    ).format(
        vertex.kind if operator is not None or vertex.kind != "operator" else "new", x, y, wide, high, fill, border
    )
    body = Markup("<title>{}</title>").format("\n".join(lines)) + box + text
    if operator is None:
        return Markup('<g role="img" aria-label="{}">{}</g>').format(", ".join(lines), body)
    link = f"/jobs/{job.job_id}/operators/{operator.uid}"
    return Markup('<a href="{}" aria-label="{}">{}</a>').format(link, f"Operator {', '.join(lines)}", body)


def _short(text: str, most: int) -> str:
    """The beginning and the end of a long text: names of files differ at the end."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"
