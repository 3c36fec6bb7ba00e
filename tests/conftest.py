"""Shows the figures that tests record, e.g. how exact "exact" was, at the end of the run."""

from typing import Any

import pytest


def pytest_terminal_summary(terminalreporter: Any) -> None:
    figures = [
        f"{report.nodeid.partition('::')[2]}: {value}"
        for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
        if report.when == "call"
        for name, value in report.user_properties
        if name == "figure"
    ]
    if figures:
        terminalreporter.section("figures")
        for figure in figures:
            terminalreporter.write_line(figure)


@pytest.fixture
def figure(record_property: Any) -> Any:
    """Record a line for the end of the run."""
    return lambda text: record_property("figure", text)
