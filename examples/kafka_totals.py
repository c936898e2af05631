"""From Kafka to Kafka, exactly once: the running total of every user's payments.

    cairn run examples/kafka_totals.py

needs a broker with the topics `payments` and `totals` (`--servers`, `--input`, `--output`). Payments are JSON such as
{"user": "ada", "amount": 5}; totals are written as {"user": "ada", "sum": 12}, keyed by the user. An epoch is one
transaction: read the totals with isolation.level=read_committed and each of them is there once, whatever was killed.

Spark fetches its Kafka connector (`--connector`) at the first start; take the version of your Spark, or the newest one
before it. `--connector ""` leaves that to you (`-D spark.jars=...`).
"""

import argparse

from cairn import KafkaSink, KafkaSource, StreamExecutionEnvironment

parser = argparse.ArgumentParser()
parser.add_argument("--servers", default="localhost:9092")
parser.add_argument("--input", default="payments")
parser.add_argument("--output", default="totals")
parser.add_argument("--connector", default="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0")
parser.add_argument("--available-now", action="store_true", help="end when all that is there now is done")
args = parser.parse_args()

config = {"spark.jars.packages": args.connector} if args.connector else {}
env = StreamExecutionEnvironment.get_execution_environment(config=config)
if args.available_now:
    env.set_trigger(available_now=True)
payments = env.from_source(KafkaSource(args.servers, args.input, format="json", schema="user string, amount bigint"))
totals = payments.key_by("user").sum("amount", uid="totals")
totals.sink_to(KafkaSink(args.servers, args.output, key="user"), uid="kafka")
env.execute("kafka totals")
