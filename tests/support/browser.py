"""A real browser."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.harness import PATIENCE_S

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE_MS = 1000 * PATIENCE_S


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """An empty page. An error in a script fails the test."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    errors: list[str] = []
    found = context.new_page()
    found.set_default_timeout(PATIENCE_MS)
    sync_api.expect.set_options(timeout=PATIENCE_MS)
    found.on("pageerror", lambda error: errors.append(str(error)))
    yield found
    context.close()
    assert errors == []
