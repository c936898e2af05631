"""Charts as SVG, made on the server: no script, no inline style, values as `<title>`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from cairn.quantities import count, duration, share, size
from cairn.view.job_view import JobView, is_savepoint
from cairn.view.journal import EpochStats

WIDTH, HEIGHT = 640, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 10, 26
_MOST = 240
_SPOTS = 80
"""Of a line: how many of its points tell their values."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """`style` is `line` or `dots`; `colour` a number from 1 to 5, which the style sheet knows."""

    name: str
    points: Sequence[Point]
    style: str = "line"
    colour: int = 1


def chart(
    title: str, series: Sequence[Series], shown: Callable[[float], str], span: tuple[float, float] | None = None
) -> Markup:
    """Values over time; the series share both axes, and those without points are left out. Charts that are to be read
    together are given the same `span` of time."""
    series = [one for one in series if one.points]
    points = [point for one in series for point in one.points]
    if not points:
        return Markup('<p class="empty">{}: no data.</p>').format(title)
    left, right = span or (min(x for x, _ in points), max(x for x, _ in points))
    right = right if right > left else left + 1000
    top = _round_up(max(y for _, y in points), 1024 if shown is size else 1000)

    def at(x: float, y: float) -> Point:
        across = _LEFT + (x - left) / (right - left) * (WIDTH - _LEFT - _RIGHT)
        return round(across, 1), round(HEIGHT - _BOTTOM - max(0.0, y) / top * (HEIGHT - _TOP - _BOTTOM), 1)

    parts = [_grid(top, left, right, at, shown)]
    parts += [_line(one, at, shown) if one.style == "line" else _dots(one, at, shown) for one in series]
    legend = Markup("").join(
        Markup('<li><span class="key key-{}"></span>{}</li>').format(one.colour, one.name) for one in series
    )
    return Markup(
        '<figure class="chart"><figcaption>{}</figcaption><svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
        '<ul class="legend">{}</ul></figure>'
    ).format(title, WIDTH, HEIGHT, _told(title, series, shown), Markup("").join(parts), legend)


def _told(title: str, series: Sequence[Series], shown: Callable[[float], str]) -> str:
    """The chart in words, for those who cannot see it."""
    parts = [f"{one.name} from {shown(min(y for _, y in one.points))} to {shown(max(y for _, y in one.points))}"
             for one in series if one.points]  # fmt: skip
    return f"{title}: {'; '.join(parts)}"


def _round_up(value: float, unit: int) -> float:
    """The top of an axis: a round number of the unit that the value is told in."""
    if value <= 0:
        return 1.0
    scale = 1.0
    while value / scale >= unit:
        scale *= unit
    step = scale
    while step * 10 <= value:
        step *= 10
    while step > value:
        step /= 10
    return next(step * factor for factor in (1, 2, 4, 5, 8, 10) if step * factor >= value)


def _grid(
    top: float, left: float, right: float, at: Callable[[float, float], Point], shown: Callable[[float], str]
) -> Markup:
    parts = []
    for part in range(5):
        value = top * part / 4
        _, y = at(left, value)
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="tick" x="{}" y="{}">{}</text>'
            ).format(_LEFT, WIDTH - _RIGHT, y, y, _LEFT - 6, y + 4, shown(value))
        )
    for along, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        moment = left + (right - left) * along
        x, _ = at(moment, 0)
        parts.append(
            Markup('<text class="time {}" x="{}" y="{}">{}</text>').format(
                anchor, x, HEIGHT - 8, time.strftime("%H:%M:%S", time.gmtime(moment / 1000))
            )
        )
    return Markup("").join(parts)


def thinned(points: Sequence[Point], most: int = _MOST) -> Sequence[Point]:
    """At most some hundred points: of each stretch of time the highest, so that no peak is lost."""
    if len(points) <= most:
        return points
    step = len(points) / most
    return [
        max(points[int(at * step) : max(int(at * step) + 1, int((at + 1) * step))], key=lambda point: point[1])
        for at in range(most)
    ]


def _line(series: Series, at: Callable[[float, float], Point], shown: Callable[[float], str]) -> Markup:
    """A line, and spots along it that tell their values to a pointer."""
    path = " ".join(f"{x},{y}" for x, y in (at(*point) for point in thinned(series.points)))
    line = Markup('<polyline class="line line-{}" points="{}"/>').format(series.colour, path)
    return line + _circles(series, thinned(series.points, _SPOTS), at, shown, f"spot spot-{series.colour}", 5)


def _dots(series: Series, at: Callable[[float, float], Point], shown: Callable[[float], str]) -> Markup:
    return _circles(series, thinned(series.points), at, shown, f"dot dot-{series.colour}", 3.5)


def _circles(
    series: Series, points: Sequence[Point], at: Callable[[float, float], Point], shown: Callable[[float], str],
    style: str, radius: float,
) -> Markup:  # fmt: skip
    parts = []
    for x, y in points:
        across, up = at(x, y)
        when = time.strftime("%H:%M:%S", time.gmtime(x / 1000))
        parts.append(
            Markup('<circle class="{}" cx="{}" cy="{}" r="{}"><title>{}: {} at {} UTC</title></circle>').format(
                style, across, up, radius, series.name, shown(y), when
            )
        )
    return Markup("").join(parts)


def job_charts(job: JobView) -> list[Markup]:
    """The charts of the Overview, on one time axis: how long, how loaded, how much, how fast, how late."""
    epochs = job.epochs
    ended = [info for info in reversed(job.checkpoints.history) if info.end_ms]
    done = [info for info in ended if info.status.value == "COMPLETED" and not is_savepoint(info)]
    since = epochs[0].end_ms if epochs else 0
    if epochs:  # one time axis: what lies before the first epoch that is known would squeeze it
        span = max(60_000, epochs[-1].end_ms - since)
        done = [info for info in done if info.end_ms >= since - span] or done
    moments = [float(e.end_ms) for e in epochs] + [float(i.end_ms) for i in done]
    axis = (min(moments), max(moments)) if moments else None
    charts = [
        chart(
            "Epoch and checkpoint duration",
            [
                Series("epochs", [(e.end_ms, e.duration_ms) for e in epochs], "line", 1),
                Series("checkpoints", [(i.end_ms, i.duration_ms) for i in done], "dots", 2),
                Series("failed checkpoints", [(i.end_ms, i.duration_ms) for i in ended
                                              if i.status.value == "FAILED" and i.end_ms >= since], "dots", 3),
            ],
            duration,
            axis,
        ),
        load_chart("Busy and backpressured, busiest subtask", job, [op.uid for op in job.operators], axis),
        chart(
            "Checkpoint size",
            [
                Series("full state", [(i.end_ms, i.full_bytes) for i in done], "line", 1),
                Series("written", [(i.end_ms, i.written_bytes) for i in done], "dots", 2),
            ],
            size,
            axis,
        ),
        chart(
            "Throughput",
            [Series("rows per second", [(e.end_ms, 1000 * e.rows_in / span) for e, span in spans(epochs)])],
            count,
            axis,
        ),
    ]  # fmt: skip
    lag = [(float(e.end_ms), float(e.end_ms - e.watermark)) for e in epochs if 0 < e.watermark < 1 << 62]
    if lag:
        charts.append(chart("Watermark lag", [Series("lag", lag, "line", 4)], duration, axis))
    return charts


def spans(epochs: Sequence[EpochStats]) -> list[tuple[EpochStats, float]]:
    """Epochs with the time since the end of the one before, pauses included, as rates everywhere count it. The first
    has none before it; it is left out unless it is the only one, which has only its own duration."""
    if len(epochs) == 1:
        return [(epochs[0], max(1.0, epochs[0].duration_ms))]
    return [(epoch, max(1.0, float(epoch.end_ms - before.end_ms))) for before, epoch in itertools.pairwise(epochs)]


def load_chart(title: str, job: JobView, uids: Sequence[str], axis: tuple[float, float] | None = None) -> Markup:
    """Shares of each epoch's time, pauses before it included, of the subtask where they are highest."""
    busy: list[Point] = []
    waiting: list[Point] = []
    for before, epoch in itertools.pairwise(job.epochs):
        loads = [load for uid in uids for load in epoch.operators.get(uid, ())]
        span = max(1.0, float(epoch.end_ms - before.end_ms), epoch.duration_ms)
        if loads and before.run == epoch.run:
            busy.append((epoch.end_ms, min(1.0, max(load.busy_ms for load in loads) / span)))
            waiting.append((epoch.end_ms, min(1.0, max(load.backpressured_ms for load in loads) / span)))
    return chart(title, [Series("busy", busy, "line", 3), Series("backpressured", waiting, "line", 5)], share, axis)


def operator_charts(job: JobView, uid: str) -> list[Markup]:
    """The charts of an operator's page: how loaded it is, and what goes through it."""
    rows_in: list[Point] = []
    rows_out: list[Point] = []
    for epoch, span in spans(job.epochs):
        loads = epoch.operators.get(uid, ())
        if loads:
            per_second = 1000 / span
            rows_in.append((epoch.end_ms, per_second * sum(load.rows_in for load in loads)))
            rows_out.append((epoch.end_ms, per_second * sum(load.rows_out for load in loads)))
    axis = (rows_in[0][0], rows_in[-1][0]) if rows_in else None
    series = [Series("rows in", rows_in, "line", 1), Series("rows out", rows_out, "line", 2)]
    return [
        load_chart("Busy and backpressured, busiest subtask", job, [uid], axis),
        chart("Rows per second", series, count, axis),
    ]


def bars(values: Sequence[int], title: str) -> Markup:
    """Counts side by side, such as rows by key group; neighbours are added up where there are too many."""
    if not any(values):
        return Markup('<p class="empty">{}: no data.</p>').format(title)
    step = max(1, -(-len(values) // 128))
    sums = [sum(values[at : at + step]) for at in range(0, len(values), step)]
    top = max(sums)
    wide = (WIDTH - 2) / len(sums)
    parts = [
        Markup('<rect class="bar" x="{}" y="{}" width="{}" height="{}"><title>{}: {}</title></rect>').format(
            round(1 + at * wide, 2), round(60 - 56 * value / top, 1), round(max(0.5, wide - 1), 2),
            round(max(0.0, 56 * value / top), 1), f"{at * step}-{min(len(values), (at + 1) * step) - 1}", f"{value:,}",
        )
        for at, value in enumerate(sums)
    ]  # fmt: skip
    return Markup('<svg class="bars" viewBox="0 0 {} 62" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, f"{title}: highest {top:,}", Markup("").join(parts)
    )
