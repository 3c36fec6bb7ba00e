"""Commands and jobs on the SLURM of the tests."""

import subprocess
import sys
from pathlib import Path

from lockstep.runs.folder import RunFolder
from tests.support.harness import SMALL, command, wait_until
from tests.support.slurm import Slurm

EPOCHS = 8  # 40 steps
TINY = (*SMALL, "model.width=2", f"trainer.max_epochs={EPOCHS}")
SLOW = "+callbacks.slow={_target_:tests.support.callbacks.SlowAtFirst,step_s:%s}"
CLUSTER = (
    "cluster=slurm",
    "cluster.time_min=5",
    "cluster.cpus_per_worker=1",
    "cluster.memory_gib=1",
)


def on_node(node: str) -> str:
    return f'cluster.sbatch=["--nodelist={node}"]'


class Shell:
    """Commands in a folder, as on a login node."""

    def __init__(self, slurm: Slurm, cwd: Path) -> None:
        self.slurm = slurm
        self.cwd = cwd

    def submit(self, *overrides: str) -> "Submitted":
        """A new run as a job."""
        before = set(self.cwd.glob("outputs/*/*/job.json"))
        self.slurm.run(*command(*CLUSTER, *overrides), cwd=self.cwd)
        (path,) = set(self.cwd.glob("outputs/*/*/job.json")) - before
        return Submitted(self, RunFolder(path.parent))

    def jobs(self, *words: str | Path, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """`lockstep jobs ...`."""
        return self.slurm.run(
            sys.executable, "-m", "lockstep.cli.main", "jobs", *words, cwd=self.cwd, code=code
        )


class Submitted:
    """A run and its job."""

    def __init__(self, shell: Shell, folder: RunFolder) -> None:
        self.shell = shell
        self.slurm = shell.slurm
        self.folder = folder

    @property
    def id(self) -> str:
        return str(self.folder.read_job()["id"])

    @property
    def log(self) -> str:
        path = Path(self.folder.read_job()["log"])
        return path.read_text() if path.exists() else ""

    def wait_for_step(self, step: int) -> None:
        wait_until(
            lambda: self.folder.read_status().get("step", 0) >= step,
            f"step {step}",
            lambda: self.log,
        )

    def wait(self, *, state: str = "COMPLETED") -> None:
        """Wait for the end of the job."""
        found = self.slurm.wait(self.id)
        assert found == state, f"{found}: {self.folder.read_status()}\n{self.log}"
