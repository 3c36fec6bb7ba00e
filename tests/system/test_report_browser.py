"""The report of a benchmark in a browser: nothing is cut on a narrow screen, and a dark one gets a dark page."""

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.benchmark import report
from tests.support.benchmarks import ONE, TWO, record, whole
from tests.support.browser import CHROMIUM, chromium, page

__all__ = ["chromium", "page"]  # fixtures
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser here; tests/support/chromium.sh says why"),
]
NAMES = ("cpu", "parallel-cpu", "gpu", "multi-gpu", "parallel-gpu")
# [width of a table, and of the place it has] for each
WIDTHS = "JSON.stringify([...document.querySelectorAll('.wide')].map(e => [e.scrollWidth, e.clientWidth]))"


@pytest.mark.parametrize("width", [1000, 1400])
def test_no_table_of_five_environments_is_cut(tmp_path: Path, page: Any, width: int) -> None:
    records = [
        record(NAMES[0], ONE, 1234.5),
        *(record(name, TWO, 0.0123, global_batch_size=65536) for name in NAMES[1:]),
    ]
    report.write(tmp_path, whole(*records))
    page.set_viewport_size({"width": width, "height": 900})
    page.goto((tmp_path / "report.html").as_uri())
    tables = json.loads(page.evaluate(WIDTHS))
    assert len(tables) == 2
    for wide, room in [*tables, json.loads(page.evaluate("JSON.stringify([document.body.scrollWidth, innerWidth])"))]:
        assert wide <= room


def test_a_dark_screen_gets_a_dark_page_with_charts_that_can_be_read(tmp_path: Path, page: Any) -> None:
    report.write(tmp_path, whole(record("cpu", ONE, 10), record("two", TWO, 6)))
    seen = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto((tmp_path / "report.html").as_uri())
        body = "getComputedStyle(document.body)"
        seen[scheme] = page.evaluate(f"[{body}.backgroundColor, {body}.color]")
    assert seen["light"] == ["rgb(255, 255, 255)", "rgb(32, 33, 36)"]
    assert seen["dark"] == ["rgb(32, 33, 36)", "rgb(232, 234, 237)"]
    assert page.evaluate("getComputedStyle(document.querySelector('svg')).backgroundColor") == "rgb(255, 255, 255)"
