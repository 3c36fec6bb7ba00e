"""What workers do for a command. Their modules import torch, which a command does not: each imports its own."""

from typing import Any

from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.system.libraries import lazy
from lockstep.system.signals import SignalFlag


def evaluate(folder: RunFolder, world: World | None, flag: SignalFlag, **options: Any) -> int:
    with lazy():
        from lockstep.inference import evaluate
    return evaluate.evaluate(folder, world, flag, **options)


def predict(folder: RunFolder, world: World | None, flag: SignalFlag, **options: Any) -> int:
    with lazy():
        from lockstep.inference import predict
    return predict.predict(folder, world, flag, **options)


def embed(folder: RunFolder, world: World | None, flag: SignalFlag, **options: Any) -> int:
    with lazy():
        from lockstep.inference import embed
    return embed.embed(folder, world, flag, **options)


def judge(folder: RunFolder, world: World | None, flag: SignalFlag, **options: Any) -> int:
    with lazy():
        from lockstep.inference import labels
    return labels.judge(folder, world, flag, **options)
