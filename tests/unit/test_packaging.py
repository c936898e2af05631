"""What the distribution declares is what the code needs, and every command that a text gives installs something."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import cairn
from cairn.errors import InvalidInputError, NotFoundError
from cairn.state import backend

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
TEXTS = sorted(
    path
    for place in ("src", "docs", "examples", "changes", "benchmarks", "scripts", "README.md", "CONTRIBUTING.md")
    for path in (ROOT / place, *(ROOT / place).rglob("*"))
    if path.suffix in (".py", ".md", ".html", ".sh")
)
# Imported, and brought by a declared package that pins it, or named in the message of the one function that uses it.
BROUGHT = {"py4j", "matplotlib"}


def name_of(requirement: str) -> str:
    """The distribution in `psycopg[binary]>=3.2`."""
    return re.split(r"[\[<>=! ]", requirement)[0].lower()


def declared() -> set[str]:
    return {
        name_of(text) for text in [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    }


def imported() -> set[str]:
    """The top-level packages that any module of cairn imports, in functions too."""
    names: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"cairn"}


def test_every_package_that_the_code_imports_is_declared() -> None:
    distributions = metadata.packages_distributions()
    undeclared = {
        name: distributions.get(name)
        for name in imported() - BROUGHT
        if not {found.lower().replace("_", "-") for found in distributions.get(name, [])} & declared()
    }
    assert undeclared == {}


def test_the_spark_extra_brings_what_spark_asks_for_before_it_runs_python_on_arrow_batches() -> None:
    asked = {name_of(text) for text in metadata.requires("pyspark") or [] if 'extra == "sql"' in text}
    assert asked == {"pandas", "pyarrow", "numpy"}
    brought = {name_of(text) for text in [*PROJECT["dependencies"], *EXTRAS["spark"]]}
    assert asked <= brought


def test_all_brings_every_extra_that_a_running_job_can_use() -> None:
    (everything,) = EXTRAS["all"]
    named = re.fullmatch(r"cairn-streaming\[(.*)\]", everything)
    assert named is not None
    assert set(named[1].split(",")) == set(EXTRAS) - {"all", "testing"}


def test_the_distribution_has_a_name_of_its_own_and_the_version_of_the_module() -> None:
    assert PROJECT["name"] == "cairn-streaming"
    assert PROJECT["version"] == cairn.__version__
    assert set(PROJECT["scripts"]) == {"cairn"}
    answer = subprocess.run(
        [sys.executable, "-m", "cairn.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == f"cairn {cairn.__version__}"


def test_the_lock_file_is_of_this_project_and_of_the_public_index() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    (own,) = [package for package in lock["package"] if package["source"] == {"editable": "."}]
    assert own["name"] == PROJECT["name"]
    locked = {(entry["name"], entry.get("marker", "")) for entry in own["metadata"]["requires-dist"]}
    wanted = {(name_of(text), "") for text in PROJECT["dependencies"]}
    wanted |= {(name_of(text), f"extra == '{extra}'") for extra, texts in EXTRAS.items() for text in texts}
    assert locked == wanted
    assert {package["source"].get("registry") for package in lock["package"]} == {"https://pypi.org/simple", None}


def test_no_text_installs_the_package_that_another_project_has_under_this_name() -> None:
    assert len(TEXTS) > 200
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in TEXTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"(?<![\w-])cairn\[|pip install ['\"]?cairn(?!-streaming)\b", line)
    ]
    assert wrong == []


def test_every_extra_that_a_text_names_exists() -> None:
    named = {
        extra
        for path in TEXTS
        for found in re.findall(r"cairn-streaming\[([a-z,]+)\]", path.read_text())
        for extra in found.split(",")
    }
    assert {"spark", "ui", "rocksdb", "kafka", "postgres", "delta"} <= named <= set(EXTRAS)


@pytest.mark.parametrize("name", ["lmdb", "rocksdb", "of_a_stranger"])
def test_a_backend_that_lacks_a_package_never_names_an_extra_that_does_not_exist(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = metadata.EntryPoint(name, "a_package_that_nobody_has:Backend", backend.GROUP)
    monkeypatch.setitem(backend._BUILT_IN, name, point.value)
    backend.load_backend.cache_clear()
    try:
        with pytest.raises(NotFoundError, match="a_package_that_nobody_has") as raised:
            backend.load_backend(name)
    finally:
        backend.load_backend.cache_clear()
    extras = re.findall(r"cairn[\w-]*\[(\w+)\]", str(raised.value))
    assert set(extras) <= set(EXTRAS)
    assert bool(extras) is (name == "rocksdb")


def without_spark(program: str) -> subprocess.CompletedProcess[str]:
    """The answer of a process in which Spark cannot be imported."""
    hidden = "import sys\nsys.modules['pyspark'] = sys.modules['py4j'] = None\n"
    return subprocess.run([sys.executable, "-c", hidden + program], capture_output=True, text=True, check=False)


def test_without_spark_the_import_of_what_needs_it_says_what_to_install() -> None:
    answer = without_spark(
        "import cairn\n"
        "from cairn import KeyedProcessFunction, Types, ValueStateDescriptor\n"
        "try:\n"
        "    from cairn import StreamExecutionEnvironment\n"
        "except ImportError as error:\n"
        "    assert isinstance(error, cairn.CairnError), type(error)\n"
        "    print(error)\n"
    )
    assert answer.returncode == 0, answer.stderr
    assert "cairn.StreamExecutionEnvironment needs PySpark" in answer.stdout
    assert "pip install 'cairn-streaming[spark]'" in answer.stdout


def test_without_spark_every_public_name_loads_or_says_what_to_install() -> None:
    answer = without_spark(
        "import cairn\n"
        "needing = []\n"
        "for name in cairn.__all__:\n"
        "    try:\n"
        "        getattr(cairn, name)\n"
        "    except cairn.MissingPackageError:\n"
        "        needing.append(name)\n"
        "print(*needing)\n"
    )
    assert answer.returncode == 0, answer.stderr
    assert {"StreamExecutionEnvironment", "KeyedStream", "DataStream"} <= set(answer.stdout.split())
    assert not {"KeyedProcessFunction", "Types", "CairnError"} & set(answer.stdout.split())


def test_without_spark_a_job_script_ends_with_the_remedy_and_no_traceback(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("from cairn import StreamExecutionEnvironment\n")
    answer = without_spark(f"from cairn.cli.main import main\nsys.argv = ['cairn', 'run', {str(script)!r}]\nmain()\n")
    assert "pip install 'cairn-streaming[spark]'" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_missing_package_is_an_import_error_and_an_error_of_cairn() -> None:
    from cairn.connectors.client_libraries import load

    with pytest.raises(ImportError, match=r"cairn-streaming\[kafka\]") as raised:
        load("a_package_that_nobody_has", "kafka", "sink 'x'")
    assert isinstance(raised.value, InvalidInputError)
    assert "a_package_that_nobody_has" in str(raised.value)
