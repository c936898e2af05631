"""schemathesis against the OpenAPI document: no request makes the server stumble, and every answer is as declared."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from tests.unit.test_web_rest import TOKEN
from tests.unit.webjob import JOB, UID, make_job

from cairn.web.app import create_app
from cairn.web.catalogue import Catalogue
from cairn.web.options import WebOptions

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The job has ended, so that no change can reach anything."""
    root = tmp_path_factory.mktemp("jobs")
    make_job(root)
    app = create_app(Catalogue(str(root)), WebOptions(token=TOKEN, hosts=("testserver", "localhost")))
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", app).exclude(path_regex="/events$")


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@hypothesis.settings(max_examples=8, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
def test_every_answer_is_as_declared(case: Any) -> None:
    # Half of the requests are for the job that there is; the others are whatever was made up.
    if "jobid" in case.path_parameters and len(str(case.path_parameters["jobid"])) % 2:
        case.path_parameters["jobid"] = JOB
        for name in ("vertexid", "uid"):
            if name in case.path_parameters:
                case.path_parameters[name] = UID
    wanted = [
        schemathesis.checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
        checks.response_schema_conformance,
    ]  # fmt: skip
    case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, checks=wanted)
