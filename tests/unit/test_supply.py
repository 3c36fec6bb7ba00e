"""What is installed and run from elsewhere: no version with a known hole, no action that can change under its name."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.support.harness import ROOT

WORKFLOWS = (ROOT / ".github/workflows/check.yml", ROOT / "src/lockstep/starter/files/.github/workflows/check.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WANTED = {wanted.name: wanted.specifier for wanted in map(Requirement, PROJECT["dependencies"])}
# the last versions with a hole that concerns what Lockstep does with them, and the hole
HOLES = {
    "aiohttp": "3.14.2",  # CVE-2026-69243, -69244, -59881
    "filelock": "3.20.2",  # CVE-2025-68146, CVE-2026-22701
    "hydra-core": "1.3.6",  # CVE-2026-68508, CVE-2026-106439
    "lightning": "2.6.5",  # code of a checkpoint in load_from_checkpoint; 2.6.2 and 2.6.3 were compromised
    "pillow": "12.2.0",  # CVE-2026-59197 to -59200
    "torch": "2.10.0",  # CVE-2025-32434, CVE-2026-24747 of weights_only, CVE-2026-4538
    "werkzeug": "3.1.5",  # GHSA-29vq-49wr-vm6x
}


@pytest.mark.parametrize("name", HOLES)
def test_versions_with_known_holes_are_not_installed(name: str) -> None:
    assert not WANTED[name].contains(HOLES[name])


@pytest.mark.parametrize("version", ["3.11.0", "3.11.2", "3.11.3"])  # CVE-2023-24329; no filter of tar archives
def test_a_python_with_known_holes_is_refused(version: str) -> None:
    assert not SpecifierSet(PROJECT["requires-python"]).contains(version)


def test_what_is_pinned_is_allowed() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {name.lower(): version for name, _, version in (line.partition("==") for line in lines)}
    assert [name for name, specifier in WANTED.items() if not specifier.contains(pinned[name.lower()])] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=["own", "starter"])
def test_a_workflow_runs_actions_of_known_content_and_keeps_no_token(path: Path) -> None:
    text = path.read_text()
    uses = re.findall(r"uses: (.*)", text)
    assert uses
    for action in uses:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")
