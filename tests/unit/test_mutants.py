"""The mutants of tests/mutants.toml name code and tests that exist."""

import ast
import tomllib

from tests.support.harness import ROOT


def test_mutants_current() -> None:
    mutants = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]
    for mutant in mutants:
        source = (ROOT / "src" / "lockstep" / mutant["file"]).read_text()
        assert source.count(mutant["code"]) == 1, mutant["mechanism"]
        ast.parse(source.replace(mutant["code"], mutant["broken"]))
        for test in mutant["tests"]:
            path, _, case = test.partition("::")
            name = f"def {case.partition('[')[0]}"
            assert name in (ROOT / "tests" / path).read_text(), test
