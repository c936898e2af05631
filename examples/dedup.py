"""Deduplication: each order passes once, repeats within ten minutes are dropped, and state does not grow for ever.

    cairn run examples/dedup.py --epochs 5          # a few epochs, then it ends
    cairn run examples/dedup.py                     # until Ctrl-C: the input never ends

The input is made up: a quarter of all events repeat the order before them. Unique orders go to ./unique-orders. The
time to live lets the state of an order go ten minutes after it was last seen; a repeat after that passes again.
"""

import argparse

from cairn import (
    FileSink,
    KeyedProcessFunction,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
)

parser = argparse.ArgumentParser()
parser.add_argument("--output", default="unique-orders")
parser.add_argument("--epochs", type=int, default=0, help="end after this many epochs; 0: never")
args = parser.parse_args()


class Deduplicate(KeyedProcessFunction):
    def open(self, runtime_context):
        seen = ValueStateDescriptor("seen", "boolean")
        ttl = StateTtlConfig.new_builder(Time.minutes(10)).cleanup_full_snapshot().build()
        seen.enable_time_to_live(ttl)
        self.seen = runtime_context.get_state(seen)

    def process_element(self, value, ctx):
        if not self.seen.value():
            yield value.order_id, value.amount
        self.seen.update(True)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_trigger(processing_time="1 second")
numbers = env.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
numbers = numbers.selectExpr("value - if(value % 4 = 3, 1, 0) AS number")
orders = numbers.selectExpr("concat('order-', number) AS order_id", "number * 7 % 100 AS amount")

unique = env.from_df(orders).key_by("order_id").process(Deduplicate(), "order_id string, amount bigint", uid="dedup")
unique.sink_to(FileSink(args.output), uid="files")

until = f"ends after {args.epochs} epochs" if args.epochs else "runs on until it is stopped"
print(f"Orders without repeats go to ./{args.output}; the job {until} (Ctrl-C to stop).", flush=True)
job = env.execute_async("dedup")
job.add_epoch_listener(lambda e: print(f"epoch {e.epoch}: {e.rows_in} events, {e.rows_out} unique", flush=True))
while not job.await_termination(0.2):
    if args.epochs and len(job.epochs()) >= args.epochs:
        job.cancel()
