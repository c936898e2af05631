"""Fraud rules per card, with several states and event-time timers.

    cairn run examples/fraud_rules.py                     # until Ctrl-C
    cairn run examples/fraud_rules.py --epochs 9          # a few epochs, then it ends

Rule 1: a payment under 1.00, then one over 500.00 within a minute.
Rule 2: payments in three or more countries within a minute.
Rule 3: a payment under 1.00, then nothing for a minute. Only a timer can see that nothing happened.
The same timer removes the state of cards that are not used any more.

The input is made up: 50 cards pay in turns, each four times a second of event time, ten seconds in every epoch. Card 7
breaks rule 1, card 11 travels, card 13 is tried once and left alone. Alerts go to ./alerts as JSON.
"""

import argparse

from cairn import (
    FileSink,
    KeyedProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)

parser = argparse.ArgumentParser()
parser.add_argument("--output", default="alerts")
parser.add_argument("--epochs", type=int, default=0, help="end after this many epochs; 0: never")
args = parser.parse_args()

MINUTE = 60_000
PAYMENTS = [
    "value AS payment",
    "concat('card-', value % 50) AS card",
    """CASE WHEN value % 50 = 7 AND value div 50 % 400 = 10 THEN 0.5D
            WHEN value % 50 = 7 AND value div 50 % 400 = 90 THEN 900D
            WHEN value % 50 = 13 THEN 0.3D
            ELSE 20D + value % 80 END AS amount""",
    """IF(value % 50 = 11, element_at(array('DE', 'FR', 'US', 'JP'), int(value div 5000 % 4) + 1), 'DE') AS country""",
    "timestamp_millis(1700000000000 + value * 5) AS time",
]


class FraudRules(KeyedProcessFunction):
    def open(self, runtime_context):
        self.small = runtime_context.get_state(ValueStateDescriptor("small", "struct<payment:bigint,time:bigint>"))
        self.countries = runtime_context.get_map_state(MapStateDescriptor("countries", Types.STRING(), Types.LONG()))
        self.timer = runtime_context.get_state(ValueStateDescriptor("timer", Types.LONG()))

    def process_element(self, value, ctx):
        now = ctx.timestamp()

        small = self.small.value()
        if value.amount < 1:
            self.small.update((value.payment, now))
        elif small is not None and value.amount > 500 and now - small.time <= MINUTE:
            yield value.card, value.payment, "small, then large"
            self.small.clear()

        for country, seen in self.countries.items():
            if now - seen > MINUTE:
                self.countries.remove(country)
        if not self.countries.contains(value.country):
            known = len(list(self.countries.keys())) + 1
            if known >= 3:
                yield value.card, value.payment, f"{known} countries"
        self.countries.put(value.country, now)

        timers = ctx.timer_service()
        if self.timer.value() is not None:
            timers.delete_event_time_timer(self.timer.value())
        timers.register_event_time_timer(now + MINUTE)
        self.timer.update(now + MINUTE)

    def on_timer(self, timestamp, ctx):
        small = self.small.value()
        if small is not None:
            yield ctx.get_current_key(), small.payment, "small, then nothing"
        for state in (self.small, self.countries, self.timer):
            state.clear()


env = StreamExecutionEnvironment.get_execution_environment()
# One partition keeps the payments of a card in order; with more of them, rows of one epoch may come in any order.
numbers = env.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2000).option("numPartitions", 1).load()
numbers = numbers.where("value % 50 != 13 OR value div 50 % 400 = 20")
payments = numbers.selectExpr(*PAYMENTS).withWatermark("time", "1 second")

rules = env.from_df(payments).key_by("card")
alerts = rules.process(FraudRules(), "card string, payment bigint, rule string", uid="fraud-rules")
alerts.sink_to(FileSink(args.output, format="json"), uid="files")

job = env.execute_async("fraud rules")
job.add_epoch_listener(lambda e: print(f"epoch {e.epoch}: {e.rows_in} payments, {e.rows_out} alerts", flush=True))
while not job.await_termination(0.2):
    if args.epochs and len(job.epochs()) >= args.epochs:
        job.cancel()
