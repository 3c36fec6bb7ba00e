"""Workers of a configuration, on simulated machines and under simulated launchers."""

import os
import socket
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from lockstep.config import saved_run
from lockstep.config.checks.validation import check_tree
from lockstep.config.checks.workers import Workers, resolve_workers
from lockstep.config.saved.config_file import to_tree
from lockstep.config.schema.configuration import Config
from lockstep.system import hardware
from lockstep.system.launcher import outer_world
from tests.support.composed import config_of

pytestmark = pytest.mark.usefixtures("no_launcher")


@pytest.mark.parametrize("asked", [None, 1])
def test_adapt_multi_node_run(asked: int | None) -> None:
    tree = to_tree(config_of("data=synthetic", "strategy=cpu"))
    tree["trainer"] |= {"num_nodes": 2, "devices": 3, "worker_weights": [1, 2, 0, 1, 1, 1]}
    here = saved_run.adapt_to_machine(Config.model_validate(tree), devices=asked, strategy=None)
    assert resolve_workers(check_tree(to_tree(here))).world_size == (asked or 3)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": 3, "LOCAL_RANK": 1, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2},
        {
            "SLURM_JOB_ID": 1,
            "SLURM_PROCID": 3,
            "SLURM_STEP_NUM_TASKS": 4,
            "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        },
    ],
)
def test_adapt_run_to_launcher(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, int | str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    tree = to_tree(config_of("data=synthetic", "strategy=cpu"))
    tree["trainer"] |= {"devices": 3, "worker_weights": [1, 2, 0]}
    saved, world = Config.model_validate(tree), outer_world(os.environ)
    for devices in (None, 2):
        workers = resolve_workers(
            saved_run.adapt_to_machine(saved, devices=devices, strategy=None, world=world)
        )
        assert (workers.num_local, workers.world_size, workers.errors) == (2, 4, ())
    wrong = saved_run.adapt_to_machine(saved, devices=3, strategy=None, world=world)
    assert "requires 3 workers, but" in str(resolve_workers(wrong).errors[0])


def torchrun(world_size: int, num_local: int | None = None) -> dict[str, int]:
    ids = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "WORLD_SIZE": world_size}
    return ids | {"LOCAL_WORLD_SIZE": num_local or world_size}


def srun(
    num_tasks: int, gpus: int | None = None, tasks: str = "", node: int = 0
) -> dict[str, int | str]:
    step = {"SLURM_STEP_NUM_TASKS": num_tasks, "SLURM_STEP_TASKS_PER_NODE": tasks or num_tasks}
    place = {"SLURM_JOB_ID": 1, "SLURM_PROCID": 0, "SLURM_NODEID": node}
    return {**step, **place, **({} if gpus is None else {"SLURM_GPUS_ON_NODE": gpus})}


default_config = cache(config_of)


class Machine:
    """A machine with GPUs, maybe inside a launcher."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._config = default_config()
        self.has(0, {})

    def has(self, num_gpus: int, variables: Mapping[str, int | str]) -> None:
        self._monkeypatch.setattr(hardware, "num_visible_gpus", lambda: num_gpus)
        for name, value in variables.items():
            self._monkeypatch.setenv(name, str(value))

    def resolve(
        self,
        strategy: str = "auto",
        backend: str = "auto",
        is_compiled: bool = False,
        **trainer: object,
    ) -> Workers:
        settings = {"name": strategy, "process_group_backend": backend}
        parts = {
            "compile": is_compiled,
            "strategy": self._config.strategy.model_copy(update=settings),
            "trainer": self._config.trainer.model_copy(update=trainer),
        }
        return resolve_workers(self._config.model_copy(update=parts))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


SINGLE, ON_CPU = {"strategy": "single_device"}, {"strategy": "cpu"}


@pytest.mark.parametrize(
    ("num_gpus", "variables", "settings", "expected"),
    [
        (0, {}, {}, Workers(1, 1, 1, ())),
        (0, {}, {"devices": 4}, Workers(4, 4, 1, ())),
        (4, {}, {}, Workers(4, 4, 1, (0, 1, 2, 3))),
        (4, {}, {"devices": 2}, Workers(2, 2, 1, (0, 1))),
        (4, {}, {"devices": [3, 1]}, Workers(2, 2, 1, (3, 1))),
        (4, {}, SINGLE, Workers(1, 1, 1, (0,))),
        (4, {}, {**SINGLE, "devices": [2]}, Workers(1, 1, 1, (2,))),
        (4, {}, {**ON_CPU, "devices": 8}, Workers(8, 8, 1, ())),
        (1, {}, {"backend": "nccl"}, Workers(1, 1, 1, (0,))),
        (1, {}, {"is_compiled": True}, Workers(1, 1, 1, (0,))),
        (2, {}, {"worker_weights": [2, 0]}, Workers(2, 2, 1, (0, 1))),
        (4, torchrun(8, 4), {}, Workers(8, 4, 1, (0, 1, 2, 3))),
        (4, torchrun(8, 4), {"num_nodes": 2}, Workers(8, 4, 2, (0, 1, 2, 3))),
        (4, torchrun(8, 4), {"num_nodes": 2, "devices": 4}, Workers(8, 4, 2, (0, 1, 2, 3))),
        (0, torchrun(3), {}, Workers(3, 3, 1, ())),
        (2, torchrun(4), ON_CPU, Workers(4, 4, 1, ())),
        # srun --gpus-per-task: each task sees its own GPUs alone, numbered from 0
        (1, srun(4, 4), {}, Workers(4, 4, 1, (0, 0, 0, 0))),
        (1, srun(4, 4), {"devices": 4}, Workers(4, 4, 1, (0, 0, 0, 0))),
        (1, srun(4, 4), {"strategy": "ddp", "backend": "nccl"}, Workers(4, 4, 1, (0, 0, 0, 0))),
        (1, srun(4, 4), ON_CPU, Workers(4, 4, 1, ())),
        (2, srun(4, 8), {}, Workers(4, 4, 1, (0, 0, 0, 0))),
        (1, srun(4, 2, "2(x2)"), {"num_nodes": 2}, Workers(4, 2, 2, (0, 0))),
        (1, srun(4, 2, "2(x2)"), {"num_nodes": 2, "devices": 2}, Workers(4, 2, 2, (0, 0))),
        (1, srun(4, 2, "2(x2)"), {}, Workers(4, 2, 1, (0, 0))),
        (1, srun(7, 3, "3(x2),1", 0), {"worker_weights": [1] * 7}, Workers(7, 3, 1, (0, 0, 0))),
        (1, srun(7, 3, "3(x2),1", 1), {}, Workers(7, 3, 1, (0, 0, 0))),
        (1, srun(7, 1, "3(x2),1", 2), {}, Workers(7, 1, 1, (0,))),
        # tasks that see the same GPUs
        (4, srun(4, 4), {}, Workers(4, 4, 1, (0, 1, 2, 3))),
        (4, srun(1, 4), {}, Workers(1, 1, 1, (0,))),
        (4, srun(2, 4), {"devices": [3, 1]}, Workers(2, 2, 1, (3, 1))),
    ],
)
def test_workers(
    machine: Machine, num_gpus: int, variables: Any, settings: Any, expected: Workers
) -> None:
    machine.has(num_gpus, variables)
    assert machine.resolve(**settings) == expected


@pytest.mark.parametrize(
    ("num_gpus", "variables", "settings", "key", "part"),
    [
        (2, {}, {"devices": 4}, "trainer.devices=4", "use trainer.devices=2, or strategy=cpu"),
        (2, {}, {"devices": [0, 2]}, "trainer.devices=[0,2]", "use numbers from 0 to 1"),
        (0, {}, {"devices": [0, 1]}, "trainer.devices=[0,1]", "use trainer.devices=2"),
        (2, {}, {"devices": [0, 0]}, "trainer.devices=[0,0]", "each GPU once"),
        (2, {}, {"devices": []}, "trainer.devices=[]", "at least one"),
        (2, {}, {**ON_CPU, "devices": [0]}, "trainer.devices=[0]", "strategy=cpu uses none"),
        (0, {}, {**SINGLE, "devices": 2}, "strategy=single_device", "not 2"),
        (0, {}, {"backend": "nccl"}, "strategy.process_group_backend=nccl", "needs GPUs"),
        (1, {}, {**ON_CPU, "backend": "nccl"}, "strategy.process_group_backend=nccl", "needs GPUs"),
        (0, {}, {"is_compiled": True}, "compile=true", "C++ compiler"),
        (
            2,
            {},
            {"worker_weights": [2, 1, 1]},
            "trainer.worker_weights=[2,1,1]",
            "3 entries for 2 workers",
        ),
        (2, {}, {"worker_weights": [0, 0]}, "trainer.worker_weights=[0,0]", "no weight above 0"),
        (4, {}, {"num_nodes": 2}, "trainer.num_nodes=2", "torchrun --nnodes=2"),
        (0, srun(1), {"devices": 2}, "trainer.devices=2", "srun --nodes=1 --ntasks-per-node=2"),
        (0, torchrun(3), {"devices": 2}, "trainer.devices=2", "torchrun --nproc-per-node=2"),
        (2, torchrun(4), {}, "torchrun started 4 workers", "start 2"),
        (
            1,
            srun(4, 3, "3,1"),
            {"devices": 2, "num_nodes": 2},
            "trainer.devices=2",
            socket.gethostname(),
        ),
        (1, srun(2, 1), {}, "srun started 2 workers", "--gpus-per-task=1"),
        # --gpu-bind=closest: two tasks to a pair
        (2, srun(4, 4), {}, "srun started 4 workers", "with 2 GPUs"),
        (1, srun(2, 2), {"devices": [0, 1]}, "trainer.devices=[0,1]", "use trainer.devices=2"),
        # the number of workers of a machine is missing
        (0, {**torchrun(2), "LOCAL_WORLD_SIZE": ""}, {}, "LOCAL_WORLD_SIZE", ""),
        (2, {**torchrun(2), "LOCAL_WORLD_SIZE": ""}, {"devices": 2}, "LOCAL_WORLD_SIZE", ""),
    ],
)
def test_workers_refused(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    num_gpus: int,
    variables: Any,
    settings: Any,
    key: str,
    part: str,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    machine.has(num_gpus, variables)
    if variables.get("LOCAL_WORLD_SIZE") == "":
        monkeypatch.delenv("LOCAL_WORLD_SIZE")
    (error,) = map(str, machine.resolve(**settings).errors)
    assert error.startswith(key)
    assert part in error


@pytest.mark.parametrize(
    ("gibibytes", "settings", "part"),
    [
        (64, {**ON_CPU, "devices": 32}, None),
        (64, {"devices": 64, "process_limit": 64}, None),
        (64, {**ON_CPU, "devices": 33}, "limit of 32 workers, 16 per core"),
        (64, {"devices": 2**31 - 1}, "limit of 32 workers, 16 per core"),
        (64, {"devices": 5, "process_limit": 4}, "trainer.process_limit=4"),
        (4, {"devices": 9}, "limit of 8 workers, 16 per core on 2 cores and 0.5 GiB each in 4.0"),
    ],
)
def test_process_limit(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    gibibytes: int,
    settings: Any,
    part: str | None,
) -> None:
    monkeypatch.setattr(hardware, "num_cores", lambda: 2)
    monkeypatch.setattr(hardware, "memory_bytes", lambda: gibibytes * 2**30)
    errors = machine.resolve(**settings).errors
    assert len(errors) == (part is not None)
    assert part is None or part in str(errors[0])


@pytest.mark.parametrize(
    ("num_gpus", "settings", "problem"),
    [
        (0, {}, "needs GPUs"),
        (2, {}, None),
        (2, {"worker_weights": [2, 1]}, None),
        (2, {"is_compiled": True}, "compile=true"),
        (2, {"backend": "gloo"}, "strategy.process_group_backend=gloo"),
        (2, {"worker_weights": [0, 1]}, "trainer.worker_weights=[0,1]"),
    ],
)
def test_cuda_graphs(machine: Machine, num_gpus: int, settings: Any, problem: str | None) -> None:
    machine.has(num_gpus, {})
    errors = machine.resolve(graph=True, **settings).errors
    assert [str(problem) in str(error) for error in errors] == [True] * (problem is not None)
    if num_gpus:
        assert machine.resolve(graph="auto", **settings).errors == ()
        assert machine.resolve(graph=False, **settings).errors == ()
