"""`lockstep data fetch` downloads what a job needs, and prints where it is."""

import shutil
from pathlib import Path

import pytest
import torch
from torchvision import models

from lockstep.assembly import run_parts
from lockstep.cli.fetch import fetch
from lockstep.config import overrides
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from tests.support.copies import contents, shown
from tests.support.image_files import write_folder

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def printed(capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, str]:
    """The rows of the table by their names."""
    assert fetch(["strategy=cpu", *overrides], compose.DEFAULT) == 0
    _, table, _ = capsys.readouterr().out.split("─" * 78 + "\n")
    return {
        name: text.strip()
        for name, _, text in (line.partition("  ") for line in table.splitlines())
    }


def test_fetch_url_offline_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that cannot reach the URL reads the copy of its files."""
    images = write_folder(tmp_path / "flowers", count=4)
    archive = Path(shutil.make_archive("flowers", "zip", images))
    asked = ("data=image_folder", f"data.root='zip://::file://{archive}'")
    rows = printed(capsys, *asked)
    (copy,) = shown(tmp_path / "data" / "cache")
    assert contents(copy / "flowers.zip") == contents(images)
    assert not list((tmp_path / "data" / "cache").glob("*/*.rows"))  # nothing is decoded
    assert rows["for jobs"] == f"data.root={copy}/flowers.zip"
    archive.unlink()
    assert printed(capsys, "data=image_folder", rows["for jobs"])["data"] == rows["data"]
    with pytest.raises(
        ConfigError, match=r"data\.copy_to=\$TMPDIR/x is on the job's machine: remove it"
    ):
        fetch([*asked, "data.copy_to=$TMPDIR/x"], compose.DEFAULT)


def test_fetch_as_class_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A source of folders reads the pixels of the data set, and its test split."""
    folder = tmp_path / "new" / "digits"
    assert fetch(["data=digits"], compose.DEFAULT, folder) == 0
    written_as = [
        "data=image_folder",
        f"data.root={folder}",
        "data.image_size=8",
        "data.channels=1",
    ]
    (config,) = overrides.check(written_as).configs
    (digits,) = overrides.check(["data=digits"]).configs
    written, images = (run_parts.open_source(0, each.data)[0] for each in (config, digits))
    assert written.class_names == images.class_names
    tests = [each.test.pixels[torch.arange(len(each.test))] for each in (written, images)]
    rows = [sorted(pixels.flatten(1).tolist()) for pixels in tests]
    assert rows[0] == rows[1]
    assert len(written.train) + len(written.val) == len(images.train) + len(images.val)
    with pytest.raises(ConfigError) as caught:
        fetch(["data=digits"], compose.DEFAULT, folder)
    assert [(error.code, error.key) for error in caught.value.errors] == [
        ("exists", f"--folders {folder}")
    ]
    assert [path.name for path in folder.parent.iterdir()] == ["digits"]


def test_fetch_library_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    weights = (
        tmp_path / "home/hub/checkpoints" / Path(models.SqueezeNet1_1_Weights.DEFAULT.url).name
    )
    weights.parent.mkdir(parents=True)
    torch.save(models.squeezenet1_1().state_dict(), weights)
    rows = printed(capsys, "model=torchvision", "model.name=squeezenet1_1", "model.pretrained=true")
    assert "TORCH_HOME" in rows["weights"]
