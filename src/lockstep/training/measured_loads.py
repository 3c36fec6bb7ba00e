"""Loads of the workers from their measured speed (trainer.loads=auto)."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from lockstep.assembly import try_out
from lockstep.assembly.session import Session
from lockstep.config.saved import config_file
from lockstep.data.module import ImageData
from lockstep.distributed.collectives import gather_objects
from lockstep.models.classifier import Classifier
from lockstep.tasks.task import checked_losses

NUM_WARM_UPS, NUM_TIMED = 2, 5
SHORTEST_S = 0.1  # of a timed part: longer than the time slices in which processes share a core
EQUAL = 0.95  # of the highest speed: two measurements of one machine differ as much


def measure_loads(here: Session, data: ImageData, module: Classifier) -> Session:
    """Replace loads=auto in the session, the data and config.yaml, for several workers.

    Every rank must call it. Network, random numbers and data are left as they were.
    """
    if here.world_size == 1:
        return here
    speeds = gather_objects(_images_per_s(here, data, module))
    loads = proportional(data.batches("train").micro_batch_size, speeds)
    trainer = here.config.trainer.model_copy(update={"loads": loads})
    here = replace(here, config=here.config.model_copy(update={"trainer": trainer}))
    data.share(here.loads)
    if here.rank == 0:
        config_file.save(here.config, here.folder.config)
    idle = ", ".join(str(rank) for rank, load in enumerate(here.loads) if not load)
    text = f"measured: {' : '.join(f'{speed:,.0f}' for speed in speeds)} images/s"
    return replace(here, remarks={"loads": f"{text}; too slow to help: rank {idle}" if idle else text})


def proportional(size: int, speeds: Sequence[float]) -> list[int]:
    """Return the loads with which the last of these workers finishes a batch of `size` soonest, in lowest terms."""
    if min(speeds) >= EQUAL * max(speeds):
        return [1] * len(speeds)
    loads = [int(size * speed / sum(speeds)) for speed in speeds]
    for _ in range(size - sum(loads)):
        finished = [(load + 1) / speed for load, speed in zip(loads, speeds, strict=True)]
        loads[finished.index(min(finished))] += 1
    divisor = math.gcd(*loads)
    return [load // divisor for load in loads]


def _images_per_s(here: Session, data: ImageData, module: Classifier) -> float:
    """Time steps of this worker on an even shard, without messages, while the others, who may share its cores, do so.

    Each of them computes about as long as the slowest. Networks are timed eagerly, also with `compile`.
    """
    batches = data.batches("train")
    fewest = 1 if batches.has_single_samples else try_out.NUM_SAMPLES
    size = max(fewest, -(-min(batches.micro_batch_size, batches.num_samples) // here.world_size))
    with try_out.restore_module(module):
        batch = data.example(size)

        def step() -> None:
            augmented = data.augment(batch)
            for dropout in module.dropouts:
                dropout.shard = augmented.shard
            losses, _ = checked_losses(module.task, module(augmented.inputs), augmented)
            losses.sum().backward()
            if here.device.type == "cuda":
                torch.cuda.synchronize()

        warm_ups = [_seconds(step, 1) for _ in range(NUM_WARM_UPS)]
        count = max(1, round(max(SHORTEST_S, *gather_objects(warm_ups[-1])) / warm_ups[-1]))
        return size * count / statistics.median(_seconds(step, count) for _ in range(NUM_TIMED))


def _seconds(step: Callable[[], None], count: int) -> float:
    started = time.monotonic()
    for _ in range(count):
        step()
    return time.monotonic() - started
