"""What a job leaves for those who look at it, when things go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.spark.lab import Lab
from tests.spark.oracle import OUTPUT, numbered_rows

from cairn import FileSink, KeyedProcessFunction
from cairn.errors import CairnError
from cairn.view.health import health_of
from cairn.view.journal import Journal
from cairn.view.reading import JobReader


class Broken(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        raise ValueError("<b>broken</b>")


@pytest.mark.spark
def test_failures_and_restarts_are_written_down(lab: Lab) -> None:
    lab.feed(numbered_rows(10, 3))
    env = lab.env(
        restart_strategy__type="fixed-delay", restart_strategy__fixed_delay__attempts=1,
        restart_strategy__fixed_delay__delay="10 ms",
    )  # fmt: skip
    lab.stream(env).key_by("key").process(Broken(), OUTPUT, uid="broken").sink_to(FileSink(str(lab.output)), uid="out")
    job = env.execute_async("Broken")
    with pytest.raises(CairnError, match="broken"):
        job.await_termination(120)
    assert job.web_url is None  # switched off for tests
    reader = JobReader(job.directory)
    view = reader.view()
    assert view.status == "FAILED"
    assert view.restarts == 1
    kinds = [(event.run, event.kind) for event in Journal(reader._files).events()]
    assert kinds == [(1, "started"), (1, "restarting"), (2, "started"), (2, "failed")]
    assert [event.kind for event in view.exceptions] == ["failed", "restarting"]
    assert health_of(view).level == "bad"
    assert "&lt;b&gt;" in job._repr_html_() or "<b>broken" not in job._repr_html_()
