"""A model that learns from every row, one for each key: linear regression by stochastic gradient descent, in state.

    cairn run examples/online_learning.py                     # 8,000 deliveries, then it says what was learned
    cairn run examples/online_learning.py --deliveries 50000  # more of them

Each of four shops has a model of how many minutes a delivery takes, given its distance and its weight. A row is first
predicted and then learned from, so every prediction is one that the model made before it saw the answer, and the mean
error falls as it learns. The weights are keyed state: they survive `kill -9`, move with their shop when the job is
rescaled, and lie in every savepoint, where `cairn state show` prints them.

The input is made up: each shop has its own minutes per kilometre and per kilogram and its own start, with some noise on
top. Predictions go to ./predictions as Parquet.
"""

import argparse
import random

import pyarrow.parquet as pq

from cairn import (
    FileSink,
    GeneratorSource,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

parser = argparse.ArgumentParser()
parser.add_argument("--output", default="predictions")
parser.add_argument("--deliveries", type=int, default=8000, help="end after so many")
args = parser.parse_args()

RATE = 0.05
SHOPS = {  # minutes at the start, per kilometre, per kilogram
    "harbour": (5.0, 3.0, 0.5),
    "market": (12.0, 6.0, 1.0),
    "station": (8.0, 4.5, 0.0),
    "uptown": (20.0, 2.0, 2.0),
}


def delivery(i):
    chance = random.Random(i)
    shop = sorted(SHOPS)[i % len(SHOPS)]
    distance, weight = chance.uniform(-1, 1), chance.uniform(-1, 1)  # in units of their spread, around their mean
    start, per_distance, per_weight = SHOPS[shop]
    return i, shop, distance, weight, start + per_distance * distance + per_weight * weight + chance.gauss(0, 0.5)


class Regression(KeyedProcessFunction):
    """Predicts, then learns: the weights move against the gradient of the squared error of this one row."""

    def open(self, runtime_context):
        self.weights = runtime_context.get_state(ValueStateDescriptor("weights", "array<double>"))

    def process_element(self, value, ctx):
        weights = self.weights.value() or [0.0, 0.0, 0.0]
        features = [1.0, value.distance, value.weight]
        predicted = sum(w * x for w, x in zip(weights, features, strict=True))
        error = predicted - value.minutes
        learned = [w - RATE * error * x for w, x in zip(weights, features, strict=True)]
        self.weights.update(learned)
        yield value.shop, value.delivery, predicted, value.minutes, learned


env = StreamExecutionEnvironment.get_execution_environment().set_trigger(available_now=True)
deliveries = env.from_source(
    GeneratorSource(
        delivery,
        "delivery bigint, shop string, distance double, weight double, minutes double",
        rows_per_epoch=1000,
        count=args.deliveries,
        partitions=1,  # the rows of a shop come in their order
    )
)
predictions = deliveries.key_by("shop").process(
    Regression(),
    "shop string, delivery bigint, predicted double, minutes double, weights array<double>",
    uid="regression",
)
predictions.sink_to(FileSink(args.output), uid="files")
env.execute("online learning")

rows = sorted(pq.read_table(args.output).to_pylist(), key=lambda row: row["delivery"])
print("shop      mean error of the first 50   of the last 50   learned (start, distance, weight)")
for shop in sorted(SHOPS):
    mine = [row for row in rows if row["shop"] == shop]
    first, last = (
        sum(abs(row["predicted"] - row["minutes"]) for row in part) / len(part) for part in (mine[:50], mine[-50:])
    )
    learned = ", ".join(f"{weight:.1f}" for weight in mine[-1]["weights"])
    print(f"{shop:<9} {first:>26.2f} {last:>16.2f}   {learned:<18} of {SHOPS[shop]}")
