"""What training, evaluation and prediction share: the process group, the device, the precision, and their assembly."""

import contextlib
import logging
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import distributed as dist
from torch import nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lockstep import checkpoints, disk, workers
from lockstep import config as configuration
from lockstep.checkpoint_io import AtomicCheckpointIO
from lockstep.checkpoints import Chosen
from lockstep.data.decode import ImageFault
from lockstep.data.module import Batching, ImageData
from lockstep.data.sources import Splits
from lockstep.disk import DiskFault
from lockstep.environment import World, num_cores
from lockstep.memory import OutOfMemory, explained, out_of_memory
from lockstep.models import layout
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.models.layout import Layout
from lockstep.parallel import gradients, reduce
from lockstep.parallel.batch_norm import ExactBatchNorm
from lockstep.parallel.randomness import seed_of
from lockstep.parallel.reduce import gather_objects
from lockstep.run_folder import RunFolder, shown, write_atomically
from lockstep.schema import Config, ImageFolder
from lockstep.staging import once_a_node, together

AMPERE = (8, 0)  # the first compute capability with bfloat16 and TF32
COMPILE_MODES = {False: None, True: "default", "reduce-overhead": "reduce-overhead"}
# bfloat16 is the classifier's own autocast, around the network alone
LIGHTNING_PRECISION = {"bfloat16": "32-true", "tf32": "32-true", "float32": "32-true", "float64": "64-true"}


@dataclass(frozen=True)
class Session:
    """One process of a job: its configuration, its place among the workers, and what it computes on."""

    config: Config
    folder: RunFolder
    rank: int
    local_rank: int
    world_size: int
    num_local: int
    device: torch.device
    gpus: tuple[int, ...]
    precision: str
    precision_reason: str
    environment: ClusterEnvironment
    held: contextlib.ExitStack  # what is let go of at the end, however that comes

    @property
    def is_distributed(self) -> bool:
        """Whether there is a process group, also one of a single process."""
        return dist.is_initialized()

    @property
    def timeout(self) -> timedelta:
        """A collective that takes longer ends the run."""
        return timedelta(seconds=self.config.strategy.timeout_s)

    @property
    def loads(self) -> tuple[int, ...]:
        """Relative share of every rank."""
        return tuple(self.config.trainer.loads or [1] * self.world_size)


@contextlib.contextmanager
def opened(folder: RunFolder, config: Config, place: World | None) -> Iterator[Session]:
    """Join the workers of a job, agree with them on what it is, and leave them at the end.

    Raises ConfigError before any work when ranks differ in configuration or in their number, OutOfMemory in place of
    what an allocator raises, and DiskFault in place of what a disk refuses.
    """
    _quiet()
    asked = workers.found(config)
    rank, world_size = (place.rank, place.world_size) if place is not None else (0, 1)
    if place is not None:
        join(config, place, folder)
    device = _device(config, asked.gpus, place)
    precision, reason = _precision(config, device)
    _allow_tf32(precision == "tf32")
    _agree(config, world_size)
    with contextlib.ExitStack() as held:
        session = Session(
            config=config,
            folder=folder,
            rank=rank,
            local_rank=place.local_rank if place is not None else 0,
            world_size=world_size,
            num_local=asked.num_local,
            device=device,
            gpus=asked.gpus,
            precision=precision,
            precision_reason=reason,
            environment=JoinedEnvironment(place) if place is not None else LightningEnvironment(),
            held=held,
        )
        try:
            yield session
        except ImageFault as error:  # met while streaming
            raise configuration.ConfigError(error.faults) from error
        except Exception as error:
            refusal = out_of_memory(error)
            if refusal is not None:
                raise OutOfMemory(_explained(refusal, session)) from error
            refused = disk.refusal(error, folder.path)
            if refused is not None:
                raise DiskFault(refused) from error
            raise
        # after a failure the group stays until the process ends: the failure must be on record before others notice it
        if dist.is_initialized():
            gather_objects(None)  # nobody leaves while another still talks
            reduce.leave()


def _explained(refusal: BaseException, session: Session) -> str:
    log, is_kept = session.folder.rank_log(session.rank), session.folder.config.exists()  # of an evaluation it is not
    return explained(
        refusal,
        session.config,
        session.device,
        precision=session.precision,
        has_bfloat16=bfloat16_unit(session.device) is not None,
        rank=session.rank,
        loads=session.loads,
        log=shown(log) if is_kept else None,
    )


def join(config: Config, place: World, folder: RunFolder | None = None) -> None:
    """Enter the process group of the job, unless this process is in it already.

    Processes of srun meet where rank 0 says in `folder`, which all of them can read; without one, on a port that
    follows from the numbers of job and step. Raises ConfigError when this machine lacks the network asked for, or the
    port is taken.
    """
    if dist.is_initialized():
        return
    _choose_network(config)
    device = _device(config, workers.found(config).gpus, place)
    backend = config.strategy.process_group_backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=config.strategy.timeout_s)
    with _meeting(place, folder, timeout) as store:
        dist.init_process_group(
            backend,
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
            device_id=device if backend == "nccl" else None,  # else NCCL guesses, and warns that it does
        )
        reduce.connect(timeout)  # all are in: the place to meet is needed no more


def shared_folder(
    make: Callable[[], RunFolder], config: Config, place: World, known: RunFolder | None = None
) -> RunFolder:
    """The run folder rank 0 makes, on every rank an outer launcher started: each composed its own configuration.

    Where it is `known` before, the ranks meet there.
    Raises ConfigError when the ranks do not agree, before the folder is made, and when `make` does.
    """
    join(config, place, known)
    _agree(config, place.world_size)
    path, faults = "", []
    if place.rank == 0:
        try:
            path = str(make().path)
        except configuration.ConfigError as error:
            faults = error.faults
    path, faults = gather_objects((path, faults))[0]
    if faults:
        raise configuration.ConfigError(faults)
    return RunFolder(Path(path))


def _device(config: Config, gpus: tuple[int, ...], place: World | None) -> torch.device:
    """The device of this process, made torch's current one."""
    if not gpus:
        return torch.device("cpu")
    number = gpus[place.local_rank if place is not None else 0]
    if torch.cuda.device_count() <= number:
        raise RuntimeError(
            f"trainer.devices={config.trainer.devices}: torch {torch.__version__} finds {torch.cuda.device_count()} "
            "GPUs here; is it a build without CUDA, or the driver too old? strategy=cpu trains without GPUs."
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _quiet() -> None:
    """One voice: Lightning's banners off, and warnings that our own arithmetic answers."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        r".*sync_dist=True.*",  # our values are global already; the mean over ranks would be wrong
        r".*The ``compute`` method of metric .* was called before the ``update``.*",  # an empty share counts nothing
        r".*does not have many workers.*",  # a batch is one gather: workers would only copy it
        r".*The `srun` command is available on your system but is not used.*",  # on a login node it need not be
        r".*smaller than the logging interval.*",  # the epoch's means are logged anyway
        r".*WeightAveraging callback, but loading.*",  # evaluation takes the averaged weights, which is what we want
        r".*callbacks used to create the checkpoint need to be provided.*",  # an evaluation needs none of them
        r".*could not find the monitored key.*",  # before the first validation; the check knows all that is measured
        r".*Checkpoint directory .* exists and is not empty.*",  # a resume goes on in its folder
        r".*The `srun` command is available.*",  # whether a run is one of srun's is ours to find
        r".*`broadcast_buffers` is deprecated.*",  # its successor is not in torch 2.11 to 2.14, 2026-11-21
        r".*Please use the new API settings to control TF32.*",  # see _allow_tf32
        r".*LeafSpec.* is deprecated.*",  # Lightning 2.6.6 on torch 2.15, 2026-11-21
    ):
        warnings.filterwarnings("ignore", message=message)
    threading.excepthook = _show_thread_failure


def _show_thread_failure(failed: threading.ExceptHookArgs) -> None:
    """Leave out what TensorBoard's writing thread raises: its writer raises the same in the training."""
    if type(failed.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failed)


class JoinedEnvironment(ClusterEnvironment):
    """Tells Lightning where this process stands; it is in its process group already.

    Lightning's own environments read the launcher's variables again, each with rules of its own (SLURM's refuses
    `srun --ntasks`), and requeue a job inside a signal handler.
    """

    def __init__(self, place: World) -> None:
        super().__init__()
        self._place = place

    @property
    def creates_processes_externally(self) -> bool:
        """Lightning starts nothing."""
        return True

    @property
    def main_address(self) -> str:
        """Not used: the group is there."""
        return ""

    @property
    def main_port(self) -> int:
        """Not used: the group is there."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Never chosen by Lightning itself."""
        return False

    def world_size(self) -> int:
        """Processes on all nodes."""
        return self._place.world_size

    def set_world_size(self, size: int) -> None:
        """The launcher said it."""

    def global_rank(self) -> int:
        """0 to world size - 1."""
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """The launcher said it."""

    def local_rank(self) -> int:
        """Rank among the processes of this node."""
        return self._place.local_rank

    def node_rank(self) -> int:
        """Number of this node."""
        return self._place.node_rank


def _choose_network(config: Config) -> None:
    """Tell gloo and NCCL, which read the environment when the process group is made, what to talk over."""
    faults = workers.interface_faults(config)
    if faults:
        raise configuration.ConfigError(faults)
    name = config.strategy.interface
    if name is not None:
        # to NCCL eth1 is also eth10, but =eth1 is not
        os.environ.update(GLOO_SOCKET_IFNAME=name, NCCL_SOCKET_IFNAME=f"={name}")
    os.environ.update({name: str(value) for name, value in config.strategy.variables.items()})


@contextlib.contextmanager
def _meeting(place: World, folder: RunFolder | None, timeout: timedelta) -> Iterator[TCPStore | None]:
    """The store through which the ranks find each other; None: torch's own variables say where it is."""
    if place.address is None:
        yield None
    elif folder is None:
        yield _store(*place.address, place, timeout)
    elif place.rank > 0:
        yield _store(*_read_address(folder.rendezvous(place.step), timeout), place, timeout)
    else:
        host = _own_name()
        store = _store(host, 0, place, timeout)
        path = folder.rendezvous(place.step)
        try:
            write_atomically(path, f"{host} {store.port}\n")
            yield store
        finally:
            path.unlink(missing_ok=True)


def _store(host: str, port: int, place: World, timeout: timedelta) -> TCPStore:
    """A store that rank 0 holds open, on a free port where `port` is 0."""
    try:
        return TCPStore(host, port, is_master=place.rank == 0, timeout=timeout, wait_for_workers=False)
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        fault = f"port {port} of {host}, where the processes of this step meet, is taken by another program: "
        raise configuration.ConfigError([fault + f"set MASTER_ADDR={host} and MASTER_PORT to a free one"]) from error


def _own_name() -> str:
    """The name by which other machines find this one."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:  # then there can be no others
        return "127.0.0.1"
    return socket.gethostname()


def _read_address(path: Path, timeout: timedelta) -> tuple[str, int]:
    """Host and port that rank 0 writes to a file."""
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        # looking at the folder has NFS ask its server, else it says for a minute that the file is not there
        if path.name in os.listdir(path.parent):
            with contextlib.suppress(FileNotFoundError):
                host, port = path.read_text().split()
                return host, int(port)
        time.sleep(0.1)
    raise TimeoutError(
        f"{path} is not there after {timeout.total_seconds():.0f} s (strategy.timeout_s): rank 0 has not started, or "
        "the run folder is not on a disk that all nodes share"
    )


def _agree(config: Config, world_size: int) -> None:
    """Every rank was given the same configuration and world size. Raises ConfigError on all ranks where not."""
    mine = (configuration.fingerprint(config), world_size)
    for rank, other in enumerate(gather_objects(mine)):
        if other != mine:
            fault = f"rank {rank} has another configuration or world size, {other}, than this process, {mine}: "
            raise configuration.ConfigError([fault + "start every process with the same command and the same files"])


def _precision(config: Config, device: torch.device) -> tuple[str, str]:
    """The precision to compute in, and why. Raises ConfigError for one that the device does not have."""
    asked, name = config.trainer.precision, ""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        capability = torch.cuda.get_device_capability(device)
        if asked == "tf32" and capability < AMPERE:
            version, first = (".".join(map(str, numbers)) for numbers in (capability, AMPERE))
            what = f"{name} has no TF32 (compute capability {version}, it begins with {first})"
            raise configuration.ConfigError([f"trainer.precision=tf32, but {what}: use float32"])
    if asked == "tf32":
        return asked, f"as asked: float32, of which {name} multiplies 11 of 24 bits"
    if asked == "float32" and name:
        return asked, "as asked, without TF32"
    if asked != "auto":
        return asked, "as asked"
    unit = bfloat16_unit(device)
    if name:
        return ("bfloat16", f"{name} computes it natively") if unit else ("float32", f"{name} lacks bfloat16")
    return ("bfloat16", f"this CPU has {unit}") if unit else ("float32", "this CPU has no bfloat16 arithmetic")


def bfloat16_unit(device: torch.device) -> str | None:
    """What of a device computes bfloat16; None where nothing does."""
    if device.type == "cuda":
        return "tensor cores" if torch.cuda.get_device_capability(device) >= AMPERE else None
    flags = torch.cpu.get_capabilities()
    return next((label for key, label in (("amx_bf16", "AMX"), ("avx512_bf16", "AVX512-BF16")) if flags.get(key)), None)


def _allow_tf32(is_on: bool) -> None:
    """Whether float32 products and convolutions of this process may round their factors to TF32.

    torch lets convolutions do so from the start. It has two kinds of switches, and raises where one kind is read after
    the other was set. Lightning 2.6 and torch's compiler read the older, so the newer are reset (torch 2.15).
    """
    torch.backends.fp32_precision = "none"  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.fp32_precision = "none"
    torch.backends.cudnn.allow_tf32 = is_on
    torch.set_float32_matmul_precision("high" if is_on else "highest")


def checkpoint(session: Session, asked: Path) -> Chosen:
    """The checkpoint to load, as rank 0 finds it: `asked`, or another one where that is damaged, which rank 0 tells.

    Every rank must call it. Raises ConfigError on all ranks where none is whole.
    """
    found = together(lambda beat: checkpoints.chosen(session.folder, asked) if session.rank == 0 else None)
    chosen = gather_objects(found)[0]
    assert chosen is not None
    if chosen.note and session.rank == 0:
        print(chosen.note, file=sys.stderr, flush=True)
    return chosen


def image_data(session: Session) -> ImageData:
    """The data of the run, with this rank's share. Raises ConfigError when it cannot be read."""
    config, trainer = session.config, session.config.trainer
    return ImageData(
        splits(session),
        batching=Batching(
            global_batch_size=config.global_batch_size,
            micro_batches_per_step=trainer.accumulate_grad_batches,
            eval_batch_size=config.eval_batch_size,
            loads=session.loads,
            limit_train_batches=trainer.limit_train_batches,
            limit_val_batches=trainer.limit_val_batches,
            limit_test_batches=trainer.limit_test_batches,
            overfit_batches=trainer.overfit_batches,
        ),
        augment=config.augment,
        memory=config.data.memory,
        num_workers=_num_stream_workers(session),
        seed=config.seed,
        rank=session.rank,
        device=session.device,
    )


def splits(session: Session) -> Splits:
    """The images of the run, read where this node has them. Raises ConfigError on all ranks when they cannot be."""
    return once_a_node(
        session.config.data,
        configuration.build,
        rank=session.rank,
        local_rank=session.local_rank,
        is_silent=session.config.silent,
        held=session.held,
    )


def _num_stream_workers(session: Session) -> int:
    """Processes of this rank that decode streamed images."""
    asked = session.config.data.num_workers if isinstance(session.config.data, ImageFolder) else "auto"
    return max(1, num_cores() // session.num_local) if asked == "auto" else asked


def classifier(
    session: Session, image_format: ImageFormat, *, total_steps: int, is_trained: bool = False
) -> Classifier:
    """The network of the run with its training of `total_steps`; initial weights depend on the seed alone.

    Every rank must call it. Raises ConfigError for a network that is to be trained in a layout that is not safe here.
    """
    config = session.config
    torch.manual_seed(seed_of(config.seed, "weights"))
    net = configuration.build(
        config.model, in_channels=image_format.image_shape[0], num_classes=len(image_format.class_names)
    )
    module = Classifier(
        net,
        image_format=image_format,
        optimizer=configuration.build(config.optimizer),
        scheduler=configuration.build(config.scheduler),
        total_steps=total_steps,
        micro_batches_per_step=config.trainer.accumulate_grad_batches,
        gradient_clip_norm=config.trainer.gradient_clip_norm,
        uses_bfloat16=session.precision == "bfloat16",
        layout=_layout(session, net, is_trained=is_trained),
        compile_mode=COMPILE_MODES[config.compile],
        has_flip_test=config.flip_test,
        label_smoothing=config.label_smoothing,
        seed=config.seed,
        log_every_n_steps=config.trainer.log_every_n_steps,
    )
    # Lightning widens to float64 only after it has loaded a checkpoint, which would round that to float32
    return module.double() if session.precision == "float64" else module


def refuse_single_values(config: Config, data: ImageData, module: Classifier) -> None:
    """Raise ConfigError where batches of one image leave a batch norm nothing to normalize by.

    The sampler makes them only where all are, or where there is no other image.
    """
    batches = data.train_dataloader().batch_sampler
    norm = module.norm_of_single_values() if batches.has_single_samples else None
    if norm is None:
        return
    size, parts = config.global_batch_size, config.trainer.accumulate_grad_batches
    if batches.num_samples == 1:
        what = "there is one training image: use more"
    elif size == 1:
        what = f"global_batch_size={size} gives each batch one image: use a larger one"
    else:
        key = f"trainer.accumulate_grad_batches={parts}"
        what = f"{key} cuts global_batch_size={size} into parts of one image: use fewer parts"
    raise configuration.ConfigError([f"{what}, because the batch norm {norm!r} cannot normalize a single value"])


def _layout(session: Session, net: nn.Module, *, is_trained: bool) -> Layout:
    """The layout of the network, the same on every rank: DDP adds up gradients as they lie in memory."""
    is_faulty = (
        session.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and layout.has_faulty_onednn(torch.cpu.get_capabilities(), os.environ)
    )
    found = gather_objects(layout.faulty_convolution(net, session.precision) if is_faulty else None)
    faulty = next((name for name in found if name is not None), None)
    asked = session.config.trainer.memory_format
    if asked == "channels_last" and faulty is not None and is_trained:  # a forward pass is safe
        fault = f"trainer.memory_format=channels_last: without AVX512 oneDNN crashes in the gradient of {faulty}, or "
        raise configuration.ConfigError([f"{fault}computes a wrong one: use trainer.memory_format=auto"])
    return layout.chosen(asked, faulty)


def image_format(data: ImageData) -> ImageFormat:
    """What prediction needs to know of the images of `data`."""
    return ImageFormat(data.class_names, data.image_shape, data.mean, data.std)


def lightning_trainer(session: Session, *, callbacks: Sequence[Callback] = (), **settings: Any) -> L.Trainer:
    """A Trainer on the devices of the session, without anything Lightning would add by itself."""
    for callback in callbacks:
        _skip_idle_hooks(callback)
    config = session.config
    strategy: Any = "auto"
    if session.is_distributed:
        strategy = _OneStream(
            gradient_dtype=config.strategy.gradient_dtype,
            # said here, because `devices` below refuses a GPU that two workers call by one number, each its own
            parallel_devices=[torch.device("cuda", number) for number in session.gpus] or None,
            timeout=session.timeout,
            broadcast_buffers=False,  # statistics have the same bits on all ranks already
            gradient_as_bucket_view=True,
            bucket_cap_mb=config.strategy.bucket_size_mib,
        )
    return L.Trainer(
        accelerator="gpu" if session.device.type == "cuda" else "cpu",
        devices=sorted(set(session.gpus)) if session.gpus else session.num_local,
        num_nodes=config.trainer.num_nodes,
        strategy=strategy,
        precision=LIGHTNING_PRECISION[session.precision],  # pyright: ignore[reportArgumentType]
        deterministic=_deterministic(config),
        benchmark=session.device.type == "cuda" and not config.trainer.deterministic,
        plugins=[ExactBatchNorm(), AtomicCheckpointIO(), session.environment],
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        default_root_dir=session.folder.path,
        **settings,
    )


def _deterministic(config: Config) -> bool | None:
    """What Lightning is to ask of torch: nothing (None) where it is so, for torch imports its compiler to be told."""
    is_wanted = config.trainer.deterministic
    return is_wanted if is_wanted or torch.are_deterministic_algorithms_enabled() else None


class _OneStream(DDPStrategy):
    """Wraps the model on the stream on which it is trained, and has its gradients averaged as gradients.py knows.

    Lightning 2.6 does so on a stream of its own, for CUDA graphs. Then every gradient waits for an event of another
    stream before it is added up, in each backward pass, and torch warns of it.
    """

    def __init__(self, *, gradient_dtype: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._gradient_dtype = gradient_dtype

    @override
    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        ids = self.determine_ddp_device_ids()
        wrapped = DistributedDataParallel(module=model, device_ids=ids, **self._ddp_kwargs)
        gradients.choose(wrapped, is_bfloat16=self._gradient_dtype == "bfloat16")
        return wrapped


def _skip_idle_hooks(callback: Callback) -> None:
    """Have Lightning pass over the per-step hooks in which `callback` does nothing.

    It skips what cannot be called. Calling nine callbacks twice a step, and naming each for the profiler, costs 80 us
    (one CPU thread, 2026-11-21).
    """
    for hook in ("on_train_batch_start", "on_train_batch_end"):
        if not is_overridden(hook, callback, parent=Callback):
            setattr(callback, hook, None)
    if isinstance(callback, ModelCheckpoint) and getattr(callback, "_every_n_train_steps", 1) < 1:
        setattr(callback, "on_train_batch_end", None)  # noqa: B010
