"""Processes of tests have one thread each, and measured differences are shown at the end."""

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.gpus import PretendedGpus
    from tests.support.processes import Ranks
    from tests.support.slurm import Slurm

# before torch is imported: results are compared bit by bit with those of processes that have one
# thread
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # Its import would look for a newer version.


@pytest.fixture(scope="session", autouse=True)
def _server(request: pytest.FixtureRequest) -> None:
    """Start the product's fork server for all processes of the tests.

    It also imports what commands do.
    """
    from lockstep.system import processes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "SERVER", "tests.support.server")
        given = os.environ.get("PYTHONPATH", "")
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), given)))
        )
        if any(item.get_closest_marker("processes") for item in request.session.items):
            processes.start_server()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Defer what few tests need of the libraries that most tests import, as a training does.

    Collections of garbage would visit the modules again and again.
    """
    from lockstep.system.libraries import lazy

    gc.disable()
    with lazy():
        result = yield
    gc.enable()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Restore the search path of Python.

    A command that runs in this process puts the folder of its project first.
    """
    before = sys.path[:]
    try:
        return (yield)
    finally:
        sys.path[:] = before


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
    """Record a line for the end of the output and for `--junitxml`."""
    return lambda text: record_property("figure", text)


@pytest.fixture(scope="module")
def ranks() -> "Iterator[Ranks]":
    """Three ranks."""
    from tests.support.processes import started  # imports torch

    with started(3) as found:
        yield found


@pytest.fixture(scope="session")
def slurm() -> "Iterator[Slurm]":
    """A SLURM of two nodes."""
    from tests.support.slurm import started  # imports torch

    with started() as running:
        yield running


@pytest.fixture(scope="module")
def four_gpus_here() -> Iterator[None]:
    """Configurations are checked in this process, where there is none."""
    from lockstep.system import hardware

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "num_visible_gpus", lambda: 4)
        yield


@pytest.fixture(scope="session")
def gpus(request: pytest.FixtureRequest) -> "PretendedGpus":
    """Pretended GPUs for processes that a test starts.

    The first use builds them, which takes 10 s of one core.
    """
    from tests.support.gpus import PretendedGpus, build, reason_without  # imports torch

    reason = reason_without()
    if reason is not None:
        pytest.skip(reason)
    cache = request.config.cache
    assert cache is not None
    return PretendedGpus(build(cache.mkdir("pretended_gpu")))
