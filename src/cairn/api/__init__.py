"""What users call. The layer that joins Spark, the coordinator and the runtime."""
