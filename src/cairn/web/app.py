"""Puts the server together: the gate, REST, metrics, pages and their files."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cairn import __version__
from cairn.web import metrics, pages, problems, rest_api
from cairn.web.job_catalogue import Catalogue
from cairn.web.security import Guard
from cairn.web.web_options import WebOptions

STATIC = Path(__file__).parent / "static"


class HeadAsGet:
    """Answers HEAD as GET without the body, as HTTP wants it; except for streams, which have no end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].endswith("/events"):
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)


def create_app(catalogue: Catalogue, options: WebOptions) -> FastAPI:
    app = FastAPI(
        title="cairn",
        version=__version__,
        description="Jobs, checkpoints, savepoints and state of cairn, with Flink's paths.",
        docs_url=None,  # its page would come from another host
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        redirect_slashes=False,
    )
    problems.install(app)
    app.include_router(rest_api.router(catalogue, options))

    @app.get("/metrics", tags=["server"], response_class=Response)
    def prometheus() -> Response:
        """All metrics, as Prometheus reads them."""
        return Response(metrics.exposition(catalogue.views()), media_type=metrics.CONTENT_TYPE)

    app.include_router(pages.router(catalogue, options), include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_middleware(HeadAsGet)
    app.add_middleware(Guard, options=options)
    return app
