"""A headless Chromium, started once; skipped with a reason where it or its driver is missing."""

from __future__ import annotations

import dataclasses
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.reports.formats import write_report
from tests.reports.conftest import make

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.model.records import RunReport

__all__ = ["make"]

PLAIN = {"viewport": {"width": 1100, "height": 700}}
BINARIES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The browser; `CHROMIUM` names its binary where it is not on the path."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    binary = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BINARIES)), None)
    if binary is None:
        pytest.skip(f"no Chromium on the path ({', '.join(BINARIES)}), and CHROMIUM names none")
    with driver.sync_playwright() as playwright:
        # A container's root user has no sandbox to give; the pages are our own.
        launched = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def context(browser: Any) -> Any:
    """The context of pages that ask for nothing special; a page more in it takes a third of what a new one does."""
    return browser.new_context(**PLAIN)


@dataclasses.dataclass
class Visit:
    """A page, and what it did: the addresses it asked for, its dialogs, what its console said and its errors."""

    page: Any
    requests: list[str]
    complaints: list[str]

    def shown(self) -> list[str]:
        """The names of the findings on the page, top to bottom."""
        texts: list[str] = self.page.locator("#findings-table > tbody:visible .c-name bdi").all_inner_texts()
        return texts


Opener = Callable[..., Visit]


@pytest.fixture
def visit(browser: Any, context: Any, tmp_path: Path) -> Iterator[Opener]:
    """Opens a report from disk, or from an address; with options of a browser's context."""
    closing: list[Any] = []

    def start(report: RunReport | None, address: str = "", anchor: str = "", **options: Any) -> Visit:
        page = browser.new_context(**{**PLAIN, **options}).new_page() if options else context.new_page()
        closing.append(page.context if options else page)
        page.set_default_timeout(10_000)
        visited = Visit(page, [], [])
        page.on("request", lambda request: visited.requests.append(request.url))
        page.on("console", lambda message: visited.complaints.append(message.text))
        page.on("pageerror", lambda error: visited.complaints.append(str(error)))

        def dismiss(dialog: Any) -> None:
            visited.complaints.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("dialog", dismiss)
        if report is not None:
            write_report(report, tmp_path / "report.html")
        page.goto((address or (tmp_path / "report.html").as_uri()) + anchor)
        return visited

    yield start
    for opened in closing:
        opened.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Serves the folder of the test with a content security policy; returns the report's address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(policy: str) -> str:
        class Handler(http.server.SimpleHTTPRequestHandler):
            def end_headers(self) -> None:
                self.send_header("Content-Security-Policy", policy)
                super().end_headers()

            def log_message(self, *arguments: object) -> None:
                """Keep quiet."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path))
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/report.html"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
