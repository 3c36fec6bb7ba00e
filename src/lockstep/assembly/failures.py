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
        return "\n".join([what, *_advice(error.step, config, precision), "", samples])
    if isinstance(error.__cause__ or error, BdbQuit):
        is_alone = world.world_size == 1
        return "the debugger was quit" if is_alone else "breakpoint() needs a run of one worker: set trainer.devices=1"
    return explain_error(error, folder.path, f"rank {world.rank} of {world.world_size}")


def _advice(step: int, config: Config, precision: str) -> Iterator[str]:
    if step == 1:
        yield "No step came before it: look for NaN in the images, the network and the task."
    else:
        rate = config.optimizer.lr
        yield f"Lower optimizer.lr{'' if rate is None else f'={rate:g}'} first: divide it by 10 until the loss falls."
        if config.trainer.gradient_clip_norm is None:
            yield "Then try trainer.gradient_clip_norm=1."
    if precision in ("float16", "bfloat16"):
        yield "Then try trainer.precision=float32."
