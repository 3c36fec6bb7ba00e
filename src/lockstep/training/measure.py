"""What a training step is made of, measured in the training itself: the same step with and without communication."""

import copy
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode
from typing_extensions import override

from lockstep.callbacks.stop import STOP_FILE, TIME_LIMIT, Stopped
from lockstep.config import storage
from lockstep.data.module import ImageData
from lockstep.distributed.batch_norm import SyncBatchNorm
from lockstep.distributed.collectives import FlagChannel, add_up, gather_objects
from lockstep.models.classifier import Classifier
from lockstep.runs.files import write_json
from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from lockstep.system import internals, provenance
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.training import assembly, session, trial
from lockstep.training.session import Session

WARM_UP = 2  # pairs of steps that are not counted
MIN_PAIRS = 3  # also when there is no time for more
# TF32 is a way to multiply float32, switched on by the session
DTYPES = {
    "bfloat16": torch.bfloat16,
    "tf32": torch.float32,
    "float32": torch.float32,
    "float64": torch.float64,
}
MATMUL_SIZE = {"cpu": 1024, "cuda": 8192}
NUM_MATMULS = 10
NUM_SMALL, NUM_LARGE = 50, 10  # all-reduces


def measure(
    folder: RunFolder, world: World | None, flag: SignalFlag, *, num_steps: int, max_s: float, checkpoint: str
) -> int:
    """Measure the run in `folder` with its own workers and write measurement.json. Returns the exit code.

    Nothing that is trained here is kept. `checkpoint` is what the accuracy on the validation split is taken of.
    """
    config = storage.load(folder.config)
    with session.opened(folder, config, world) as here:
        data = assembly.image_data(here, folder)
        total_steps = config.trainer.max_epochs * data.steps_per_epoch
        module = assembly.classifier(here, assembly.image_format(data), total_steps=total_steps, is_trained=True)
        assembly.refuse_single_values(config, data, module)
        trial.joined(data, module.task)
        module.to(here.device)
        flops = flops_per_image(module.net, data.image_shape)
        num_images = data.batches("train").num_epoch_samples
        size = min(config.global_batch_size, num_images)
        steps = Steps(here, flag, num_pairs=num_steps, max_s=max_s, size=size)
        trainer = assembly.lightning_trainer(
            here,
            module,
            callbacks=[steps],
            logger=False,
            enable_checkpointing=False,
            max_epochs=-1,
            limit_val_batches=0,
        )
        try:
            trainer.fit(module, data)
        except Stopped:
            return EXIT_STOPPED
        memory = gather_objects(peak_memory(here.device))
        scorer = assembly.lightning_trainer(here, module, logger=False, enable_checkpointing=False)
        scorer.validate(module, data, ckpt_path=checkpoint, weights_only=True, verbose=False)
        facts = {
            **_facts(here, module, data),
            "peak_memory_bytes": memory,
            "flops_per_image": flops,
            "steps_s": slowest(steps.times_s),
        }
        if here.rank == 0:
            write_json(folder.measurement, facts)
    return 0


def _facts(here: Session, module: Classifier, data: ImageData) -> dict[str, Any]:
    """What was measured with, and what its devices can do. Every rank must call it."""
    num_bytes = gradient_bytes(module.net)
    return {
        "val_images": data.batches("val").num_epoch_samples,
        "val_accuracy": module.metrics["val/accuracy"],
        "num_parameters": sum(p.numel() for p in module.net.parameters()),
        "precision": here.precision,
        "devices": gather_objects(_device_name(here.device)),
        "threads_per_worker": torch.get_num_threads(),
        "gradient_bytes": num_bytes,
        "bucket_mib": here.config.strategy.bucket_size_mib,
        "backend": dist.get_backend() if here.is_distributed else None,
        "num_batch_norms": sum(isinstance(layer, internals.BatchNorm) for layer in module.net.modules()),
        "all_reduce_s": _all_reduces(here.device, num_bytes) if here.world_size > 1 else {},
        "peak_flops_per_s": _peaks(here),
    }


class Steps(L.Callback):
    """Times alternating optimizer steps, full and without synchronization, and the waiting for their batches.

    Steps of fewer images than `size`, at the end of an epoch, do not count.
    All ranks start a step together, so that a rank does not wait in one for what another still does of the last.
    """

    def __init__(self, here: Session, flag: SignalFlag, *, num_pairs: int, max_s: float, size: int) -> None:
        self._here = here
        self._flag = flag
        self._num_pairs = num_pairs
        self._max_s = max_s
        self._size = size
        self._plain: dict[nn.Module, type[nn.Module]] = {}
        self._num_steps = 0
        self._step_s = self._input_s = 0.0
        self.times_s: dict[str, list[float]] = {"full": [], "local": [], "input": []}

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Remember what the batch norms are before they are synchronized."""
        self._plain = {layer: type(layer) for layer in pl_module.modules() if isinstance(layer, internals.BatchNorm)}

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Turn signals into a flag that all ranks agree on, as in a training."""
        self._channel = FlagChannel(self._here.timeout)
        self._flag.install()
        internals.silence_broadcast(trainer)
        self._started = self._ended = time.perf_counter()

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The batch is there, augmented: that was the input. Then all ranks begin."""
        self._wait()
        self._input_s += time.perf_counter() - self._ended
        self._synchronize(trainer, self._num_steps % 2 == 0)  # Lightning switches it on after every batch
        is_asked = trainer.is_global_zero and self._here.folder.stop_flag.exists()
        if self._channel.agree(STOP_FILE if is_asked else self._flag.received):
            raise Stopped("asked to stop", None)
        self._step_started = time.perf_counter()

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step; end the training after the last."""
        self._wait()
        self._step_s += time.perf_counter() - self._step_started
        assert isinstance(pl_module, Classifier)
        if (batch_idx + 1) % pl_module.accumulate_grad_batches == 0 or trainer.is_last_batch:
            self._count(trainer, is_whole=batch.share.group_size >= self._size)
        self._ended = time.perf_counter()

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave the module as it was."""
        self._synchronize(trainer, True)

    def _count(self, trainer: L.Trainer, *, is_whole: bool) -> None:
        step_s, input_s = self._step_s, self._input_s
        self._step_s = self._input_s = 0.0
        if not is_whole:
            return
        is_full = self._num_steps % 2 == 0
        if self._num_steps >= 2 * WARM_UP:
            self.times_s["full" if is_full else "local"].append(step_s)
            self.times_s["input"].append(input_s)
        self._num_steps += 1
        num_pairs = self._num_steps // 2 - WARM_UP
        if is_full or num_pairs < MIN_PAIRS:
            return
        is_late = time.perf_counter() - self._started > self._max_s
        if num_pairs >= self._num_pairs or self._channel.agree(TIME_LIMIT if is_late else 0):
            trainer.should_stop = True

    def _synchronize(self, trainer: L.Trainer, is_on: bool) -> None:
        """Switch the exchange of gradients and of batch statistics."""
        if self._here.world_size == 1:
            return
        model = trainer.strategy.model
        assert isinstance(model, DistributedDataParallel)
        model.require_backward_grad_sync = is_on  # what its no_sync() sets
        for layer, plain in self._plain.items():
            layer.__class__ = SyncBatchNorm if is_on else plain

    def _wait(self) -> None:
        if self._here.device.type == "cuda":
            torch.cuda.synchronize(self._here.device)


def slowest(times_s: dict[str, list[float]]) -> dict[str, list[float]]:
    """The time of every step on the rank that took longest, for which the others wait."""
    ranks = gather_objects(times_s)
    return {kind: [max(times) for times in zip(*(rank[kind] for rank in ranks), strict=True)] for kind in times_s}


def flops_per_image(net: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Floating-point operations of one forward and backward pass, counted while they run; an addition counts too.

    Evaluation mode, for dropout of ours wants a share of a batch; convolutions and products are the same. A copy of the
    network counts, in the layout that is safe on every CPU: its backward pass is in float32, the training's may not be.
    """
    parameter = next(net.parameters())
    images = torch.zeros(2, *image_shape, device=parameter.device, dtype=parameter.dtype)
    copied = copy.deepcopy(net).to(memory_format=torch.contiguous_format).eval()  # pyright: ignore[reportCallIssue]
    with FlopCounterMode(display=False) as counter:
        copied(images).sum().backward()
    return counter.get_total_flops() // len(images)


def gradient_bytes(net: nn.Module) -> int:
    """Bytes of all gradients, which every step exchanges."""
    return sum(p.numel() * p.element_size() for p in net.parameters() if p.requires_grad)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else provenance.cpu_name()


def _all_reduces(device: torch.device, num_bytes: int) -> dict[str, list[float]]:
    """Seconds of all-reduces of one number, and of as many bytes as there are gradients."""
    small = torch.zeros(1, device=device)
    large = torch.zeros(max(1, num_bytes // small.element_size()), device=device)
    times = {
        "message": _times(lambda: add_up(small), NUM_SMALL, device),
        "gradient": _times(lambda: add_up(large), NUM_LARGE, device),
    }
    return slowest(times)


def _peaks(here: Session) -> dict[str, list[float]]:
    """FLOP/s of square matrix products on all workers at once, of every repetition, in each precision of the device."""
    size = MATMUL_SIZE[here.device.type]
    names = {"bfloat16", "float32", here.precision} if here.device.type == "cpu" else {here.precision}
    peaks: dict[str, list[float]] = {}
    for name in sorted(names):
        a = torch.ones(size, size, device=here.device, dtype=DTYPES[name])
        gather_objects(None)  # all at once, as in a training
        times = gather_objects(_times(_product(a), NUM_MATMULS, here.device))
        peaks[name] = [sum(2 * size**3 / seconds for seconds in ranks) for ranks in zip(*times, strict=True)]
    return peaks


def _product(a: Tensor) -> Callable[[], object]:
    out = torch.empty_like(a)
    return lambda: torch.mm(a, a, out=out)


def _times(work: Callable[[], object], count: int, device: torch.device) -> list[float]:
    """Seconds of each of `count` calls, after two that are not counted."""
    times = []
    for _ in range(2 + count):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return times[2:]


def peak_memory(device: torch.device) -> int:
    """The most bytes this process ever held: tensors on a GPU, everything on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
