"""A real browser on a running job: every page, the keyboard, a phone's width, a savepoint and a stop by clicking.

Chromium is installed where it is missing and the tests may do so (on Debian, with root rights); else they are skipped,
and say why. With CAIRN_SCREENSHOTS=DIR the pages are kept as pictures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright
from tests.support.oracle import OUTPUT, Oracle, numbered_rows
from tests.support.patience import PATIENCE, until
from tests.support.servers.cache import NotAvailableError
from tests.support.servers.chromium import chromium as installed_chromium
from tests.support.spark_lab import Lab

from cairn import FileSink, JobHandle
from cairn.job.life_cycle import JobStatus
from cairn.view.job_reader import JobReader
from cairn.web import driver_server

TOKEN = "the-token-of-the-browser-test"
PAGES = [
    ("jobs", "/"), ("overview", ""), ("operator", "/operators/oracle"), ("checkpoints", "/checkpoints"),
    ("history", "/checkpoints/history"), ("summary", "/checkpoints/summary"),
    ("configuration", "/checkpoints/configuration"), ("checkpoint", "/checkpoints/{checkpoint}"), ("state", "/state"),
    ("savepoints", "/savepoints"), ("restores", "/restores"), ("exceptions", "/exceptions"),
]  # fmt: skip
# What a screen reader and a keyboard need: names, labels, a language, headings, reachable scroll areas, contrast.
AUDIT = (Path(__file__).parent / "audit.js").read_text()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    try:
        program = installed_chromium()
    except NotAvailableError as reason:
        print(f"no Chromium: {reason}")
        pytest.skip(f"no Chromium: {reason}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def job(lab: Lab, chromium: Any) -> Iterator[JobHandle]:
    env = lab.env(
        cairn__web__enabled=True, rest__port=0, cairn__web__token=TOKEN,
        execution__checkpointing__savepoint_dir=str(lab.folder / "savepoints"),
        execution__checkpointing__interval="2 s", execution__checkpointing__num_retained=5,
        execution__checkpointing__incremental=True,
    )  # fmt: skip
    env.set_trigger(processing_time="300 milliseconds")
    lab.feed(numbered_rows(600, 30), files=6)
    lab.stream(env).key_by("key").process(Oracle(), OUTPUT, uid="oracle", name="Oracle").sink_to(
        FileSink(str(lab.output)), uid="out"
    )
    handle = env.execute_async("Browser")
    try:
        yield handle
    finally:
        handle.cancel()
        driver_server.stop_all()


class Visitor:
    """A page of the browser that remembers what went wrong in it."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.context.set_default_timeout(PATIENCE * 1000)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.base = url.split("/jobs/")[0]
        self.job = url
        self.page.goto(f"{self.base}/?token={TOKEN}")
        assert "token" not in self.page.url

    def visit(self, path: str) -> None:
        self.page.goto(self.base + path if path == "/" else self.job + path, wait_until="load")

    def shoot(self, name: str) -> None:
        folder = os.environ.get("CAIRN_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=f"{folder}/{name}.png", full_page=True)


@pytest.mark.spark
def test_a_browser_walks_every_page_and_stops_the_job(lab: Lab, job: JobHandle, chromium: Any) -> None:
    url = job.web_url
    assert url is not None
    until(lambda: len(job.epochs()) >= 3)
    taken = job.trigger_checkpoint(timeout=PATIENCE)
    pages = [(name, path.format(checkpoint=taken.id)) for name, path in PAGES]
    wide = Visitor(chromium, url, viewport={"width": 1280, "height": 900})
    for scheme in ("light", "dark"):
        wide.page.emulate_media(color_scheme=scheme)
        for name, path in pages:
            wide.visit(path)
            assert wide.page.evaluate(AUDIT) == [], (name, scheme)
            if scheme == "light" or name == "overview":
                wide.shoot(f"{name}-{scheme}")
    assert wide.errors == []

    phone = Visitor(chromium, url, viewport={"width": 390, "height": 800}, is_mobile=True, has_touch=True)
    for name, path in pages:
        phone.visit(path)
        across = phone.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert across <= 0, f"{name} is {across} pixels too wide for a phone"
        if name in ("overview", "history"):
            phone.shoot(f"{name}-phone")
    assert phone.errors == []
    phone.context.close()

    # Live: the epoch on the page is the job's, without a reload.
    wide.page.emulate_media(color_scheme="light")
    wide.visit("")
    shown = wide.page.locator("[data-live=epoch]")
    before = int(shown.inner_text())
    lab.feed([("late", 0, 1)])
    wide.page.wait_for_function("n => Number(document.querySelector('[data-live=epoch]').textContent) > n", arg=before)

    # With the keyboard alone: to the button, into the dialog, the savepoint.
    wide.page.locator("body").press("Tab")
    for _ in range(12):
        if wide.page.evaluate("document.activeElement.textContent") == "Savepoint":
            break
        wide.page.keyboard.press("Tab")
    assert wide.page.evaluate("document.activeElement.textContent") == "Savepoint"
    wide.page.keyboard.press("Enter")
    dialog = wide.page.locator("#dialog-savepoint")
    assert dialog.is_visible()
    wide.shoot("dialog-savepoint")
    assert f"cairn savepoint {job.directory}" in dialog.inner_text()
    wide.page.keyboard.press("Enter")
    wide.page.wait_for_function(
        "() => document.querySelector('#dialog-savepoint .outcome').textContent.startsWith('Completed: ')"
    )
    assert list((lab.folder / "savepoints").glob("savepoint-*"))
    wide.page.keyboard.press("Escape")
    assert not dialog.is_visible()
    wide.visit("/savepoints")
    wide.shoot("savepoints-one")
    assert "savepoint-" in wide.page.locator("main").inner_text()

    # A second one is deleted again, after a question whose safe answer has the focus.
    job.trigger_savepoint(timeout=PATIENCE)
    wide.visit("/savepoints")
    wide.page.get_by_role("button", name="Delete savepoint").first.click()
    question = wide.page.locator("#dialog-dispose")
    wide.shoot("dialog-dispose")
    assert "cairn savepoint-dispose" in question.inner_text()
    assert wide.page.evaluate("document.activeElement.textContent") == "Close"
    question.locator("[data-go]").click()
    wide.page.wait_for_function("() => document.querySelector('#dialog-dispose .outcome').textContent === 'Deleted.'")
    assert len(list((lab.folder / "savepoints").glob("savepoint-*"))) == 1
    with wide.page.expect_navigation():
        question.locator("[value=close]").click()
    assert "no longer exists" in wide.page.locator("main").inner_text()

    # By clicking: the stop.
    wide.page.get_by_role("button", name="Stop").click()
    wide.page.locator("#dialog-stop [data-go]").click()
    wide.page.wait_for_function(
        "() => document.querySelector('#dialog-stop .outcome').textContent.startsWith('Stopped')"
    )
    assert job.await_termination(PATIENCE)
    assert job.status() is JobStatus.FINISHED
    assert len(list((lab.folder / "savepoints").glob("savepoint-*"))) == 2
    assert wide.errors == []
    wide.visit("")
    wide.shoot("overview-finished")
    assert "The job has finished" in wide.page.locator("main").inner_text()
    wide.context.close()

    # What the pages showed is what the files tell, once the job is gone.
    told = JobReader(job.directory).view()
    assert (told.status, told.epoch, told.url) == ("FINISHED", max(r.epoch for r in job.epochs()), "")
    assert [epoch.epoch for epoch in told.epochs] == [report.epoch for report in job.epochs()]
    assert told.operators[0].rows_in == 601
    assert [restore.kind for restore in told.restores] == ["start"]
