"""The binding to Spark: session, plans, worker tasks and background tasks. No package below it imports pyspark."""
