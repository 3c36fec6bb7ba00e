"""New runs that start with the weights of another one: after a NaN loss, or to train further."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from lockstep.assembly import checkpoints
from lockstep.config.errors import ConfigError
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, RunFolder
from tests.support import commands
from tests.support.exact import cut_after, train
from tests.support.harness import ROOT, command, difference, own_network, write_run
from tests.support.recipes import INITIAL, OF_MODULE, PLAIN

pytestmark = pytest.mark.full

STILL = ("optimizer.lr=1e-300", "scheduler=constant")  # no weight moves by it, only statistics do


def begun(path: Path, source: RunFolder | str, *overrides: str) -> RunFolder:
    init_from = source if isinstance(source, str) else source.path
    folder = write_run(path, [*INITIAL, f"init_from={init_from}", *overrides])
    checkpoints.keep_initial(folder, str(init_from))
    return folder


def weights(path: Path) -> dict[str, Tensor]:
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    return {name: value for name, value in state.items() if "running" not in name and "num_batches" not in name}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = write_run(tmp_path_factory.mktemp("source") / "run", INITIAL)
    assert train(folder) == 0
    return folder


def test_a_new_run_starts_with_the_weights_of_the_best_checkpoint(source: RunFolder, tmp_path: Path) -> None:
    folder = begun(tmp_path / "new", source, *STILL)
    assert train(folder) == 0
    before, after = weights(source.best_checkpoint), weights(folder.last_checkpoint)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    fresh = write_run(tmp_path / "fresh", [*INITIAL, *STILL])
    assert train(fresh) == 0
    assert not torch.equal(before["net.conv1.weight"], weights(fresh.last_checkpoint)["net.conv1.weight"])


def test_the_weights_stay_when_the_other_run_is_gone(source: RunFolder, tmp_path: Path) -> None:
    other = RunFolder(Path(shutil.copytree(source.path, tmp_path / "other")))
    folders = [begun(tmp_path / name, other, "seed=5") for name in ("immediately", "later")]
    assert train(folders[0]) == 0
    shutil.rmtree(other.path)
    checkpoints.keep_initial(folders[1], str(other.path))  # again, as a trial of a resumed sweep
    assert train(folders[1]) == 0
    assert difference(*folders) == 0


def test_after_a_nan_loss_a_lower_rate_continues_from_the_last_good_weights(tmp_path: Path) -> None:
    recipe = [*own_network("HasADomain"), "trainer.max_epochs=3", "scheduler=constant"]
    typed = [*recipe, "optimizer.lr=0.05", f"hydra.run.dir={tmp_path}/bad"]
    done = commands.run(command(*typed), ROOT)
    assert done.returncode == EXIT_FAILED
    assert "Lower optimizer.lr: divide" in done.stderr
    assert "epoch 1" not in done.stderr, "there must be a checkpoint to start from"
    fixed = [*recipe, "optimizer.lr=1e-5", f"init_from={tmp_path}/bad", f"hydra.run.dir={tmp_path}/good"]
    assert commands.run(command(*fixed), ROOT).returncode == 0
    assert RunFolder(tmp_path / "good").read_summary()["epochs"] == 3


OTHERS = ("data.num_classes=3", "data.channels=3", "seed=5")


def test_a_resumed_run_of_other_classes_keeps_its_own_head(source: RunFolder, tmp_path: Path) -> None:
    uncut, cut = (begun(tmp_path / name, source, *OTHERS, "trainer.max_epochs=2") for name in ("uncut", "cut"))
    assert train(uncut) == 0
    cut_after(cut, 5)
    cut.initial_weights.unlink()
    assert train(cut) == 0
    assert difference(uncut, cut) == 0


def test_a_custom_module_starts_with_all_but_the_head(tmp_path: Path) -> None:
    source = write_run(tmp_path / "source", [*OF_MODULE, *PLAIN, "callbacks=ema"])
    assert train(source) == 0
    folder = write_run(tmp_path / "run", [*OF_MODULE, *PLAIN, "data.num_classes=3", "optimizer.lr=1e-300"])
    tree = yaml.safe_load(folder.config.read_text()) | {"init_from": str(source.path)}
    folder.config.write_text(yaml.safe_dump(tree))
    checkpoints.keep_initial(folder, str(source.path))
    assert train(folder) == 0
    before, after = weights(source.best_checkpoint), weights(folder.last_checkpoint)
    same = {
        name for name in before if before[name].shape == after[name].shape and torch.equal(before[name], after[name])
    }
    assert before.keys() - same == {"net.0.fc.weight", "net.0.fc.bias"}


def test_what_has_no_weights_is_rejected_before_a_folder_is_made(source: RunFolder, tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty", INITIAL)
    broken = tmp_path / "broken.ckpt"
    broken.write_bytes(source.last_checkpoint.read_bytes()[:-100])
    for name, reason in (
        (str(tmp_path / "nowhere"), "nowhere is not a run folder"),
        (str(empty.path), "has no checkpoint yet"),
        (str(broken), "is damaged"),
    ):
        with pytest.raises(ConfigError, match=f"init_from=.*{reason}"):
            checkpoints.initial_checkpoint(name)
    for many in ([], ["-m", "seed=0,1"]):
        done = commands.run(command(*many, *INITIAL, f"init_from={broken}"), tmp_path)
        assert done.returncode == EXIT_CONFIG, done.stderr
        assert f"init_from={broken}" in done.stderr
        assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (
            ("model.width=4", "trainer.devices=2", "init_from={source}"),
            "init_from={source}: the weights are of another network: conv1.weight is [2, 1, 3, 3], expected [4, 1, ",
        ),
        (
            ("model=resnet18_imagenet", "model.width=2", "init_from={source}", "hydra.run.dir=mine"),
            "init_from={source}: the weights are of another network: conv1.weight is [2, 1, 3, 3], expected [2, 1, ",
        ),
        (("task.class_weights=[1,2]",), "task.class_weights has 2 numbers, the data 10 classes"),
    ],
)
def test_what_does_not_fit_leaves_no_run_and_the_latest_one_as_it_was(
    source: RunFolder, tmp_path: Path, more: tuple[str, ...], error: str
) -> None:
    before = tmp_path / "outputs/2026-11-20/before"
    for folder in (before, tmp_path / "mine"):
        folder.mkdir(parents=True)
        (folder / "notes.txt").touch()
    (tmp_path / "outputs/latest").symlink_to("2026-11-20/before")
    texts = [text.format(source=source.path) for text in (*more, error)]
    done = commands.run(command(*INITIAL, *texts[:-1]), tmp_path)
    assert done.returncode == EXIT_CONFIG
    line, end = done.stderr.splitlines()
    assert line.startswith(f"config error: {texts[-1]}")
    assert end == "1 error; nothing was started. See --help."
    files = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if not path.is_dir()]
    assert sorted(files) == ["mine/notes.txt", "outputs/2026-11-20/before/notes.txt"]
    assert (tmp_path / "outputs/latest").resolve() == before


def test_the_trials_of_a_sweep_start_with_them(source: RunFolder, tmp_path: Path) -> None:
    typed = ["-m", *INITIAL, *STILL, f"init_from={source.path}", "seed=0,1", f"hydra.sweep.dir={tmp_path}/sweep"]
    assert commands.run(command(*typed), tmp_path).returncode == 0
    before = weights(source.best_checkpoint)["net.conv1.weight"]
    for number in range(2):
        assert torch.equal(weights(RunFolder(tmp_path / f"sweep/{number}").last_checkpoint)["net.conv1.weight"], before)


def test_the_latest_run_is_the_one_before_this_one(tmp_path: Path) -> None:
    for more in ([], [*STILL, "seed=5", "init_from=outputs/latest"]):
        assert commands.run(command(*INITIAL, *more), tmp_path).returncode == 0
    first, second = sorted((tmp_path / "outputs").glob("20*/*"))
    assert (tmp_path / "outputs/latest").resolve() == second
    states = [weights(RunFolder(path).last_checkpoint)["net.conv1.weight"] for path in (first, second)]
    assert torch.equal(*states)
