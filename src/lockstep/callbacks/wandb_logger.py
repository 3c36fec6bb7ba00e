"""Metrics at Weights & Biases, in one run there for all sessions of a run."""

import contextlib
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import yaml
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.system.redaction import redact


class ResumableWandbLogger(WandbLogger):
    """Lightning's logger of Weights & Biases for the run in the folder `save_dir`, with its files in `wandb/`.

    The run has the name of its folder and keeps its id, so that a resume continues it; a sweep is a group of runs.
    `offline`, or WANDB_MODE=offline in the shell, keeps all of it in the folder. Raises ValueError if metrics are to be
    sent without a login.
    """

    def __init__(
        self,
        *,
        save_dir: str,
        project: str,
        offline: bool,
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: list[str] | None = None,
        notes: str | None = None,
        prefix: str = "",
        log_model: bool | Literal["all"] = False,
        rank: int = 0,
        held: contextlib.ExitStack | None = None,
    ) -> None:
        folder = RunFolder(Path(save_dir))
        is_trial = (folder.path.parent / SWEEP).is_file()
        super().__init__(
            name=name or folder.path.name,
            save_dir=save_dir,
            offline=offline,
            id=_session_id(folder) if rank == 0 else None,
            project=project,
            log_model=log_model,
            prefix=prefix,
            entity=entity,
            group=group or (folder.path.parent.name if is_trial else None),
            job_type=job_type,
            tags=tags,
            notes=notes,
            config=redact(yaml.safe_load(folder.config.read_text())),
            settings={"console": "off", "silent": True},  # no copy of the terminal, no lines on it
        )
        self._is_lost = False
        if rank == 0:
            self._begin(is_offline=offline)
            if held is not None:
                held.push(lambda kind, *_: self.end(is_well=kind is None))

    def _begin(self, *, is_offline: bool) -> None:
        """Start the session, and with it the process that sends metrics."""
        import wandb

        is_sent = not is_offline and wandb.setup().settings.mode == "online"
        if is_sent and not wandb.login(prompt=False):
            hint = "run `wandb login` once, or write logger.wandb.offline=true"
            raise ValueError(f"logger=wandb needs a key for Weights & Biases: {hint}")
        argv, sys.argv = sys.argv, redact(sys.argv)  # wandb saves it with the run
        try:
            _ = self.experiment
        finally:
            sys.argv = argv

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        with self._survive_sender():
            super().log_metrics(metrics, step)

    def end(self, *, is_well: bool) -> None:
        """Send the rest, and end the process that sends. Rank 0 only."""
        import wandb

        with self._survive_sender():
            wandb.finish(exit_code=0 if is_well else 1)
        with self._survive_sender():  # even if the first failed: otherwise the exit of this process prints its error
            wandb.teardown()

    @contextlib.contextmanager
    def _survive_sender(self) -> Iterator[None]:
        """Report the first error of the process that sends, and continue: a SIGTERM to a whole job ends it first."""
        try:
            yield
        except Exception as error:  # the border of a process
            if not self._is_lost:
                text = f"Metrics are no longer sent to Weights & Biases ({error}); the run continues."
                print(text, file=sys.stderr, flush=True)
            self._is_lost = True


def _session_id(folder: RunFolder) -> str:
    """Return the id at Weights & Biases in all sessions of the run; the first call creates it."""
    known = folder.fact("wandb_id") or secrets.token_hex(4)
    folder.note(wandb_id=known)
    return known
