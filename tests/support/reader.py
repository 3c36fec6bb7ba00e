"""Types a page of the docs as a reader does, from top to bottom.

The reader has a folder of its own and less data. A block is a file if it begins with a comment that
is a path, or else commands. What needs a GPU, a cluster or a registry is checked as far as it can
be here.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from sybil import Example
from sybil.document import Document
from sybil.parsers.markdown import CodeBlockParser
from torchvision import models

from lockstep.config import overrides
from lockstep.config.errors import ConfigError
from lockstep.system import hardware
from tests.support import commands
from tests.support.harness import PATIENCE_S, ROOT, environ
from tests.support.pages import FILE

BIN = Path(sys.executable).parent
TRAININGS = (["python", "train.py"], ["lockstep", "train"])
# settings of the trainings of a page
MORE = {"images": ("data.image_size=32",), "use": ("model.width=8",)}
IN_TABLE = re.compile(r"^\|.*$", re.MULTILINE)
IN_LINE = re.compile(r"`((?:python train\.py|lockstep) [^`]*)`")
# a training of these is checked for a machine that has what it needs
ELSEWHERE = re.compile(
    r"cluster=slurm|strategy=(ddp|single_device)|devices=\[|--devices 0|precision=float16|"
    r"zip://|https?://"
)
# what other files of tests do: make, servers, launchers and schedulers, jobs with made-up numbers
OTHERS = re.compile(
    r"make |lockstep (board|new|jobs (cancel|show|\w+ 17)|stop|schema|data fetch)|srun|salloc|"
    r".*(model=timm| \| )|cd "
)
# what README types just so, or a page once more, and no later command of the page needs
AGAIN = re.compile(
    r"torchrun --nproc-per-node=2 train|lockstep (export latest( *#.*)?$|benchmark b)"
)
USES_RUNS = re.compile(r"latest|outputs/\d|lockstep (status|runs)")
SHORTER = {
    "search.num_trials": "2",
    "benchmark.budget_s": "1",
    "seed": "0,1",
    "data.folds": "2",
    "data.fold": "0,1",
    "trainer.max_epochs": "1",
    "optimizer.lr": "0.05,0.1",
}
DATED = re.compile(r"outputs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d_(\w+)")
# options with the names of Lockstep's own take their places
OPTIONS = {
    "config.yaml": "defaults: [lockstep, override callbacks: small, _self_]\neval_batch_size: 64\n",
    "callbacks/small.yaml": "defaults: [default]\npictures: null\ncurves: null\n",
    "model/resnet18.yaml": "_target_: lockstep.models.ResNet18\nwidth: 2\nstem: small\n"
    "shortcut_norm: true\nbias: false\ndropout: 0.0\ninit: kaiming\n",
}
SIZES = "channels: 1\nimage_size: 16\ntrain_size: 70\nval_size: 23\ntest_size: 31\nseed: 0\n"
for _name in ("synthetic", "fashion_mnist", "cifar10"):
    OPTIONS[f"data/{_name}.yaml"] = f"_target_: lockstep.data.synthetic\nnum_classes: 10\n{SIZES}"


def write_project(folder: Path, *, has_photos: bool, has_weights: bool) -> None:
    """Write train.py, small options, and images of three classes.

    torchvision's networks get random weights.
    """
    shutil.copy(ROOT / "train.py", folder)
    for name, text in OPTIONS.items():
        (folder / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "conf" / name).write_text(text)
    draw = np.random.default_rng(0)
    paths = [
        f"flowers/{name}/{day}_x.jpg"
        for name in ("daisy", "rose", "tulip")
        for day in range(20, 32)
    ]
    for path in [*paths, "photos/0.png"] if has_photos else paths:
        exif = Image.Exif()
        taken = f"2026:05:{Path(path).name[:2]} 12:00:00"
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = taken
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (40, 50, 3), np.uint8)).save(folder / path, exif=exif)
    torch.manual_seed(0)
    for name in ("resnet18", "mobilenet_v3_small") if has_weights else ():
        choices = models.get_model_weights(name)
        weights = choices.DEFAULT  # pyright: ignore[reportAttributeAccessIssue]
        path = folder / "home" / "hub" / "checkpoints" / Path(weights.url).name
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(models.get_model(name).state_dict(), path)


class Reader:
    """Types the blocks of one page."""

    def __init__(
        self,
        folder: Path,
        *,
        more: Sequence[str],
        is_readme: bool,
        has_photos: bool,
        has_weights: bool,
    ) -> None:
        self.folder = folder
        self.more = more
        self.is_readme = is_readme
        self.num_epochs = 1
        self.failures: list[str] = []
        self.cells: list[str] = []
        self.variables = {
            **environ(),
            "TORCH_HOME": str(folder / "home"),
            "PYTHONPATH": str(folder),
        }
        if is_readme:
            del self.variables["OMP_NUM_THREADS"]
        write_project(folder, has_photos=has_photos, has_weights=has_weights)
        self.dated: dict[str, str] = {}  # folders of this reader, by those of the page

    def file(self, example: Example) -> None:
        path = FILE.match(example.parsed)
        if path is not None:
            (self.folder / path[1]).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path[1]).write_text(example.parsed)
        elif example.document.text[example.region.start :].startswith("```python"):
            self.cells.append(example.parsed)

    def lines(self, example: Example) -> None:
        for line in map(str.strip, example.parsed.splitlines()):
            if line and not line.startswith("#"):
                self.run(line)

    def run(self, line: str) -> None:
        if OTHERS.match(line) or (AGAIN.match(line) and not self.is_readme):
            return
        if USES_RUNS.search(line) and not (self.folder / "outputs").exists():
            self.run("python train.py seed=1")
            self.run("python train.py")
        words = [self.here(word) for word in shlex.split(line, comments=True)]
        if ELSEWHERE.search(line):
            check(words)
            return
        is_training = words[:2] in TRAININGS or (words[0] == "torchrun" and "train.py" in words)
        if any(word.startswith("resume=") for word in words):
            self.num_epochs += 1
            words.append(f"trainer.max_epochs={self.num_epochs}")
        elif words[1:3] == ["-m", "timeit"]:
            words[3:7] = ["-r", "1", "-n", "1"]
        elif is_training or "benchmark" in words:
            words = [shorter(word) for word in words]
            # digits train in seconds, and a page uses what the network has learned
            if not any(word.startswith(("debug=", "data=digits")) for word in words):
                words.append("debug=fast")
            words += self.more
        start = time.time()
        done = run([str(BIN / words[0]), *words[1:]], self.folder, self.variables)
        print(f"{time.time() - start:5.1f}", shlex.join(words), flush=True)
        codes = (0, 1) if words[1:3] == ["data", "check"] else (0,)  # 1: it has found something
        if done.returncode not in codes:
            self.failures.append(f"{line}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
        elif "cluster=local" in words:
            self.run("lockstep jobs wait latest")

    def type_row(self, line: str) -> None:
        """Check the settings of a training in a table; run other commands and their trainings."""
        arguments = shlex.split(line, comments=True)
        is_needed = "resume=" in line or "cluster=local" in line
        if arguments[:2] not in TRAININGS or is_needed:
            self.run(line)
            return
        try:
            check([self.here(argument) for argument in arguments])
        except ConfigError as error:
            self.failures.append(f"{line}\n{error}")

    def here(self, word: str) -> str:
        """Return the argument for this folder.

        It names the runs, the first sweep, the images, or a day on which some were taken.
        """

        def folder(match: re.Match[str]) -> str:
            is_sweep = match[1] in ("sweep", "other")
            paths = self.folder.glob(f"outputs/*/*/{'sweep.json' if is_sweep else 'config.yaml'}")
            oldest_first = sorted(paths, key=os.path.getmtime)
            folders = [str(path.parent.relative_to(self.folder)) for path in oldest_first]
            others = [each for each in folders if is_sweep or each not in self.dated.values()]
            return self.dated.setdefault(match[0], others[0] if others else folders[-1])

        word = word.replace("/mnt/flowers", "flowers").replace("animals", "flowers")
        word = word.replace("2026-06-01", "2026-05-26")
        return DATED.sub(folder, word)


def run(words: list[str], cwd: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command as a fork, or a launcher, which starts processes itself, as a new process."""
    if not words[0].endswith("torchrun"):
        return commands.run(words, cwd, variables)
    return subprocess.run(
        words, cwd=cwd, env=variables, capture_output=True, text=True, timeout=PATIENCE_S
    )


def shorter(word: str) -> str:
    """The setting with fewer values, or a smaller one."""
    name, _, value = word.partition("=")
    short = SHORTER.get(name, "")
    is_same_kind = ("," in value) == ("," in short) and "(" not in value
    return f"{name}={short}" if short and is_same_kind else word


def check(words: list[str]) -> None:
    """Compose and check a training as on a machine with four GPUs and a scheduler."""
    if words[:2] not in TRAININGS:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "num_visible_gpus", lambda: 4)
        patch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
        given = [word for word in words[2:] if word != "-m"]
        assert overrides.check(given, is_multirun="-m" in words).configs, words


def read(page: Path, folder: Path) -> None:
    """Type a page in a folder; an AssertionError has what failed."""
    text = page.read_text()
    writes_photos = re.search("^python make_", text, re.MULTILINE)
    reader = Reader(
        folder,
        more=MORE.get(page.stem, ()),
        is_readme=page.stem == "README",
        has_photos=not writes_photos,
        has_weights="experiment=probe" in text,
    )
    parsers = [CodeBlockParser("sh", reader.lines)]
    parsers += [CodeBlockParser(language, reader.file) for language in ("python", "yaml")]
    document = Document.parse(str(page), *parsers)
    for example in document.examples():
        example.evaluate()
    if page.stem.startswith("from-"):
        reader.run("python train.py")  # the commands of a table are for a run of Lockstep's network
        rows = "\n".join(IN_TABLE.findall(document.text))
        for line in dict.fromkeys(IN_LINE.findall(rows)):
            reader.type_row(line)
    (folder / "cells.py").write_text("\n".join(reader.cells))
    reader.run("python cells.py")
    assert not reader.failures, "\n".join(reader.failures)
