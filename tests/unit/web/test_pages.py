"""The pages as text: everything is there, everything foreign is escaped, nothing is inline."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient
from tests.support.rest_client import client_of
from tests.support.web_job import JOB, START, UID, info, make_job
from tests.support.web_pages import PAGES, Reader

from cairn import quantities
from cairn.config import WebSettings
from cairn.model.checkpoint_records import CheckpointStatus
from cairn.storage.checkpoint_store import CheckpointStore
from cairn.storage.filesystem import LocalFileSystem
from cairn.view.job_reader import JobReader
from cairn.view.state_browser import get_command
from cairn.web import charts, driver_server, graph_svg


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    make_job(folder, ended="")
    return folder


@pytest.fixture(scope="module")
def web(root: Path) -> TestClient:
    return client_of(root)


@pytest.mark.parametrize("page", PAGES)
def test_no_page_has_anything_inline_or_unescaped(web: TestClient, page: str) -> None:
    answer = web.get(f"/jobs/{JOB}{page}")
    assert answer.status_code == 200, answer.text[:500]
    reader = Reader()
    reader.feed(answer.text)
    assert reader.inline == []
    assert "<script>alert" not in answer.text
    assert len(reader.ids) == len(set(reader.ids))
    assert reader.headings[0] == "h1"
    assert 'lang="en"' in answer.text


def test_every_link_of_every_page_leads_somewhere(web: TestClient) -> None:
    seen: set[str] = set()
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        answer = web.get(path)
        assert answer.status_code == 200, path
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        reader = Reader()
        reader.feed(answer.text)
        base = path.split("?")[0]
        for link in reader.links:
            target = base + link if link.startswith("?") else link
            key = re.sub(r"(key|page)=[^&]*", "", target)
            if target.startswith("/") and key not in seen:
                seen.add(key)
                waiting.append(target)
    assert {f"/jobs/{JOB}/checkpoints/configuration", f"/jobs/{JOB}/operators/{UID}", "/metrics"} <= seen


def test_the_overview_answers_is_it_fine(web: TestClient) -> None:
    text = web.get(f"/jobs/{JOB}").text
    assert "running with problems" in text
    assert "three intervals" in text
    assert "Backpressured (max): 10%" in text
    assert "Epoch and checkpoint duration" in text
    assert "out 2,400 rows" in text
    assert "in 2,280 rows" in text


def test_charts_that_are_read_together_have_one_time_axis(root: Path) -> None:
    view = JobReader(str(root / JOB)).view()
    made = charts.job_charts(view)
    assert len(made) == 5
    axes = {tuple(re.findall(r'<text class="time [a-z]+"[^>]*>([^<]*)<', str(chart))) for chart in made}
    assert len(axes) == 1, axes
    assert "busy: 40%" in str(made[1])
    assert "rows in from 40 to 40" in str(charts.operator_charts(view, UID)[1])


def test_an_operator_shows_how_its_rows_are_spread(web: TestClient) -> None:
    text = web.get(f"/jobs/{JOB}/operators/{UID}").text
    assert "Share of rows" in text
    assert re.search(r'aria-label="share of rows"></meter> 75%', text)
    assert "backpressured" in text


def test_a_checkpoint_tells_who_has_not_acknowledged(tmp_path: Path) -> None:
    folder = make_job(tmp_path)
    told = info(6, START + 60_000)
    half = msgspec.structs.replace(told.operators[0], subtasks=told.operators[0].subtasks[:1], parallelism=2)
    running = info(6, START + 60_000, status=CheckpointStatus.IN_PROGRESS, end_ms=0, path="", operators=[half])
    CheckpointStore(LocalFileSystem(str(folder))).remember(running)
    web = client_of(tmp_path)
    told_json = web.get(f"/api/v1/jobs/{JOB}/checkpoints/details/6").json()
    assert (told_json["num_acknowledged_subtasks"], told_json["num_subtasks"]) == (1, 2)
    part = web.get(f"/api/v1/jobs/{JOB}/checkpoints/details/6/subtasks/{UID}").json()
    assert part["subtasks"][1] == {"index": 1, "status": "pending_or_failed"}
    page = web.get(f"/jobs/{JOB}/checkpoints/6").text
    assert "pending" in page
    assert "Acknowledged 1/2 (50%)" in page
    assert f"/jobs/{JOB}/checkpoints/5" in page
    assert "1/2 (50%)" in web.get(f"/jobs/{JOB}/checkpoints/history").text


def test_buttons_show_their_commands_and_a_read_only_page_has_none(web: TestClient, root: Path) -> None:
    text = web.get(f"/jobs/{JOB}").text
    for action in ("savepoint", "stop", "cancel"):
        assert f'data-action="{action}"' in text
        assert f"cairn {action} {root / JOB}" in text
    assert "data-action" not in client_of(root, read_only=True).get(f"/jobs/{JOB}").text


def test_the_state_page_finds_a_key_and_says_what_is_wrong_with_one(web: TestClient) -> None:
    total = str(sum(n for n in range(100) if n % 7 == 3))
    assert f"<code>{total}</code>" in web.get(f"/jobs/{JOB}/state?state=total&key=user-3").text
    assert "The key does not exist" in web.get(f"/jobs/{JOB}/state?state=total&key=nobody").text
    assert "has no state" in web.get(f"/jobs/{JOB}/state?state=nothing").text
    assert "there is no completed checkpoint" in web.get(f"/jobs/{JOB}/state?checkpoint=77").text


def test_rates_count_the_pauses_between_epochs(root: Path) -> None:
    job = JobReader(str(root / JOB)).view()
    # 40 rows a second, in epochs of half a second
    assert {round(1000 * epoch.rows_in / span) for epoch, span in charts.spans(job.epochs)} == {40}
    throughput = next(one for one in charts.job_charts(job) if "Throughput" in one)
    assert "rows per second from 40 to 40" in throughput
    assert "rows in from 40 to 40" in charts.operator_charts(job, UID)[-1]
    assert charts.spans(job.epochs[:1]) == [(job.epochs[0], job.epochs[0].duration_ms)]


@pytest.mark.parametrize("key", ["x;touch pwned", "a b", "<b>", "a,b", 'it\'s "quoted"', "$(id)", "-5", "\x1b[2J"])
def test_the_command_of_the_state_page_holds_the_key_as_one_word(web: TestClient, root: Path, key: str) -> None:
    text = web.get(f"/jobs/{JOB}/state", params={"state": "total", "key": key}).text
    shown = re.findall(r'data-copy="(cairn state get [^"]*)"', text)
    assert len(shown) == 1
    # The shell itself takes the command apart.
    split = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {html.unescape(shown[0])}"], capture_output=True, check=True, cwd=root
    )
    *words_of, last = split.stdout.decode().split("\0")[:-1]
    assert last == key
    assert [word for word in words_of if word != "--"][-2:] == [UID, "total"]
    assert not (root / "pwned").exists()
    assert "\x1b" not in text


def test_the_command_of_the_state_page_has_the_key_as_it_was_typed() -> None:
    operator: Any = SimpleNamespace(uid="a b")
    snapshot: Any = SimpleNamespace(path="/my jobs/chk-1")
    command = get_command(snapshot, operator, "total", '["a, b", "00ff"]')
    assert shlex.split(command) == ["cairn", "state", "get", "/my jobs/chk-1", "a b", "total", '["a, b", "00ff"]']


@pytest.mark.parametrize(
    "path", ["/jobs/none", f"/jobs/{JOB}/checkpoints/99", f"/jobs/{JOB}/checkpoints/x", f"/jobs/{JOB}/operators/x"]
)
def test_what_is_not_there_is_a_page_as_well(web: TestClient, path: str) -> None:
    answer = web.get(path)
    assert answer.status_code in (400, 404)
    assert "This page cannot be shown" in answer.text


def test_a_page_that_fails_is_a_page(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("cairn.web.pages.draw", broken)
    answer = web.get(f"/jobs/{JOB}")
    assert answer.status_code == 500
    assert "unexpected error" in answer.text
    assert "secret detail" not in answer.text


def test_long_histories_have_pages(tmp_path: Path) -> None:
    folder = make_job(tmp_path)
    store = CheckpointStore(LocalFileSystem(str(folder)), 10_000)
    for number in range(6, 120):
        store.remember(info(number, START + number * 10_000))
    web = client_of(tmp_path)
    first, last = (web.get(f"/jobs/{JOB}/checkpoints/history?page={page}").text for page in (1, 99))
    assert first.count('id="checkpoint-') == 50
    assert 'id="checkpoint-119"' in first
    assert "page 3 of 3" in last
    assert 'id="checkpoint-1"' in last


def test_a_job_without_anything_has_pages(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "job.json").write_text('{"job_id": "empty", "name": "Empty", "incarnation": "i", "max_parallelism": 8}')
    web = client_of(tmp_path)
    for page in (
        "",
        "/checkpoints",
        "/checkpoints/history",
        "/checkpoints/summary",
        "/state",
        "/savepoints",
        "/restores",
        "/exceptions",
    ):
        assert web.get(f"/jobs/empty{page}").status_code == 200, page


# Charts and words.


def test_colours_of_the_graph_are_flinks(root: Path) -> None:
    operator = JobReader(str(root / JOB)).view().operators[0]
    assert graph_svg.blend((0x5D, 0xB1, 0xFF), (0xEE, 0x64, 0x64), 0) == (0x5D, 0xB1, 0xFF)
    assert graph_svg.blend((0x5D, 0xB1, 0xFF), (0xEE, 0x64, 0x64), 1) == (0xEE, 0x64, 0x64)
    assert re.fullmatch(r"#[0-9a-f]{6}", graph_svg.colour_of(operator))


def test_a_chart_keeps_its_peaks_and_its_bounds() -> None:
    points = [(float(x), 5.0) for x in range(10_000)]
    points[7777] = (7777.0, 90.0)
    thin = charts.thinned(points)
    assert len(thin) <= 240
    assert (7777.0, 90.0) in thin
    made = str(charts.chart("<b>", [charts.Series("x", points)], quantities.duration))
    assert "<b>" not in made
    numbers = [float(n) for n in re.findall(r"[\d.]+", re.findall(r'points="([^"]*)"', made)[0])]
    assert all(0 <= n <= charts.WIDTH for n in numbers)
    assert "no data" in str(charts.chart("t", [], quantities.count))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (85, "85 ms"),
        (1234, "1.2 s"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (273_600_000, "3 d 4 h"),
        (-5, "-5 ms"),
        (3_600_000, "1 h"),
    ],
)
def test_durations_are_told_in_two_units(value: float, text: str) -> None:
    assert quantities.duration(value) == text


def test_sizes_and_counts() -> None:
    assert [quantities.size(n) for n in (0, 1023, 1536, 5 << 30, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "3.0 TiB",
    ]
    assert [quantities.count(n) for n in (0, 9999, 12_345, 4_500_000)] == ["0", "9,999", "12.3 k", "4.5 M"]


def test_a_server_that_stumbles_costs_a_job_a_line_in_its_log(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(settings: WebSettings) -> None:
        raise RuntimeError("of a kind that nobody thought of")

    monkeypatch.setattr(driver_server, "_start", stumble)
    assert driver_server.serve(WebSettings(), JOB, JobReader(str(root / JOB))) is None
    assert "of a kind that nobody thought of" in caplog.text
