"""Word count over text files that are dropped into a directory; counts go to Parquet files, each row exactly once.

    cairn run examples/word_count_files.py                        # waits for more files
    cairn run examples/word_count_files.py --available-now        # counts what is there, then ends

Put text files into ./texts (move them there whole). Run it again after adding files: only the new ones are read, and
the counts go on. Kill it whenever you like. Read the result with any Parquet reader, for example
`spark.read.parquet("word-counts").groupBy("word").max("count")`.
"""

import argparse
import os

from cairn import FileSink, StreamExecutionEnvironment

parser = argparse.ArgumentParser()
parser.add_argument("--input", default="texts")
parser.add_argument("--output", default="word-counts")
parser.add_argument("--available-now", action="store_true")
args = parser.parse_args()
os.makedirs(args.input, exist_ok=True)

env = StreamExecutionEnvironment.get_execution_environment()
if args.available_now:
    env.set_trigger(available_now=True)
else:
    env.set_trigger(processing_time="1 second")

lines = env.spark.readStream.text(args.input)
words = lines.selectExpr("explode(split(lower(value), '[^a-z]+')) AS word").where("word != ''")

# `count` is built in and vectorised; `word_count_socket.py` has the same as a function of its own.
counts = env.from_df(words).key_by("word").count(uid="word-counts")
counts.sink_to(FileSink(args.output), uid="files")
env.execute("word count files")
