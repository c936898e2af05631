"""The life of a running job, without pyspark: supervision, epoch gate, stopping, failures, publishing."""
