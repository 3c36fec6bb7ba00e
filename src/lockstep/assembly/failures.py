"""What ended a run, and what to change in it."""

from bdb import BdbQuit
from collections.abc import Iterator

from lockstep.assembly.refusals import explain_error
from lockstep.config.schema.configuration import Config
from lockstep.models.step import NonFiniteGradient, NonFiniteLoss
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World


def explain(error: Exception, folder: RunFolder, config: Config, world: World, precision: str) -> str | None:
    """Explain a bad loss, its samples after a blank line; the end of a debugger; a lack of memory or disk space."""
    if isinstance(error, NonFiniteGradient):
        return str(error)
    if isinstance(error, NonFiniteLoss):
        what, samples = str(error).splitlines()
        is_first = "in optimizer step 1 " in what
        return "\n".join([what, *_advice(config, precision, is_first=is_first), "", samples])
    if isinstance(error.__cause__ or error, BdbQuit):
        is_alone = world.world_size == 1
        return "the debugger was quit" if is_alone else "breakpoint() needs a run of one worker: set trainer.devices=1"
    return explain_error(error, folder.path, f"rank {world.rank} of {world.world_size}")


def _advice(config: Config, precision: str, *, is_first: bool) -> Iterator[str]:
    later = list[str]()
    if is_first:
        yield "No step came before it: the learning rate is not the cause. Look for NaN and"
        yield f"infinite values in the images, {config.model.target} and {config.task.target}."
    else:
        rate = config.optimizer.lr
        yield f"Lower optimizer.lr{'' if rate is None else f'={rate:g}'} first: divide it by 10 until the loss falls."
        later += ["trainer.gradient_clip_norm=1"] if config.trainer.gradient_clip_norm is None else []
    later += ["trainer.precision=float32"] if precision in ("float16", "bfloat16") else []
    if later:
        yield f"Then try {' and '.join(later)}."
