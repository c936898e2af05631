"""The read model: plain records of jobs, built from their directories, and from the live job on top.

`journal.py` is written by a running job, `job_reader.py` builds the records of `job_view.py`, and `state_browser.py`
looks into snapshots. REST, pages, metrics, the command line and notebooks print these records.
Nothing here knows Spark or a web server.
"""
