"""`cairn ui`: the pages of all jobs of a directory, running or not, from their files."""

from __future__ import annotations

import dataclasses

from cairn.cli.exit_codes import ExitCode
from cairn.cli.output import Output
from cairn.config import DEFAULT_DIRECTORY, WebSettings
from cairn.errors import MissingPackageError
from cairn.web.driver_server import missing
from cairn.web.job_catalogue import Catalogue
from cairn.web.web_options import options_of


def serve_directory(directory: str | None, settings: WebSettings, out: Output) -> int:
    """Serve until Ctrl-C. Says the address with the token, once."""
    lacking = missing()
    if lacking:
        raise MissingPackageError(
            f"the web page needs {', '.join(lacking)}", remedy="Install it with: pip install 'cairn-streaming[ui]'"
        )
    options = options_of(settings)
    catalogue = Catalogue(directory or DEFAULT_DIRECTORY)
    from cairn.web.web_server import Server

    server = Server(catalogue, options)
    out.document({"url": server.url, "link": server.link})
    out.line(f"{len(catalogue.readers())} jobs of {directory or DEFAULT_DIRECTORY}: {server.link}")
    out.line("Anyone with this link can stop jobs. Press Ctrl-C to stop the server; jobs continue.")
    try:
        server.run()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def settings_of(address: str, port: int, token: str | None, read_only: bool, hidden: list[str]) -> WebSettings:
    made = WebSettings(address=address, port=port, read_only=read_only, hidden_states=tuple(hidden))
    return dataclasses.replace(made, token=token) if token else made
