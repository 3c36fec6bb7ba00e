"""The tab Training of TensorBoard, which lists runs, shows one, stops it and keeps notes.

guard.py checks the permission. Every `tensorboard` command imports this module, so it needs nothing
that TensorBoard does not need itself. A page refers to a run by its id, never by a path.
"""

import argparse
import json
import os
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug.wrappers import Request, Response

from lockstep.board.guard import Guard, Refusal
from lockstep.board.sweeps import Sweeps, test_result
from lockstep.runs import discovery, naming, permissions
from lockstep.runs.files import JsonObject, to_json, write_json
from lockstep.runs.folder import LIVE_STATES

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

NAME = "lockstep_training"  # This is also the fragment of the tab's address.
STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css"}
SCAN_EVERY_S = 1.5
MAX_ROWS = 2000


class TrainingLoader(base_plugin.TBLoader):
    """Entry point for TensorBoard."""

    def define_flags(self, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("Training tab of Lockstep")
        group.add_argument(
            "--training_control",
            choices=("on", "off"),
            default="off",
            help=(
                "Allow everyone who can reach TensorBoard to stop runs and write notes. "
                "Default: off."
            ),
        )
        group.add_argument(
            # TensorBoard spells its flags with underscores.
            "--training_hosts",
            "--training-hosts",
            default="",
            metavar="NAMES",
            help=(
                "Comma-separated host names under which runs are shown, "
                "in addition to those of this machine."
            ),
        )

    def load(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, context: base_plugin.TBContext
    ) -> "TrainingPlugin | None":
        """Return the tab if TensorBoard shows one local folder, or else None."""
        if not context.logdir or "://" in context.logdir or context.flags is None:
            return None
        return TrainingPlugin(Path(context.logdir).expanduser().resolve(), Guard(context.flags))


class TrainingPlugin(base_plugin.TBPlugin):
    """Serves the addresses of the tab, below /data/plugin/lockstep_training/."""

    plugin_name = NAME

    def __init__(self, root: Path, guard: Guard) -> None:
        self._root = root
        self._guard = guard
        self._watcher = discovery.RunWatcher(root, scan_every_s=SCAN_EVERY_S)
        self._sweeps = Sweeps(self._watcher)
        # TensorBoard answers each request in a thread.
        self._notes_lock = threading.Lock()

    def get_plugin_apps(self) -> "dict[str, WSGIApplication]":
        """Return WSGI applications by address.

        Only /stop and /notes change anything.
        """
        return {
            f"/{path.name}": _file(path) for path in STATIC.iterdir() if path.suffix in TYPES
        } | {
            "/runs": self._application("GET", self._list),
            "/run": self._application("GET", self._show),
            "/sweep": self._application("GET", self._show_sweep),
            "/importance": self._application("GET", self._weigh_settings),
            "/control": self._application(
                "GET", lambda request: {"reason": self._guard.refusal(request)}
            ),
            "/stop": self._application("POST", self._stop),
            "/notes": self._application("POST", self._write_notes),
        }

    def is_active(self) -> bool:
        """Show the tab even without runs, because it then explains how to start one."""
        return True

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        return base_plugin.FrontendMetadata(
            es_module_path="/index.js", tab_name="Training", disable_reload=True
        )

    def _list(self, request: Request) -> JsonObject:
        """Return all runs and a row for each sweep, with the overrides in which they differ."""
        runs = [
            run.facts | test_result(run.facts["metrics"])
            for run in discovery.all_runs(self._watcher)
        ]
        sweeps = self._sweeps.rows()
        overrides = discovery.differing_overrides(
            [*(run for run in runs if "sweep" not in run), *sweeps]
        )
        return {"runs": runs, "sweeps": sweeps, "differing": overrides, "folder": self._root.name}

    def _show(self, request: Request) -> JsonObject:
        """Return the details of one run.

        They are rows, the confusion matrix, its commands, and the name of the curve over steps.
        """
        run = self._find(request.args.get("id"))
        rows = discovery.read_rows(run.folder)
        step = -(-len(rows) // MAX_ROWS) or 1
        return {
            "rows": rows[::-step][::-1],  # The last row is included.
            "resume": discovery.resume_command(run),
            "command": (
                f"{naming.training_command()} {shlex.join(discovery.read_run(run)['overrides'])}"
            ).rstrip(),
            "curves": {
                "run": os.path.relpath(run.folder.curves("train"), self._root),
                "tag": "loss/step",
            },
            "confusion": discovery.read_confusion(run.folder),
        }

    def _weigh_settings(self, request: Request) -> JsonObject:
        """Return the importance of the settings of a search.

        A page requests it when a trial has finished.
        """
        # TensorBoard does not need optuna, which this module imports.
        from lockstep.board.importance import importance_in

        sweep_name = request.args.get("name", "")
        if sweep_name not in {run.sweep for run in self._watcher.runs().values()}:
            raise Refusal(404, "This sweep no longer exists.")
        try:
            return importance_in(self._root / sweep_name)
        except Exception as error:
            # Optuna does not check the content.
            raise Refusal(404, f"The study cannot be read: {type(error).__name__}.") from error

    def _show_sweep(self, request: Request) -> JsonObject:
        try:
            return self._sweeps.describe(request.args.get("name", ""))
        except KeyError as error:
            raise Refusal(404, "This sweep no longer exists.") from error
        except (OSError, ValueError) as error:
            raise Refusal(404, f"This sweep cannot be shown: {error}") from error

    def _stop(self, request: Request) -> JsonObject:
        self._guard.admit(request)
        run = self._find(_request_body(request).get("run"), is_fresh=True)
        state = discovery.read_run(run)["state"]
        if state not in LIVE_STATES:
            raise Refusal(409, f"{run.name} is not running: {state}.")
        try:
            permissions.need_made_here(run.folder, "stop it where it was started")
            run.folder.request_stop("Training tab of TensorBoard")
        except OSError as error:
            raise Refusal(
                403, f"{run.name} cannot be stopped from here: {error.strerror}."
            ) from error
        return {"message": f"Stop requested for {run.name}; it saves a checkpoint first."}

    def _write_notes(self, request: Request) -> JsonObject:
        self._guard.admit(request, max_bytes=discovery.MAX_NOTES_BYTES)
        body = _request_body(request)
        note, tags = body.get("note"), body.get("tags")
        texts = [note, *tags] if isinstance(tags, list) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise Refusal(400, 'Expected {"run": id, "note": text, "tags": [text]}.')
        run = self._find(body.get("run"), is_fresh=True)
        with self._notes_lock:
            if body.get("noted", 0) != discovery.modified_ns(run.folder.notes) / 1e9:
                raise Refusal(
                    409, f"Not saved: notes.json of {run.name} was changed, or cannot be read."
                )
            try:
                permissions.need_made_here(run.folder, "copy what you need from it")
                write_json(run.folder.notes, {"note": note, "tags": tags})
            except OSError as error:
                raise Refusal(
                    403, f"No note can be written for {run.name}: {error.strerror}."
                ) from error
        return {"message": f"Note of {run.name} saved."}

    def _find(self, key: Any, *, is_fresh: bool = False) -> discovery.DiscoveredRun:
        run = self._watcher.runs(is_fresh=is_fresh).get(key) if isinstance(key, str) else None
        if run is None:
            raise Refusal(404, "This run no longer exists.")
        return run

    def _application(
        self, method: str, answer: Callable[[Request], JsonObject]
    ) -> "WSGIApplication":
        """Wrap `answer` as an application for one method under a known host.

        Its JSON may be a refusal.
        """

        def respond(request: Request) -> Response:
            try:
                self._guard.hosts.check(request)
                if request.method != method:
                    raise Refusal(405, f"{method} only.")
                return http_util.Respond(request, to_json(answer(request)), "application/json")
            except Refusal as refusal:
                return http_util.Respond(
                    request, {"message": refusal.reason}, "application/json", code=refusal.code
                )

        return Request.application(respond)


def _request_body(request: Request) -> JsonObject:
    try:
        body = json.loads(request.get_data())
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or "run" not in body:
        raise Refusal(400, 'Expected {"run": id}.')
    return body


def _file(path: Path) -> "WSGIApplication":
    return Request.application(
        lambda request: http_util.Respond(request, path.read_bytes(), TYPES[path.suffix])
    )
