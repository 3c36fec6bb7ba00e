"""No command that gets a faulty run folder changes anything around it, hangs, or shows a traceback."""

from functools import partial
from pathlib import Path

import pytest

from lockstep.launch import child
from tests.support import fuzzed
from tests.support.harness import PATIENCE_S, environ
from tests.support.strangers import train

pytestmark = [pytest.mark.full, pytest.mark.processes]
SEED = 51
NUM_CASES, NUM_EACH = 150, 50
NUM_COMPUTED, NUM_COMPUTED_EACH = 10, 10


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("home"), "good").path


@pytest.mark.parametrize("first", range(0, NUM_CASES, NUM_EACH))
def test_commands_that_look_stop_and_remove_touch_nothing_around_a_faulty_folder(
    good: Path, tmp_path: Path, first: int
) -> None:
    numbers = range(first, first + NUM_EACH)
    log = tmp_path / "log"
    variables = {**environ(), "HOME": str(tmp_path)}
    process = child.start(partial(fuzzed.check, SEED, numbers, str(good), str(tmp_path)), variables, log=log)
    process.join(PATIENCE_S)
    process.kill()
    lines = log.read_text(errors="backslashreplace").splitlines()
    wrong = [line.removeprefix("WRONG ") for line in lines if line.startswith("WRONG ")]
    if process.exitcode != 0:
        pytest.fail(f"exit code {process.exitcode}; last: {lines[-1:]}\n" + "\n".join(wrong))


@pytest.mark.parametrize("first", range(0, NUM_COMPUTED, NUM_COMPUTED_EACH))
def test_commands_that_compute_touch_nothing_around_a_faulty_folder(good: Path, tmp_path: Path, first: int) -> None:
    numbers = range(NUM_CASES + first, NUM_CASES + first + NUM_COMPUTED_EACH)
    found = [problem for number in numbers for problem in fuzzed.compute(SEED, number, good, tmp_path)]
    assert not found, "\n".join(found)
