"""Word count over a socket, as in every stream tutorial.

In one terminal:   nc -lk 9999
In another one:    cairn run examples/word_count_socket.py

Type words into the first; the second prints their counts. A socket cannot be read twice and Spark cannot resume one, so
every start is a new job that counts from zero. `word_count_files.py` has a source that survives a restart.
"""

import argparse
import time

from cairn import KeyedProcessFunction, PrintSink, SocketSource, StreamExecutionEnvironment, ValueStateDescriptor

parser = argparse.ArgumentParser()
parser.add_argument("--host", default="localhost")
parser.add_argument("--port", default=9999, type=int)
args = parser.parse_args()


class CountWords(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.word, count


env = StreamExecutionEnvironment.get_execution_environment()
lines = env.from_source(SocketSource(args.host, args.port)).df
words = lines.selectExpr("explode(split(lower(value), '[^a-z]+')) AS word").where("word != ''")

counts = env.from_df(words).key_by("word").process(CountWords(), "word string, count bigint", uid="word-counts")
counts.sink_to(PrintSink(), uid="print")
env.execute(f"word count socket {int(time.time())}")
