"""Curves sent to Weights & Biases, in one run of theirs for all sessions of a run."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.system.redaction import redacted

STEP = "trainer/global_step"  # as Lightning's logger calls it


class ResumableWandbLogger(WandbLogger):
    """Lightning's logger of Weights & Biases for the run in the folder `save_dir`, where its files lie in `wandb/`.

    The run has the name of its folder and keeps its id, so that a resume goes on with it; a sweep is a group of runs.
    `offline`, or WANDB_MODE=offline in the shell, keeps all of it in the folder. Raises ValueError where points are to
    be sent and nobody has logged in.
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
    ) -> None:
        folder = RunFolder(Path(save_dir))
        self._is_lost = False
        is_trial = (folder.path.parent / SWEEP).is_file()
        given = {
            "project": project,
            "entity": entity,
            "name": name or folder.path.name,
            "group": group or (folder.path.parent.name if is_trial else None),
            "job_type": job_type,
            "tags": tags,
            "notes": notes,
        }
        super().__init__(
            name=given["name"],
            save_dir=save_dir,
            project=project,
            offline=offline,
            log_model=log_model,
            prefix=prefix,
            experiment=_begun(folder, offline, given) if rank == 0 else None,
        )

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        with self._without_loss():
            super().log_metrics(metrics, step)

    def end(self, *, is_well: bool) -> None:
        """Send what is left, and end the process that sends. Rank 0 only."""
        import wandb

        with self._without_loss():
            wandb.finish(exit_code=0 if is_well else 1)
        with self._without_loss():
            wandb.teardown()

    @contextlib.contextmanager
    def _without_loss(self) -> Iterator[None]:
        """Tell of the first fault of the process that sends: it may be gone, by a SIGTERM to all of a job for one.

        The training goes on without it.
        """
        try:
            yield
        except Exception as error:  # the border of a process
            if not self._is_lost:
                print(f"Weights & Biases gets no more points ({error}): the run goes on.", file=sys.stderr, flush=True)
            self._is_lost = True


def _begun(folder: RunFolder, is_offline: bool, given: dict[str, Any]) -> Any:
    """A session of the run, which starts a process that sends its points."""
    import wandb

    is_sent = not is_offline and wandb.setup().settings.mode == "online"
    if is_sent and not wandb.login(prompt=False):
        cure = "run `wandb login` once, or write logger.wandb.offline=true"
        raise ValueError(f"logger=wandb finds no key for Weights & Biases: {cure}")
    argv, sys.argv = sys.argv, redacted(sys.argv)  # which goes with the run
    try:
        run = wandb.init(
            **given,
            dir=folder.path,
            id=folder.wandb_id(),
            resume="allow",
            mode="offline" if is_offline else None,
            config=redacted(yaml.safe_load(folder.config.read_text())),
            # the terminal is ours, and what is said there stands in no file of theirs
            settings=wandb.Settings(console="off", silent=True),
        )
    finally:
        sys.argv = argv
    run.define_metric(STEP)
    run.define_metric("*", step_metric=STEP, step_sync=True)
    return run
