"""Explain what ended a run, and what to change in it."""

from bdb import BdbQuit

from lockstep.assembly.refusals import explain_error
from lockstep.models.step import NonFiniteGradient, NonFiniteLoss
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World

ADVICE = (
    "Lower optimizer.lr: divide it by 10 until the loss falls. "
    "Then try trainer.gradient_clip_norm=1 and trainer.precision=float32. "
    "If it is the first step, look for NaN in the images, the network and the task."
)


def explain(error: Exception, folder: RunFolder, world: World) -> str | None:
    """Explain the error that ended a run, or return None for other errors.

    It explains a bad loss, with its samples after a blank line. It also explains the end of a
    debugger, and a lack of memory or disk space.
    """
    if isinstance(error, NonFiniteGradient):
        return str(error)
    if isinstance(error, NonFiniteLoss):
        summary, samples = str(error).splitlines()
        return f"{summary}\n{ADVICE}\n\n{samples}"
    if isinstance(error.__cause__ or error, BdbQuit):
        is_alone = world.world_size == 1
        return (
            "the debugger was quit"
            if is_alone
            else "breakpoint() needs a run of one worker: set trainer.devices=1"
        )
    return explain_error(error, folder.path, f"rank {world.rank} of {world.world_size}")
