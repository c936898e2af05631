"""Runs on the driver: the epoch loop, the checkpoint coordinator, compaction and requests to a running job."""
