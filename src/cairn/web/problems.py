"""Errors as problem documents (RFC 9457) with the codes of `cairn.errors`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from cairn.errors import (
    CairnError,
    CheckpointFailedError,
    CorruptFileError,
    FencedError,
    IncompatibleStateError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    remedy,
)
from cairn.logs import get_logger

_log = get_logger("cairn.web")
MEDIA = "application/problem+json"
_STATUS: tuple[tuple[type[CairnError], int], ...] = (
    (InvalidInputError, 400),
    (NotFoundError, 404),
    (FencedError, 409),
    (CheckpointFailedError, 409),
    (IncompatibleStateError, 409),
    (CorruptFileError, 500),
    (StorageError, 503),
)


class Problem(BaseModel):
    """What every error answer is."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str = ""


_TITLES = {
    400: "Bad request", 401: "Token required", 403: "Forbidden", 404: "Not found",
    405: "Method not allowed", 408: "Timeout", 409: "Conflict", 413: "Too large", 415: "JSON required",
    421: "Wrong host", 422: "Invalid value", 429: "Too many requests", 500: "Internal error",
    503: "Unavailable",
}  # fmt: skip

_REMEDIES = {"body.cancel-job": "To end the job with a savepoint, POST to /api/v1/jobs/{jobid}/stop."}
"""What to do instead, by the field that was refused."""


def problem(
    status: int, code: str, detail: str, remedy: str = "", headers: dict[str, str] | None = None
) -> JSONResponse:
    told = Problem(
        type=f"urn:cairn:error:{code}", title=_TITLES.get(status, "Error"), status=status, detail=detail, code=code,
        remedy=remedy,
    )  # fmt: skip
    return JSONResponse(told.model_dump(), status, media_type=MEDIA, headers=headers)


def of_error(error: CairnError) -> JSONResponse:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    return problem(status, error.code, error.message, remedy(error) or "")


def install(app: FastAPI) -> None:
    @app.exception_handler(CairnError)
    def cairn_error(request: Request, error: CairnError) -> JSONResponse:
        return of_error(error)

    @app.exception_handler(RequestValidationError)
    def validation(request: Request, error: RequestValidationError) -> JSONResponse:
        first: dict[str, Any] = dict(error.errors()[0]) if error.errors() else {}
        where = ".".join(str(part) for part in first.get("loc", ()))
        detail = f"{where}: {first.get('msg', 'invalid value')}"[:500]
        return problem(422, "invalid-input", detail, _REMEDIES.get(where, ""))

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> JSONResponse:
        code = {404: "not-found", 405: "invalid-input"}.get(error.status_code, "error")
        headers = dict(error.headers) if error.headers else None
        advice = "/api/v1/openapi.json lists every path and its methods." if error.status_code in (404, 405) else ""
        return problem(error.status_code, code, str(error.detail), advice, headers=headers)

    @app.exception_handler(Exception)
    def unforeseen(request: Request, error: Exception) -> JSONResponse:
        _log.error("%s %r failed", request.method, request.url.path, exc_info=error)
        return problem(500, "internal", "unexpected error; see the log of the server")
