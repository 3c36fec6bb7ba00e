"""One of something is not printed as several."""

import ast
import itertools
import re

import pytest

from lockstep.system.wording import plural
from tests.support.architecture import MODULES

NOUNS = (
    *("channel", "class", "core", "environment", "epoch", "file", "GPU", "image", "job", "label", "node", "number"),
    *("parameter", "prediction", "process", "run", "sample", "step", "thread", "time", "trial", "worker"),
)
MANY = re.compile(rf" ({'|'.join(NOUNS)})(es|s)\b(?!/)")
# what is printed because there are several, or none; and what is no count
NEVER_ONE = {
    *("MOST_REPEATS", "NUM_EPOCHS", "NUM_STEPS", "count", "len(VARIANTS)", "len(lines)", "len(names)", "len(train)"),
    *("num_all", "num_local", "total", "total_steps", "workers.num_local", "workers.world_size"),
    *("factor", "machine.get('cpu_cores')", "predictions", "shape"),
}
# errors in somebody's code or task, in which the number is compared with another one
COMPARED = {
    *("channels", "len(batch.indices)", "len(class_names)", "len(gathered)", "len(images)", "len(weights)"),
    *("num_expected", "share.hi - share.lo", "torch.cuda.device_count()", "tuple(outputs.shape[1:])", "wanted[0]"),
}


def counts(text: str) -> list[str]:
    """What stands in a formatted text before the name of several things, but for what `plural` gives."""
    found = []
    for node in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.JoinedStr)):
        for before, after in itertools.pairwise(node.values):
            if isinstance(before, ast.FormattedValue) and isinstance(after, ast.Constant):
                value = ast.unparse(before.value)
                is_list = value.startswith("', '.join(")
                if MANY.match(str(after.value)) and not is_list and value not in NEVER_ONE | COMPARED:
                    found.append(f"{value}{after.value}")
    return found


def test_a_count_has_the_noun_that_fits_it() -> None:
    assert [plural(count, "run") for count in (0, 1, 2, 1000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]
    assert [plural(count, "class", "classes") for count in (1, 2)] == ["1 class", "2 classes"]


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_a_count_that_may_be_one_is_printed_by_plural(name: str) -> None:
    assert counts(MODULES[name].read_text()) == []


def test_a_count_with_a_fixed_noun_is_found() -> None:
    assert counts("f'{len(rows):,} images'") == ["len(rows) images"]
    assert counts("f'{rate:,.0f} images/s of {plural(count, \"image\")}'") == []
