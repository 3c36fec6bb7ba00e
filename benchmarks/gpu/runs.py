"""Trainings from typed commands: the first run, all options together, and runs that stop or fail."""

import csv
import re
import subprocess
import time
from importlib.util import find_spec

import torch
from PIL import Image

from benchmarks.gpu.exactness import BITWISE
from benchmarks.gpu.stage import Aim, Bench, command
from lockstep.runs.folder import EXIT_FAILED, EXIT_STOPPED, RunFolder
from tests.support.harness import difference

DATA = ("data=synthetic", "data.train_size=2000", "data.test_size=400")
TINY = ("trainer.devices=1", "trainer.max_epochs=2", "callbacks.curves=null", "callbacks.pictures=null")
NARROW = ("model.width=8",)
ALL = (
    *("trainer.deterministic=true", "trainer.gradient_clip_norm=0.5", "trainer.accumulate_grad_batches=2"),
    *("augment.crop_padding=2", "augment.flip=alternating", "augment.cutout=4", "augment.erasing=0.25"),
    *("augment.trivial=true", "augment.mixup=0.2", "augment.cutmix=1"),
    *("optimizer=adamw", "model.dropout=0.2", "callbacks=ema", "flip_test=true"),
)


def smoke(bench: Bench) -> None:
    """Train, go on, evaluate and predict: whether anything works at all."""
    folder, _ = bench.train("train", *DATA, *NARROW, *TINY)
    command("resume", "train.py", f"resume={folder.path}", "trainer.max_epochs=3").expect(0)
    summary = folder.read_summary()
    is_right = summary["epochs"] == 3 and summary["device"] == torch.cuda.get_device_name(0)
    facts = f"{summary['epochs']} epochs on {summary['device']}, {summary['precision']}"
    bench.check("trained, resumed, on the GPU", is_right, facts)
    bench.figure("test accuracy on synthetic images", [summary["test_accuracy"]], "{:.4f}", Aim(">=", 0.5))

    def evaluate(bench: Bench) -> None:
        done = command("eval", "-m", "lockstep.cli.main", "eval", str(folder.path))
        done.expect(0)
        again = re.search(r"accuracy\s+([\d.]+)", done.output)
        is_same = again is not None and abs(float(again[1]) - summary["test_accuracy"]) < 1e-6
        bench.check("eval repeats the accuracy", is_same, again[1] if again else "none printed")

    def predict(bench: Bench) -> None:
        path = bench.scratch / "predictions.csv"
        command(
            "predict", "-m", "lockstep.cli.main", "predict", str(folder.path), "test", "--output", str(path)
        ).expect(0)
        with path.open() as file:
            count = len(list(csv.DictReader(file)))
        bench.check("predict answers for every image", count == summary["test_images"], f"{count} answers")

    bench.together(("eval", evaluate), ("predict", predict))


def options(bench: Bench) -> None:
    """All side by side, but for the one that takes all memory."""
    bench.together(
        ("all options together", _everything),
        ("streamed images", _streamed),
        ("float32", _float32),
        ("SIGTERM and resume", _stopped),
    )
    bench.attempt("out of memory", _out_of_memory)


def _everything(bench: Bench) -> None:
    _, done = bench.train("everything", *DATA, *NARROW, *TINY, *ALL, "data.memory=host")
    bench.check("all options together, from host memory", "in host memory" in done.output)


def _streamed(bench: Bench) -> None:
    images = bench.scratch / "images"
    for number in range(120):
        path = images / f"class{number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((32, 32), 60).convert("RGB").save(path)
    data = ("data=image_folder", f"data.root={images}", "data.memory=stream", "data.num_workers=4")
    _, done = bench.train("streamed", *data, *NARROW, *TINY, *ALL)
    bench.check("all options together, streamed", "streamed by 4 processes" in done.output)


def _float32(bench: Bench) -> None:
    folder, _ = bench.train("float32", *DATA, *NARROW, *TINY, "trainer.precision=float32")
    precision = folder.read_summary()["precision"]
    bench.check("trained in float32", precision == "float32", precision)


def _stopped(bench: Bench) -> None:
    """Cut after its first epoch, resumed, and compared with the training that was never cut."""
    settings = (*DATA, *NARROW, *TINY, "trainer.deterministic=true", "trainer.max_epochs=8")
    cut = RunFolder(bench.scratch / "cut")

    def terminate(process: subprocess.Popen[str]) -> None:
        while process.poll() is None and not cut.read_metrics():
            time.sleep(0.01)
        process.terminate()

    command("cut", "train.py", *settings, f"hydra.run.dir={cut.path}", meanwhile=terminate).expect(EXIT_STOPPED)
    bench.check("SIGTERM: stopped, resumable", cut.read_status()["state"] == "stopped", cut.read_status()["reason"])
    command("go on", "train.py", f"resume={cut.path}").expect(0)
    uncut, _ = bench.train("uncut", *settings)
    bench.figure("SIGTERM and resume against uncut", [difference(cut, uncut)], "{:.1e}", BITWISE)


def _out_of_memory(bench: Bench) -> None:
    """One activation takes a tenth of the GPU, and a ResNet-18 keeps about twenty of them."""
    width, size, num_bytes = 64, 32, 8
    batch = torch.cuda.get_device_properties(0).total_memory // (10 * num_bytes * width * size**2)
    settings = ["data=synthetic", f"data.image_size={size}", f"data.train_size={batch}", f"model.width={width}"]
    settings += [f"global_batch_size={batch}", "trainer.precision=float64"]
    folder, done = bench.train("memory", *settings, *TINY, code=EXIT_FAILED)
    reason = folder.read_status()["reason"]
    is_named = "memory" in reason and "accumulate_grad_batches" in done.output
    bench.check("out of memory: ends, and names the hint", is_named, f"after {done.seconds:.0f} s: {reason[:120]}")


def tests(bench: Bench) -> None:
    """The tests that know a GPU, without the settings of pyproject.toml that need plug-ins."""
    if find_spec("pytest") is None:
        raise SystemExit("pytest is missing: bring its wheel")
    done = command("pytest", "-m", "pytest", "-o", "addopts=", "-v", "-m", "gpu", "tests/system/test_gpu.py")
    last = done.output.strip().splitlines()[-1].strip("= ")
    bench.check("tests/system/test_gpu.py", done.code == 0 and "passed" in last and "skipped" not in last, last)
