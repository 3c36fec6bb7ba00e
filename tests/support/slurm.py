"""A SLURM of two nodes, n1 and n2, that lives as long as this process: see slurm.sh."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support import commands, harness, nodes

SCRIPT = Path(__file__).with_name("slurm.sh")
ACTIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "STOPPED")
ASK_EVERY_S = 0.5  # each time is a process, and work for slurmctld


class Slurm:
    """A running cluster.

    `environ` holds the variables its commands need, and none of another launcher.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # nodes that are this very machine cannot tell whether something is on the right one
        self.has_networks = (folder / "nodes" / "number").exists()
        names = {"SLURM_ROOT": str(folder), "SLURM_CONF": str(folder / "slurm.conf")}
        self.environ = {**_without_slurm(harness.environ()), **names}

    def run(
        self,
        *command: str | Path,
        code: int | None = 0,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command that must exit with `code`; None: with any."""
        words, variables = [str(word) for word in command], {**self.environ, **(environ or {})}
        if words[0] == sys.executable and words[1] != "-c":
            result = commands.run(words, cwd or self.folder, variables)
        else:
            result = subprocess.run(
                words,
                env=variables,
                cwd=cwd or self.folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=harness.PATIENCE_S,
            )
        shown = f"{command} exited with {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert code is None or result.returncode == code, f"{shown}\n{self.logs()}"
        return result

    def sbatch(self, script: str, *options: str | Path, cwd: Path | None = None) -> str:
        """Submit shell lines as a job. Returns its number."""
        return self.run("sbatch", "--parsable", *options, "--wrap", script, cwd=cwd).stdout.strip()

    def show(self, job: str) -> dict[str, str]:
        """Return the fields of scontrol for a job, also of an ended one.

        Examples are Reason, Restarts, NodeList and ExitCode.
        """
        words = self.run("scontrol", "--oneliner", "show", "job", job).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, ..."""
        return self.show(job)["JobState"]

    def wait(self, job: str) -> str:
        """Wait until a job has ended. Returns its state."""

        def has_ended() -> bool:
            return self.state(job) not in ACTIVE

        harness.wait_until(has_ended, f"the end of job {job}", self.logs, every_s=ASK_EVERY_S)
        return self.state(job)

    def logs(self, num_lines: int = 15) -> str:
        """Return the last lines of the logs of slurmctld and slurmd, and of the jobs.

        Jobs write to the folder of the cluster.
        """
        paths = [
            *sorted((self.folder / "log").glob("*.log")),
            *sorted(self.folder.glob("slurm-*.out")),
        ]
        tails = [
            (path, path.read_text(errors="replace").splitlines()[-num_lines:]) for path in paths
        ]
        return "\n".join(line for path, lines in tails for line in [f"--- {path.name}", *lines])


@contextlib.contextmanager
def started(*, has_accounting: bool = False) -> Iterator[Slurm]:
    """A fresh cluster; skips where there can be none. It goes also when this process is killed.

    One that has accounting forgets jobs after some seconds: then only the database has them.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-slurm-") as folder:
        environ = {**_without_slurm(harness.environ()), "SLURM_ROOT": folder}
        environ |= {"SLURM_ACCOUNTING": "yes"} if has_accounting else {}
        # once on a machine, and not what is measured; `up` prints the reason if it fails
        subprocess.run(
            [SCRIPT, "install"], env=environ, capture_output=True, timeout=harness.PATIENCE_S
        )
        with nodes.kept(SCRIPT, environ):
            yield Slurm(Path(folder))


def _without_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))
    }
