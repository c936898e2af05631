"""REST of metrics and vertices, with Flink's paths: names, values, and values drawn together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from cairn.errors import InvalidInputError, NotFoundError
from cairn.view import vertex_documents
from cairn.view.job_graph import Vertex
from cairn.view.job_reader import unevenness
from cairn.view.job_view import JobView
from cairn.web.job_catalogue import Catalogue
from cairn.web.rest_documents import ID_PATTERN

Document = dict[str, Any]
Values = Mapping[str, int | float | str]
JobId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the job.")]
VertexId = Annotated[str, Path(pattern=ID_PATTERN, description="An id of the plan.")]
Subtask = Annotated[int, Path(ge=0, lt=32768, description="The subtask's number.")]
Get = Annotated[str, Query(max_length=2000, description="Names of metrics, with commas; none for a list of them.")]
Agg = Annotated[str, Query(max_length=100, description="Any of min, max, avg, sum, skew; all if there is none.")]
_AGGREGATIONS = ("min", "max", "avg", "sum", "skew")


def add_routes(api: APIRouter, catalogue: Catalogue) -> None:
    @api.get("/jobs/metrics", tags=["jobs"])
    def jobs_metrics(
        get: Get = "", agg: Agg = "", jobs: Annotated[str, Query(max_length=5000, description="Ids; all if none.")] = ""
    ) -> list[Document]:
        """Flink's job metrics drawn together over jobs."""
        wanted = _names(jobs)
        views = [catalogue.view(job) for job in wanted] if wanted else catalogue.views()
        return drawn_together([job_metrics(view) for view in views], get, agg)

    @api.get("/jobs/{jobid}/metrics", tags=["jobs"])
    def metrics(jobid: JobId, get: Get = "") -> list[dict[str, str]]:
        """Flink's job metrics: their names, or the values of those that `get` names."""
        return listed(job_metrics(catalogue.view(jobid)), get)

    @api.get("/jobs/{jobid}/vertices/{vertexid}", tags=["operators"])
    def vertex(jobid: JobId, vertexid: VertexId) -> Document:
        """One source, function, operator or sink; an operator down to the subtask."""
        view = catalogue.view(jobid)
        return vertex_documents.detail(view, vertex_of(view, vertexid))

    @api.get("/jobs/{jobid}/vertices/{vertexid}/backpressure", tags=["operators"])
    def backpressure(jobid: JobId, vertexid: VertexId) -> Document:
        """How long its subtasks wait for those who take their rows."""
        view = catalogue.view(jobid)
        return vertex_documents.backpressure(view, view.operator(vertex_of(view, vertexid).id))

    @api.get("/jobs/{jobid}/vertices/{vertexid}/watermarks", tags=["operators"])
    def watermarks(jobid: JobId, vertexid: VertexId) -> list[dict[str, str]]:
        """The watermark of each subtask. There is one for the job: Spark has one for all its operators."""
        view = catalogue.view(jobid)
        operator = view.operator(vertex_of(view, vertexid).id)
        count = operator.parallelism if operator is not None else 0
        return [{"id": f"{at}.currentInputWatermark", "value": str(view.watermark)} for at in range(count)]

    @api.get("/jobs/{jobid}/vertices/{vertexid}/metrics", tags=["operators"])
    def vertex_metrics(jobid: JobId, vertexid: VertexId, get: Get = "") -> list[dict[str, str]]:
        """The metrics of all subtasks, each name with the number of its subtask before it: `0.numRecordsIn`."""
        return listed(
            {f"{at}.{name}": v for at, told in _told(jobid, vertexid).items() for name, v in told.items()}, get
        )

    @api.get("/jobs/{jobid}/vertices/{vertexid}/subtasks/metrics", tags=["operators"])
    def subtasks_metrics(
        jobid: JobId, vertexid: VertexId, get: Get = "", agg: Agg = "",
        subtasks: Annotated[str, Query(max_length=500, description="Numbers and ranges: 0,2-4; all if none.")] = "",
    ) -> list[Document]:  # fmt: skip
        """The metrics of a vertex drawn together over its subtasks."""
        chosen = _ranges(subtasks)
        told = _told(jobid, vertexid)
        return drawn_together([values for at, values in told.items() if chosen is None or at in chosen], get, agg)

    @api.get("/jobs/{jobid}/vertices/{vertexid}/subtasks/{subtask}/metrics", tags=["operators"])
    def subtask_metrics(jobid: JobId, vertexid: VertexId, subtask: Subtask, get: Get = "") -> list[dict[str, str]]:
        """The metrics of one subtask."""
        told = _told(jobid, vertexid)
        if subtask not in told:
            raise NotFoundError(f"vertex '{vertexid}' of job '{jobid}' has no subtask {subtask}; it has {len(told)}")
        return listed(told[subtask], get)

    def _told(jobid: str, vertexid: str) -> dict[int, dict[str, int | float]]:
        view = catalogue.view(jobid)
        return vertex_documents.metrics_by_subtask(view, vertex_of(view, vertexid))


def vertex_of(job: JobView, name: str) -> Vertex:
    found = job.vertex(name)
    if found is None:
        there = ", ".join(vertex.id for vertex in job.graph) or "none"
        raise NotFoundError(f"job '{job.job_id}' has no vertex '{name}'; it has {there}", uid=name)
    return found


def job_metrics(job: JobView) -> dict[str, int | float | str]:
    """Flink's names and meanings."""
    told = job.checkpoints
    last = told.latest("COMPLETED")
    restore = next((r for r in job.restores if r.kind in ("checkpoint", "savepoint")), None)
    return {
        "lastCheckpointDuration": last.duration_ms if last else -1,
        "lastCheckpointSize": last.written_bytes if last else -1,
        "lastCheckpointFullSize": last.full_bytes if last else -1,
        "lastCompletedCheckpointId": last.id if last else -1,
        "lastCheckpointCompletedTimestamp": last.end_ms if last else -1,
        "lastCheckpointExternalPath": last.path if last else "n/a",
        "lastCheckpointPersistedData": last.in_flight_bytes if last else -1,
        "lastCheckpointRestoreTimestamp": restore.time_ms if restore else -1,
        "numberOfInProgressCheckpoints": told.in_progress,
        "numberOfCompletedCheckpoints": told.completed,
        "numberOfFailedCheckpoints": told.failed,
        "totalNumberOfCheckpoints": told.triggered,
        "numRestarts": job.restarts,
        "numStarts": job.starts,
        "numRescales": sum(1 for r in job.restores if r.rescaled),
        "uptime": job.duration_ms if job.running else 0,
    }


def listed(values: Values, get: str) -> list[dict[str, str]]:
    """The names, or the values of those that are wanted and there."""
    if not get:
        return [{"id": name} for name in values]
    return [{"id": name, "value": str(values[name])} for name in _names(get) if name in values]


def drawn_together(told: Sequence[Values], get: str, agg: str) -> list[Document]:
    """The names, or for each wanted metric what `agg` asks for; text is left out, since it cannot be added up."""
    wanted = _names(agg) or _AGGREGATIONS
    for word in wanted:
        if word not in _AGGREGATIONS:
            raise InvalidInputError(f"agg takes {', '.join(_AGGREGATIONS)}, not {word[:40]!r}")
    numbers = [{name: value for name, value in values.items() if not isinstance(value, str)} for values in told]
    if not get:
        return [{"id": name} for name in dict.fromkeys(name for values in numbers for name in values)]
    found: list[Document] = []
    for name in _names(get):
        series = [float(values[name]) for values in numbers if name in values]
        if series:
            found.append({"id": name, **{word: _aggregate(word, series) for word in wanted}})
    return found


def _aggregate(word: str, series: Sequence[float]) -> float:
    if word == "skew":
        return round(100 * unevenness(series), 3)
    return {"min": min(series), "max": max(series), "sum": sum(series), "avg": sum(series) / len(series)}[word]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _ranges(text: str) -> set[int] | None:
    """Numbers and ranges of subtasks, as Flink writes them; None for all."""
    chosen: set[int] = set()
    for part in _names(text):
        first, _, last = part.partition("-")
        if not all(bound.isascii() and bound.isdigit() and len(bound) < 6 for bound in (first, last or first)):
            raise InvalidInputError(f"subtasks takes numbers and ranges such as 0,2-4, not {part[:40]!r}")
        chosen.update(range(int(first), int(last or first) + 1))
    return chosen if text.strip() else None
