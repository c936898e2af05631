"""`cairn config`: the configuration of a job, and where each value comes from."""

from __future__ import annotations

from typing import Any

from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output
from cairn.config import OPTIONS, Settings
from cairn.config.remembered_options import REMEMBERED, recalled, shown, value_of
from cairn.storage.job_lookup import open_job
from cairn.storage.run_records import Runs

_ORIGINS = {"-D": "-D", "config": "config in code", "code": "method call in code"}


def show_config(job: str, directory: str | None, out: Output) -> int:
    """Print what the newest run of a job was configured with, and what a start that sets nothing will use."""
    files, identity = open_job(job, directory)
    runs = Runs(files)
    known = runs.configuration()
    settings = recalled(Settings(), known, files.root)
    options: list[dict[str, Any]] = []
    for key in REMEMBERED:
        given = known.get(key)
        options.append({
            "key": key,
            "value": value_of(settings, key),
            "origin": given.origin if given is not None else "default",
            "run": given.run if given is not None else None,
        })  # fmt: skip
    document = {"version": 1, "job": identity.job_id, "name": identity.name, "run": runs.newest() or None}
    out.document({**document, "max_parallelism": identity.max_parallelism, "options": options})
    if out.as_json:
        return ExitCode.OK
    out.line(f"job {identity.job_id}, run {runs.newest()}; {identity.max_parallelism} key groups (fixed)")
    width = max(len(key) for key in REMEMBERED)
    for option in options:
        value = shown(option["key"], option["value"])
        out.line(f"{option['key']:<{width}}  {value or '-':<28}  {_origin(option)}")
    out.line(
        f"The other {len(OPTIONS) - len(REMEMBERED)} options apply to one start or one machine and are not remembered."
    )
    return ExitCode.OK


def _origin(option: dict[str, Any]) -> str:
    if option["run"] is None:
        return "default"
    return f"{_ORIGINS.get(option['origin'], option['origin'])}, run {option['run']}"
