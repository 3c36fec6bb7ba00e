"""Secrets of a run are in the private files that resume it, and nowhere else."""

import functools
import json
import shutil
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from lockstep.benchmark import report, results
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.schema.configuration import BenchmarkConfig
from lockstep.monitoring.comparison import differences
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, RunFolder
from lockstep.system.provenance import describe
from tests.support import sweeps
from tests.support.commands import run
from tests.support.harness import ROOT, SMALL, command, environ
from tests.support.http_server import Handler
from tests.support.image_files import write_folder
from tests.support.leaks import keepers

OWN = "+callbacks.own={_target_:tests.support.callbacks.Secretive}"


@pytest.mark.full
@pytest.mark.processes
def test_secrets_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It resumes with a URL that was signed again."""
    shutil.make_archive(
        str(tmp_path / "web" / "flowers"), "zip", write_folder(tmp_path / "images", count=20)
    )
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path / "web"))
    ) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/flowers.zip"

        def train(signature: str, *words: str) -> int:
            monkeypatch.setattr(Handler, "signature", f"sig={signature}")
            done = run(command(*words), tmp_path, {**environ(), "PYTHONPATH": str(ROOT)})
            assert "hunter" not in done.stdout + done.stderr
            return done.returncode

        data = ["data=image_folder", "data.image_size=16", "data.cache=cache", "data.num_workers=1"]
        data += [
            "data.val_fraction=0.2",
            "data.test_fraction=0.2",
            f"data.root='zip://::{address}?sig=hunter1'",
        ]
        secret = [OWN, "+callbacks.own.api_token=hunter1", "+strategy.variables.HF_TOKEN=hunter1"]
        secret += ["+strategy.variables.OWN_PROXY='http://me:hunter1@h:1'"]
        secret += ["logger=[tensorboard,wandb]", "logger.wandb.offline=true"]
        kept = [word for word in SMALL if not word.startswith("data")]
        resume = ("resume=outputs/latest", "--trust", "trainer.max_epochs=2")
        assert train("hunter1", *kept, *data, *secret, "trainer.max_epochs=1") == 0
        assert train("hunter2", *resume) == EXIT_CONFIG
        assert train("hunter2", *resume, f"data.root='zip://::{address}?sig=hunter2'") == 0
        server.shutdown()
    folder = RunFolder(tmp_path / "outputs" / "latest")
    assert [row["epoch"] for row in folder.read_metrics()] == ["1", "2"]
    assert keepers(tmp_path / "outputs") == {"config.yaml"}
    assert keepers(tmp_path / "cache") == set()
    assert "sig=hunter2" in folder.config.read_text()


@pytest.mark.full
@pytest.mark.processes
def test_secrets_of_sweep(tmp_path: Path) -> None:
    words = [*sweeps.TINY, OWN, "+callbacks.own.api_token=hunter1,fail-hunter2"]
    for _ in range(2):  # the second command resumes it
        done = sweeps.run(tmp_path, *words, code=EXIT_FAILED)
        assert "hunter" not in done.stdout + done.stderr
    assert keepers(tmp_path / "outputs") == {"config.yaml", "sweep.json"}
    trials = sweeps.trials_of(tmp_path)
    assert [trial.read_status()["state"] for trial in trials] == ["finished", "failed"]
    assert "for api_token=***" in trials[1].read_status()["reason"]
    assert differences(trials) == []


def test_secrets_of_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["+benchmark=default", OWN, "+callbacks.own.api_token=hunter1"]
    config = validation.check_config(compose.compose_config(texts))
    assert isinstance(config, BenchmarkConfig)
    found = results.new_benchmark(tmp_path, config, texts)
    assert "api_token=***" in json.dumps(report.facts(found))
    monkeypatch.setattr("sys.argv", ["train.py", *texts])
    assert "hunter" not in json.dumps([found, report.facts(found), describe()])
