"""The read model: plain records of jobs, built from their directories, and from the live job on top.

`journal.py` is what a running job writes for it, `reading.py` makes the records, `state.py` looks into snapshots. REST,
pages, metrics, the command line and notebooks print these records. Nothing here knows Spark or a web server.
"""
