"""What the web page costs: the stream with a page that somebody watches, and a page of ten thousand checkpoints."""

from __future__ import annotations

import shutil
import statistics
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.jobs import TOTAL, Total, _keyed, _start, events
from benchmarks.measure import Bench, Series, Variant, run_job
from cairn.config import WebSettings
from cairn.model.checkpoint_records import CheckpointInfo, CheckpointStatus, CheckpointType, OperatorStats, SubtaskStats
from cairn.storage import layout
from cairn.storage.filesystem import LocalFileSystem
from cairn.storage.manifest_store import create_identity
from cairn.web.job_catalogue import Catalogue
from cairn.web.web_options import options_of
from cairn.web.web_server import Server

CHECKPOINTS = 10_000


class _Watcher:
    """Does what an open Overview does: listens to the events of the job, and asks for the page now and then."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        base, _, job = self._url.partition("/jobs/")
        while not self._over.wait(1.0):
            for path in (f"/api/v1/jobs/{job}/events?once=true", f"/jobs/{job}"):
                with urllib.request.urlopen(base + path) as answer:
                    answer.read()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(5)


def _stream(bench: Bench, name: str, served: bool) -> Series:
    plan = bench.plan
    options: dict[str, Any] = {"cairn.web.enabled": served, "rest.port": 0}
    keyed = _keyed(bench, events(bench, plan.rows, plan.keys), "lmdb", options=options)
    job = _start(keyed.process(Total(), TOTAL, uid="totals"), name)
    url = job.web_url
    watcher = _Watcher(url) if url is not None else None
    try:
        series = run_job(bench, job, plan.rows, plan.warmup, plan.long_measured)
    finally:
        if watcher is not None:
            watcher.stop()
    if served and url is None:
        raise RuntimeError("the job has no page")
    return Series(plan.rows, [statistics.mean(series.values)])


def unserved(bench: Bench) -> Series:
    return _stream(bench, "web-off", served=False)


def served(bench: Bench) -> Series:
    return _stream(bench, "web-on", served=True)


def make_history(folder: Path, count: int) -> None:
    """A job's directory with the statistics of so many checkpoints."""
    files = LocalFileSystem(str(folder))
    create_identity(files, "long", "Long", 128)
    (folder / layout.HISTORY).mkdir()
    for number in range(1, count + 1):
        trigger = 1_790_000_000_000 + number * 10_000
        stats = [SubtaskStats(index, trigger + 20, 1.0, 2.0, 3.0, 0.0, 1000, 50_000 + number, 10) for index in range(2)]
        info = CheckpointInfo(
            number, CheckpointStatus.COMPLETED, CheckpointType.CHECKPOINT, trigger, epoch=number,
            end_ms=trigger + 30 + number % 11, path=f"/chk-{number}",
            operators=[OperatorStats("totals", "Totals", stats)],
        )  # fmt: skip
        (folder / layout.history_path(number)).write_bytes(msgspec.json.encode(info))


def first_paint(url: str) -> float:
    """Milliseconds until Chromium paints a page; until all of it has arrived, where there is no Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        since = time.perf_counter()
        with urllib.request.urlopen(url) as answer:
            answer.read()
        return (time.perf_counter() - since) * 1000
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(url, wait_until="load")
        painted = page.evaluate(
            "new Promise(done => { const look = () => {"
            " const e = performance.getEntriesByName('first-contentful-paint')[0];"
            " e ? done(e.startTime) : setTimeout(look, 10); }; look(); })"
        )
        browser.close()
        return float(painted)


def long_history(bench: Bench) -> Series:
    """The Checkpoints history of a server that has just been started, which has read no checkpoint yet."""
    folder = bench.work / "web-history" / "long"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make_history(folder, CHECKPOINTS)
    server = Server(Catalogue(str(folder.parent)), options_of(WebSettings(port=0)))
    server.start()
    try:
        return Series(CHECKPOINTS, [first_paint(f"{server.url}/jobs/long/checkpoints/history")])
    finally:
        server.stop()


VARIANTS: dict[str, Variant] = {"web-off": unserved, "web-on": served, "web-history": long_history}
