"""What ended a run, and what to change in it."""

from bdb import BdbQuit
from collections.abc import Iterator

from lockstep.assembly.refusals import explain_error
from lockstep.config.schema.configuration import Config
from lockstep.models.step import NonFiniteGradient, NonFiniteLoss
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import resume_override
from lockstep.system.launcher import World


def explain(error: Exception, folder: RunFolder, config: Config, world: World, precision: str) -> str | None:
    """Explain a bad loss, its samples after a blank line; the end of a debugger; a lack of memory or disk space."""
    if isinstance(error, NonFiniteGradient):
        return str(error)
    if isinstance(error, NonFiniteLoss):
        *lines, samples = str(error).splitlines()
        return "\n".join([*lines, *_advice(folder, config, precision, is_first=len(lines) == 1), "", samples])
    if isinstance(error.__cause__ or error, BdbQuit):
        is_alone = world.world_size == 1
        return "the debugger was quit" if is_alone else "breakpoint() needs a run of one worker: set trainer.devices=1"
    return explain_error(error, folder.path, f"rank {world.rank} of {world.world_size}")


def _advice(folder: RunFolder, config: Config, precision: str, *, is_first: bool) -> Iterator[str]:
    later = list[str]()
    if is_first and not folder.last_checkpoint.exists():
        yield "No step came before it: the learning rate is not the cause. Look for NaN and"
        yield f"infinite values in the images, {config.model.target} and {config.task.target}."
    else:
        rate = config.optimizer.lr
        yield f"Lower optimizer.lr{'' if rate is None else f'={rate:g}'} first: divide it by 10 until the loss falls."
        later += ["trainer.gradient_clip_norm=1"] if config.trainer.gradient_clip_norm is None else []
    later += ["trainer.precision=float32"] if precision in ("float16", "bfloat16") else []
    if later:
        yield f"Then try {' and '.join(later)}."
    first, *losses = [float(row.get("train/loss") or "nan") for row in folder.read_metrics()] or [0.0]
    status = folder.read_status()
    if status.get("best") is not None and any(loss < first for loss in losses):
        yield f"The best epoch so far has {status['monitor']} {status['best']:.4f}. A new run starts from it with"
        yield resume_override(folder.path).replace("resume=", "init_from=", 1)
