"""Jobs of a process share web servers, with the steps of their starts interleaved by a seed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.interleaved_runs import noticed, play
from tests.support.interleaving import Interleaving, NoLock

from cairn.config import WebSettings
from cairn.web import driver_server, job_catalogue
from cairn.web.job_catalogue import Catalogue


def hosting(seed: int, folder: Path, patch: pytest.MonkeyPatch, lock: Any = None) -> None:
    """Jobs that start at the same time, some with the same settings of the server."""
    run = Interleaving(seed, [driver_server, job_catalogue])
    run.install(patch, driver_server, job_catalogue)
    servers: dict[WebSettings, tuple[Any, Catalogue]] = {}
    started: list[Any] = []

    def start(settings: WebSettings) -> tuple[Any, Catalogue]:
        run.give_way()
        started.append(settings)
        return SimpleNamespace(url=f"http://host/{len(started)}"), Catalogue()

    patch.setattr(driver_server, "_start", start)
    patch.setattr(driver_server, "_servers", servers)
    patch.setattr(driver_server, "_lock", lock or run.threading().Lock())
    patch.setattr(driver_server, "missing", list)
    urls: dict[str, str | None] = {}
    reader: Any = SimpleNamespace(live=None)

    def serve(number: int) -> None:
        settings = WebSettings(enabled=True, port=8000 + number % 2)
        urls[f"job-{number}"] = driver_server.serve(settings, f"job-{number}", reader)

    for number in range(5):
        run.spawn(f"job-{number}", lambda number=number: serve(number))  # type: ignore[misc]
    run.run()
    assert len(started) == len(servers) == 2, "settings have one server each"
    for job, url in urls.items():
        (catalogue,) = [known for server, known in servers.values() if url == f"{server.url}/jobs/{job}"]
        assert job in catalogue._readers


def test_web_host(tmp_path: Path) -> None:
    play(hosting, tmp_path)


def test_a_missing_lock_of_the_web_host_is_noticed(tmp_path: Path) -> None:
    noticed(lambda seed, folder, patch: hosting(seed, folder, patch, NoLock()), tmp_path)
