"""The command line as a user meets it: commands in processes of their own, their output and their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cli_process import cairn, environment, job, listen_to_interrupts, started
from tests.support.patience import PATIENCE

from cairn import errors
from cairn.cli import doctor
from cairn.cli.doctor import Check, Status
from cairn.cli.exit_codes import ExitCode, exit_code
from cairn.cli.output import Output, wants_colour
from cairn.cli.run_command import job_config, parse_settings

# ---------------------------------------------------------------- the program


def test_help_names_the_commands() -> None:
    answer = started("--help")
    assert answer.returncode == 0, answer.stderr
    assert all(command in answer.stdout for command in ("demo", "doctor", "run"))


def test_help_imports_neither_spark_nor_arrow() -> None:
    script = (
        "import sys; sys.argv = ['cairn', '--help']\n"
        "from cairn.cli.main import main\n"
        "code = main()\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'pandas', 'lmdb'} & set(sys.modules)\n"
        "sys.exit(f'imported: {sorted(heavy)}' if heavy else code)\n"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_installed_command_is_the_same_program() -> None:
    command = Path(sys.executable).with_name("cairn")
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "cairn 0.1.0\n")


def test_mistyped_command_is_a_usage_error_with_a_suggestion() -> None:
    answer = cairn("docter")
    assert answer.returncode == ExitCode.USAGE
    assert answer.stdout == ""
    assert "Did you mean 'doctor'?" in answer.stderr


def test_mistyped_option_is_a_usage_error_with_a_suggestion() -> None:
    assert "--json" in cairn("doctor", "--jsn").stderr
    answer = cairn("run", "--mastr", "local", "job.py")
    assert answer.returncode == ExitCode.USAGE
    assert "Did you mean '--master'?" in answer.stderr


# ---------------------------------------------------------------- run


def test_run_hands_options_to_the_job_as_configuration(tmp_path: Path) -> None:
    script = job(tmp_path, "import os, sys; print(os.environ['CAIRN_CONFIG']); print(sys.argv[1:], __name__)")
    answer = cairn(
        *("run", script, "-p", "4", "--master", "local[2]", "-D", "state.backend.type=rocksdb", "-Da.b=c=d"),
        *("input", "--verbose", "--", "-p", "9"),
    )
    assert answer.returncode == 0, answer.stderr
    config, argv = answer.stdout.splitlines()
    assert json.loads(config) == {
        "parallelism.default": 4,
        "spark.master": "local[2]",
        "state.backend.type": "rocksdb",
        "a.b": "c=d",
    }
    assert argv == "['input', '--verbose', '-p', '9'] __main__"


def test_run_without_options_gives_an_empty_configuration(tmp_path: Path) -> None:
    answer = cairn("run", job(tmp_path, "import os; print(os.environ['CAIRN_CONFIG'])"))
    assert json.loads(answer.stdout) == {}


def test_run_adds_to_the_configuration_it_was_started_with(tmp_path: Path) -> None:
    script = job(tmp_path, "import os; print(os.environ['CAIRN_CONFIG'])")
    answer = cairn("run", "-p", "2", script, CAIRN_CONFIG='{"parallelism.default": 8, "a": "b"}')
    assert json.loads(answer.stdout) == {"parallelism.default": 2, "a": "b"}
    for broken in ("{", "[]"):
        answer = cairn("run", script, CAIRN_CONFIG=broken)
        assert answer.returncode == ExitCode.USAGE
        assert "CAIRN_CONFIG" in answer.stderr


def test_run_lets_the_script_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("WORD = 'found'")
    script = job(tmp_path, "import neighbour, os, sys; print(neighbour.WORD, os.environ['PYTHONPATH'])")
    answer = cairn("run", script, PYTHONPATH="elsewhere")
    assert answer.stdout.split() == ["found", f"{tmp_path}{os.pathsep}elsewhere"]


def test_run_gives_local_workers_this_interpreter_but_not_those_of_a_cluster(tmp_path: Path) -> None:
    script = job(tmp_path, "import os; print(os.environ.get('PYSPARK_PYTHON'))")
    assert cairn("run", script, PYSPARK_PYTHON="theirs").stdout.strip() == "theirs"
    env = environment()
    env.pop("PYSPARK_PYTHON", None)
    for options, expected in (([], sys.executable), (["--master", "spark://host:7077"], "None")):
        command = [sys.executable, "-m", "cairn.cli.main", "run", *options, str(script)]
        answer = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
        assert answer.stdout.strip() == expected


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("InvalidInputError", 2),
        ("StateTypeError", 1),
        ("NotFoundError", 3),
        ("FencedError", 4),
        ("CorruptFileError", 5),
        ("IncompatibleStateError", 6),
        ("StorageError", 7),
        ("UserFunctionError", 1),
        ("EpochFailedError", 1),
        ("InternalError", 1),
        ("CairnError", 1),
    ],
)
def test_each_error_has_its_exit_code(kind: str, code: int) -> None:
    error = getattr(errors, kind)("it broke")
    assert exit_code(error) == code
    assert errors.remedy(error) or kind == "CairnError"


def test_run_tells_code_cause_and_remedy_without_a_traceback(tmp_path: Path) -> None:
    script = job(
        tmp_path,
        "from cairn.errors import CorruptFileError\n"
        "try:\n"
        "    raise OSError('bad sector')\n"
        "except OSError as cause:\n"
        "    raise CorruptFileError('file x is damaged', path='x') from cause\n",
    )
    answer = started("run", script)
    assert answer.returncode == ExitCode.DAMAGED
    assert answer.stdout == ""
    assert answer.stderr.splitlines() == [
        "error [corrupt-file]: file x is damaged",
        "  cause:  OSError: bad sector",
        "  remedy: Start from an older checkpoint or a savepoint; keep the damaged file.",
    ]


@pytest.mark.parametrize("where", ["before", "after", "variable"])
def test_debug_shows_the_traceback(tmp_path: Path, where: str) -> None:
    script = job(tmp_path, "from cairn.errors import StorageError\nraise StorageError('no space')\n")
    answer = {
        "before": lambda: cairn("--debug", "run", script),
        "after": lambda: cairn("run", "--debug", script),
        "variable": lambda: cairn("run", script, CAIRN_DEBUG="1"),
    }[where]()
    assert answer.returncode == ExitCode.STORAGE
    assert "Traceback (most recent call last)" in answer.stderr
    assert "error [storage]: no space" in answer.stderr


def test_error_names_its_own_remedy_when_it_has_one(tmp_path: Path) -> None:
    script = job(tmp_path, "from cairn.errors import NotFoundError\nraise NotFoundError('no x', remedy='make x')\n")
    assert "  remedy: make x\n" in cairn("run", script).stderr


def test_bug_in_the_script_shows_its_own_frames_only(tmp_path: Path) -> None:
    answer = cairn("run", job(tmp_path, "def f():\n    return 1 / 0\n\nf()\n"))
    assert answer.returncode == ExitCode.FAILED
    assert "ZeroDivisionError" in answer.stderr
    assert "job.py" in answer.stderr
    assert "runpy" not in answer.stderr
    assert "runpy" in cairn("--debug", "run", tmp_path / "job.py").stderr


def test_syntax_error_in_the_script_names_the_line(tmp_path: Path) -> None:
    answer = cairn("run", job(tmp_path, "x = 1\ny = = 2\n"))
    assert answer.returncode == ExitCode.FAILED
    assert "job.py" in answer.stderr
    assert "line 2" in answer.stderr
    assert "SyntaxError" in answer.stderr


@pytest.mark.parametrize(
    ("statement", "code"), [("sys.exit()", 0), ("sys.exit(0)", 0), ("sys.exit(9)", 9), ("sys.exit('no')", 1)]
)
def test_run_passes_the_exit_code_of_the_script_on(tmp_path: Path, statement: str, code: int) -> None:
    answer = cairn("run", job(tmp_path, f"import sys; {statement}"))
    assert answer.returncode == code
    assert answer.stderr == ("no\n" if "'no'" in statement else "")


def test_run_of_a_missing_script_is_not_found(tmp_path: Path) -> None:
    answer = started("run", tmp_path / "absent.py")
    assert answer.returncode == ExitCode.NOT_FOUND
    assert "absent.py" in answer.stderr


@pytest.mark.parametrize("args", [["-p", "0"], ["-p", "x"], ["-D", "novalue"], ["-D", "=x"]])
def test_wrong_option_value_is_a_usage_error(tmp_path: Path, args: list[str]) -> None:
    answer = cairn("run", job(tmp_path, "print('ran')"), *args)
    assert answer.returncode == ExitCode.USAGE
    assert answer.stdout == ""


def test_interrupt_ends_with_130(tmp_path: Path) -> None:
    script = job(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "cairn.cli.main", "run", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=listen_to_interrupts,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=PATIENCE)
    assert process.returncode == ExitCode.INTERRUPTED
    assert messages == "interrupted\n"


def test_settings_keep_equal_signs_and_the_last_value() -> None:
    assert parse_settings(["a=b=c", "x=1", "x=2", "empty="]) == {"a": "b=c", "x": "2", "empty": ""}


def test_settings_win_over_what_is_inherited_also_by_another_name() -> None:
    inherited = '{"state.checkpoints.dir": "/a", "state.backend": "lmdb"}'
    settings = {"execution.checkpointing.dir": "/b"}
    config = job_config(parallelism=None, master=None, settings=settings, inherited=inherited)
    assert config == {"state.backend": "lmdb", "execution.checkpointing.dir": "/b"}


def test_options_win_over_settings_of_the_same_key() -> None:
    config = job_config(parallelism=3, master=None, settings={"parallelism.default": "9"}, inherited=None)
    assert config == {"parallelism.default": 3}


# ---------------------------------------------------------------- doctor


def test_doctor_prints_one_line_for_each_check(tmp_path: Path) -> None:
    answer = cairn("doctor", "--quick", cwd=tmp_path)
    lines = answer.stdout.splitlines()
    assert len(lines) == 12
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in lines)
    assert answer.returncode == int(any(line.startswith("fail") for line in lines))
    assert "\x1b" not in answer.stdout
    assert list(tmp_path.iterdir()) == []


def test_doctor_json_has_a_version_and_the_same_checks(tmp_path: Path) -> None:
    answer = cairn(
        "doctor", "--json", "--quick", "--data-dir", tmp_path / "not" / "there" / "yet", "--local-dir", tmp_path
    )
    report = json.loads(answer.stdout)
    assert report["version"] == 1
    assert report["ok"] is (answer.returncode == 0)
    checks = {check["name"]: check for check in report["checks"]}
    assert {"python", "java", "pyspark", "pyarrow", "pandas", "lmdb", "rocksdict", "data disk", "atomic create"} < set(
        checks
    )
    assert checks["python"]["status"] == "ok"
    assert checks["atomic create"]["status"] == "ok"
    assert str(tmp_path) in checks["atomic create"]["detail"]
    assert list(tmp_path.iterdir()) == []


def test_doctor_fails_with_a_remedy_when_java_is_missing(tmp_path: Path) -> None:
    env = environment(PATH=str(tmp_path))
    env.pop("JAVA_HOME", None)
    command = [sys.executable, "-m", "cairn.cli.main", "doctor"]
    answer = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert answer.returncode == ExitCode.FAILED
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("fail")]
    assert "java" in line
    assert "-> Install Java 17" in line
    assert answer.stdout.splitlines()[-1].split(maxsplit=1)[1].startswith("smallest job")
    assert "not run, because a check above failed" in answer.stdout


def test_doctor_reads_the_data_directory_of_the_configuration(tmp_path: Path) -> None:
    answer = cairn(
        "doctor", "--json", "--quick", CAIRN_CONFIG=json.dumps({"execution.checkpointing.dir": f"file://{tmp_path}"})
    )
    details = {check["name"]: check["detail"] for check in json.loads(answer.stdout)["checks"]}
    assert str(tmp_path) in details["data disk"]


def test_doctor_does_not_import_spark(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['cairn', 'doctor', '--quick']\n"
        "from cairn.cli.main import main\n"
        "main(); sys.exit('pyspark' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, cwd=tmp_path, check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.9" 2023-10-17', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("nothing to see", None),
    ],
)
def test_java_version_is_read_from_either_form(text: str, major: int | None) -> None:
    assert doctor.java_major(text) == major


def fake_java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    command = folder / "bin" / "java"
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    command.chmod(0o755)
    return folder


def test_java_home_decides_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("PATH", str(new / "bin"), prepend=os.pathsep)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert doctor.check_java().status is Status.OK
    monkeypatch.setenv("JAVA_HOME", str(old))
    check = doctor.check_java()
    assert check.status is Status.FAIL
    assert "8 is too old" in check.detail
    assert "JAVA_HOME" in check.remedy
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "absent"))
    assert "does not run" in doctor.check_java().detail


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (None, Status.FAIL),
        ("3.5.1", Status.FAIL),
        ("4.0.0", Status.FAIL),
        ("4.1.0", Status.OK),
        ("4.3.2", Status.OK),
        ("4.4.0.dev1", Status.WARN),
        ("5.0.0", Status.WARN),
    ],
)
def test_spark_version_must_be_a_known_one(found: str | None, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda package: found)
    assert doctor.check_pyspark().status is status


@pytest.mark.parametrize(
    ("version", "status"),
    [(None, Status.FAIL), ("2.1.4", Status.FAIL), ("2.2.0", Status.OK), ("2.3.3", Status.OK), ("3.0.0", Status.WARN)],
)
def test_pandas_is_needed_because_spark_asks_for_it(
    version: str | None, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda package: version)
    check = doctor.check_pandas()
    assert check.status is status
    assert ("cairn-streaming[spark]" in check.remedy) is (status is not Status.OK)


def test_missing_rocksdict_is_only_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    check = doctor.check_rocksdict()
    assert check.status is Status.WARN
    assert "cairn-streaming[rocksdb]" in check.remedy


@pytest.mark.parametrize(("free", "status"), [(1 << 20, Status.FAIL), (1 << 30, Status.WARN), (1 << 40, Status.OK)])
def test_little_disk_space_is_reported(
    free: int, status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        def __init__(self) -> None:
            self.free = free

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage())
    check = doctor.check_disk("disk", str(tmp_path), "Move.")
    assert check.status is status
    assert bool(check.remedy) is (status is not Status.OK)


def test_file_system_that_replaces_on_link_fails_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replacing_link(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr("os.link", replacing_link)
    check = doctor.check_atomic_create(str(tmp_path))
    assert check.status is Status.FAIL
    assert "link without replacing" in check.detail
    assert list(tmp_path.iterdir()) == []


def test_remote_data_directory_is_not_probed() -> None:
    assert doctor.check_atomic_create("s3://bucket/x").status is Status.WARN
    assert doctor.check_disk("data disk", "s3://bucket/x", "").status is Status.OK


def test_failed_check_gives_exit_code_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "examine", lambda *_: [Check("x", Status.FAIL, "broken", "mend it")])
    assert doctor.run_doctor("", "", None, Output()) == ExitCode.FAILED
    printed = capsys.readouterr()
    assert printed.out == "fail  x  broken  -> mend it\n"
    assert "Some checks failed" in printed.err
    monkeypatch.setattr(doctor, "examine", lambda *_: [Check("x", Status.WARN, "odd", "look")])
    assert doctor.run_doctor("", "", None, Output()) == ExitCode.OK


# ---------------------------------------------------------------- colour


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour_needs_a_terminal_that_wants_it(
    variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wants_colour(Terminal()) is expected  # type: ignore[arg-type]
    with open(os.devnull, "w") as pipe:
        assert wants_colour(pipe) is False
