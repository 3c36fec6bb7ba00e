"""`lockstep export` for every task, the server of docs/use.md."""

import json
import re
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import lockstep
from lockstep.data.splits import all_pixels
from lockstep.inference import predict
from lockstep.runs.folder import RunFolder
from tests.support import calls, commands, pages
from tests.support.harness import PATIENCE_S, ROOT, SMALL, train_all, wait_until, write_run
from tests.support.image_files import write_image
from tests.support.sources import few_digits

pytestmark = [pytest.mark.full, pytest.mark.processes]
PLAIN = [
    text.replace("float64", "float32") for text in SMALL if not text.startswith(("data", "model"))
]
DIGITS = [
    *PLAIN,
    "model.width=4",
    "data=digits",
    "~data.val_fraction",
    "~data.test_fraction",
    "~data.split_seed",
]
LABELED = [*DIGITS, "data._target_=tests.support.sources.labeled", "global_batch_size=64"]
PHOTOS = [
    *PLAIN,
    "trainer.max_epochs=1",
    "data=image_folder",
    "data.cache=null",
    "augment.crop_padding=0",
    "global_batch_size=8",
]
KINDS = {
    "photos": [
        *(
            *PHOTOS,
            "model.width=4",
            "model.dropout=0.2",
            "data.image_size=[24,16]",
            "data.crop_percent=0.8",
        ),
        *("data.interpolation=bicubic", "callbacks=ema"),
    ],
    "letterbox": [
        *PHOTOS,
        "model=timm",
        "model.name=test_vit",
        "data.image_size=160",
        "data.fit=letterbox",
    ],
    "labels": [*LABELED, "task=multilabel", "+data.kind=labels"],
    "numbers": [*LABELED, "task=regression", "+data.kind=number"],
    "floats": [
        *(
            *DIGITS,
            "augment.crop_padding=0",
            "augment.flip=false",
            "augment.cutout=0",
            "~data.memory",
        ),
        *("data._target_=tests.support.sources.few_digits", "+data.is_float=true"),
        "+data.count=150",  # enough validation images for calibration
    ],
}


def outputs(session: Any, images: Any) -> Any:
    return session.run(None, {"images": images})[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    root = tmp_path_factory.mktemp("export")
    for number in range(48):
        write_image(
            root / "images" / f"{number % 2}" / f"{number}.png",
            number,
            30 + number % 7,
            40 - number % 5,
        )
    of_photos = [f"data.root={root / 'images'}"]
    folders = {
        kind: write_run(
            root / kind, [*overrides, *(of_photos if "data=image_folder" in overrides else [])]
        )
        for kind, overrides in KINDS.items()
    }
    train_all([*folders.values()], 1)
    return folders


def exported(run: RunFolder, output: Path, *options: str) -> Path:
    """The file that `lockstep export` writes."""
    done = calls.lockstep(
        run.path.parent, "export", run.path, "--output", output, "--trust", *options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return output


@pytest.fixture(scope="module")
def photos_onnx(trained: dict[str, RunFolder]) -> Path:
    return exported(trained["photos"], trained["photos"].path.parent / "network.onnx")


def test_export_of_photographs(
    trained: dict[str, RunFolder], photos_onnx: Path, tmp_path: Path
) -> None:
    """A .pt2 file: unit/inference/test_export.py."""
    letterbox_onnx = exported(trained["letterbox"], tmp_path / "new" / "letterbox.onnx")
    for kind, file in (("photos", photos_onnx), ("letterbox", letterbox_onnx)):
        run = trained[kind]
        session = onnxruntime.InferenceSession(file)
        facts = json.loads(session.get_modelmeta().custom_metadata_map["lockstep"])
        assert facts["class_names"] == ["0", "1"]
        network = lockstep.load(run.path, device="cpu", trust=True)
        module, preprocessing = network._module, network._preprocessing
        apart: list[float] = []
        for path in sorted((run.path.parent / "images").rglob("*.png"))[::8]:
            image = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)[None]
            expected = network(path).values
            inputs = (preprocessing(image).float() - module.mean) / module.std
            draw = torch.Generator().manual_seed(0)
            signs = [torch.rand(inputs.shape, generator=draw).sub(0.5).sign() for _ in range(4)]
            near = [predict.predictions(module, inputs + sign / module.std)[0] for sign in signs]
            limit = 1e-5 + 3 * max((one - expected).abs().max().item() for one in near)
            found = outputs(session, image.numpy())
            assert np.abs(found[0] - expected.numpy()).max() <= limit, path
            other = predict.predictions(module, replace(preprocessing, crop_percent=0.5)(image))[0]
            apart.append((other - expected).abs().max().item() / limit)
        assert max(apart) > 2 or kind == "letterbox"


def test_export_answers(trained: dict[str, RunFolder], tmp_path: Path) -> None:
    """A file answers above the threshold of its run. Its classes: unit/inference/test_export.py."""
    run = commands.copy_with_rule(trained["photos"], tmp_path / "run", 0.6)
    file = exported(run, tmp_path / "out.onnx", "--max-error", "0.05")
    session = onnxruntime.InferenceSession(file)
    assert [output.name for output in session.get_outputs()] == ["predictions", "answer"]
    facts = json.loads(session.get_modelmeta().custom_metadata_map["lockstep"])
    assert (facts["max_error"], facts["threshold"]) == (0.05, pytest.approx(0.6))
    words = ("export", run.path, "--trust", "--max-error", "0.05", "calibrate=false")
    assert calls.lockstep(tmp_path, *words).returncode == 2


@pytest.mark.parametrize(
    ("kind", "checkpoint"), [("labels", "last"), ("numbers", "last"), ("floats", "best")]
)
def test_export_of_task(
    trained: dict[str, RunFolder], tmp_path: Path, kind: str, checkpoint: Any
) -> None:
    """The best checkpoint is calibrated."""
    run = trained[kind]
    saved = torch.load(run.best_checkpoint, weights_only=True)
    assert checkpoint == "last" or abs(saved["calibration"]["slope"] - 1) > 0.05
    file = exported(run, tmp_path / "out.onnx", "--checkpoint", checkpoint)
    images = all_pixels(few_digits(is_float=kind == "floats").test.pixels)
    session = onnxruntime.InferenceSession(file)
    found = outputs(session, images.numpy())
    network = lockstep.load(run.path, checkpoint=checkpoint, device="cpu", trust=True)
    assert np.abs(found - network(images).values.numpy()).max() <= 1e-4


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (
            "OfFixedBatch",
            r"makes the number of images a constant: use x\.shape\[0\] in place of len\(x\)\n",
        ),
        (
            "OfValues",
            r"Could not guard on data-dependent expression .*, "
            r"in \S+networks\.py:\d+ \(forward\): ",
        ),
    ],
)
def test_export_refused(tmp_path: Path, network: str, reason: str) -> None:
    """It leaves no file."""
    small = [text for text in SMALL if not text.startswith("model")]
    run = write_run(tmp_path / "run", [*small, f"model._target_=tests.support.networks.{network}"])
    train_all([run], 1)
    done = calls.lockstep(tmp_path, "export", run.path, "--output", "out.onnx", "--trust")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert re.search(reason, done.stderr), done.stderr
    assert not list(tmp_path.glob("*out*"))


# -- docs/use.md -----------------------------------------------------------------------------------


def test_server_of_page(photos_onnx: Path, tmp_path: Path) -> None:
    text = pages.files(ROOT / "docs" / "use.md")["serve.py"]
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "serve.py").write_text(text.replace("8000", str(port)))
    write_image(tmp_path / "photo.png", seed=1, height=50, width=70)
    words = [sys.executable, tmp_path / "serve.py"]
    server = subprocess.Popen(words, cwd=photos_onnx.parent, stderr=subprocess.DEVNULL)
    try:

        def answers() -> bool:
            assert server.poll() is None
            with socket.socket() as client:
                return client.connect_ex(("localhost", port)) == 0

        wait_until(answers, "the server")
        body = (tmp_path / "photo.png").read_bytes()
        with urllib.request.urlopen(f"http://localhost:{port}", body, PATIENCE_S) as answer:
            found = json.load(answer)
    finally:
        server.kill()
        server.wait()
    pixels = np.asarray(Image.open(tmp_path / "photo.png")).transpose(2, 0, 1)[None]
    expected = outputs(onnxruntime.InferenceSession(photos_onnx), pixels)
    assert found == pytest.approx(
        dict(zip(("0", "1"), expected[0].tolist(), strict=True)), abs=1e-6
    )
