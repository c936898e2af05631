"""Devices that go silent: told once when nothing has come for half a minute, and again when they are back.

    cairn run examples/silent_devices.py                  # four minutes of readings, then it says who was silent
    cairn run examples/silent_devices.py --seconds 3600   # an hour of them

Nothing happens when a device goes silent, so no row can tell: a timer does. Every reading moves the timer of its device
to half a minute later; a timer that fires has found a silent device. Time is that of the readings, so the result is the
same however fast they come, and after any crash.

The input is made up: 20 devices send a reading every second, 20 seconds in every epoch. Device 7 is silent from second
60 to 150, device 13 from second 100 on, device 17 for 20 seconds only, which is no alarm. Device 5 is silent from
second 61 to 93: it is back before the watermark has reached its timer, and must not be missed. Alerts go to
./device-alerts as JSON.
"""

import argparse
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cairn import (
    FileSink,
    GeneratorSource,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)

parser = argparse.ArgumentParser()
parser.add_argument("--output", default="device-alerts")
parser.add_argument("--seconds", type=int, default=240, help="how long the devices are watched, in event time")
args = parser.parse_args()

LIMIT = 30_000
DEVICES = 20
START = datetime(2023, 11, 14, 22, 0, tzinfo=UTC)
SILENT = {5: (61, 93), 7: (60, 150), 13: (100, 1 << 40), 17: (45, 65)}


def reading(i):
    second, device = divmod(i, DEVICES)
    first, end = SILENT.get(device, (0, 0))
    celsius = None if first <= second < end else 20.0 + device + second % 7
    return f"device-{device}", celsius, START + timedelta(seconds=second)


class Silence(KeyedProcessFunction):
    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))
        self.alarmed = runtime_context.get_state(ValueStateDescriptor("alarmed", Types.BOOLEAN()))

    def process_element(self, value, ctx):
        now, last = ctx.timestamp(), self.last.value()
        if last is not None:
            if now <= last:
                return  # an older reading, delivered late: it says nothing new
            if now - last >= LIMIT:
                # Timers fire between epochs. Who is silent and back within one is found here.
                if not self.alarmed.value():
                    yield value.device, "silent", last, LIMIT // 1000
                yield value.device, "back", now, (now - last) // 1000
                self.alarmed.clear()
            ctx.timer_service().delete_event_time_timer(last + LIMIT)
        ctx.timer_service().register_event_time_timer(now + LIMIT)
        self.last.update(now)

    def on_timer(self, timestamp, ctx):
        self.alarmed.update(True)
        yield ctx.get_current_key(), "silent", self.last.value(), LIMIT // 1000


env = StreamExecutionEnvironment.get_execution_environment().set_trigger(available_now=True)
readings = env.from_source(
    GeneratorSource(
        reading,
        "device string, celsius double, time timestamp",
        rows_per_epoch=20 * DEVICES,
        count=args.seconds * DEVICES,
        partitions=1,
    ),
    watermark=("time", "1 second"),
)
sent = readings.transform(lambda df: df.where("celsius IS NOT NULL"))  # the others were never sent
alerts = sent.key_by("device").process(
    Silence(), "device string, what string, ms bigint, seconds bigint", uid="silence"
)
alerts.sink_to(FileSink(args.output, format="json"), uid="files")
env.execute("silent devices")

found = [json.loads(line) for path in Path(args.output).glob("part-*.json") for line in path.open()]
for alert in sorted(found, key=lambda alert: alert["ms"]):
    second = alert["ms"] // 1000 - int(START.timestamp())
    if alert["what"] == "silent":
        print(f"second {second:>4}: the last of {alert['device']} for at least {alert['seconds']} seconds")
    else:
        print(f"second {second:>4}: {alert['device']} is back after {alert['seconds']} seconds")
