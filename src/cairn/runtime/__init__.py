"""Runs inside Spark's Python workers. Imports pyarrow, never pyspark."""
