"""The processes of a job form a group over one network; test_slurm_training.py has a real SLURM."""

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from lockstep.assembly import process_group
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import ConfigError
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World, first_node, outer_world, step_port
from tests.support import commands
from tests.support.composed import config_of, errors_of
from tests.support.harness import PATIENCE_S, ROOT, SMALL, write_run

STEP = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
STEP |= {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "n[2-3]",
    "SLURM_NTASKS": "8",
}
STEP |= {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
MEET = """
import os, sys
from pathlib import Path
from lockstep.config.saved import config_file as storage
from lockstep.assembly import process_group
from lockstep.config.checks.workers import resolve_workers
from lockstep.system.launcher import World
from lockstep.distributed.collectives import gather_objects
from lockstep.runs.folder import RunFolder
rank, folder = int(sys.argv[1]), RunFolder(Path(sys.argv[2]))
config = storage.load(folder.config)
world = World("srun", rank, rank, 0, 2, 1, "7-0-2", ("nowhere", 1))
process_group.join(config, resolve_workers(config), world, folder)
names = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "X"
print(gather_objects((rank, [os.environ.get(name) for name in names])))
"""


# -- where they meet -------------------------------------------------------------------------------


def test_outer_world() -> None:
    world = World("srun", 3, 1, 1, 4, 2, "7-0-2", ("n2", 15000 + 32 * 7 + 2))
    assert outer_world(STEP) == world
    torchrun = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    script = {
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "8",
        "SLURM_JOB_NODELIST": "n2",
    }
    for variables, name, expected in (
        ({**STEP, "SLURM_RESTART_COUNT": "1"}, "step", "7-1-2"),
        (STEP, "is_on_one_machine", False),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "1,4"}, "is_on_one_machine", True),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x4),1", "SLURM_NODEID": "4"}, "num_local", 1),
        (torchrun, "is_on_one_machine", True),
        ({**STEP, "SLURM_GPUS_ON_NODE": "2"}, "num_gpus_on_node", 2),
        ({**STEP, "MASTER_ADDR": "n9", "MASTER_PORT": "29500"}, "address", None),
        (script, "world_size", 1),  # a batch script is one task, however many it may start
    ):
        assert getattr(outer_world(variables), name) == expected, name


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n[1-2]", "n1"),
        ("gpu[007-009,12],login", "gpu007"),
        ("r[1-2]n[03,05-07]-ib", "r1n03-ib"),
        ("a-1.b,c[1-2]", "a-1.b"),
    ],
)
def test_first_node(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@given(st.integers(1, 10**8), st.integers(0, 10**5), st.integers(1, 14_999))
def test_step_port(job: int, step: int, later: int) -> None:
    assert 15000 <= step_port(job, step) < 30000
    assert step_port(job, step) != step_port(job, step + later)
    assert step_port(job, step % 32) != step_port(job + 1, later % 32)


@pytest.mark.full
@pytest.mark.processes
def test_rendezvous_file(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run", (*SMALL, "strategy.interface=lo", "+strategy.variables.X=2")
    )
    processes = [
        commands.Command([sys.executable, "-c", MEET, str(rank), str(folder.path)], cwd=ROOT)
        for rank in (1, 0)  # rank 1 waits for the file
    ]
    printed = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    assert printed == [f"{[(rank, ['lo', '=lo', '2']) for rank in (0, 1)]}\n"] * 2
    assert not list(folder.path.glob("rendezvous-*"))


def test_missing_address_refused(tmp_path: Path) -> None:
    path = RunFolder(tmp_path).rendezvous("7-0-2")
    with pytest.raises(TimeoutError, match=str(path)):
        process_group._read_address(path, timedelta(seconds=0.2))


def test_mixed_devices_refused() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def join(rank: int) -> None:
        device = torch.device("cpu" if rank == 1 else "cuda")
        client = TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=PATIENCE_S / 10))
        process_group._refuse_mixed(device, World("srun", rank, 0, rank, 3), client)

    with ThreadPoolExecutor(3) as pool:
        found = [
            future.exception(PATIENCE_S)
            for future in [pool.submit(join, rank) for rank in range(3)]
        ]
    assert all(isinstance(error, ConfigError) for error in found)
    (text,) = {str(error) for error in found}
    assert text.startswith("1 of 3 workers have no GPU")


# -- over which network ----------------------------------------------------------------------------


def test_interface_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    config = config_of("strategy.interface=eth", "strategy=cpu", "trainer.devices=2")
    # a job is submitted from a machine that may have other networks
    assert resolve_workers(config).errors == ()
    with pytest.raises(ConfigError, match="lo, eth0"):
        process_group.join(config, resolve_workers(config), World("torchrun", 0, 0, 2, 2))


def test_interface_refused_in_workers(tmp_path: Path) -> None:
    done = commands.lockstep(
        tmp_path, "train", *SMALL, "trainer.devices=2", "strategy=cpu", "strategy.interface=eth99"
    )
    assert done.returncode == 2
    assert done.stderr.count("strategy.interface=eth99") == 1
    assert not list((tmp_path / "outputs").rglob("config.yaml"))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("+strategy.variables={nccl_debug:INFO}", "must be {NAME:value,...}"),
        ("+strategy.variables={A:[1]}", "must be {NAME:value,...}"),
        ("+strategy.variables={A:true}", "must be {NAME:value,...}"),
        ("+strategy.variables={A:0.5}", "must be {NAME:value,...}"),
        ("+strategy.variables={2A:b}", "must be {NAME:value,...}"),
        ("strategy.variables={NCCL_DEBUG:INFO}", "write +strategy.variables={NCCL_DEBUG:INFO}"),
        ("strategy.variables.NCCL_DEBUG=INFO", "+strategy.variables.NCCL_DEBUG=INFO"),
    ],
)
def test_wrong_variables_refused(value: str, error: str) -> None:
    (found,) = errors_of(value)
    assert error in found
