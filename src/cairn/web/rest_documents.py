"""The documents of the REST interface as types: FastAPI checks them and writes them into the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from cairn.storage import layout

ID_PATTERN = f"^{layout.SAFE_NAME}$"
Id = Annotated[str, Field(pattern=ID_PATTERN)]

JobOverview = TypedDict(
    "JobOverview",
    {
        "jid": str, "name": str, "state": str, "start-time": int, "end-time": int, "duration": int,
        "last-modification": int, "run": int, "starts": int, "restarts": int, "epoch": int, "directory": str,
        "web-url": str, "health": str, "tasks": dict[str, int],
    },
)  # fmt: skip


class DamagedJob(TypedDict):
    """A folder whose job cannot be read."""

    directory: str
    code: str
    error: str
    remedy: str


class JobsOverview(TypedDict):
    jobs: list[JobOverview]
    damaged: list[DamagedJob]


class JobIds(TypedDict):
    jobs: list[dict[str, str]]


class Counts(TypedDict):
    total: int
    in_progress: int
    completed: int
    failed: int
    restored: int


class Statistics(TypedDict):
    min: float
    max: float
    avg: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float


class CheckpointOverview(TypedDict):
    counts: Counts
    summary: dict[str, Statistics]
    latest: dict[str, dict[str, Any] | None]
    history: list[dict[str, Any]]


TriggerAnswer = TypedDict("TriggerAnswer", {"request-id": str})


class TriggerStatus(TypedDict):
    status: dict[str, str]
    operation: dict[str, Any] | None


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class CheckpointBody(_Body):
    checkpointType: Literal["CONFIGURED", "FULL", "INCREMENTAL"] = "CONFIGURED"
    triggerId: Id | None = None


class SavepointBody(_Body):
    target_directory: Annotated[str, Field(max_length=4096)] | None = Field(default=None, alias="target-directory")
    cancel_job: Literal[False] = Field(default=False, alias="cancel-job")
    formatType: Literal["CANONICAL"] = "CANONICAL"
    triggerId: Id | None = None


class StopBody(_Body):
    targetDirectory: Annotated[str, Field(max_length=4096)] | None = None
    drain: bool = False
    formatType: Literal["CANONICAL"] = "CANONICAL"
    triggerId: Id | None = None


class DisposalBody(_Body):
    savepoint_path: Annotated[str, Field(min_length=1, max_length=4096)] = Field(alias="savepoint-path")
    triggerId: Id | None = None
