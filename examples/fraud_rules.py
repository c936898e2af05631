"""Card fraud by rules that change while the job runs: broadcast state, several states per card, event-time timers.

    cairn run examples/fraud_rules.py                     # 20,000 payments, then it says what it found
    cairn run examples/fraud_rules.py --payments 100000   # more of them

Three rules come first, one in each epoch; a fourth one is tried and taken back:

    small, then large     a payment under 1.00, then one over the limit within a minute
    countries             payments in so many countries within a minute; later the limit is raised
    small, then nothing   a payment under 1.00, then nothing for a minute: only a timer sees that nothing happened
    over                  any payment over the limit; it is there for one epoch

The rules are a stream of their own. Every subtask gets every change and keeps it in broadcast state, before it sees the
payments of that epoch. What the rules know of a card is keyed state; it goes when the card was not used for a minute.

The input is made up: 50 cards pay in turns, each four times a second of event time, ten seconds in every epoch. Card 7
breaks the first rule, card 11 travels, card 13 is tried once and left alone. Alerts go to ./alerts as JSON.
"""

import argparse
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cairn import (
    FileSink,
    GeneratorSource,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)

parser = argparse.ArgumentParser()
parser.add_argument("--output", default="alerts")
parser.add_argument("--payments", type=int, default=20_000, help="end after so many")
args = parser.parse_args()

MINUTE = 60_000
START = datetime(2023, 11, 14, 22, 0, tzinfo=UTC)
AN_EPOCH = 2000
RULES = MapStateDescriptor("rules", Types.STRING(), Types.DOUBLE())
CHANGES = {  # epoch: a rule and its limit; a rule without a limit is taken back
    0: ("small, then large", 500.0),
    1: ("countries", 3.0),
    2: ("small, then nothing", 1.0),
    6: ("countries", 5.0),
    7: ("over", 98.0),
    8: ("over", None),
}


def payment(i):
    turn, number = divmod(i, 50)
    amount, country = 20.0 + i % 80, "DE"
    if number == 7 and turn % 400 in (10, 90):
        amount = 0.5 if turn % 400 == 10 else 900.0
    if number == 11:
        country = ("DE", "FR", "US", "JP")[turn // 100 % 4]
    if number == 13:
        amount, number = (0.3, 13) if turn == 20 else (amount, 14)
    return i, f"card-{number}", amount, country, START + timedelta(milliseconds=5 * i)


class FraudRules(KeyedBroadcastProcessFunction):
    def open(self, runtime_context):
        self.small = runtime_context.get_state(ValueStateDescriptor("small", "struct<payment:bigint,time:bigint>"))
        self.countries = runtime_context.get_map_state(MapStateDescriptor("countries", Types.STRING(), Types.LONG()))
        self.timer = runtime_context.get_state(ValueStateDescriptor("timer", Types.LONG()))

    def process_broadcast_element(self, value, ctx):
        rules = ctx.get_broadcast_state(RULES)
        if value.limit is None:
            rules.remove(value.rule)
        else:
            rules.put(value.rule, value.limit)

    def process_element(self, value, ctx):
        rules = ctx.get_broadcast_state(RULES)
        now = ctx.timestamp()

        small, limit = self.small.value(), rules.get("small, then large")
        if value.amount < 1:
            self.small.update((value.payment, now))
        elif small is not None and limit is not None and value.amount > limit and now - small.time <= MINUTE:
            yield value.card, value.payment, "small, then large"
            self.small.clear()

        for country, seen in self.countries.items():
            if now - seen > MINUTE:
                self.countries.remove(country)
        if not self.countries.contains(value.country):
            known, limit = len(list(self.countries.keys())) + 1, rules.get("countries")
            if limit is not None and known >= limit:
                yield value.card, value.payment, f"{known} countries"
        self.countries.put(value.country, now)

        limit = rules.get("over")
        if limit is not None and value.amount > limit:
            yield value.card, value.payment, f"over {limit:.2f}"

        timers = ctx.timer_service()
        if self.timer.value() is not None:
            timers.delete_event_time_timer(self.timer.value())
        timers.register_event_time_timer(now + MINUTE)
        self.timer.update(now + MINUTE)

    def on_timer(self, timestamp, ctx):
        small = self.small.value()
        if small is not None and ctx.get_broadcast_state(RULES).contains("small, then nothing"):
            yield ctx.get_current_key(), small.payment, "small, then nothing"
        for state in (self.small, self.countries, self.timer):
            state.clear()


env = StreamExecutionEnvironment.get_execution_environment().set_trigger(available_now=True)
# One partition keeps the payments of a card in order; with more of them, rows of one epoch may come in any order.
payments = env.from_source(
    GeneratorSource(
        payment,
        "payment bigint, card string, amount double, country string, time timestamp",
        rows_per_epoch=AN_EPOCH,
        count=args.payments,
        partitions=1,
    ),
    watermark=("time", "1 second"),
)
changes = env.from_source(
    GeneratorSource(
        lambda epoch: CHANGES.get(epoch, (None, None)),
        "rule string, limit double",
        rows_per_epoch=1,
        count=-(-args.payments // AN_EPOCH),
        partitions=1,
    )
)
rules = changes.transform(lambda df: df.where("rule IS NOT NULL")).broadcast(RULES)

checked = payments.key_by("card").connect(rules)
alerts = checked.process(FraudRules(), "card string, payment bigint, rule string", uid="fraud-rules")
alerts.sink_to(FileSink(args.output, format="json"), uid="files")
env.execute("fraud rules")

found = [json.loads(line) for path in Path(args.output).glob("part-*.json") for line in path.open()]
for (rule, card), count in sorted(Counter((alert["rule"], alert["card"]) for alert in found).items()):
    print(f"{rule:<20}  {card:<8}  {count} payments" if count > 1 else f"{rule:<20}  {card}")
