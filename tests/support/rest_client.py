"""A client of the REST API of a folder of jobs, and a stand-in for the job that answers it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient
from tests.support.web_job import JOB

from cairn.web.app import create_app
from cairn.web.job_catalogue import Catalogue
from cairn.web.web_options import WebOptions

TOKEN = "a-token-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def client_of(root: Path, **options: Any) -> TestClient:
    made = WebOptions(token=TOKEN, **options)
    return TestClient(
        create_app(Catalogue(str(root)), made), base_url="http://127.0.0.1:8081", raise_server_exceptions=False
    )


def get(web: TestClient, path: str, status: int = 200) -> Any:
    answer = web.get(f"/api/v1{path}")
    assert answer.status_code == status, answer.text
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
    return answer.json()


def post(web: TestClient, path: str, body: Any = None, **headers: str) -> Any:
    return web.post(f"/api/v1/jobs/{JOB}{path}", json={} if body is None else body, headers=headers)


class Answering:
    """Plays the job: answers every request in `control/` with what it is given."""

    def __init__(self, folder: Path, answer: dict[str, Any]) -> None:
        self.asked: list[dict[str, Any]] = []
        self._folder = folder / "control"
        self._answer = answer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Answering:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            for path in self._folder.glob("*") if self._folder.exists() else ():
                if path.suffix or path.name.startswith("."):
                    continue
                self.asked.append({**json.loads(path.read_text()), "id": path.name})
                path.with_name(path.name + ".done").write_text(json.dumps(self._answer))
                path.unlink()
