"""Data where the worker is, on a real SLURM of two nodes: `$TMPDIR` is that of the node."""

from pathlib import Path

import pytest

from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.harness import difference, train_all, write_run
from tests.support.image_files import write_listed
from tests.support.slurm import Slurm
from tests.support.slurm_jobs import Shell

pytestmark = [pytest.mark.full, pytest.mark.processes]
RECIPE = (
    *("data=list", "data.split_column=split", "data.image_size=8", "model.width=2", "trainer.precision=float64"),
    *("trainer.max_epochs=2", "global_batch_size=5", "strategy=cpu"),
)


@pytest.fixture
def shell(slurm: Slurm, tmp_path: Path) -> Shell:
    if not slurm.has_networks:
        pytest.skip("both nodes of this SLURM are one machine")
    return Shell(slurm, tmp_path)


def test_a_list_is_copied_to_the_disk_of_each_node_by_the_variable_of_the_node(shell: Shell, tmp_path: Path) -> None:
    recipe = [*RECIPE, f"data.file={write_listed(tmp_path / 'photos')}"]
    alone = write_run(tmp_path / "alone", [*recipe, "data.cache=null"])
    train_all([alone], 1)
    (prolog := tmp_path / "prolog").write_text(f"#!/bin/sh\necho export TMPDIR={tmp_path}/disk of $SLURMD_NODENAME\n")
    prolog.chmod(0o755)
    run = shell.submit(
        *recipe,
        "data.copy_to=$TMPDIR/copies",
        "data.cache=$TMPDIR/cache",
        "trainer.num_nodes=2",
        "trainer.devices=2",
        "strategy.interface=eth0",
        f"cluster.setup=['export SLURM_TASK_PROLOG={prolog}']",
    )
    run.wait()
    for node in ("n1", "n2"):
        assert len(list(tmp_path.glob(f"disk of {node}/copies/photos-*/photos/deep er/*.png"))) == 20, run.log
        assert len(list(tmp_path.glob(f"disk of {node}/cache/*/*.rows"))) == 1
    assert "copy_to: $TMPDIR/copies" in run.folder.config.read_text()
    assert run.folder.read_summary()["workers"] == 4
    assert difference(alone, run.folder) <= 1e-12


def test_a_variable_that_the_node_lacks_ends_the_job_with_its_name(shell: Shell, tmp_path: Path) -> None:
    run = shell.submit(*RECIPE, f"data.file={write_listed(tmp_path)}", "data.copy_to=$NO_SUCH_DISK/copies")
    run.wait(state="FAILED")
    assert shell.slurm.show(run.id)["ExitCode"] == f"{EXIT_CONFIG}:0"
    reason = RunFolder(run.folder.path).read_status()["reason"]
    assert reason.startswith("data.copy_to=$NO_SUCH_DISK/copies: $NO_SUCH_DISK is not set on n")
    assert reason.endswith(": set it there, or give a path")
