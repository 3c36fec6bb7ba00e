"""What workers do for a command.

The modules of the tasks import torch, which a command does not. So each task imports its module.
"""

from lockstep.inference.options import (
    EmbedOptions,
    EvalOptions,
    LabelsOptions,
    PredictOptions,
    TrainedRun,
)
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.system.libraries import lazy
from lockstep.system.signals import SignalFlag


def evaluate(
    folder: RunFolder,
    world: World | None,
    flag: SignalFlag,
    *,
    trained: TrainedRun,
    options: EvalOptions,
) -> int:
    with lazy():
        from lockstep.inference import evaluate
    return evaluate.evaluate(folder, world, trained, options)


def predict(
    folder: RunFolder,
    world: World | None,
    flag: SignalFlag,
    *,
    trained: TrainedRun,
    options: PredictOptions,
) -> int:
    with lazy():
        from lockstep.inference import predict
    return predict.predict(folder, world, trained, options)


def embed(
    folder: RunFolder,
    world: World | None,
    flag: SignalFlag,
    *,
    trained: TrainedRun,
    options: EmbedOptions,
) -> int:
    with lazy():
        from lockstep.inference import embed
    return embed.embed(folder, world, trained, options)


def judge(
    folder: RunFolder,
    world: World | None,
    flag: SignalFlag,
    *,
    trained: TrainedRun,
    options: LabelsOptions,
) -> int:
    with lazy():
        from lockstep.inference import labels
    return labels.judge(folder, world, trained, options)
