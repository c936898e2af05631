"""The read model: plain records of jobs, built from their directories, and from the live job on top.

A running job writes `journal.py`, `job_reader.py` builds the records of `job_view.py`, `state_browser.py` looks into snapshots. REST,
pages, metrics, the command line and notebooks print these records. Nothing here knows Spark or a web server.
"""
