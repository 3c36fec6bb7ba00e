"""The memory of a device: how much was used, and what to do when it does not suffice."""

import re
import resource
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lockstep.config import signatures
from lockstep.config.schema import Config
from lockstep.system.hardware import memory_bytes
from lockstep.system.wording import plural

if TYPE_CHECKING:
    import torch

# other errors than torch.OutOfMemoryError by which torch tells of memory that was not there
SAYINGS = ("DefaultCPUAllocator: can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
NUM_CURES = 3


class OutOfMemory(Exception):
    """Ends a run. The first line of the text says what happened, the others what a person can do."""


def out_of_memory(error: BaseException) -> BaseException | None:
    """The refusal of an allocator that `error` is or follows from; None where memory is not the reason."""
    import torch

    for cause in causes(error):
        if isinstance(cause, torch.OutOfMemoryError | MemoryError):
            return cause
        if isinstance(cause, RuntimeError) and any(saying in str(cause) for saying in SAYINGS):
            return cause
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those it follows from, each once: one that is raised again and again can follow itself."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def explained(
    error: BaseException,
    config: Config,
    device: "torch.device",
    *,
    precision: str,
    has_bfloat16: bool,
    rank: int,
    loads: Sequence[int],
    log: str | None,
) -> str:
    """What a person reads in place of the traceback of an allocator's refusal, which is in the file `log`, if kept."""
    names = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    is_step = "training_step" in names
    when = " in a training step" if is_step else " in an evaluation" if "forward" in names else ""
    wanted, free = _asked_for(str(error))
    what = f"rank {rank} of {len(loads)} ran out of memory{when}"
    if wanted:
        what += f": it asked for {wanted} more" + (f", and {free} were free" if free else "")
    cures = list(_step_cures(config, device, precision, has_bfloat16))
    if not is_step:
        cures = [*(_evaluation_cures(config) if when else ()), *_data_cures(config, device), *cures]
    cures = list(dict.fromkeys(cures))[:NUM_CURES]
    width = max(len(setting) for setting, _ in cures)
    return "\n".join(
        [
            f"{what}. {_held(device)}",
            f"{_batch(config, rank, loads)} What needs less memory:",
            *(f"  {setting:{width}}  {effect}" for setting, effect in cures),
            *([f"The traceback is in {log}."] if log else []),
        ]
    )


def peak_memory(device: "torch.device") -> int:
    """The most bytes this process ever held: tensors on a GPU, everything on a CPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _asked_for(text: str) -> tuple[str, str]:
    """How much was asked for and how much was free, as an allocator of torch says it; "" where it does not."""
    size = re.search(r"Tried to allocate ([\d.]+ [KMG]iB)", text)
    free = re.search(r"of which ([\d.]+ [KMG]iB) is free", text)
    num_bytes = re.search(r"tried to allocate (\d+) bytes", text)
    wanted = size[1] if size else _gib(int(num_bytes[1])) if num_bytes else ""
    return wanted, free[1] if free else ""


def _held(device: "torch.device") -> str:
    if device.type == "cuda":
        import torch

        where = f"{device} ({torch.cuda.get_device_name(device)}, {_gib(torch.cuda.mem_get_info(device)[1])})"
        return f"Its tensors held up to {_gib(peak_memory(device))} of {where}."
    total = memory_bytes()
    return f"The process held up to {_gib(peak_memory(device))} of the {_gib(total)} of this machine."


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"


def _batch(config: Config, rank: int, loads: Sequence[int]) -> str:
    size, num_parts = config.global_batch_size, config.trainer.accumulate_grad_batches
    share = -(-(size // num_parts) * loads[rank] // sum(loads))
    parts = f" in {num_parts} micro-batches" if num_parts > 1 else ""
    return f"A step has {plural(size, 'image')}{parts}, up to {share} of them on this worker at once."


def _step_cures(
    config: Config, device: "torch.device", precision: str, has_bfloat16: bool
) -> Iterator[tuple[str, str]]:
    """(setting, effect), best first."""
    size, num_parts = config.global_batch_size, config.trainer.accumulate_grad_batches
    if config.compile == "reduce-overhead" and device.type == "cuda":
        yield "compile=true", "the same training; CUDA graphs hold memory of their own"
    elif size > num_parts:
        more = next(count for count in range(2 * num_parts, size + 1) if size % count == 0)
        yield (
            f"trainer.accumulate_grad_batches={more}",
            f"the same training, each step computed in {more} parts; only batch norm sees the difference",
        )
    if precision == "float64":
        yield "trainer.precision=float32", "half the memory, and half the digits"
    elif precision != "bfloat16" and has_bfloat16:
        yield "trainer.precision=bfloat16", "about half the memory of a step, and fewer digits"
    yield from _data_cures(config, device)
    if size > 1:
        yield f"global_batch_size={size // 2}", "another training: the learning rate has to be found anew"


def _data_cures(config: Config, device: "torch.device") -> Iterator[tuple[str, str]]:
    memory = config.data.memory
    if device.type == "cuda" and memory in ("auto", "device"):
        yield "data.memory=host", "pixels that are on the GPU stay in host memory; the numbers are the same"
    elif device.type == "cpu" and memory != "stream" and signatures.takes(config.data.target, "memory"):
        yield "data.memory=stream", "images are decoded when they are needed; the numbers are the same"


def _evaluation_cures(config: Config) -> Iterator[tuple[str, str]]:
    if config.eval_batch_size > 1:
        yield f"eval_batch_size={config.eval_batch_size // 2}", "the same results"
