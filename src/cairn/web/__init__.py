"""The server: REST under `/api/v1`, pages, `/metrics`. It prints the records of `cairn.view`, and changes jobs through
their `control/` folders.

`driver_server.py` starts it in the driver, `web_server.py` runs it, `app.py` puts it together. FastAPI is
imported here only, and only when a server is started: install it with `pip install "cairn-streaming[ui]"`.
"""
