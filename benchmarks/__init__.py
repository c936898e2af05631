"""Benchmarks: cairn beside the limit of the same Spark job, and beside Spark's own state."""
