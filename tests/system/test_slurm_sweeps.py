"""Sweeps as job arrays on a real SLURM: submitted, looked at, and gone on with by the same command."""

import json
import sys
from pathlib import Path

import pytest

from lockstep.runs.files import read_json
from lockstep.runs.folder import EXIT_FAILED, RunFolder
from tests.support.harness import SMALL, command
from tests.support.slurm import Slurm

pytestmark = [pytest.mark.full, pytest.mark.processes]
TINY = (*SMALL, "trainer.max_epochs=1", "data.train_size=40", "model.width=2", "trainer.devices=1")
SLURM = ("cluster=slurm", "cluster.time_min=10", "cluster.memory_gib=1")
SWEEP = ("-m", *TINY, "seed=0,1,2", "+callbacks.breaks={_target_:tests.support.callbacks.Breaks,seed:1,word:kaputt}")


def tree_of(cwd: Path) -> Path:
    (found,) = cwd.glob("outputs/*/*_sweep/sweep.json")
    return found.parent


def states_of(cwd: Path) -> list[str]:
    trials = read_json(tree_of(cwd) / "table.json")["trials"]
    return [trial["state"] for trial in sorted(trials, key=lambda trial: trial["trial"])]


def test_a_sweep_is_an_array_whose_broken_trial_is_submitted_again_and_no_other(slurm: Slurm, tmp_path: Path) -> None:
    script = slurm.run(*command(*SWEEP, *SLURM, "cluster.parallel=2", "dry_run=true"), cwd=tmp_path).stdout
    assert "#SBATCH --array=0-2%2" in script
    assert not (tmp_path / "outputs").exists()
    slurm.run("scontrol", "update", "NodeName=n1,n2", "State=DRAIN", "Reason=test")  # no trial ends meanwhile
    done = slurm.run(*command(*SWEEP, *SLURM), cwd=tmp_path)
    tree = tree_of(tmp_path)
    assert "Submitted 3 trials as job" in done.stdout
    records = [RunFolder(tree / str(number)).read_job() for number in range(3)]
    array = str(records[0]["id"]).partition("_")[0]
    assert [record["id"] for record in records] == [f"{array}_{number}" for number in range(3)]
    assert states_of(tmp_path) == ["submitted"] * 3
    again = slurm.run(*command(*SWEEP, *SLURM), cwd=tmp_path)
    assert "Nothing to submit" in again.stdout
    slurm.run("scontrol", "update", "NodeName=n1,n2", "State=RESUME")
    slurm.run(sys.executable, "-m", "lockstep.cli.main", "jobs", "wait", tree, cwd=tmp_path, code=EXIT_FAILED)
    before = {path: path.stat().st_mtime_ns for path in (tree / "0").rglob("*")}
    more = slurm.run(*command(*SWEEP, *SLURM), cwd=tmp_path)
    assert "Submitted 1 trial as job" in more.stdout
    assert states_of(tmp_path) == ["finished", "submitted", "finished"]
    codes = [Path(RunFolder(tree / str(number)).read_job()["code"]) for number in range(3)]
    assert codes == [tree / "code" / number for number in ("1", "2", "1")]  # the last one is of now
    slurm.run(sys.executable, "-m", "lockstep.cli.main", "jobs", "wait", tree, cwd=tmp_path, code=EXIT_FAILED)
    assert {path: path.stat().st_mtime_ns for path in (tree / "0").rglob("*")} == before
    results = slurm.run(sys.executable, "-m", "lockstep.cli.main", "jobs", "result", tree / "0", cwd=tmp_path)
    assert json.loads(results.stdout)["test_accuracy"] is None
    # the rest goes on here, and the best one meets the test set
    here = slurm.run(*command(*SWEEP), cwd=tmp_path, code=1)
    assert "2 of 3 trials are done" in here.stdout
    table = read_json(tree / "table.json")
    assert [trial["trial"] for trial in table["trials"] if trial["test_accuracy"] is not None] == [table["best"]]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["cluster=local"], "cluster=local trains one run in the background, no sweep"),
        ([*SLURM, "search=random", "optimizer.lr=interval(0.01,0.1)"], "remove cluster=..."),
        (["cluster=slurm", "cluster.time_min=1,2"], "all jobs of a sweep share it: give one"),
        ([*SLURM, "trainer.num_nodes=1,2"], "must have the same cluster.*, devices, num_nodes and strategy"),
    ],
)
def test_what_no_cluster_takes_is_refused(slurm: Slurm, tmp_path: Path, overrides: list[str], words: str) -> None:
    done = slurm.run(*command("-m", *TINY, *overrides), cwd=tmp_path, code=2)
    assert words in done.stderr
    assert not list(tmp_path.glob("outputs/*/*/*/job.json"))
