"""Dependencies have no known vulnerability, and nothing of a stranger is installed.

CI pins its actions by commit.
"""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import lockstep
from tests.support.harness import ROOT

STARTER = ROOT / "src/lockstep/starter/files"
WORKFLOWS = [
    path
    for folder in (ROOT, STARTER)
    for path in sorted((folder / ".github" / "workflows").iterdir())
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ALLOWED = {needed.name: needed.specifier for needed in map(Requirement, PROJECT["dependencies"])}
# the last version with a hole that matters to Lockstep
HOLES = {
    "aiohttp": "3.14.2",  # CVE-2026-69243, -69244, -59881
    "fsspec": "2026.4.0",  # templates of reference:// run code
    "filelock": "3.20.2",  # CVE-2025-68146, CVE-2026-22701
    "hydra-core": "1.3.6",  # CVE-2026-68508, CVE-2026-106439
    # code of a checkpoint in load_from_checkpoint; 2.6.2 and 2.6.3 were compromised
    "lightning": "2.6.5",
    "pillow": "12.2.0",  # CVE-2026-59197 to -59200
    "torch": "2.10.0",  # CVE-2025-32434, CVE-2026-24747 of weights_only, CVE-2026-4538
    "werkzeug": "3.1.5",  # GHSA-29vq-49wr-vm6x
}


def test_vulnerable_versions_excluded() -> None:
    assert [name for name in HOLES if ALLOWED[name].contains(HOLES[name])] == []
    # CVE-2023-24329, and no filter of tar archives
    assert not list(SpecifierSet(PROJECT["requires-python"]).filter(["3.11.0", "3.11.3"]))
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {
        name.lower(): version for name, _, version in (line.partition("==") for line in lines)
    }
    assert [
        name for name, specifier in ALLOWED.items() if not specifier.contains(pinned[name.lower()])
    ] == []


def test_install_commands() -> None:
    """`lockstep` on the package index is another project.

    Commands name lockstep-vision, a path, or what is missing.
    """
    extras = "|".join(PROJECT["optional-dependencies"])
    stranger = re.compile(
        rf"pip install\b[^\n`|;]*[\s'\"]lockstep(?![-_]vision|[\w/.])|\blockstep\[(?:{extras})\\?\b"
    )
    assert stranger.search("pip install 'lockstep[export]'")
    assert not stranger.search("pip install lockstep-vision")
    # whose commands users copy
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*.ipynb")]
    files = [*ROOT.glob("conf/**/*.yaml"), *ROOT.glob("src/**/*.py"), *STARTER.rglob("*.*")]
    texts = [path for path in (*pages, *files) if path.is_file()]
    assert [
        f"{path}: {found[0]}" for path in texts if (found := stranger.search(path.read_text()))
    ] == []


def test_changelog_and_citation_version() -> None:
    heads = re.findall(
        r"^## (\d.+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert heads[0] == lockstep.__version__
    assert f"\nversion: {lockstep.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_workflow_actions_pinned() -> None:
    for path in WORKFLOWS:
        text = path.read_text()
        uses = re.findall(r"uses: (.*)", text)
        assert all(
            re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in uses
        ), path
        assert text.count("persist-credentials: false") == text.count("actions/checkout@")


def test_container_user_unprivileged() -> None:
    assert re.findall(r"^USER ([1-9]\d{3,}):\d+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
