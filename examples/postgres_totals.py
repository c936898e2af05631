"""Into a table of PostgreSQL, exactly once: the running total of every user, one row each.

    cairn run examples/postgres_totals.py --url postgresql://me:secret@localhost/shop

makes up payments (payment number i is always the same) and keeps the table `user_totals` up to date; the table is
created if it is not there. Kill it, start it again: the totals are exact. `--payments 5000` ends after so many.
"""

import argparse

from cairn import GeneratorSource, JdbcSink, StreamExecutionEnvironment

parser = argparse.ArgumentParser()
parser.add_argument("--url", default="postgresql://localhost/postgres")
parser.add_argument("--table", default="user_totals")
parser.add_argument("--payments", type=int, help="end after so many payments; for ever unless given")
args = parser.parse_args()

env = StreamExecutionEnvironment.get_execution_environment()
if args.payments is not None:
    env.set_trigger(available_now=True)
source = GeneratorSource(
    lambda i: (f"user-{i % 50}", i * 7 % 100), "user string, amount bigint", rows_per_epoch=1000, count=args.payments
)
totals = env.from_source(source).key_by("user").sum("amount", uid="totals")
totals.sink_to(JdbcSink(args.url, args.table, key="user"), uid="postgres")
env.execute("postgres totals")
