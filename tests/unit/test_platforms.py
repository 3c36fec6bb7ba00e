"""The forms of the repository, its container files and the page of platforms agree with the project."""

import json
import re
import tomllib
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from tests.support.harness import ROOT

PYTHONS = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PAGE = (ROOT / "docs/platforms.md").read_text()


def pythons_of_ci() -> list[str]:
    workflow = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())
    return workflow["jobs"]["check"]["strategy"]["matrix"]["python"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_github_requires(path: Any) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "labels", "body"}
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields) > 0


def test_ci_tests_every_python_that_is_allowed_and_the_page_has_them() -> None:
    allowed = [f"3.{minor}" for minor in range(30) if PYTHONS.contains(f"3.{minor}.99")]
    assert pythons_of_ci() == allowed
    assert [version for version in allowed if f"| Python {version} " not in PAGE] == []


def test_images_have_a_python_that_is_allowed() -> None:
    base = re.findall(r"^ARG BASE=python:(\d+\.\d+)-slim$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    image = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())["image"]
    assert {*base, image.rpartition(":")[2]} <= set(pythons_of_ci())
    assert len(base) == 1


def test_an_image_gets_the_files_that_its_build_needs_and_no_others() -> None:
    first, *rest = re.findall(r"^[^#\s].*$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert first == "*"
    taken = {line[1:] for line in rest if line.startswith("!")}
    assert taken == {"conf", "src", "constraints.txt", "LICENSE", "pyproject.toml", "README.md"}
    assert all((ROOT / name).exists() for name in taken)


def test_a_container_has_a_user_without_rights() -> None:
    assert re.findall(r"^USER ([1-9]\d{3}):\d+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
