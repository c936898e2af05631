"""What a job leaves for those who look at it, when things go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.oracle import OUTPUT, Oracle, numbered_rows
from tests.support.patience import PATIENCE
from tests.support.spark_lab import Lab

from cairn import FileSink, KeyedProcessFunction, NoopSink
from cairn.errors import CairnError
from cairn.view.health import health_of
from cairn.view.job_reader import JobReader
from cairn.view.journal import Journal


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
        job.await_termination(PATIENCE)
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


@pytest.mark.spark
def test_sources_and_sinks_have_their_rows(lab: Lab) -> None:
    """Spark's reports for sources, the files for sinks: also behind Spark SQL, and two sources at once."""
    rows = numbered_rows(60, 5)
    lab.feed(rows, files=2)
    env = lab.env()
    env.set_trigger(available_now=True)
    stream = lab.stream(env)
    other = env.from_df(lab.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 7).load())
    stream.key_by("key").process(Oracle(), OUTPUT, uid="oracle").sink_to(NoopSink(), uid="all")
    other.transform(lambda df: df.filter("value % 2 = 0")).sink_to(FileSink(str(lab.output)), uid="some")
    job = env.execute_async("Ends")
    assert job.await_termination(PATIENCE)
    view = JobReader(job.directory).view()
    ends = [(vertex.name.split("[")[0].split("{")[0], view.ends.get(vertex.id)) for vertex in view.graph]
    by_name = {name: end for name, end in ends if end is not None}
    assert by_name["FileSource"].rows == len(rows)
    brought = by_name["rate-micro-batch"].rows
    assert brought is not None
    assert brought % 7 == 0
    written = view.ends["some"].rows
    assert written is not None
    assert 0 < written < brought
    assert written == lab.spark.read.parquet(str(lab.output)).count()
    assert view.ends["all"].rows == view.operators[0].rows_out > 0
    assert (view.starts, view.restarts) == (1, 0)
