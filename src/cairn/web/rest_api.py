"""REST under `/api/v1`, with Flink's paths and documents. Reading needs nothing, changing needs the token."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from cairn import __version__
from cairn.errors import CheckpointFailedError, InvalidInputError, NotFoundError
from cairn.snapshots.resolver import open_snapshot
from cairn.snapshots.snapshot import Snapshot
from cairn.storage import layout
from cairn.text import no_formula
from cairn.view import job_documents
from cairn.view import state_browser as states
from cairn.view.failure_documents import exceptions as history_of
from cairn.view.job_view import JobView, is_savepoint
from cairn.view.vertex_documents import plan as plan_of
from cairn.web import rest_documents, rest_vertices
from cairn.web.job_catalogue import Catalogue
from cairn.web.problems import MEDIA, Problem
from cairn.web.rest_disposal import DisposalRequests, allowed_savepoint
from cairn.web.rest_documents import ID_PATTERN
from cairn.web.rest_triggers import Triggers, allowed_target
from cairn.web.web_options import WebOptions

Document = dict[str, Any]
JobId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the job.")]
Uid = Annotated[str, Path(pattern=ID_PATTERN, description="Uid of the operator.")]
StateName = Annotated[str, Path(min_length=1, max_length=200, description="Name of the state.")]
TriggerId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the request.")]
Number = Annotated[int, Path(ge=0, le=2**53, description="Number of the checkpoint.")]
KeyText = Annotated[
    str, Query(min_length=1, max_length=2000, description="The key; separate several columns with commas.")
]
Chosen = Annotated[int | None, Query(ge=1, le=2**53, description="Number of a checkpoint; the newest by default.")]
PROBLEMS: dict[int | str, Document] = {
    status: {"model": Problem, "description": text, "content": {MEDIA: {}}}
    for status, text in {
        400: "it cannot be understood", 401: "the token is missing", 403: "not allowed", 404: "not found",
        405: "not that way", 408: "it came too slowly", 409: "it cannot be done now", 413: "too large",
        415: "not JSON", 421: "not this host", 422: "a value does not fit", 429: "too many at once",
        500: "a file of the job is damaged, or an error that nobody foresaw", 503: "the storage cannot be reached",
    }.items()
}  # fmt: skip
_STREAMS = 16
_PULSE = 1.0


def router(catalogue: Catalogue, options: WebOptions) -> APIRouter:
    api = APIRouter(prefix="/api/v1", responses=PROBLEMS)
    rest_vertices.add_routes(api, catalogue)  # before the rest: /jobs/metrics is not the job "metrics"
    _reading(api, catalogue, options)
    _checkpoints(api, catalogue)
    _state(api, catalogue, options)
    _changes(api, catalogue, options)
    _streams(api, catalogue)
    return api


def _reading(api: APIRouter, catalogue: Catalogue, options: WebOptions) -> None:
    @api.get("/health", tags=["server"])
    def health() -> dict[str, str]:
        """Health check of the server."""
        return {"status": "ok"}

    @api.get("/config", tags=["server"])
    def config() -> Document:
        """Version, refresh interval, time zone and features of the web page."""
        return {
            "refresh-interval": int(_PULSE * 1000),
            "timezone-name": "Coordinated Universal Time",
            "timezone-offset": 0,
            "cairn-version": __version__,
            "features": {
                "web-submit": False, "web-cancel": not options.read_only, "web-rescale": False, "web-history": True,
            },
        }  # fmt: skip

    @api.get("/overview", tags=["server"])
    def overview() -> Document:
        """Number of jobs by status; for running jobs, their drivers and subtasks."""
        views = catalogue.views()
        found = [view.status for view in views]
        drivers = {(view.host, view.pid) for view in views if view.running}
        slots = sum(view.parallelism for view in views if view.running)
        words = {"jobs-running": ("RUNNING", "RESTARTING", "CREATED"), "jobs-finished": ("FINISHED",)}
        words |= {"jobs-cancelled": ("CANCELED",), "jobs-failed": ("FAILED", "CRASHED")}
        counted = {name: sum(1 for word in found if word in of) for name, of in words.items()}
        told = {"taskmanagers": len(drivers), "slots-total": slots, "slots-available": 0}
        return {**told, **counted, "cairn-version": __version__}

    @api.get("/jobs", tags=["jobs"])
    def jobs() -> rest_documents.JobIds:
        """Ids and status of all jobs."""
        return {"jobs": [{"id": view.job_id, "status": view.status} for view in catalogue.views()]}

    @api.get("/jobs/overview", tags=["jobs"])
    def jobs_overview() -> rest_documents.JobsOverview:
        """Overview of all jobs."""
        views = [job_documents.overview(view) for view in catalogue.views()]
        return {"jobs": views, "damaged": catalogue.damaged()}  # type: ignore[typeddict-item]

    @api.get("/jobs/{jobid}", tags=["jobs"])
    def job(jobid: JobId) -> Document:
        """One job with its operators and its plan."""
        return job_documents.detail(catalogue.view(jobid))

    @api.get("/jobs/{jobid}/plan", tags=["jobs"])
    def plan(jobid: JobId) -> Document:
        """The job graph: sources, operators, sinks and their inputs."""
        return {"plan": plan_of(catalogue.view(jobid))}

    @api.get("/jobs/{jobid}/status", tags=["jobs"])
    def status(jobid: JobId) -> dict[str, str]:
        """The status of a job."""
        return {"status": catalogue.view(jobid).status}

    @api.get("/jobs/{jobid}/config", tags=["jobs"])
    def job_config(jobid: JobId) -> Document:
        """The execution configuration of the newest run."""
        return job_documents.job_config(catalogue.view(jobid))

    @api.get("/jobs/{jobid}/exceptions", tags=["jobs"])
    def exceptions(jobid: JobId, maxExceptions: Annotated[int, Query(ge=1, le=500)] = 50) -> Document:
        """Failures of the job, newest first, with the traceback of the function that raised."""
        return history_of(catalogue.view(jobid), maxExceptions)

    @api.get("/jobs/{jobid}/rescales/history", tags=["jobs"])
    def rescales(jobid: JobId) -> Document:
        """Starts, restores and changes of parallelism, newest first."""
        entries = [msgspec.to_builtins(r) | {"rescaled": r.rescaled} for r in catalogue.view(jobid).restores]
        return {"history": entries}

    @api.get("/jobs/{jobid}/epochs", tags=["jobs"])
    def epochs(jobid: JobId, limit: Annotated[int, Query(ge=1, le=5000)] = 100) -> Document:
        """The newest epochs, oldest first."""
        return {"epochs": msgspec.to_builtins(catalogue.view(jobid).epochs[-limit:])}

    @api.get("/jobs/{jobid}/epochs.csv", tags=["jobs"], response_class=Response)
    def epochs_csv(jobid: JobId) -> Response:
        """The newest epochs as CSV."""
        names = ("epoch", "run", "end_ms", "duration_ms", "rows_in", "rows_out", "keys", "bytes_written", "watermark")
        rows = ([getattr(epoch, name) for name in names] for epoch in catalogue.view(jobid).epochs)
        return _csv(names, rows, f"{jobid}-epochs.csv")


def _csv(names: Iterable[str], rows: Iterable[Iterable[Any]], file: str) -> Response:
    """A table. Text that a spreadsheet would take for a formula is quoted with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(names)
    for row in rows:
        writer.writerow([no_formula(value) if isinstance(value, str) else value for value in row])
    headers = {"Content-Disposition": f'attachment; filename="{file}"'}
    return Response(out.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _checkpoints(api: APIRouter, catalogue: Catalogue) -> None:
    @api.get("/jobs/{jobid}/checkpoints", tags=["checkpoints"])
    def checkpoints(
        jobid: JobId,
        limit: Annotated[int, Query(ge=1, le=1000)] = 10,
        offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    ) -> rest_documents.CheckpointOverview:
        """Counts, summary, the latest of each kind, and the history, newest first."""
        return job_documents.checkpoints(catalogue.view(jobid), limit, offset)  # type: ignore[return-value]

    @api.get("/jobs/{jobid}/checkpoints.csv", tags=["checkpoints"], response_class=Response)
    def checkpoints_csv(jobid: JobId) -> Response:
        """The history as CSV."""
        names = [
            "id", "status", "checkpoint_type", "trigger_timestamp", "end_to_end_duration", "checkpointed_size",
            "state_size", "epoch", "external_path", "failure_message",
        ]  # fmt: skip
        told = (job_documents.checkpoint(info) for info in catalogue.view(jobid).checkpoints.history)
        return _csv(names, ([entry.get(name, "") for name in names] for entry in told), f"{jobid}-checkpoints.csv")

    @api.get("/jobs/{jobid}/checkpoints/config", tags=["checkpoints"])
    def config(jobid: JobId) -> Document:
        """The checkpoint settings of the newest run."""
        return job_documents.checkpoint_config(catalogue.view(jobid))

    @api.get("/jobs/{jobid}/checkpoints/details/{checkpointid}", tags=["checkpoints"])
    def details(jobid: JobId, checkpointid: Number) -> Document:
        """One checkpoint with its operators."""
        return job_documents.checkpoint(catalogue.reader(jobid).checkpoint(checkpointid))

    @api.get("/jobs/{jobid}/checkpoints/details/{checkpointid}/subtasks/{vertexid}", tags=["checkpoints"])
    def subtasks(jobid: JobId, checkpointid: Number, vertexid: Uid) -> Document:
        """The subtasks of one operator in a checkpoint."""
        info = catalogue.reader(jobid).checkpoint(checkpointid)
        operator = next((op for op in info.operators if op.uid == vertexid), None)
        if operator is None:
            raise NotFoundError(f"checkpoint {checkpointid} has no operator '{vertexid}'", uid=vertexid)
        return job_documents.subtasks(operator, info)


def snapshot_of(job: JobView, number: int | None) -> Snapshot:
    """A retained checkpoint or a savepoint of the job by its number; without one, the newest there is."""
    folder = layout.checkpoint_folder(number) if number is not None else ""
    return open_snapshot(os.path.join(job.directory, folder))


def _state(api: APIRouter, catalogue: Catalogue, options: WebOptions) -> None:
    @api.get("/jobs/{jobid}/state", tags=["state"])
    def operators(jobid: JobId, checkpoint: Chosen = None) -> Document:
        """Operators and their states in a retained checkpoint or savepoint."""
        found = snapshot_of(catalogue.view(jobid), checkpoint)
        told = [
            {"uid": op.uid, "name": op.name, "key": op.key_type, "states": [s.name for s in op.states.values()]}
            for op in found.operators.values()
        ]
        head = {"path": found.path, "kind": found.kind, "note": found.note, "epoch": found.metadata.epoch}
        return {**head, "operators": told}

    @api.get("/jobs/{jobid}/state/{uid}", tags=["state"])
    def summaries(jobid: JobId, uid: Uid, checkpoint: Chosen = None) -> Document:
        """Rows, keys, bytes, skew by key group and biggest keys of each state of an operator."""
        found = snapshot_of(catalogue.view(jobid), checkpoint)
        return {"states": msgspec.to_builtins(states.summaries(found, uid, options.masks))}

    @api.get("/jobs/{jobid}/state/{uid}/{state}/key", tags=["state"])
    def key(jobid: JobId, uid: Uid, state: StateName, key: KeyText, checkpoint: Chosen = None) -> Document:
        """The state of one key."""
        found = snapshot_of(catalogue.view(jobid), checkpoint)
        result: Document = msgspec.to_builtins(states.lookup(found, uid, state, key, options.masks))
        return result

    @api.get("/jobs/{jobid}/state/{uid}/{state}/key/history", tags=["state"])
    def history(jobid: JobId, uid: Uid, state: StateName, key: KeyText) -> Document:
        """The state of one key in the retained checkpoints, newest first."""
        directory = catalogue.view(jobid).directory
        return {"history": msgspec.to_builtins(states.history_of_key(directory, uid, state, key, options.masks))}

    @api.get("/jobs/{jobid}/compare", tags=["state"])
    def compare(
        jobid: JobId, before: Annotated[int, Query(ge=1, le=2**53)], after: Annotated[int, Query(ge=1, le=2**53)]
    ) -> Document:
        """Differences between two checkpoints or savepoints of the job."""
        view = catalogue.view(jobid)
        older, newer = (snapshot_of(view, number) for number in (before, after))
        return {"states": msgspec.to_builtins(states.compare(older, newer, options.masks))}


def _changes(api: APIRouter, catalogue: Catalogue, options: WebOptions) -> None:
    triggers = Triggers()
    disposals = DisposalRequests()
    accepted = 202

    @api.post("/jobs/{jobid}/checkpoints", tags=["changes"], status_code=accepted)
    def checkpoint(jobid: JobId, body: rest_documents.CheckpointBody | None = None) -> rest_documents.TriggerAnswer:
        """Take a checkpoint now. Without a body, as configured."""
        body = body or rest_documents.CheckpointBody()
        asked = {"full": {"CONFIGURED": None, "FULL": True, "INCREMENTAL": False}[body.checkpointType]}
        return _start(jobid, body.triggerId, "checkpoint", asked)

    @api.get("/jobs/{jobid}/checkpoints/{triggerid}", tags=["changes"])
    def checkpoint_status(jobid: JobId, triggerid: TriggerId) -> rest_documents.TriggerStatus:
        """Status of a requested checkpoint."""
        return triggers.find(catalogue.view(jobid), triggerid, ["checkpoint"])  # type: ignore[return-value]

    @api.get("/jobs/{jobid}/savepoints", tags=["checkpoints"])
    def savepoints(jobid: JobId) -> Document:
        """The savepoints of the job, newest first."""
        found = [info for info in catalogue.view(jobid).checkpoints.history if is_savepoint(info)]
        return {"savepoints": [job_documents.checkpoint(info) for info in found]}

    @api.post("/jobs/{jobid}/savepoints", tags=["changes"], status_code=accepted)
    def savepoint(jobid: JobId, body: rest_documents.SavepointBody | None = None) -> rest_documents.TriggerAnswer:
        """Take a savepoint while the job runs. Without a body, in the savepoint directory of the job."""
        body = body or rest_documents.SavepointBody()
        target = _target(jobid, body.triggerId, body.target_directory)
        return _start(jobid, body.triggerId, "savepoint", {"dir": target})

    @api.get("/jobs/{jobid}/savepoints/{triggerid}", tags=["changes"])
    def savepoint_status(jobid: JobId, triggerid: TriggerId) -> rest_documents.TriggerStatus:
        """Status of a requested savepoint or stop."""
        return triggers.find(catalogue.view(jobid), triggerid, ["savepoint", "stop", "cancel"])  # type: ignore[return-value]

    @api.post("/jobs/{jobid}/stop", tags=["changes"], status_code=accepted)
    def stop(jobid: JobId, body: rest_documents.StopBody | None = None) -> rest_documents.TriggerAnswer:
        """Stop the job with a savepoint; savepoints/{triggerid} returns the status."""
        body = body or rest_documents.StopBody()
        target = _target(jobid, body.triggerId, body.targetDirectory)
        return _start(jobid, body.triggerId, "stop", {"dir": target, "drain": body.drain})

    @api.patch("/jobs/{jobid}", tags=["changes"], status_code=accepted)
    def cancel(
        jobid: JobId, mode: Annotated[str, Query(pattern="^cancel$")] = "cancel"
    ) -> rest_documents.TriggerAnswer:
        """Cancel the job after its running epoch."""
        return _start(jobid, None, "cancel", {})

    @api.post("/savepoint-disposal", tags=["changes"], status_code=accepted)
    def disposal(body: rest_documents.DisposalBody) -> rest_documents.TriggerAnswer:
        """Delete a savepoint of a job of this server, or one in the savepoint directory."""
        chosen = body.triggerId or uuid.uuid4().hex
        path = allowed_savepoint(catalogue.views(), body.savepoint_path, options.savepoint_roots)
        disposals.start(path, chosen)
        return {"request-id": chosen}

    @api.get("/savepoint-disposal/{triggerid}", tags=["changes"])
    def disposal_status(triggerid: TriggerId) -> rest_documents.TriggerStatus:
        """Status of the deletion of a savepoint."""
        return disposals.find(triggerid)  # type: ignore[return-value]

    def _target(jobid: str, trigger_id: str | None, given: str | None) -> str | None:
        """Where a savepoint goes. A job that has ended is told of first: no directory would help."""
        job = catalogue.view(jobid)
        triggers.refuse_ended(job, trigger_id)
        return allowed_target(job, given, options.savepoint_roots)

    def _start(jobid: str, trigger_id: str | None, action: str, asked: Document) -> rest_documents.TriggerAnswer:
        chosen = trigger_id or uuid.uuid4().hex
        triggers.start(catalogue.view(jobid), chosen, action, asked)
        return {"request-id": chosen}


def _streams(api: APIRouter, catalogue: Catalogue) -> None:
    open_streams = 0

    @api.get("/jobs/{jobid}/events", tags=["jobs"], response_class=StreamingResponse)
    async def events(
        jobid: JobId,
        request: Request,
        once: Annotated[bool, Query(description="Return one event, then close.")] = False,
    ) -> StreamingResponse:
        """Live values as server-sent events, once a second."""
        nonlocal open_streams
        await asyncio.to_thread(catalogue.view, jobid)
        if open_streams >= _STREAMS:
            raise CheckpointFailedError(f"{_STREAMS} pages listen already; close one")

        open_streams += 1  # here and not in the stream, which begins later: until then others would pass as well

        async def stream() -> AsyncIterator[bytes]:
            while not await request.is_disconnected():
                view = await asyncio.to_thread(catalogue.view, jobid)
                yield b"event: job\ndata: " + json.dumps(live(view)).encode() + b"\n\n"
                if once:
                    return
                await asyncio.sleep(_PULSE)

        return _CountedStream(stream(), closed, media_type="text/event-stream")

    def closed() -> None:
        nonlocal open_streams
        open_streams -= 1


class _CountedStream(StreamingResponse):
    """Calls `closed` when it has ended, however it did."""

    def __init__(self, content: AsyncIterator[bytes], closed: Callable[[], None], media_type: str) -> None:
        super().__init__(content, media_type=media_type)
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._closed()


def live(job: JobView) -> Document:
    """What a page shows that changes while one looks at it."""
    last = job.checkpoints.latest("COMPLETED")
    epoch = job.epochs[-1] if job.epochs else None
    return {
        **job_documents.overview(job),
        "epoch-duration": round(epoch.duration_ms) if epoch else None,
        "rows-in": epoch.rows_in if epoch else None,
        "watermark-lag": job.watermark_lag_ms,
        "state-size": job.state_bytes,
        "checkpoint": last.id if last else None,
        "checkpoint-duration": last.duration_ms if last else None,
        "checkpoint-age": job.now_ms - last.end_ms if last else None,
        "in-progress": job.checkpoints.in_progress,
        "completed": job.checkpoints.completed,
        "failed": job.checkpoints.failed,
        "triggered": job.checkpoints.triggered,
    }


def number_of(text: str | None) -> int | None:
    """A number that a form sent, or None."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise InvalidInputError(f"{text[:40]!r} is not a checkpoint number")
    return int(text)
