"""schemathesis against the OpenAPI document: no request makes the server stumble, and every answer is as declared."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
from tests.support.rest_client import TOKEN
from tests.support.web_job import JOB, UID, make_job

from cairn.web.app import create_app
from cairn.web.job_catalogue import Catalogue
from cairn.web.web_options import WebOptions

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")
WANTED = [
    schemathesis.checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
    checks.response_schema_conformance,
]  # fmt: skip
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "6"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
pytestmark = pytest.mark.fuzz


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """All operations but the endless stream, on a job that has ended, so that no change can reach anything."""
    root = tmp_path_factory.mktemp("jobs")
    make_job(root)
    app = create_app(Catalogue(str(root)), WebOptions(token=TOKEN, hosts=("testserver", "localhost")))
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)
    return [found.ok() for found in schema.get_all_operations() if not found.ok().path.endswith("/events")]


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_every_answer_is_as_declared(operations: list[Any], mode: str) -> None:
    tried = 0
    for operation in operations:
        strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode])
        suppressed = list(hypothesis.HealthCheck)

        @hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=suppressed)
        @hypothesis.seed(SEED)
        @hypothesis.given(case=strategy)
        def ask(case: Any) -> None:
            nonlocal tried
            # Half of the requests are for the job that there is; the others are whatever was made up.
            tried += 1
            named = case.path_parameters or {}
            if tried % 2 and "jobid" in named:
                named["jobid"] = JOB
                named.update({name: UID for name in ("vertexid", "uid") if name in named})
            case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, checks=WANTED)

        try:
            ask()
        except hypothesis.errors.Unsatisfiable:  # nothing can be wrong with a request that has no parameters
            assert mode == "NEGATIVE"
    assert tried >= EXAMPLES * 10
