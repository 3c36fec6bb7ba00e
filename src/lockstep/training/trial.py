"""Two samples through network, loss and metrics before the first step: what does not fit is told in a line."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lockstep.config import errors
from lockstep.config.schema import Config
from lockstep.data.images.samples import Samples
from lockstep.data.module import ImageData
from lockstep.distributed.batch import Batch
from lockstep.models.classifier import Classifier
from lockstep.system.wording import plural
from lockstep.tasks.builtin import Classification, Multilabel, Regression
from lockstep.tasks.scores import MetricError, Scores
from lockstep.tasks.task import Task, checked_losses
from lockstep.training.refusals import is_of_memory
from lockstep.training.session import Session

NUM_SAMPLES = 2
NUM_AT_ONCE = 4096  # targets, which can be as large as images
MOST_SHOWN = 8  # values of a target
STAGES = {"train": "train", "validate": "val", "test": "test"}  # the split of each stage of a Trainer
# parts of the augmentation that move the pixels of an image
MOVING, TURNING = ("crop_padding", "flip"), ("trivial", "mixup", "cutmix")


def try_out(here: Session, data: ImageData, module: Classifier) -> None:
    """Have network, task and data meet once, and leave no trace of it.

    Every rank computes the same. Raises ConfigError with one line that names the part that does not fit.
    """
    config = here.config
    size = 1 if data.batches("train").has_single_samples else NUM_SAMPLES
    module.to(here.device)
    with _without_trace(module):
        batch = data.example(size)
        refuse_augmentation(config, module.task, batch)
        _train_on(config, data, module, data.augment(batch))
        _measure(config, module, data.example(size))
        if here.world_size > 1:
            _try_nothing(config, module, data.example(0))


def refuse_augmentation(config: Config, task: Task, batch: Batch) -> None:
    """Raise ConfigError for an augmentation that would have to change targets, too, where the task does not say how."""
    target = config.task.target
    used = [name for name, value in config.augment.model_dump().items() if value]
    mixing = [name for name in used if name in ("mixup", "cutmix")]
    wrong: list[str] = []
    if mixing and not task.takes_mixed:
        wrong += [f"augment.{mixing[0]} mixes two samples, and {target} has no loss of mixed ones: set it to 0"]
    lies_in_image = batch.targets.dim() > 2 and batch.targets.shape[-2:] == batch.inputs.shape[-2:]
    if lies_in_image:
        says_how = type(task).moved_targets is not Task.moved_targets
        names = [name for name in used if name in TURNING or (name in MOVING and not says_how)]
        hint = "switch it off" if names and names[0] in TURNING else f"give {target} a moved_targets, or switch it off"
        wrong += [
            f"augment.{name} would have to change the targets, too, which lie in the image: {hint}" for name in names
        ]
    if wrong:
        raise errors.ConfigError(wrong)


def refuse_targets(config: Config, data: ImageData, module: Classifier, outputs: Tensor) -> None:
    """Raise ConfigError for targets that the task cannot learn with outputs like these (B, ...).

    Those of a Dataset, which makes them as they are needed, are looked at in each batch.
    """
    outputs = outputs.detach()[:0]
    parts = data.splits.parts

    def look(batch: Batch) -> None:
        split = STAGES[module.trainer.state.stage or ""]
        names = [str(parts[split].names[index]) for index in batch.indices.tolist()]
        _refuse(config, module.task, outputs, split, batch.targets, names)

    for split, images in parts.items():
        if isinstance(images.pixels, Samples):
            data.look_at_batch = look
        else:
            _refuse(config, module.task, outputs, split, images.targets, images.names)


def _refuse(config: Config, task: Task, outputs: Tensor, split: str, targets: Tensor, names: Sequence[str]) -> None:
    good = torch.cat([task.fits(part, outputs) for part in targets.split(NUM_AT_ONCE)])
    bad = (~good).nonzero().flatten().tolist()
    if not bad:
        return
    sample, dtype = targets[bad[0]], str(targets.dtype).removeprefix("torch.")
    values = f"values from {sample.min()} to {sample.max()}" if sample.numel() > MOST_SHOWN else f"{sample.tolist()}"
    found = f"{values} in {names[bad[0]]} ({len(bad)} of {plural(len(targets), 'sample')})"
    if len(bad) == len(targets):
        found = f"{dtype} of shape {tuple(sample.shape)} for each sample, {found}"
    built_in = {
        "classification": Classification(loss=None, label_smoothing=0, class_weights=None),
        "multilabel": Multilabel(loss=functional.mse_loss),
        "regression": Regression(loss=functional.mse_loss),
    }
    others = [name for name, other in built_in.items() if other.fits(targets, outputs).all()]
    takes = task.takes.format(count=outputs.shape[1], last=outputs.shape[1] - 1)
    fix = "use task=" + " or task=".join(others) if others else "correct them"
    raise errors.ConfigError([f"task._target_={config.task.target} takes {takes}, and {split} has {found}: {fix}"])


def _train_on(config: Config, data: ImageData, module: Classifier, batch: Batch) -> None:
    with _telling(f"model._target_={config.model.target} cannot take inputs of shape {tuple(batch.inputs.shape)}"):
        for dropout in module.dropouts:
            dropout.shard = batch.shard
        outputs = module(batch.inputs)
    if not isinstance(outputs, Tensor) or len(outputs) != len(batch.indices):
        given = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        error = f"model._target_={config.model.target} gives {given} for {plural(len(batch.indices), 'sample')}"
        raise errors.ConfigError([f"{error}: its outputs are to be a tensor with a row for each"])
    shapes = f"outputs {tuple(outputs.shape)} and targets {batch.targets.dtype} {tuple(batch.targets.shape)}"
    with _telling(f"task._target_={config.task.target} cannot take {shapes}"):
        refuse_targets(config, data, module, outputs)
        values, _ = checked_losses(module.task, outputs, batch)
        for score in module.task.scores(outputs, batch):
            assert score.shape == values.shape, f"scores of shape {tuple(score.shape)}"
    with _telling(f"task._target_={config.task.target} has no gradient of its losses"):
        values.sum().backward()


def _measure(config: Config, module: Classifier, batch: Batch) -> None:
    module.eval()
    scores = Scores(module.measured_by)
    scores.to(module.device).start(module.device)
    with torch.no_grad():
        outputs = module(batch.inputs)
        with _telling(f"task._target_={config.task.target} cannot be evaluated"):
            scores.update(module.task, outputs, batch)
    try:
        list(scores.numbers())
    except MetricError as error:
        raise errors.ConfigError([str(error)]) from error
    except (ValueError, RuntimeError, ZeroDivisionError):
        return  # of two samples: there will be more


def _try_nothing(config: Config, module: Classifier, batch: Batch) -> None:
    """What an empty shard does. Batch norms are evaluated: those that can train on nothing are not there yet."""
    module.eval()
    module.task.train()
    what = "cannot take an empty batch, which the shard of a worker can be"
    with _telling(f"model._target_={config.model.target} {what} (x.flatten(1), not x.view(len(x), -1))"):
        outputs = module(batch.inputs)
    with _telling(f"task._target_={config.task.target} {what}"):
        values, _ = checked_losses(module.task, outputs, batch)
        values.sum().backward()


@contextlib.contextmanager
def _telling(what: str) -> Iterator[None]:
    """Whatever a part of the user's own raises becomes one line that says `what`."""
    try:
        yield
    except errors.ConfigError:
        raise
    except MetricError as error:
        raise errors.ConfigError([str(error)]) from error
    except Exception as error:  # the border to code of the user's own
        if is_of_memory(error):
            raise
        raise errors.ConfigError([f"{what}: {errors.one_line(error)}"]) from error


@contextlib.contextmanager
def _without_trace(module: Classifier) -> Iterator[None]:
    """Buffers, gradients, modes and random numbers are afterwards what they were; nothing is compiled, nobody warns."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    modes = [(part, part.training) for part in module.modules()]
    devices = [module.device] if module.device.type == "cuda" else []
    with warnings.catch_warnings(), torch.random.fork_rng(devices), module.eagerly():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            for part, is_training in modes:
                part.training = is_training
            module.zero_grad()
