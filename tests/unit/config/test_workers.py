"""Workers of a configuration, on simulated machines and under simulated launchers."""

import os
import socket

import pytest

from lockstep.config import saved_run
from lockstep.config.checks.validation import check_tree
from lockstep.config.checks.workers import Workers, resolve_workers
from lockstep.config.composing.compose import compose_config, plain_tree
from lockstep.config.saved.config_file import to_tree
from lockstep.config.schema.configuration import Config
from lockstep.system import hardware
from lockstep.system.launcher import outer_world

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_WORLD_SIZE")
VARIABLES += ("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")
VARIABLES += ("SLURM_GPUS_ON_NODE", "SLURM_STEP_TASKS_PER_NODE")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("asked", [None, 1])
def test_a_run_of_several_machines_is_used_on_one(asked: int | None) -> None:
    tree = to_tree(check_tree(plain_tree(compose_config(["data=synthetic", "strategy=cpu"]))[0]))
    tree["trainer"] |= {"num_nodes": 2, "devices": 3, "loads": [1, 2, 0, 1, 1, 1]}
    here = saved_run.adapt_to_machine(Config.model_validate(tree), devices=asked, strategy=None)
    config = check_tree(to_tree(here))
    assert resolve_workers(config).world_size == (asked or 3)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": 3, "LOCAL_RANK": 1, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2},
        {"SLURM_JOB_ID": 1, "SLURM_PROCID": 3, "SLURM_STEP_NUM_TASKS": 4, "SLURM_STEP_TASKS_PER_NODE": "2(x2)"},
    ],
)
def test_a_run_of_one_machine_is_used_by_all_processes_of_a_launcher(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, int | str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    tree = to_tree(check_tree(plain_tree(compose_config(["data=synthetic", "strategy=cpu"]))[0]))
    tree["trainer"] |= {"devices": 3, "loads": [1, 2, 0]}
    saved, world = Config.model_validate(tree), outer_world(os.environ)
    for devices in (None, 2):
        workers = resolve_workers(saved_run.adapt_to_machine(saved, devices=devices, strategy=None, world=world))
        assert (workers.num_local, workers.world_size, workers.errors) == (2, 4, ())
    wrong = saved_run.adapt_to_machine(saved, devices=3, strategy=None, world=world)
    assert "requires 3 workers, but" in str(resolve_workers(wrong).errors[0])


def errors(config: Config) -> list[str]:
    return list(map(str, resolve_workers(config).errors))


class Machine:
    """A machine with GPUs, maybe inside a launcher."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._config = check_tree(plain_tree(compose_config([]))[0])
        self.has_gpus(0)

    def has_gpus(self, count: int) -> None:
        self._monkeypatch.setattr(hardware, "num_visible_gpus", lambda: count)

    def is_in_torchrun(self, world_size: int, num_local: int | None = None) -> None:
        ids = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "WORLD_SIZE": world_size}
        for name, value in (ids | {"LOCAL_WORLD_SIZE": num_local or world_size}).items():
            self._monkeypatch.setenv(name, str(value))

    def is_in_srun(self, num_tasks: int, gpus_on_node: int | None = None, *, tasks: str = "", node: int = 0) -> None:
        step = {"SLURM_STEP_NUM_TASKS": num_tasks, "SLURM_STEP_TASKS_PER_NODE": tasks or num_tasks}
        for name, value in {"SLURM_JOB_ID": 1, "SLURM_PROCID": 0, "SLURM_NODEID": node, **step}.items():
            self._monkeypatch.setenv(name, str(value))
        if gpus_on_node is not None:
            self._monkeypatch.setenv("SLURM_GPUS_ON_NODE", str(gpus_on_node))

    def config(self, strategy: str = "auto", backend: str = "auto", **trainer: object) -> Config:
        settings = {"name": strategy, "process_group_backend": backend}
        return self._config.model_copy(
            update={
                "strategy": self._config.strategy.model_copy(update=settings),
                "trainer": self._config.trainer.model_copy(update=trainer),
            }
        )

    def workers(self, **settings: object) -> Workers:
        config = self.config(**settings)  # pyright: ignore[reportArgumentType]
        assert errors(config) == []
        return resolve_workers(config)

    def error(self, **settings: object) -> str:
        (error,) = errors(self.config(**settings))  # pyright: ignore[reportArgumentType]
        return error


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_without_gpus_devices_are_processes(machine: Machine) -> None:
    assert machine.workers() == Workers(1, 1, 1, ())
    assert machine.workers(devices=4) == Workers(4, 4, 1, ())


def test_auto_takes_every_gpu_and_single_device_one(machine: Machine) -> None:
    machine.has_gpus(4)
    assert machine.workers() == Workers(4, 4, 1, (0, 1, 2, 3))
    assert machine.workers(devices=2) == Workers(2, 2, 1, (0, 1))
    assert machine.workers(devices=[3, 1]) == Workers(2, 2, 1, (3, 1))
    assert machine.workers(strategy="single_device") == Workers(1, 1, 1, (0,))
    assert machine.workers(strategy="single_device", devices=[2]) == Workers(1, 1, 1, (2,))
    assert machine.workers(strategy="cpu", devices=8) == Workers(8, 8, 1, ())


def test_more_gpus_than_exist_is_an_error_with_a_fix(machine: Machine) -> None:
    machine.has_gpus(2)
    assert machine.error(devices=4) == (
        "trainer.devices=4, but this machine has 2 GPUs: use trainer.devices=2, or strategy=cpu for 4 CPU processes"
    )
    assert machine.error(devices=[0, 2]) == (
        "trainer.devices=[0,2], but this machine has 2 GPUs: use numbers from 0 to 1"
    )
    machine.has_gpus(0)
    assert machine.error(devices=[0, 1]) == (
        "trainer.devices=[0,1], but this machine has no GPUs: use trainer.devices=2"
    )


def test_a_list_of_gpus_names_each_once(machine: Machine) -> None:
    machine.has_gpus(2)
    for devices in ([0, 0], []):
        assert "must list each GPU once, and at least one" in machine.error(devices=devices)
    assert "names GPUs, but strategy=cpu uses none" in machine.error(strategy="cpu", devices=[0])


def test_more_processes_than_cores_and_memory_carry_are_an_error_with_reason_and_fix(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "num_cores", lambda: 2)
    monkeypatch.setattr(hardware, "memory_bytes", lambda: 64 * 2**30)
    assert machine.workers(strategy="cpu", devices=32).num_local == 32
    error = (
        "trainer.devices={} is above the limit of 32 workers, 16 per core on 2 cores: "
        "use fewer, or raise trainer.process_limit"
    )
    for devices in (33, 2**31 - 1):
        assert machine.error(strategy="cpu", devices=devices) == machine.error(devices=devices) == error.format(devices)
    assert machine.workers(devices=64, process_limit=64).num_local == 64
    assert machine.error(devices=5, process_limit=4) == (
        "trainer.devices=5 is above trainer.process_limit=4: use fewer, or raise trainer.process_limit"
    )
    monkeypatch.setattr(hardware, "memory_bytes", lambda: 4 * 2**30)
    assert machine.error(devices=9) == (
        "trainer.devices=9 is above the limit of 8 workers, 0.5 GiB each in 4.0 GiB of memory: "
        "use fewer, or raise trainer.process_limit"
    )


def test_a_single_device_is_one_worker(machine: Machine) -> None:
    assert machine.error(strategy="single_device", devices=2).startswith("strategy=single_device has one worker, not 2")


def test_nccl_needs_gpus(machine: Machine) -> None:
    assert "process_group_backend=nccl needs GPUs" in machine.error(backend="nccl")
    machine.has_gpus(1)
    assert machine.workers(backend="nccl") == Workers(1, 1, 1, (0,))
    assert "process_group_backend=nccl needs GPUs" in machine.error(backend="nccl", strategy="cpu")


def test_compiling_on_a_cpu_needs_a_compiler(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = machine.config().model_copy(update={"compile": True})
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/g++" if name == "g++" else None)
    assert errors(compiled) == []
    monkeypatch.setattr("shutil.which", lambda name: None)
    (error,) = errors(compiled)
    assert error.startswith("compile=true needs a C++ compiler")
    assert errors(machine.config()) == []
    machine.has_gpus(1)
    assert errors(compiled) == []


def test_steps_as_cuda_graphs_are_refused_where_none_can_be_captured(machine: Machine) -> None:
    def refused(graph: object, **changes: object) -> list[str]:
        config = machine.config(graph=graph, loads=changes.pop("loads", None))
        backend = {"process_group_backend": changes.pop("backend", "auto")}
        changes["strategy"] = config.strategy.model_copy(update=backend)
        found = errors(config.model_copy(update=changes))
        return [error.removeprefix("trainer.graph=true ").partition(":")[0] for error in found]

    assert refused(True) == ["needs GPUs, and this run uses none"]
    machine.has_gpus(2)
    assert refused(True) == refused(True, loads=[2, 1]) == []
    changes = {"compile=true": {"compile": True}, "strategy.process_group_backend=gloo": {"backend": "gloo"}}
    for setting, change in {**changes, "trainer.loads=[0,1]": {"loads": [0, 1]}}.items():
        assert refused(True, **change) == [f"does not work with {setting}"]
        assert refused("auto", **change) == refused(False, **change) == []


def test_loads_are_one_for_each_worker_and_not_all_zero(machine: Machine) -> None:
    machine.has_gpus(2)
    assert machine.workers(loads=[2, 0]).world_size == 2
    assert machine.error(loads=[2, 1, 1]).startswith(
        "trainer.loads=[2,1,1] has 3 entries for 2 workers: give one load for each"
    )
    assert machine.error(loads=[0, 0]) == "trainer.loads=[0,0] has no load above 0: give one to at least one worker"


def test_nodes_need_a_launcher(machine: Machine) -> None:
    machine.has_gpus(4)
    assert "trainer.num_nodes=2 needs a launcher on every node: torchrun --nnodes=2" in machine.error(num_nodes=2)
    machine.is_in_torchrun(8, num_local=4)
    assert machine.workers() == Workers(8, 4, 1, (0, 1, 2, 3))
    assert machine.workers(num_nodes=2) == machine.workers(num_nodes=2, devices=4) == Workers(8, 4, 2, (0, 1, 2, 3))


def test_an_outer_launcher_must_have_started_the_configured_workers(machine: Machine) -> None:
    machine.is_in_srun(1)
    assert machine.error(devices=2) == (
        "trainer.devices=2 requires 2 workers, but srun started 1 process: use srun --nodes=1 --ntasks-per-node=2 ..."
    )
    machine.is_in_torchrun(3)
    assert machine.workers() == Workers(3, 3, 1, ())
    assert machine.error(devices=2) == (
        "trainer.devices=2 requires 2 workers, but torchrun started 3 processes: use torchrun --nproc-per-node=2 ..."
    )


@pytest.mark.parametrize("num_gpus", [0, 2])
def test_a_launcher_that_does_not_count_the_workers_of_a_machine_is_an_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, num_gpus: int
) -> None:
    machine.has_gpus(num_gpus)
    machine.is_in_torchrun(2)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    for devices in ("auto", 2):
        assert machine.error(devices=devices).startswith("LOCAL_WORLD_SIZE is not set: give the number of processes")


def test_more_workers_than_gpus_is_an_error_also_under_a_launcher(machine: Machine) -> None:
    machine.has_gpus(2)
    machine.is_in_torchrun(4)
    assert machine.error().startswith("torchrun started 4 workers on a machine with 2 GPUs: start 2, or choose")
    assert machine.workers(strategy="cpu") == Workers(4, 4, 1, ())


# -- srun --gpus-per-task: each task sees its own GPUs alone, numbered from 0 ------------------------------------------


def test_a_task_that_sees_one_gpu_of_its_own_trains_on_it(machine: Machine) -> None:
    machine.has_gpus(1)
    machine.is_in_srun(4, gpus_on_node=4)
    assert machine.workers() == machine.workers(devices=4) == Workers(4, 4, 1, (0, 0, 0, 0))
    assert machine.workers(strategy="ddp", backend="nccl").gpus == (0, 0, 0, 0)
    assert machine.workers(strategy="cpu") == Workers(4, 4, 1, ())
    machine.has_gpus(2)
    machine.is_in_srun(4, gpus_on_node=8)
    assert machine.workers() == Workers(4, 4, 1, (0, 0, 0, 0))


def test_tasks_of_several_machines_see_gpus_of_their_own_too(machine: Machine) -> None:
    machine.has_gpus(1)
    machine.is_in_srun(4, gpus_on_node=2, tasks="2(x2)")
    assert machine.workers(num_nodes=2) == machine.workers(num_nodes=2, devices=2) == Workers(4, 2, 2, (0, 0))
    assert machine.workers() == Workers(4, 2, 1, (0, 0))


def test_nodes_may_have_unequal_numbers_of_tasks(machine: Machine) -> None:
    machine.has_gpus(1)
    for node, num_local in enumerate((3, 3, 1)):
        machine.is_in_srun(7, gpus_on_node=num_local, tasks="3(x2),1", node=node)
        assert machine.workers() == Workers(7, num_local, 1, (0,) * num_local)
        assert machine.workers(loads=[1] * 7).world_size == 7
    machine.is_in_srun(4, gpus_on_node=3, tasks="3,1")
    assert machine.error(devices=2, num_nodes=2) == (
        f"trainer.devices=2 on trainer.num_nodes=2 is for each node, but srun started 3 on {socket.gethostname()}: "
        "use trainer.devices=auto, or srun --nodes=2 --ntasks-per-node=2 ..."
    )


def test_tasks_that_see_the_same_gpus_take_one_each(machine: Machine) -> None:
    machine.has_gpus(4)
    machine.is_in_srun(4, gpus_on_node=4)
    assert machine.workers() == Workers(4, 4, 1, (0, 1, 2, 3))
    machine.is_in_srun(1, gpus_on_node=4)
    assert machine.workers() == Workers(1, 1, 1, (0,))
    machine.is_in_srun(2, gpus_on_node=4)
    assert machine.workers(devices=[3, 1]) == Workers(2, 2, 1, (3, 1))


def test_tasks_that_share_too_few_gpus_are_an_error_with_a_fix(machine: Machine) -> None:
    machine.has_gpus(1)
    machine.is_in_srun(2, gpus_on_node=1)
    assert machine.error() == (
        "srun started 2 workers on a machine with 1 GPU: start 1, each with its own "
        "(srun --gpus-per-task=1), or choose strategy=cpu"
    )
    machine.has_gpus(2)
    machine.is_in_srun(4, gpus_on_node=4)  # --gpu-bind=closest: two tasks to a pair
    assert "srun started 4 workers on a machine with 2 GPUs" in machine.error()


def test_gpus_that_each_task_sees_alone_have_no_numbers_to_name(machine: Machine) -> None:
    machine.has_gpus(1)
    machine.is_in_srun(2, gpus_on_node=2)
    assert machine.error(devices=[0, 1]) == (
        "trainer.devices=[0,1] names GPUs, but srun gives each task its own, numbered 0: use trainer.devices=2"
    )
