"""The pages of a job, and what a browser would act upon in them."""

from __future__ import annotations

from html.parser import HTMLParser

from tests.support.web_job import UID

PAGES = [
    "", f"/operators/{UID}", "/checkpoints", "/checkpoints/history", "/checkpoints/summary",
    "/checkpoints/configuration",
    "/checkpoints/4", "/checkpoints/3", "/state", "/state?state=seen&key=user-3", "/savepoints",
    "/savepoints?before=2&after=4", "/restores", "/exceptions",
]  # fmt: skip


class Reader(HTMLParser):
    """Collects what a browser would act upon."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[str] = []
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self._tag = tag
        self.inline += [f"{tag} {name}" for name in told if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in told):
            self.inline.append(tag)
        if told.get("id"):
            self.ids.append(str(told["id"]))
        if tag == "a":
            self.links.append(str(told.get("href")))
        if tag in ("h1", "h2", "h3"):
            self.headings.append(tag)
