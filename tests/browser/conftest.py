"""The built site on a local server, and a headless Chromium that reads it: `nox -s docs-browser`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request, Response

collect_ignore_glob = [] if "UNHANG_SITE" in os.environ else ["test_*.py"]  # no other session has a browser


class Handler(SimpleHTTPRequestHandler):
    """Serves files, and is silent."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site's address on this machine: not at the top, as on GitHub."""
    folder = tmp_path_factory.mktemp("www")
    (folder / "unhang").symlink_to(Path(os.environ["UNHANG_SITE"]).resolve())
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/unhang/"
        server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)  # a busy machine is slow, not wrong
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["UNHANG_CHROMIUM"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """Open a page of the site: `show(page, theme=, width=, javascript=)`.

    The test fails if the page asks for a file that is not there or for anything of another host, or if its JavaScript
    fails.
    """
    contexts, wrong = [], []

    def requested(request: Request) -> None:
        if not request.url.startswith((address, "data:")):
            wrong.append(f"asks another host: {request.url}")

    def answered(answer: Response) -> None:
        if answer.status >= 400:
            wrong.append(f"{answer.status} {answer.url}")

    def open_page(path: str, *, theme: str = "light", width: int = 1280, javascript: bool = True) -> Page:
        context = browser.new_context(
            color_scheme="dark" if theme == "dark" else "light", viewport={"width": width, "height": 800},
            java_script_enabled=javascript, reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"],
        )  # fmt: skip
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", requested)
        page.on("response", answered)
        page.goto(address + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
