"""The process group of a run, and how its ranks find each other."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch import distributed as dist
from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from typing_extensions import override

from lockstep.assembly.agreement import agree
from lockstep.assembly.precision import resolve_device
from lockstep.config.checks.workers import Workers
from lockstep.config.errors import ConfigError, Error, config_error, refuse
from lockstep.config.schema.configuration import Config
from lockstep.distributed import collectives
from lockstep.distributed.collectives import gather_objects
from lockstep.runs.files import write_atomically
from lockstep.runs.folder import EXIT_FAILED, RunFolder
from lockstep.system.hardware import num_cores
from lockstep.system.launcher import World
from lockstep.system.output import print_error


def join(
    config: Config,
    workers: Workers,
    world: World,
    folder: RunFolder | None = None,
) -> None:
    """Enter the process group of the job, unless this process is already in it.

    Processes of srun connect to the address that rank 0 writes into `folder`, which all of them can
    read. Without a folder they use a port that follows from the numbers of job and step. Raises
    ConfigError if this machine lacks the network of strategy.interface, or the port is taken.
    """
    if dist.is_initialized():
        return
    _choose_network(config, world)
    device = resolve_device(config, workers.gpus, world)
    backend = config.strategy.process_group_backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=config.strategy.timeout_s)
    with _open_store(world, folder, timeout) as store:
        _refuse_mixed(device, world, store)
        dist.init_process_group(
            backend,
            store=store,
            rank=world.rank,
            world_size=world.world_size,
            timeout=timeout,
            # Without a device, NCCL guesses one and warns.
            device_id=device if backend == "nccl" else None,
        )
        collectives.connect(timeout, num_cores())  # All ranks have joined, so the store can end.


def connect_ranks(config: Config, workers: Workers, world: World, folder: RunFolder | None) -> None:
    """Call `join` for the workers of an outer launcher.

    Exits with a one-line message if ranks are missing.
    """
    try:
        join(config, workers, world, folder)
    except RuntimeError as error:
        if not collectives.is_lost_rank(error) and not collectives.is_missing_rank(error):
            raise
        message = (
            f"rank {world.rank} of {world.world_size} on {socket.gethostname()} timed out waiting "
            f"for the others (strategy.timeout_s={config.strategy.timeout_s}): not all of them "
            f"started, or they cannot reach each other. See their output.\n{error}"
        )
        if folder is not None:
            folder.record_failure(message + "\n")
        print_error(message)
        raise SystemExit(EXIT_FAILED) from error


def _refuse_mixed(device: torch.device, world: World, store: Store) -> None:
    """Raise ConfigError on all ranks if only some have a GPU.

    No backend would connect them.
    """
    is_cpu = device.type == "cpu"
    if is_cpu:
        store.set("host without GPU", socket.gethostname())
    store.add("ranks without GPU", is_cpu)
    if store.add("ranks", 1) == world.world_size:
        store.set("result", str(store.add("ranks without GPU", 0)))
    count = int(store.get("result"))
    if 0 < count < world.world_size:
        host = store.get("host without GPU").decode()
        if store.add("readers", 1) == world.world_size:
            store.set("all have read", "")
        if world.rank == 0:  # The store ends with this process.
            store.get("all have read")
        raise config_error(
            "machine",
            "",
            f"{count} of {world.world_size} workers have no GPU, on {host}",
            "start workers only where there are GPUs, or use strategy=cpu",
        )


@contextmanager
def shared_folder(
    run: AbstractContextManager[RunFolder], config: Config, world: World
) -> Iterator[RunFolder]:
    """Enter the context `run` on rank 0, and return its folder on every rank.

    The ranks were started by an outer launcher and are connected. Raises ConfigError on all of them
    if their configurations differ, before rank 0 enters the context. Also raises it on all of them
    if the context does.
    """
    agree(config, world.world_size)
    path, errors = "", list[Error]()
    with ExitStack() as stack:
        if world.rank == 0:
            try:
                path = str(stack.enter_context(run).path)
            except ConfigError as error:
                errors = error.errors
        path, errors = gather_objects((path, errors))[0]
        refuse(errors)
        yield RunFolder(Path(path))


class JoinedEnvironment(LightningEnvironment):
    """The rank of a process that is already in its process group.

    Lightning's environments read the launcher's variables again, each with its own rules (SLURM's
    rejects `srun --ntasks`). They also requeue a job inside a signal handler.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        super().set_world_size(world.world_size)
        super().set_global_rank(world.rank)
        self._world = world

    @property
    @override
    def creates_processes_externally(self) -> bool:
        return True

    @override
    def set_world_size(self, size: int) -> None:
        """Keep the world size of the launcher."""

    @override
    def set_global_rank(self, rank: int) -> None:
        """Keep the rank of the launcher, whose nodes may be in any order."""

    @override
    def local_rank(self) -> int:
        return self._world.local_rank

    @override
    def node_rank(self) -> int:
        return self._world.node_rank

    @override
    def teardown(self) -> None:
        """Keep the launcher's variables, which Lightning's environment removes."""


def _choose_network(config: Config, world: World) -> None:
    """Set the variables that gloo and NCCL read when the process group is created.

    Raises ConfigError if this machine lacks the network interface.
    """
    interface_name = config.strategy.interface
    interfaces = [interface for _, interface in socket.if_nameindex()]
    if interface_name is not None and interface_name not in interfaces:
        raise config_error(
            "machine",
            f"strategy.interface={interface_name}",
            f"is not on {socket.gethostname()}, which has {', '.join(interfaces)}",
            "use one of these, or null",
        )
    if interface_name is not None:
        # For NCCL, eth1 also matches eth10, while =eth1 does not.
        os.environ.update(
            GLOO_SOCKET_IFNAME=interface_name, NCCL_SOCKET_IFNAME=f"={interface_name}"
        )
    elif world.is_on_one_machine:  # Otherwise gloo listens on the network of the host name.
        for loopback in {"lo", "lo0"}.intersection(interfaces):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    os.environ.update(
        {variable: str(value) for variable, value in config.strategy.variables.items()}
    )


@contextmanager
def _open_store(world: World, folder: RunFolder | None, timeout: timedelta) -> Iterator[Store]:
    """Open the store through which the ranks find each other. torchrun provides one."""
    if world.address is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        yield next(
            dist.rendezvous(  # pyright: ignore[reportPrivateImportUsage]
                "env://", timeout=timeout
            )
        )[0]
    elif world.address is None:
        yield _store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, timeout)
    elif folder is None:
        yield _store(*world.address, world, timeout)
    elif world.rank > 0:
        yield _store(*_read_address(folder.rendezvous(world.step), timeout), world, timeout)
    else:
        host = _reachable_name()
        store = _store(host, 0, world, timeout)
        path = folder.rendezvous(world.step)
        try:
            write_atomically(path, f"{host} {store.port}\n")
            yield store
        finally:
            path.unlink(missing_ok=True)


def _store(host: str, port: int, world: World, timeout: timedelta) -> TCPStore:
    """Open the store on rank 0, or connect to it.

    Rank 0 takes a free port if `port` is 0.
    """
    try:
        listener = _listener(host, port, world) if world.rank == 0 else None
        return TCPStore(
            host,
            listener.getsockname()[1] if listener else port,
            is_master=world.rank == 0,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach() if listener else None,
        )
    except (OSError, dist.DistNetworkError) as error:
        if "address already in use" not in str(error).lower():
            raise
        raise config_error(
            "busy",
            f"port {port} of {host}",
            ", the rendezvous of this job step, is used by another program",
            f"set MASTER_ADDR={host} and MASTER_PORT to a free one",
        ) from error


def _listener(host: str, port: int, world: World) -> socket.socket | None:
    """Return the socket given to rank 0, or one on only the address of `host`.

    Returns None, for all addresses, if only this machine resolves `host` to its address. Debian
    maps the host name to 127.0.1.1.
    """
    if world.listener is not None:
        return socket.socket(fileno=world.listener)
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    is_known = (
        world.is_on_one_machine or host == address[0] or not ip_address(address[0]).is_loopback
    )
    return socket.create_server(address, family=family) if is_known else None


def _reachable_name() -> str:
    """Return the name by which other machines find this one.

    Returns loopback without a name, because then there are no other machines.
    """
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return "127.0.0.1"
    return socket.gethostname()


def _read_address(path: Path, timeout: timedelta) -> tuple[str, int]:
    """Wait for the file of rank 0, and return its host and port."""
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        # Listing the folder makes NFS query its server. Otherwise NFS caches for a minute that the
        # file does not exist.
        if path.name in os.listdir(path.parent):
            with suppress(FileNotFoundError):
                host, port = path.read_text().split()
                return host, int(port)
        time.sleep(0.1)
    raise TimeoutError(
        f"{path} does not exist after {timeout.total_seconds():.0f} s (strategy.timeout_s): "
        "rank 0 has not started, or its disk is not shared by all nodes"
    )
