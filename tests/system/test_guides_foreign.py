"""The pages for those who come from elsewhere: every command in their tables and blocks is run, or checked for GPUs."""

import itertools
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from lockstep.config import overrides
from lockstep.config.composing.compose import parse_override
from lockstep.runs import naming
from lockstep.runs.folder import RunFolder
from lockstep.system import hardware
from tests.support import commands
from tests.support.guides import BLOCK, guides, project_of, run, trained
from tests.support.harness import ROOT, command, difference, wait_until

pytestmark = [pytest.mark.full, pytest.mark.processes]
NAMES = ("from-lightning-hydra-template", "from-composer", "from-matlab", "from-d2l")
SMALL = ("debug=fast", "eval_batch_size=32", "callbacks.pictures=null", "callbacks.curves=null")
DIGITS = ("data=synthetic", "data.train_size=70", "data.image_size=16")
CODE = re.compile(r"`((?:python train\.py|lockstep )[^`]*)`")
WINDOWS = ("board",)  # what opens a server, which test_readme.py starts
NEEDS_GPUS = ("strategy=ddp", "strategy=single_device", "cluster=slurm", "trainer.devices=[1]")
OF_JOBS = ("cluster=local",)
TRAINED: set[str] = set()  # commands of several pages, which are run once


def page(name: str) -> Path:
    return ROOT / "docs" / f"{name}.md"


def typed(name: str) -> list[list[str]]:
    """Every command of a page as words, in order; blocks that belong to files of their own have their own test."""
    text = page(name).read_text()
    rows = [shlex.split(line) for line in CODE.findall(BLOCK.sub("", text))]
    has_files = any(guide.files for guide in guides(page(name)).values())
    blocks = [] if has_files else [list(words) for guide in guides(page(name)).values() for words in guide.commands]
    return [*blocks, *rows]


def needs_gpus(words: list[str]) -> bool:
    return any(word in NEEDS_GPUS for word in words)


def smaller(words: list[str]) -> list[str]:
    """A training that takes a second and downloads nothing."""
    has_data = any(word.startswith(("data=image_folder", "resume=")) for word in words)
    kept = [word for word in words if not word.startswith(("data=fashion", "experiment="))]
    fewer = [word.replace("pretrained=true", "pretrained=false") for word in kept if not word.startswith("debug=")]
    known = {parse_override(word).key_or_group for word in fewer if "=" in word}
    of_recipe = [
        *(["model=resnet18_d2l", "scheduler=constant"] if any("d2l" in word for word in words) else []),
        *(["model.width=2"] if not known & {"model", "model.width"} else []),
        *(["model.width=2"] if "model=resnet18_d2l" in words else []),
        *(["data.image_size=16"] if "data=image_folder" in words and "data.image_size" not in known else []),
    ]
    return [*fewer, *(() if has_data else DIGITS), *of_recipe, *SMALL]


def images(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        noise = torch.randint(0, 256, (16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))
        Image.fromarray(noise.numpy()).save(folder / f"{number}.png")


def done(folder: Path, words: list[str]) -> str:
    """What a command says, which must end well."""
    line = command(*words[2:]) if words[0] == "python" else [*command()[:1], "-m", "lockstep", *words[1:]]
    result = commands.run(line, folder)
    assert result.returncode == 0, f"{shlex.join(words)}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.parametrize("name", NAMES)
def test_commands_for_gpus_and_clusters_are_right_where_there_are_some(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 4)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
    for words in typed(name):
        if words[:2] == ["python", "train.py"]:
            is_multirun = "-m" in words
            texts = [word for word in words[2:] if word != "-m"]
            assert overrides.check(texts, is_multirun=is_multirun).configs, words


@pytest.mark.parametrize("name", NAMES)
def test_every_command_runs(name: str, tmp_path: Path) -> None:
    for species in ("rose", "tulip"):
        images(tmp_path / "flowers" / species, 20)
    images(tmp_path / "photos", 3)
    done(tmp_path, smaller(["python", "train.py"]))  # a run to begin with
    first = (tmp_path / "outputs" / "latest").resolve()
    num_run, num_epochs = 0, itertools.count(2)  # a resumed run is longer each time
    for words in typed(name):
        # verify goes with files of one's own, below
        if (
            needs_gpus(words)
            or words[1] in (*WINDOWS, "jobs", "stop", "verify")
            or any(word in OF_JOBS for word in words)
        ):
            continue
        naming.link_latest(tmp_path / "outputs", first)
        if words[1] == "benchmark":
            done(tmp_path, smaller(words))
        elif words[:2] == ["python", "train.py"]:
            resumes = any(word.startswith("resume=") for word in words)
            line = [*words, f"trainer.max_epochs={next(num_epochs)}"] if resumes else smaller(words)
            if resumes or shlex.join(line) not in TRAINED:
                done(tmp_path, line)
            TRAINED.add(shlex.join(line))
        else:
            done(tmp_path, words)
        num_run += 1
    assert num_run > 5


def test_a_job_is_asked_about_stopped_and_deleted_as_matlab_does(tmp_path: Path) -> None:
    (submit,) = [words for words in typed("from-matlab") if "cluster=local" in words]
    jobs = [words for words in typed("from-matlab") if words[1] == "jobs"]
    assert [words[2] for words in jobs] == ["show", "list", "wait", "follow", "result", "cancel", "delete"]
    assert "outputs" in done(tmp_path, smaller(submit))
    asked = {words[2]: words for words in jobs}
    for verb in ("wait", "show", "list", "follow", "result"):
        assert done(tmp_path, asked[verb]), verb
    long = [word for word in smaller(submit) if not word.startswith("debug=")]
    done(tmp_path, [*long, "trainer.max_epochs=2000"])
    folder = RunFolder((tmp_path / "outputs" / "latest").resolve())
    wait_until(lambda: folder.read_status().get("state") == "training", "training")
    done(tmp_path, asked["cancel"])
    wait_until(lambda: folder.read_status().get("state") == "stopped", "the end of the job")
    wait_until(lambda: not folder.has_job_here(), "the end of its process")
    done(tmp_path, asked["delete"])
    assert not folder.path.exists()


def test_the_losses_of_the_matlab_page_train_the_same_on_two_workers(tmp_path: Path) -> None:
    project = project_of(page("from-matlab"), tmp_path / "project")
    (guide,) = [guide for guide in guides(page("from-matlab")).values() if guide.files]
    assert len(guide.commands) == 2
    precise = ("trainer.max_epochs=2", "trainer.precision=float64", "strategy=cpu", "model.width=2")
    for words in guide.commands:
        runs = [
            trained(project, *words, *precise, f"trainer.devices={number}", *SMALL[1:], *DIGITS) for number in (1, 2)
        ]
        assert difference(*runs) <= 1e-12


def test_the_python_of_the_matlab_page_runs(tmp_path: Path) -> None:
    images(tmp_path / "photos", 2)
    blocks = [text for kind, text in BLOCK.findall(page("from-matlab").read_text()) if kind == "python"]
    (block,) = [text for text in blocks if "lockstep.train(" in text]
    narrow = block.replace('"trainer.devices=1"', '"trainer.devices=1", "model.width=2"')
    expected = "assert scores.shape == (2, 10) and len(labels) == 2 and trials == [run]\n"
    (tmp_path / "it.py").write_text(f"{narrow}\n{expected}")
    result = commands.run([command()[0], "it.py"], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_lightning_module_of_the_template_trains_and_is_exact(tmp_path: Path) -> None:
    project = project_of(page("from-lightning-hydra-template"), tmp_path / "project")
    (guide,) = [guide for guide in guides(page("from-lightning-hydra-template")).values() if guide.files]
    train, verify = guide.commands
    small = ("trainer.max_epochs=2", "trainer.limit_train_batches=4", "strategy=cpu", "data.num_workers=1")
    assert trained(project, *train, *small)
    assert "Exact: nothing differs by more than " in run(project, *verify, "data.num_workers=1")


def test_the_recipe_of_d2l_is_that_of_its_page() -> None:
    one, _, scaled = ([*words] for words in guides(page("from-d2l"))["Its recipe"].commands)
    config = overrides.check(one[2:], is_multirun=False).configs[0]
    assert (config.global_batch_size, config.optimizer.arguments()["lr"], config.trainer.max_epochs) == (256, 0.1, 10)
    assert config.optimizer.arguments()["momentum"] == config.optimizer.arguments()["weight_decay"] == 0
    assert "scale_with_workers=true" in scaled
