"""`cairn doctor`: is this machine ready to run jobs? Looks at versions, Java, disks and the data directory.

Each check is a function that returns one `Check` and never raises, and no file is left behind. When all of them pass,
a small job runs on local Spark (`cli/doctor_job.py`): only that shows whether Spark, Java and Python work together.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output

REPORT_VERSION = 1
PYTHON_NEEDED = (3, 11)
JAVA_NEEDED = 17
PYARROW_NEEDED = (18,)
PANDAS_NEEDED = (2, 2)
PANDAS_TOO_NEW = (3,)
PYSPARK_OLDEST = (4, 1)
PYSPARK_NEWEST = (4, 3)
GIB = 1 << 30
DISK_NEEDED = GIB // 4
DISK_COMFORTABLE = 2 * GIB


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. `remedy` says what to do about it, and is empty when there is nothing to do."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def run_doctor(data_dir: str, local_dir: str, job_seconds: float | None, out: Output) -> int:
    """Print all checks. The job has `job_seconds`; None leaves it out."""
    checks = examine(data_dir, local_dir)
    width = max(len(check.name) for check in checks)
    for check in checks:
        _print(check, width, out)
    if job_seconds is not None:
        checks.append(_check_job(checks, job_seconds, out))
        _print(checks[-1], width, out)
    healthy = _healthy(checks)
    out.document({"version": REPORT_VERSION, "ok": healthy, "checks": [asdict(check) for check in checks]})
    if not healthy:
        out.message("Some checks failed. Fix them before you run jobs.")
    return ExitCode.OK if healthy else ExitCode.FAILED


def _healthy(checks: list[Check]) -> bool:
    return all(check.status is not Status.FAIL for check in checks)


def _check_job(checks: list[Check], seconds: float, out: Output) -> Check:
    from cairn.cli.doctor_job import NAME, check_job

    if not _healthy(checks):
        return Check(NAME, Status.WARN, "not run, because a check above failed")
    return check_job(seconds, out)


def _print(check: Check, width: int, out: Output) -> None:
    colours = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}
    mark = out.style(f"{check.status:<4}", colours[check.status])
    advice = f"  -> {check.remedy}" if check.remedy else ""
    out.line(f"{mark}  {check.name:<{width}}  {check.detail}{advice}")


def examine(data_dir: str, local_dir: str) -> list[Check]:
    """All checks, in the order in which a first-time user should fix them."""
    return [
        check_python(),
        check_java(),
        check_pyspark(),
        check_pyarrow(),
        check_pandas(),
        check_lmdb(),
        check_rocksdict(),
        check_temporary_directory(),
        check_disk("local state disk", local_dir, "Choose another execution.checkpointing.local-backup.dirs."),
        check_disk("data disk", data_dir, "Choose another execution.checkpointing.dir."),
        check_atomic_create(data_dir),
        check_stores(local_dir),
    ]


# ---------------------------------------------------------------- versions


def check_python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_NEEDED:
        return Check("python", Status.FAIL, found, f"Install Python {_dotted(PYTHON_NEEDED)} or newer.")
    return Check("python", Status.OK, f"{found} ({sys.executable})")


def check_java() -> Check:
    """The Java that Spark will use: JAVA_HOME if set, else the first one on the PATH."""
    install = f"Install Java {JAVA_NEEDED} or newer (Debian: apt-get install openjdk-17-jre-headless)."
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None:
        return Check("java", Status.FAIL, "not found; JAVA_HOME is not set and PATH has no java", install)
    try:
        answer = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        advice = "Point JAVA_HOME to a Java that works, or unset it." if home else install
        return Check("java", Status.FAIL, f"{command} does not run: {error}", advice)
    major = java_major(answer.stderr + answer.stdout)
    where = f"{command}, from JAVA_HOME" if home else command
    if major is None:
        return Check("java", Status.FAIL, f"{where} does not report its version", install)
    if major < JAVA_NEEDED:
        advice = f"Point JAVA_HOME to Java {JAVA_NEEDED} or newer, or unset it." if home else install
        return Check("java", Status.FAIL, f"{major} is too old ({where})", advice)
    return Check("java", Status.OK, f"{major} ({where})")


def java_major(text: str) -> int | None:
    """The major version in the answer of `java -version`: 17 for 17.0.9, 8 for 1.8.0_392."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def check_pyspark() -> Check:
    """Read from the package's metadata: importing Spark would take a second."""
    span = f"{_dotted(PYSPARK_OLDEST)} to {_dotted(PYSPARK_NEWEST)}"
    install = "Run: pip install 'cairn-streaming[spark]'"
    found = _installed("pyspark")
    if found is None:
        return Check("pyspark", Status.FAIL, "not installed", install)
    version = _numbers(found)[:2]
    if version < PYSPARK_OLDEST:
        return Check("pyspark", Status.FAIL, f"{found} is too old; {span} is needed", install)
    if version > PYSPARK_NEWEST:
        return Check("pyspark", Status.WARN, f"{found} is newer than the tested {span}", install)
    return Check("pyspark", Status.OK, found)


def check_pyarrow() -> Check:
    install = f"Run: pip install 'pyarrow>={_dotted(PYARROW_NEEDED)}'"
    problem = _import_problem("pyarrow")
    if problem:
        return Check("pyarrow", Status.FAIL, problem, install)
    found = _installed("pyarrow") or "unknown version"
    if _numbers(found) < PYARROW_NEEDED:
        return Check("pyarrow", Status.FAIL, f"{found} is too old", install)
    return Check("pyarrow", Status.OK, found)


def check_pandas() -> Check:
    """cairn does without pandas, but PySpark refuses to run Python on Arrow batches where it is missing."""
    install = "Run: pip install 'cairn-streaming[spark]'"
    version = _installed("pandas")
    if version is None:
        return Check("pandas", Status.FAIL, "not installed; PySpark requires it", install)
    if _numbers(version)[:2] < PANDAS_NEEDED:
        return Check("pandas", Status.FAIL, f"{version} is too old; {_dotted(PANDAS_NEEDED)} is needed", install)
    if _numbers(version) >= PANDAS_TOO_NEW:
        return Check("pandas", Status.WARN, f"{version} is newer than what PySpark supports", install)
    return Check("pandas", Status.OK, version)


def check_lmdb() -> Check:
    problem = _import_problem("lmdb")
    if problem:
        return Check("lmdb", Status.FAIL, problem, "Run: pip install --force-reinstall lmdb")
    return Check("lmdb", Status.OK, _installed("lmdb") or "unknown version")


def check_rocksdict() -> Check:
    problem = _import_problem("rocksdict")
    if problem:
        return Check(
            "rocksdict",
            Status.WARN,
            f"{problem}; only the rocksdb backend needs it",
            "For that backend run: pip install 'cairn-streaming[rocksdb]'",
        )
    return Check("rocksdict", Status.OK, _installed("rocksdict") or "unknown version")


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _import_problem(module: str) -> str:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return "not installed"
    except Exception as error:  # noqa: BLE001 - a broken native library may raise anything
        return f"cannot be imported: {error}"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.split("+")[0])))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


# ---------------------------------------------------------------- disks


def check_temporary_directory() -> Check:
    name = "temporary directory"
    advice = "Set TMPDIR to a directory that you may write to."
    try:
        with tempfile.NamedTemporaryFile(prefix="cairn-doctor-") as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return Check(name, Status.FAIL, f"cannot be written: {error}", advice)
    return Check(name, Status.OK, tempfile.gettempdir())


def check_disk(name: str, place: str, advice: str) -> Check:
    path = local_path(place)
    if path is None:
        return Check(name, Status.OK, f"{place} is not on this machine; free space not checked")
    try:
        free = shutil.disk_usage(_existing(path)).free
    except OSError as error:
        return Check(name, Status.FAIL, f"{path}: {error}", advice)
    detail = f"{free / GIB:.1f} GiB free at {path}"
    if free < DISK_NEEDED:
        return Check(name, Status.FAIL, detail, f"Free some space. {advice}")
    if free < DISK_COMFORTABLE:
        return Check(name, Status.WARN, detail, f"Free some space before a long run. {advice}")
    return Check(name, Status.OK, detail)


def check_atomic_create(place: str) -> Check:
    """Commits rest on two promises of the data directory: a file is created once, and linking never replaces."""
    name = "atomic create"
    path = local_path(place)
    if path is None:
        return Check(name, Status.WARN, f"{place} is not on this machine; not checked")
    parent = _existing(path)
    began = time.perf_counter()
    try:
        probe = Path(tempfile.mkdtemp(prefix=".cairn-doctor-", dir=parent))
    except OSError as error:
        return Check(
            name, Status.FAIL, f"{parent} cannot be written: {error}", "Choose a directory that you may write to."
        )
    try:
        broken = [promise for promise, kept in _PROMISES if not _keeps(kept, probe)]
        if not broken:
            broken = [promise for promise in [_broken_promise(probe)] if promise]
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    if broken:
        advice = "Use a local disk or another file system for execution.checkpointing.dir."
        return Check(name, Status.FAIL, f"{parent} does not support: {', '.join(broken)}", advice)
    took = (time.perf_counter() - began) * 1000
    return Check(name, Status.OK, f"create, link and sync work in {parent} ({took:.0f} ms)")


def _creates_once(probe: Path) -> bool:
    (probe / "a").touch(exist_ok=False)
    try:
        (probe / "a").touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


def _link_never_replaces(probe: Path) -> bool:
    (probe / "b").write_bytes(b"new")
    (probe / "c").write_bytes(b"old")
    os.link(probe / "b", probe / "d")
    with suppress(FileExistsError):
        os.link(probe / "b", probe / "c")
    return (probe / "c").read_bytes() == b"old" and (probe / "d").read_bytes() == b"new"


def _syncs(probe: Path) -> bool:
    for path in (probe / "b", probe):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    return True


_PROMISES: tuple[tuple[str, Callable[[Path], bool]], ...] = (
    ("exclusive create", _creates_once),
    ("link without replacing", _link_never_replaces),
    ("sync of files and directories", _syncs),
)


def _keeps(promise: Callable[[Path], bool], probe: Path) -> bool:
    try:
        return promise(probe)
    except OSError:
        return False


def _broken_promise(probe: Path) -> str:
    """What a job asks of its directory when it starts, asked of this one."""
    from cairn.errors import CairnError
    from cairn.storage.filesystem import LocalFileSystem
    from cairn.storage.promise_check import broken_promise

    try:
        return broken_promise(LocalFileSystem(str(probe)))
    except CairnError as error:
        return error.message


# ---------------------------------------------------------------- working stores


def check_stores(place: str) -> Check:
    """Working stores that are left on this host."""
    from cairn.state.local_stores import survey

    name = "working stores"
    path = local_path(place)
    found = survey(str(path)) if path is not None else []
    if not found:
        return Check(name, Status.OK, f"none in {place}")
    total = sum(stores.size for stores in found)
    detail = f"{len(found)} jobs, {total / GIB:.2f} GiB in {path}"
    dead = [stores for stores in found if stores.state == "dead"]
    if dead:
        detail += f"; {len(dead)} of jobs that no longer exist, {sum(stores.size for stores in dead) / GIB:.2f} GiB"
        return Check(name, Status.WARN, detail, "List them with: cairn doctor --clean-stores")
    return Check(name, Status.OK, detail)


def clean_stores(place: str, really: bool, out: Output) -> int:
    """List all working stores in a local directory; with `really`, remove those whose job no longer exists."""
    from cairn.state.local_stores import remove, survey

    path = local_path(place)
    found = survey(str(path)) if path is not None else []
    removed = []
    for stores in found:
        age = (time.time() - stores.used) / 3600
        out.line(f"{stores.state:<7}  {stores.size / GIB:8.3f} GiB  used {age:.1f} h ago  {stores.path}")
        out.line(f"         {stores.job_dir or 'unknown job'}")
        if really and stores.state == "dead":
            remove(stores)
            removed.append(stores.path)
    dead = [stores for stores in found if stores.state == "dead"]
    size = sum(stores.size for stores in dead) / GIB
    out.document({"version": REPORT_VERSION, "stores": [asdict(stores) for stores in found], "removed": removed})
    if really:
        out.line(f"removed the working stores of {len(removed)} jobs, {size:.3f} GiB")
    elif dead:
        out.line(
            f"{len(dead)} jobs no longer exist, {size:.3f} GiB; nothing was removed. Pass --yes to remove their stores."
        )
    else:
        out.line(f"nothing to remove in {place}")
    return ExitCode.OK


def local_path(place: str) -> Path | None:
    """The path of a plain path or a file URL; None for any other URL."""
    if "://" not in place and not place.startswith("file:"):
        return Path(place).expanduser().absolute()
    url = urlsplit(place)
    return Path(unquote(url.path)) if url.scheme == "file" else None


def _existing(path: Path) -> Path:
    """The path itself or the nearest parent that exists: a directory not made yet will be made there."""
    return next((p for p in (path, *path.parents) if p.is_dir()), Path("/"))


def configured(config: dict[str, Any]) -> tuple[str, str]:
    """The data directory and the local state directory that a job with this configuration would use."""
    from cairn.config import parse

    settings = parse(config)
    return settings.directory or "cairn-data", settings.local_directory
