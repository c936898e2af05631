"""Sessions for real-time analytics: what each visitor did between two pauses, as soon as the pause is long enough.

    cairn run examples/sessions.py                     # four minutes of clicks, then it says what it saw
    cairn run examples/sessions.py --epochs 0          # until Ctrl-C

A session ends when its visitor has done nothing for 30 seconds of event time. Its row has the number of pages, how long
it lasted, the page on which it began and the one on which it ended. Beside it, page views per minute are counted in
windows of a minute, and clicks that come too late are kept in a place of their own instead of being lost.

The input is made up: 40 visitors, an epoch has 20 seconds of event time. Visitor n looks at a page every second for n
seconds of each two minutes. Some clicks of visitor 3 arrive five minutes late. Sessions go to ./sessions, counts to
./page-views and late clicks to ./late-clicks, all as JSON.
"""

import argparse
import json
from pathlib import Path

from cairn import (
    EventTimeSessionWindows,
    FileSink,
    OutputTag,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
)

parser = argparse.ArgumentParser()
parser.add_argument("--output", default=".", help="where the directories of the outputs are made")
parser.add_argument("--epochs", type=int, default=12, help="end after this many epochs; 0: never")
args = parser.parse_args()

CLICKS = [
    "concat('visitor-', value % 40) AS visitor",
    "concat('/page/', value div 40 % 120 % 7) AS page",
    """timestamp_millis(1700000040000 + value div 40 * 1000
                        - IF(value % 40 = 3 AND value div 40 % 120 = 2 AND value div 40 > 100, 300000, 0)) AS time""",
]
LATE = OutputTag("late-clicks", "visitor string, page string, time timestamp")


class Session(ProcessWindowFunction):
    def process(self, key, context, elements):
        clicks = sorted(elements, key=lambda click: click.time)
        seconds = (clicks[-1].time - clicks[0].time).total_seconds()
        yield key, clicks[0].time, len(clicks), int(seconds), clicks[0].page, clicks[-1].page


env = StreamExecutionEnvironment.get_execution_environment()
numbers = env.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 800).option("numPartitions", 1).load()
clicks = numbers.where("value div 40 % 120 < value % 40").selectExpr(*CLICKS)
stream = env.from_df(clicks).with_watermark("time", Time.seconds(5))

sessions = (
    stream.key_by("visitor")
    .window(EventTimeSessionWindows.with_gap(Time.seconds(30)))
    .side_output_late_data(LATE)
    .process(
        Session(),
        "visitor string, began timestamp, pages bigint, seconds bigint, entered string, left string",
        uid="sessions",
    )
)
sessions.sink_to(FileSink(f"{args.output}/sessions", format="json"), uid="session-files")
sessions.get_side_output(LATE).sink_to(FileSink(f"{args.output}/late-clicks", format="json"), uid="late-files")

views = stream.key_by("page").window(TumblingEventTimeWindows.of(Time.minutes(1))).count(uid="page-views")
views.sink_to(FileSink(f"{args.output}/page-views", format="json"), uid="view-files")

job = env.execute_async("sessions")
job.add_epoch_listener(lambda e: print(f"epoch {e.epoch}: {e.rows_in} clicks, {e.rows_out} results", flush=True))
while not job.await_termination(0.2):
    if args.epochs and len(job.epochs()) >= args.epochs:
        job.cancel()

ended, late = (
    [json.loads(line) for path in Path(args.output, name).glob("part-*.json") for line in path.open()]
    for name in ("sessions", "late-clicks")
)
print(f"{len(ended)} sessions have ended, {len(late)} clicks came too late; the longest sessions:")
for session in sorted(ended, key=lambda session: (-session["pages"], session["began"]))[:3]:
    print("{visitor:<10}  {pages} pages in {seconds} seconds, from {entered} to {left}".format(**session))
