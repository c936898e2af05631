"""The wheel in an environment that has nothing else: the README's program runs, and what is missing says so."""

from __future__ import annotations

import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.support.programs import Program
from tests.support.readme_program import program, totals
from tests.support.servers.cache import NotAvailableError
from tests.support.servers.packages import ROOT, build, environment, outside, require_packages

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200), pytest.mark.xdist_group("install")]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("distributions")
    try:
        require_packages(tmp_path_factory.mktemp("packages"))
    except NotAvailableError as reason:
        print(f"nothing can be installed: {reason}")
        pytest.skip(f"nothing can be installed: {reason}")
    return build(folder)


@pytest.fixture(scope="module")
def everything(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment made by `pip install cairn-streaming[all]`."""
    return environment(tmp_path_factory.mktemp("all") / "env", f"{distributions[0]}[all]")


@pytest.fixture(scope="module")
def bare(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment made by `pip install cairn-streaming`, from the source distribution."""
    return environment(tmp_path_factory.mktemp("bare") / "env", str(distributions[1]))


def answer(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=outside(), capture_output=True, text=True, check=False)


def test_wheel_and_source_distribution_hold_every_file_of_the_package(distributions: tuple[Path, Path]) -> None:
    wheel, source = distributions
    assert wheel.name.startswith("cairn_streaming-")
    assert source.name.startswith("cairn_streaming-")
    package = ROOT / "src" / "cairn"
    tracked = subprocess.run(["git", "ls-files", "."], cwd=package, capture_output=True, text=True, check=False)
    names = tracked.stdout.split() or [str(p.relative_to(package)) for p in package.rglob("*.py")]
    with zipfile.ZipFile(wheel) as archive:
        assert {f"cairn/{name}" for name in names} <= set(archive.namelist())
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
        assert {f"src/cairn/{name}" for name in names} <= held


@pytest.mark.kill
def test_the_program_of_the_readme_runs_in_an_empty_environment_and_an_empty_folder(
    everything: Path, tmp_path: Path
) -> None:
    script = tmp_path / "payments.py"
    script.write_text(program())
    with Program(script, tmp_path, cairn=[str(everything / "cairn")], variables=outside()) as run:
        rows = totals(run.wait_for(lambda lines: len(totals(lines)) >= 5))
        run.kill()
    for (_, user), total in rows.items():
        assert total in [sum(range(user, user + 3 * count, 3)) for count in range(1, 1000)]
    said = (tmp_path / "stderr.txt").read_text()
    assert "no web page" not in said


def test_doctor_runs_its_job_in_an_empty_environment(everything: Path, tmp_path: Path) -> None:
    checked = answer([str(everything / "cairn"), "doctor", "--json", "--timeout", "600"], tmp_path)
    report = json.loads(checked.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["smallest job"]["status"] == "ok", checks
    assert checks["pandas"]["status"] == "ok"
    assert checks["rocksdict"]["status"] == "ok"
    assert checked.returncode == 0


def test_without_extras_the_commands_that_need_none_work_and_the_others_say_what_to_install(
    bare: Path, tmp_path: Path
) -> None:
    script = tmp_path / "payments.py"
    script.write_text(program())
    cairn = str(bare / "cairn")
    for args in (["--help"], ["--version"], ["list", "--dir", "."], ["run", "--help"], ["state", "--help"]):
        done = answer([cairn, *args], tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), args
        assert done.stdout
    for args, extra in ((["run", str(script)], "spark"), (["ui"], "ui"), (["demo"], "spark"), (["doctor"], "spark")):
        done = answer([cairn, *args], tmp_path)
        assert done.returncode != 0
        assert f"pip install 'cairn-streaming[{extra}]'" in done.stdout + done.stderr, args
        assert "Traceback" not in done.stderr
