"""Jobs, checkpoints and state as compact HTML for notebooks. Styles are inline: a notebook has no sheet of ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escaped
from typing import Any

from cairn import quantities
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.text import printable
from cairn.view.health import health_of
from cairn.view.job_view import JobView, is_savepoint

ROWS = 12
"""More rows than this are counted, not shown: a display is never longer than a screen."""
_COLOURS = {"ok": "#1a7f37", "warn": "#8a5a00", "bad": "#c02626", "ended": "#55626c"}


def escape(text: str, quote: bool = True) -> str:
    """Foreign text for a page: neither markup nor control characters are acted upon."""
    return escaped(printable(text), quote)


def table(names: Sequence[str], rows: Iterable[Sequence[Any]], total: int = 0) -> str:
    """Everything in it is escaped, control characters as a terminal shows them."""
    found = list(rows)
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{escape(str(value))}</td>" for value in row) + "</tr>"
        for row in found[:ROWS]
    )
    left = max(total, len(found)) - min(ROWS, len(found))
    more = f"<div>and {left:,} more</div>" if left > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def sparkline(values: Sequence[float], label: str) -> str:
    """A small line, the newest value at its right end."""
    if len(values) < 2:
        return ""
    shown = list(values)[-100:]
    top = max(1e-9, *shown)
    step = 118 / (len(shown) - 1)
    points = " ".join(f"{1 + at * step:.1f},{23 - max(0.0, value) / top * 21:.1f}" for at, value in enumerate(shown))
    return (
        f"<svg width='120' height='24' role='img' aria-label='{escape(label, quote=True)}'>"
        f"<polyline fill='none' stroke='#2878d0' stroke-width='1.5' points='{points}'/></svg>"
    )


def job_html(job: JobView) -> str:
    """A job: is it fine, its numbers, its newest checkpoints."""
    health = health_of(job)
    last = job.checkpoints.latest("COMPLETED")
    durations = [e.duration_ms for e in job.epochs]
    facts = [
        ("state", job.status),
        ("epoch", job.epoch if job.epoch >= 0 else "none yet"),
        ("last checkpoint", f"{last.id}, {quantities.ago(last.end_ms, job.now_ms)}" if last else "none yet"),
        ("state size", quantities.size(job.state_bytes)),
        ("restarts", job.restarts),
    ]
    told = "".join(f"<b>{escape(name)}</b> {escape(str(value))} &nbsp; " for name, value in facts)
    page = f"<div><a href='{escape(job.url, quote=True)}'>{escape(job.url)}</a></div>" if job.url else ""
    colour = _COLOURS[health.level]
    line = sparkline(durations, "epoch durations")
    newest = checkpoints_html(job.checkpoints.history[:5]) if job.checkpoints.history else ""
    return (
        f"<div><div><b>{escape(job.name)}</b> <span style='color:{colour}'>{escape(health.verdict)}</span> {line}</div>"
        f"<div>{told}</div>{page}{newest}</div>"
    )


def checkpoints_html(infos: Sequence[CheckpointInfo]) -> str:
    rows = [
        (
            info.id,
            info.status.value + (" (discarded)" if info.discarded else ""),
            "savepoint" if is_savepoint(info) else "full" if info.full else "incremental",
            quantities.when(info.trigger_ms),
            quantities.duration(info.duration_ms) if info.end_ms else "-",
            quantities.size(info.savepoint_bytes if is_savepoint(info) else info.full_bytes),
            quantities.first_line(info.failure) or info.path,
        )
        for info in infos[:ROWS]
    ]
    line = sparkline([info.duration_ms for info in reversed(infos) if info.end_ms], "checkpoint durations")
    names = ("id", "status", "type", "triggered (UTC)", "duration", "size", "path or cause")
    return f"<div>{line}{table(names, rows, len(infos))}</div>"


class CheckpointTable(list[CheckpointInfo]):
    """A list of checkpoints that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return checkpoints_html(self) if self else "<div>no checkpoints yet</div>"
