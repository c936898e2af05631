"""The rules of the layout: imports point one way, names are unique, classes and functions stay small.

Exceptions are listed by name. A list may only get shorter: an entry that is not needed any more fails the test, too.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.modules import PACKAGE, imports_of, modules

import cairn

LAYERS = [
    {"errors"},
    {"text"},
    {"logs", "quantities"},
    {"events"},
    {"config"},
    {"model"},
    {"storage"},
    {"state", "connectors"},
    {"runtime", "coordinator"},
    {"snapshots"},
    {"restore"},
    {"view"},
    {"web"},
    {"job"},
    {"spark"},
    {"api"},
    {"testing", "cli"},
]
"""From the bottom to the top. A module imports its own package and packages further down."""
FORBIDDEN = {("coordinator", "state"), ("coordinator", "connectors"), ("runtime", "connectors")}
"""Lower packages that a package does without. The coordinator and the runtime meet in `model/manifest.py`."""
BY_ITSELF = {"testing": {"restore", "view", "web", "job", "spark", "api"}}
"""`cairn.testing` runs functions without a job. The simulation runs whole drivers and is exempt."""
HEAVY = {
    "pyspark": ("api/", "spark/", "cli/", "connectors/"),
    "psycopg": ("connectors/jdbc.py",),
    "confluent_kafka": ("connectors/kafka.py",),
    "deltalake": ("connectors/delta.py",),
    "lmdb": ("state/lmdb_backend.py", "cli/doctor.py"),
    "rocksdict": ("state/rocksdb_backend.py", "cli/doctor.py"),
    "fastapi": ("web/",),
    "starlette": ("web/",),
    "uvicorn": ("web/",),
    "jinja2": ("web/",),
    "prometheus_client": ("web/",),
    "typer": ("cli/",),
    "rich": ("cli/",),
    "pytest": ("testing/",),
}
MAX_LINES = 500
MAX_PARAMETERS = 6
MAX_METHODS = 15
MAX_ATTRIBUTES = 12

OPTIONS_BY_KEYWORD = {"api", "connectors", "testing", "cli"}
"""Packages that users call, where options are keywords with a default. These do not count as parameters."""

INNER_CLASSES = {"Context", "OnTimerContext", "ReadOnlyContext"}
"""PyFlink names these classes inside each of its function classes."""
PYFLINK_PAIRS = {"TimeWindow", "GlobalWindow", "Trigger"}
"""PyFlink has a window and an assigner of these names, or a base class that others are named after."""

PYFLINK_METHODS = {
    "api/checkpoint_config.py: CheckpointConfig",
    "api/data_stream.py: DataStream",
    "api/environment.py: StreamExecutionEnvironment",
    "api/job_handle.py: JobHandle",  # PyFlink calls it JobClient
    "api/keyed_stream.py: KeyedStream",
    "api/windowed_stream.py: WindowedStream",
}
"""Classes that have the methods of PyFlink's class of the same name, because programs call them. Only their private
methods and their attributes count."""
OFFLINE_API = {"api/savepoint.py: Savepoint"}
"""The one class of the offline API, where all of it is looked for. It counts as PyFlink's classes do."""
LATE_IMPORTS = {"api/job_handle.py: cairn.view.plots"}
"""Plots need matplotlib, which is not installed everywhere."""


def rank(layer: str) -> int:
    return next(number for number, layers in enumerate(LAYERS) if layer in layers)


def test_layers_import_only_layers_below_them() -> None:
    known = set().union(*LAYERS)
    wrong = []
    for name, path in modules():
        layer = name.split("/")[0].removesuffix(".py")
        if layer == "__init__" or name.startswith("testing/simulation/"):
            continue
        for imported in imports_of(path):
            parts = imported.split(".")
            if parts[0] != "cairn" or len(parts) == 1 or parts[1] not in known or parts[1] == layer:
                continue
            below = rank(parts[1]) < rank(layer)
            if not below or (layer, parts[1]) in FORBIDDEN or parts[1] in BY_ITSELF.get(layer, set()):
                wrong.append(f"{name} imports {imported}")
    assert wrong == []


def test_every_package_has_a_layer() -> None:
    packages = {name.split("/")[0].removesuffix(".py") for name, _ in modules()} - {"__init__"}
    assert packages == set().union(*LAYERS)


def test_heavy_libraries_are_imported_in_their_places_only() -> None:
    wrong = []
    for name, path in modules():
        for imported in imports_of(path):
            places = HEAVY.get(imported.split(".")[0])
            if places is not None and not name.startswith(places):
                wrong.append(f"{name} imports {imported}")
    assert wrong == []


def test_only_a_stream_that_returns_another_one_is_imported_late() -> None:
    late = set()
    for name, path in modules():
        if name.startswith(("api/", "spark/")):
            for _, function in functions(ast.parse(path.read_text())):
                for node in ast.walk(function):
                    if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("cairn.api."):
                        late.add(f"{name}: {node.module}")
                    elif isinstance(node, ast.Import):
                        late |= {f"{name}: {alias.name}" for alias in node.names}
    assert late == LATE_IMPORTS


def test_no_two_modules_have_the_same_name() -> None:
    stems = defaultdict(list)
    for name, path in modules():
        if path.stem not in ("__init__", "__main__"):
            stems[singular(path.stem)].append(name)
    assert [names for names in stems.values() if len(names) > 1] == []


def test_no_two_classes_have_the_same_name() -> None:
    homes = defaultdict(set)
    for name, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name not in INNER_CLASSES:
                homes[singular(node.name.lstrip("_"))].add(f"{name}: {node.name}")
    doubled = {word: sorted(names) for word, names in homes.items() if len(names) > 1 and word not in PYFLINK_PAIRS}
    assert doubled == {}


def test_every_module_of_the_api_defines_a_public_name() -> None:
    public = set(cairn.__all__)
    without = []
    for name, path in modules():
        if name.startswith("api/") and path.stem != "__init__":
            tree = ast.parse(path.read_text())
            defined = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
            if not defined & public:
                without.append(name)
    assert without == []


def test_the_public_names_are_those_that_are_listed() -> None:
    for name in cairn.__all__:
        assert getattr(cairn, name) is not None
    assert sorted(cairn.__all__) == list(cairn.__all__)
    listed = {name for names in cairn._HOMES.values() for name in names}
    assert listed | {"__version__"} == set(cairn.__all__) | {"__version__"}


def test_no_module_touches_the_private_names_of_another() -> None:
    wrong = []
    for name, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cairn"):
                wrong += [f"{name} imports {alias.name}" for alias in node.names if private(alias.name)]
    assert wrong == []


def test_modules_are_short() -> None:
    long = {name: lines for name, path in modules() if (lines := len(path.read_text().splitlines())) > MAX_LINES}
    assert long == {}


def test_functions_take_few_parameters() -> None:
    many = set()
    for name, path in modules():
        for owner, function in functions(ast.parse(path.read_text())):
            arguments = function.args
            count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
            if name.split("/")[0] in OPTIONS_BY_KEYWORD:
                count -= sum(default is not None for default in arguments.kw_defaults)
            first = (arguments.posonlyargs + arguments.args)[:1]
            count -= bool(first and first[0].arg in ("self", "cls"))
            if count > MAX_PARAMETERS:
                many.add(f"{name}: {owner}{function.name}")
    assert many == MANY_PARAMETERS


def test_classes_have_one_job() -> None:
    large = set()
    for name, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
                public_api = f"{name}: {node.name}" in PYFLINK_METHODS | OFFLINE_API
                counted = [method for method in methods if private(method.name) or not public_api]
                attributes = {
                    target.attr
                    for method in methods
                    for n in ast.walk(method)
                    if isinstance(n, ast.Assign | ast.AnnAssign | ast.AugAssign)
                    for target in (n.targets if isinstance(n, ast.Assign) else [n.target])
                    if isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                }
                if len(counted) > MAX_METHODS or len(attributes) > MAX_ATTRIBUTES:
                    large.add(f"{name}: {node.name}")
    assert large == LARGE_CLASSES


def test_no_test_module_is_imported_by_another() -> None:
    tests = Path(__file__).parents[1]
    wrong = []
    for path in sorted(tests.rglob("*.py")):
        wrong += [
            f"{path.relative_to(tests)} imports {imported}"
            for imported in imports_of(path)
            if imported.startswith("tests.") and imported.split(".")[-1].startswith("test_")
        ]
    assert wrong == []


def test_unit_tests_lie_where_their_package_does() -> None:
    unit = Path(__file__).parent
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")} - {Path(".")}
    assert [str(folder) for folder in sorted(folders) if not (PACKAGE / folder).is_dir()] == []


def singular(word: str) -> str:
    return word.removesuffix("s")


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner, node
            yield from functions(node, f"{owner}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{owner}{node.name}.")


MANY_PARAMETERS: set[str] = {
    "cli/job_commands.py: stop_job",
    "cli/main.py: _job_options",
    "cli/main.py: doctor",
    "cli/main.py: plan",
    "cli/main.py: plan_memory",
    "cli/main.py: run",
    "cli/main.py: stop",
    "cli/main.py: ui",
    "cli/memory_command.py: plan_memory",
    "cli/memory_command.py: show_plan",
    "connectors/kafka.py: KafkaSink.__init__",
    "connectors/spark_sources.py: KafkaSource.__init__",
    "testing/input_harness.py: ProcessHarness.__init__",
    "testing/input_harness.py: TwoInputHarness.__init__",
    "testing/keyed_harness.py: KeyedProcessHarness.__init__",
    "testing/window_harness.py: WindowAggregateHarness.__init__",
    "testing/window_harness.py: WindowHarness.__init__",
}
LARGE_CLASSES: set[str] = {
    "connectors/jdbc.py: JdbcSink",
    "connectors/kafka.py: KafkaSink",
    # PyFlink's Types, which has a method for every type.
    "model/types.py: Types",
    # All its attributes are read for every row: a record in between would cost each of them.
    "runtime/windowing/window_operator.py: WindowOperator",
    # Three contexts of PyFlink in one object, since one is made for every row.
    "runtime/windowing/window_operator.py: _View",
    # The interface of a state backend, plus one transaction that its methods share.
    "state/lmdb_backend.py: LmdbBackend",
    # PyFlink's MapState, and drafts for the operators of windows and joins.
    "state/map_state.py: MapStateHandle",
    # What is known of the maps of a key: each structure is there for the cost of one operation.
    "state/map_table.py: MapTable",
    # Checkpoints and their history, which decide together what counts and which number is next.
    "storage/checkpoint_store.py: CheckpointStore",
    "testing/conformance.py: StateBackendConformance",
    "testing/faults.py: FaultyFileSystem",
    "testing/keyed_harness.py: KeyedProcessHarness",
    "testing/simulation/disk.py: Disk",
    "testing/simulation/disk.py: SimulatedFileSystem",
    "testing/simulation/invariants.py: JobModel",
    "testing/simulation/simulated_driver.py: Driver",
    "testing/simulation/simulated_history.py: World",
}
