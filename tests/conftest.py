"""One thread to each process, and the figures that tests record, e.g. how exact "exact" was, at the end of the run."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.gpus import PretendedGpus
    from tests.support.slurm import Slurm

# Before torch is imported: what runs in the process of pytest is compared, bit by bit, with processes of one thread,
# and files of tests share the cores.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _server() -> None:
    """The product's server for all processes of the tests, with what commands import beside."""
    from lockstep.system import processes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "SERVER", "tests.support.server")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        processes.start_server()


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


@pytest.fixture(scope="session")
def slurm() -> "Iterator[Slurm]":
    """A SLURM of two nodes. Tests that use it stand in modules test_slurm*.py, each of which one process runs."""
    from tests.support.slurm import started  # imports torch

    with started() as running:
        yield running


@pytest.fixture(scope="session")
def gpus(request: pytest.FixtureRequest) -> "PretendedGpus":
    """Pretended GPUs, for processes that a test starts. They are built at the first time: 10 s of one core."""
    from tests.support.gpus import PretendedGpus, build, reason_without  # imports torch

    reason = reason_without()
    if reason is not None:
        pytest.skip(reason)
    cache = request.config.cache
    assert cache is not None
    return PretendedGpus(build(cache.mkdir("pretended_gpu")))
