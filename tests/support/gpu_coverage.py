"""How much of what only a GPU runs the tests run: `python -m tests.support.gpu_coverage`.

Prints the shard of lines, and every line that is left out.
"""

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from coverage import CoverageData

from tests.support.harness import ROOT

SOURCE = ROOT / "src" / "lockstep"
# those on a pretended GPU, and those that put something else in the place of one
TESTS = (
    "tests/integration/test_gpu_trainings.py",
    "tests/system/test_gpu_commands.py",
    "tests/unit/system/test_hardware.py",
    "tests/unit/training/test_memory.py",
    "tests/unit/training/test_session.py",
)
WORDS = {"cuda", "is_on_device", "_is_deferred"}  # in the conditions of what only a GPU runs
CONFIG = """[run]
parallel = true
source_pkgs = lockstep
patch = _exit, subprocess
data_file = {folder}/data
"""


def gpu_lines(path: Path) -> set[int]:
    """First lines of the statements of a module that run on a GPU alone.

    Those are the branches of a condition that names a GPU, what follows a return where there is none, and simple
    statements that call `torch.cuda`.
    """
    return {line for node in ast.walk(ast.parse(path.read_text())) for line in _lines_below(node)}


def _lines_below(node: ast.AST) -> Iterator[int]:
    for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
        if not isinstance(block, list):
            continue
        for position, statement in enumerate(block):
            if isinstance(statement, ast.If) and _names_gpu(statement.test):
                is_without = _is_negative(statement.test)
                yield from _lines(statement.orelse if is_without else statement.body)
                if is_without and isinstance(statement.body[-1], ast.Return):
                    yield from _lines(block[position + 1 :])
            elif not hasattr(statement, "body") and _calls_cuda(statement):
                yield statement.lineno
            elif isinstance(statement, ast.With) and any(map(_calls_cuda, statement.items)):
                yield from _lines([statement])


def _lines(block: Sequence[ast.stmt]) -> Iterator[int]:
    for statement in block:
        yield from (node.lineno for node in ast.walk(statement) if isinstance(node, ast.stmt))


def _names_gpu(test: ast.expr) -> bool:
    words = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
    words |= {node.attr for node in ast.walk(test) if isinstance(node, ast.Attribute)}
    words |= {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    return bool(WORDS & {word for word in words if isinstance(word, str)})


def _is_negative(test: ast.expr) -> bool:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return True
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq)


def _calls_cuda(part: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch.cuda.") for node in ast.walk(part)
    )


def measured(folder: Path) -> dict[Path, set[int]]:
    """Lines that the tests run, by module."""
    config = folder / "coveragerc"
    config.write_text(CONFIG.format(folder=folder))
    words = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", "-m", "pytest", "-q", "-n0", *TESTS]
    subprocess.run(words, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    subprocess.run([sys.executable, "-m", "coverage", "combine", f"--rcfile={config}"], cwd=ROOT, check=True)
    data = CoverageData(str(folder / "data"))
    data.read()
    return {Path(name): set(data.lines(name) or ()) for name in data.measured_files()}


def main() -> int:
    """Run the tests, and print what they leave out. Returns 1 below 90 %."""
    with tempfile.TemporaryDirectory() as folder:
        run = measured(Path(folder))
    wanted = {path: lines for path in sorted(SOURCE.rglob("*.py")) if (lines := gpu_lines(path))}
    left_out = [(path, line) for path, lines in wanted.items() for line in sorted(lines - run.get(path, set()))]
    for path, line in left_out:
        print(f"{path.relative_to(ROOT)}:{line}: {path.read_text().splitlines()[line - 1].strip()}")
    count = sum(map(len, wanted.values()))
    shard = 1 - len(left_out) / count
    print(f"{count - len(left_out)} of {count} lines that only a GPU runs were run: {shard:.1%}")
    return 0 if shard >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
