"""`cairn run`: a job script in this process, with configuration from the command line.

The script is run as `python JOB.py` would run it. The options reach `get_execution_environment` through the
environment variable CAIRN_CONFIG, a JSON object of configuration keys: -p as a number, the others as text.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cairn.cli.exit_codes import ExitCode, exit_code
from cairn.cli.output import Output
from cairn.config.options import ALIASES
from cairn.config.settings import CONFIG_VARIABLE
from cairn.errors import CairnError, InvalidInputError, NotFoundError, from_traceback


def parse_settings(pairs: Iterable[str]) -> dict[str, str]:
    """The `key=value` arguments of -D. The value may contain `=`; a key given twice takes the last value."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidInputError(
                f"-D {pair!r} is not of the form key=value.", remedy="For example: -D state.backend.type=rocksdb"
            )
        settings[key.strip()] = value
    return settings


def job_config(
    *, parallelism: int | None, master: str | None, settings: dict[str, str], inherited: str | None
) -> dict[str, Any]:
    """The configuration that a job sees: what CAIRN_CONFIG held already, then -D, then the options of their own."""
    config: dict[str, Any] = {}
    if inherited:
        try:
            loaded = json.loads(inherited)
        except ValueError as cause:
            raise InvalidInputError(f"{CONFIG_VARIABLE} is set but is not JSON.") from cause
        if not isinstance(loaded, dict):
            raise InvalidInputError(f"{CONFIG_VARIABLE} is set but is not a JSON object.")
        config.update(loaded)
    set_here = {ALIASES.get(key, key) for key in settings}  # -D wins also over another name of the same option
    config = {key: value for key, value in config.items() if ALIASES.get(key, key) not in set_here}
    config.update(settings)
    if parallelism is not None:
        config["parallelism.default"] = parallelism
    if master is not None:
        config["spark.master"] = master
    return config


def run_job(job: Path, args: Sequence[str], config: dict[str, Any], *, debug: bool, out: Output) -> int:
    """Run the script to its end and return the exit code. Changes this process, so call it last."""
    if not job.is_file():
        raise NotFoundError(f"There is no job script {str(job)!r}.", remedy="Check the path; it must be a Python file.")
    _prepare_process(job, args, config)
    if not out.as_json:
        return _run_script(job, config, debug, out)[0]
    from cairn.cli.run_events import watched

    with watched() as events:
        code, error = _run_script(job, config, debug, out)
    events.summary(code, error)
    return code


def _run_script(job: Path, config: dict[str, Any], debug: bool, out: Output) -> tuple[int, CairnError | None]:
    """The exit code, and the error that led to it, if it is one of ours. Errors are told here."""
    try:
        with restoring(config, out):
            runpy.run_path(str(job), run_name="__main__")
    except SystemExit as end:
        return _code_of(end, out), None
    except KeyboardInterrupt:
        out.message("interrupted")
        return ExitCode.INTERRUPTED, None
    except CairnError as error:
        out.error(error, debug=debug)
        return exit_code(error), error
    except Exception as error:  # noqa: BLE001 - the script may raise anything
        carried = _carried_error(error)
        if carried is not None:
            out.error(carried)
            if debug:
                traceback.print_exception(error, file=sys.stderr)
            return exit_code(carried), carried
        _print_from_script(error, job, whole=debug)
        return ExitCode.FAILED, None
    return ExitCode.OK, None


@contextmanager
def restoring(config: dict[str, Any], out: Output) -> Iterator[None]:
    """Shows how much of a snapshot's state is brought into the job, if it is started from one."""
    if not config.get("execution.state-recovery.path") or out.as_json or out.quiet:
        yield
        return
    from cairn.cli.progress_bar import Step, display
    from cairn.events import PROCESS_EVENTS, StateMoved

    with display(out) as show:

        def moved(event: StateMoved) -> None:
            unfinished = event.done < event.total
            show(Step(f"restoring {event.uid}", event.done, event.total, "pieces") if unfinished else None)

        PROCESS_EVENTS.subscribe(StateMoved, moved)
        try:
            yield
        finally:
            PROCESS_EVENTS.unsubscribe(moved)


def _prepare_process(job: Path, args: Sequence[str], config: dict[str, Any]) -> None:
    os.environ[CONFIG_VARIABLE] = json.dumps(config)
    sys.argv = [str(job), *args]
    # As with `python JOB.py`, modules beside the script can be imported; Spark's Python workers read PYTHONPATH.
    folder = str(job.resolve().parent)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (folder, os.environ.get("PYTHONPATH")) if p)
    # Spark would take the first `python3` on the PATH, which may not have cairn. Another machine may not have
    # this interpreter, so a cluster's own setting is left alone.
    if str(config.get("spark.master", "local")).startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _code_of(end: SystemExit, out: Output) -> int:
    if end.code is None:
        return ExitCode.OK
    if isinstance(end.code, int):
        return end.code
    for line in str(end.code).splitlines():
        out.message(line)
    return ExitCode.FAILED


def _carried_error(error: Exception) -> CairnError | None:
    """The cairn error of a Spark worker that came to the driver as text inside one of Spark's exceptions."""
    if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
        return None
    return from_traceback(str(error))


def _print_from_script(error: Exception, job: Path, *, whole: bool) -> None:
    """The traceback of a bug in the script, without the frames that led into it."""
    shown = error.__traceback__
    while not whole and shown is not None and shown.tb_frame.f_code.co_filename != str(job):
        shown = shown.tb_next
    if shown is None:  # a syntax error has no frame in the script
        traceback.print_exception(error, file=sys.stderr, limit=None if whole else 0)
        return
    traceback.print_exception(type(error), error, shown, file=sys.stderr)
