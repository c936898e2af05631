"""The pages: templates over the records of the read model. Nothing is computed here that REST does not tell as well."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cairn import __version__, quantities
from cairn.errors import CairnError, CorruptFileError, InternalError, NotFoundError, remedy
from cairn.logs import get_logger
from cairn.model.checkpoint_records import CheckpointInfo
from cairn.storage.savepoint_folder import savepoint_there
from cairn.text import printable
from cairn.view import job_documents
from cairn.view import state_browser as states
from cairn.view.failure_documents import exception
from cairn.view.health import health_of
from cairn.view.job_view import JobView, is_savepoint
from cairn.web import charts, rest_api
from cairn.web.graph_svg import graph as draw
from cairn.web.graph_svg import shown_name
from cairn.web.job_catalogue import Catalogue
from cairn.web.problems import of_error
from cairn.web.web_options import WebOptions

_log = get_logger("cairn.web")
TEMPLATES = Path(__file__).parent / "templates"
PAGE = 50
TABS = (
    ("", "Overview"), ("/checkpoints", "Checkpoints"), ("/state", "State"), ("/savepoints", "Savepoints"),
    ("/restores", "Restores"), ("/exceptions", "Exceptions"),
)  # fmt: skip
CHECKPOINT_TABS = (
    ("", "Overview"), ("/history", "History"), ("/summary", "Summary"), ("/configuration", "Configuration"),
)  # fmt: skip


def environment() -> Environment:
    """Templates that escape everything and refuse names that are not there."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "size": quantities.size,
        "duration": quantities.duration,
        "count": quantities.count,
        "rate": quantities.rate,
        "when": quantities.when,
        "percent": quantities.percent,
    }
    made.globals |= {"ago": quantities.ago, "version": __version__, "tabs": TABS, "checkpoint_tabs": CHECKPOINT_TABS}
    made.filters |= {"quoted": quantities.shell_word, "remedy": remedy, "first_line": quantities.first_line}
    made.tests["savepoint"] = is_savepoint
    return made


def commands(job: JobView) -> dict[str, str]:
    """The command that does what a button does."""
    where = quantities.shell_word(job.directory)
    return {name: f"cairn {name} {where}" for name in ("savepoint", "stop", "cancel", "checkpoint")}


def router(catalogue: Catalogue, options: WebOptions) -> APIRouter:
    pages = APIRouter()
    templates = environment()

    def render(template: str, status: int = 200, **facts: Any) -> HTMLResponse:
        text = templates.get_template(template).render(read_only=options.read_only, **facts)
        return HTMLResponse(printable(text), status)  # control characters of foreign text are shown, not sent

    def job_page(template: str, jobid: str, tab: str, make: Callable[[JobView], dict[str, Any]]) -> HTMLResponse:
        """A page of a job; an error is a page as well."""
        try:
            job = catalogue.view(jobid)
            facts: dict[str, Any] = {"job": job, "health": health_of(job), "tab": tab, "commands": commands(job)}
            facts |= make(job)
            return render(template, facts.pop("status", 200), **facts)
        except CairnError as error:
            return render("error.html", of_error(error).status_code, error=error, jobid=jobid)
        except Exception:  # noqa: BLE001 - a page says that it cannot be shown; the log has the cause
            _log.exception("the page %r of job %s cannot be shown", template, jobid)
            unforeseen = InternalError("unexpected error; see the log of the server")
            return render("error.html", 500, error=unforeseen, jobid=jobid)

    @pages.get("/")
    def home() -> HTMLResponse:
        jobs = catalogue.views()
        return render("jobs.html", jobs=[(job, health_of(job)) for job in jobs], damaged=catalogue.damaged())

    @pages.get("/jobs/{jobid}")
    def overview(jobid: str) -> HTMLResponse:
        def make(job: JobView) -> dict[str, Any]:
            return {
                "graph": draw(job),
                "names": {vertex.id: shown_name(vertex) for vertex in job.graph},
                "charts": charts.job_charts(job),
                "last": job.checkpoints.latest("COMPLETED"),
            }

        return job_page("overview.html", jobid, "", make)

    @pages.get("/jobs/{jobid}/operators/{uid}")
    def operator(jobid: str, uid: str) -> HTMLResponse:
        def make(job: JobView) -> dict[str, Any]:
            found = job.operator(uid)
            if found is None:
                raise NotFoundError(f"job '{jobid}' has no operator '{uid}'")
            return {"operator": found, "charts": charts.operator_charts(job, uid)}

        return job_page("operator.html", jobid, "", make)

    @pages.get("/jobs/{jobid}/checkpoints")
    def checkpoints(jobid: str) -> HTMLResponse:
        def make(job: JobView) -> dict[str, Any]:
            told = job.checkpoints
            latest = {
                "Latest completed": told.latest("COMPLETED"),
                "Latest failed": told.latest("FAILED"),
                "Latest savepoint": told.latest("COMPLETED", savepoint=True),
            }
            restore = next((r for r in job.restores if r.kind in ("checkpoint", "savepoint")), None)
            return {"subtab": "", "latest": latest, "restore": restore}

        return job_page("checkpoints.html", jobid, "/checkpoints", make)

    @pages.get("/jobs/{jobid}/checkpoints/history")
    def history(jobid: str, page: str = "1") -> HTMLResponse:
        def make(job: JobView) -> dict[str, Any]:
            total = len(job.checkpoints.history)
            last = max(1, -(-total // PAGE))
            number = min(last, max(1, rest_api.number_of(page) or 1))
            entries = job.checkpoints.history[(number - 1) * PAGE : number * PAGE]
            shown = [(info, job_documents.checkpoint(info)) for info in entries]
            return {"subtab": "/history", "entries": shown, "page": number, "pages": last, "total": total}

        return job_page("history.html", jobid, "/checkpoints", make)

    @pages.get("/jobs/{jobid}/checkpoints/summary")
    def summary(jobid: str) -> HTMLResponse:
        return job_page("summary.html", jobid, "/checkpoints", lambda job: {"subtab": "/summary"})

    @pages.get("/jobs/{jobid}/checkpoints/configuration")
    def configuration(jobid: str) -> HTMLResponse:
        def make(job: JobView) -> dict[str, Any]:
            return {"subtab": "/configuration", "config": job_documents.checkpoint_config(job)}

        return job_page("configuration.html", jobid, "/checkpoints", make)

    @pages.get("/jobs/{jobid}/checkpoints/{number}")
    def checkpoint(jobid: str, number: str) -> HTMLResponse:
        def make(job: JobView) -> dict[str, Any]:
            info = catalogue.reader(jobid).checkpoint(rest_api.number_of(number) or 0)
            parts = [(op, job_documents.subtasks(op, info)) for op in info.operators]
            ids = [other.id for other in job.checkpoints.history]
            beside = {
                "older": max((number for number in ids if number < info.id), default=0),
                "newer": min((number for number in ids if number > info.id), default=0),
            }
            return {
                "subtab": "/history",
                "info": info,
                "told": job_documents.checkpoint(info),
                "parts": parts,
                **beside,
            }

        return job_page("checkpoint.html", jobid, "/checkpoints", make)

    @pages.get("/jobs/{jobid}/state")
    def state(jobid: str, checkpoint: str = "", uid: str = "", state: str = "", key: str = "") -> HTMLResponse:
        def make(job: JobView) -> dict[str, Any]:
            return state_facts(job, checkpoint, uid, state, key, options.masks)

        return job_page("state.html", jobid, "/state", make)

    @pages.get("/jobs/{jobid}/savepoints")
    def savepoints(jobid: str, before: str = "", after: str = "") -> HTMLResponse:
        def make(job: JobView) -> dict[str, Any]:
            found = [info for info in job.checkpoints.history if is_savepoint(info)]
            done = _openable(job)
            numbers = rest_api.number_of(before), rest_api.number_of(after)
            differences = problem = None
            if numbers[0] is not None and numbers[1] is not None:
                try:
                    older, newer = (rest_api.snapshot_of(job, number) for number in numbers)
                    differences = states.compare(older, newer, options.masks)
                except CorruptFileError as error:
                    problem = error
            return {
                "savepoints": found, "there": {info.id for info in found if savepoint_there(info)}, "choices": done,
                "differences": differences, "before": numbers[0], "after": numbers[1], "problem": problem,
            }  # fmt: skip

        return job_page("savepoints.html", jobid, "/savepoints", make)

    @pages.get("/jobs/{jobid}/restores")
    def restores(jobid: str) -> HTMLResponse:
        return job_page("restores.html", jobid, "/restores", lambda job: {})

    @pages.get("/jobs/{jobid}/exceptions")
    def exceptions(jobid: str) -> HTMLResponse:
        def make(job: JobView) -> dict[str, Any]:
            return {"entries": [(event, exception(job, event)) for event in job.exceptions]}

        return job_page("exceptions.html", jobid, "/exceptions", make)

    return pages


def _openable(job: JobView, most: int = 200) -> list[CheckpointInfo]:
    """The newest checkpoints and savepoints that can be looked into."""
    kept = (i for i in job.checkpoints.history if i.status.value == "COMPLETED" and not i.discarded)
    return list(itertools.islice((i for i in kept if not is_savepoint(i) or savepoint_there(i)), most))


def state_facts(job: JobView, checkpoint: str, uid: str, state: str, key: str, masks: states.Masks) -> dict[str, Any]:
    """What the State page shows: the states of the chosen checkpoint and operator, and the key that was asked for."""
    number = rest_api.number_of(checkpoint)
    choices = _openable(job)
    facts: dict[str, Any] = {
        "choices": choices, "number": number, "snapshot": None, "operator": None, "summaries": [], "key": key,
        "state": state, "found": None, "history": [], "problem": None, "sample": [], "bars": charts.bars,
        "longest_text": states.LONGEST_TEXT,
    }  # fmt: skip
    try:
        snapshot = rest_api.snapshot_of(job, number)
        facts["snapshot"] = snapshot
        operator = snapshot.operator(uid) if uid else next(iter(snapshot.operators.values()), None)
        if operator is None:
            raise NotFoundError("the job has no operators with state")
        facts["operator"] = operator
        facts["summaries"] = states.summaries(snapshot, operator.uid, masks)
        if not facts["summaries"]:
            return facts
        facts["state"] = chosen = state or facts["summaries"][0].name
        facts["sample"] = states.sample(snapshot, operator.uid, chosen, 10, masks)
        if key:
            facts["found"] = states.lookup(snapshot, operator.uid, chosen, key, masks)
            facts["command"] = states.get_command(snapshot, operator, chosen, key)
            facts["history"] = states.history_of_key(job.directory, operator.uid, chosen, key, masks)
    except CairnError as error:
        # What is there beside it can still be looked at, so the page stays; a name that is wrong is not found.
        facts |= {"problem": error, "status": 404 if isinstance(error, NotFoundError) and (uid or state) else 200}
    return facts
