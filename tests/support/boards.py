"""Made-up run folders, and TensorBoard with the Training tab on them."""

import itertools
import json
import logging
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensorboard import program
from tensorboard.backend import application
from tensorboard.plugins.core import core_plugin
from werkzeug.serving import make_server
from werkzeug.test import Client

from lockstep.board.plugin import NAME, TrainingLoader
from lockstep.config.overrides import plan
from lockstep.config.saved import config_file
from lockstep.runs import files
from lockstep.runs.folder import RunFolder
from lockstep.trials.ledger import Ledger
from tests.support.harness import environ

BASE = f"/data/plugin/{NAME}"
LOCAL = "http://localhost:6006"
JSON = "application/json"


def write_run(path: Path, state: str | None = "training", **fields: Any) -> RunFolder:
    """Write a run folder, with a status unless `state` is None.

    A live run seems to train on another machine.
    """
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.config.write_text("seed: 0\n")
    folder.claim()
    if state is not None:
        known = {"state": state, "host": "elsewhere", "started": time.time() - 60, "metrics": {}}
        folder.write_status(**{**known, **fields})
    return folder


def write_rows(folder: RunFolder, num_epochs: int) -> None:
    files.write_rows(
        folder.metrics,
        [
            {"epoch": epoch, "step": 10 * epoch, "train/loss": 2 / epoch, "val/loss": 2.5 / epoch}
            | {"train/accuracy": 1 - 0.8 / epoch, "val/accuracy": 1 - 0.9 / epoch}
            for epoch in range(1, num_epochs + 1)
        ],
    )


def write_trials(path: Path, results: Mapping[tuple[str, ...], float]) -> list[RunFolder]:
    """Write a sweep of finished trials with these validation accuracies.

    The keys are the overrides of the trials.
    """
    config = plan(["data=digits"]).configs[0]
    values: dict[str, dict[str, None]] = defaultdict(dict)
    for override in itertools.chain(*results):
        key, _, value = override.partition("=")
        values[key][value] = None
    ledger = Ledger(
        path, None, ("model.width=8", *(f"{key}={','.join(each)}" for key, each in values.items()))
    )
    for number, (overrides, accuracy) in enumerate(results.items()):
        monitor = {"best": accuracy, "monitor": "val/accuracy", "mode": "max"}
        progress = {"epoch": 2, "max_epochs": 2, "percent": 100.0, "started": 1e9 + number}
        folder = write_run(path / str(number), "finished", **monitor, **progress)
        folder.note(overrides=["model.width=8", *overrides])
        rows = [
            {"epoch": epoch, "train/loss": 2 / epoch, "val/accuracy": accuracy * epoch / 2}
            for epoch in (1, 2)
        ]
        files.write_rows(folder.metrics, rows)
        folder.write_summary({"best": accuracy, "training_s": 60.0 + number})
        if number == 0:
            config_file.save(config, folder.config)
        ledger.add(overrides, str(number))
    ledger.write()
    return [trial.folder for trial in ledger.trials]


def save_checkpoint(folder: RunFolder) -> None:
    folder.checkpoints.mkdir()
    folder.last_checkpoint.touch()


def board(root: Path | str, *flags: str, control: str | None = "--training_control=on") -> Client:
    """TensorBoard with the tab in this process, without its reader of event files."""
    flags = (control, *flags) if control else flags
    found = program.TensorBoard(plugins=[core_plugin.CorePluginLoader(), TrainingLoader()])
    found.configure(("", f"--logdir={root}", *flags))
    return Client(application.TensorBoardWSGIApp(found.flags, found.plugin_loaders))


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve a web application from a thread of this process, at the address it yields."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line for each request
    server = make_server("localhost", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def running(cwd: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `lockstep board`; yields its process, and the address of the tab that it prints."""
    words = [sys.executable, "-m", "lockstep.cli.main", "board", *arguments]
    with subprocess.Popen(
        words, cwd=cwd, env=environ(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield process, next(word for word in line.split() if word.startswith("http"))
        finally:
            process.kill()


def told(answer: Any) -> Any:
    return json.loads(answer.get_data(as_text=True))


def listed(client: Client) -> dict[str, dict[str, Any]]:
    return {
        facts["run"]: facts for facts in told(client.get(f"{BASE}/runs", base_url=LOCAL))["runs"]
    }


def post(
    client: Client, address: str, body: dict[str, Any], base_url: str = LOCAL, **changes: Any
) -> Any:
    """What a button of the page does, but for `changes`."""
    headers = {"Sec-Fetch-Site": "same-origin", "Origin": base_url}
    headers |= changes.pop("headers", {})
    options = {"data": json.dumps(body), "content_type": JSON, "method": "POST", **changes}
    return client.open(f"{BASE}/{address}", base_url=base_url, headers=headers, **options)
