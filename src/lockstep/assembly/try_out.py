"""A sanity check of network, loss and metrics with two samples before the first step.

Errors are reported in one line.
"""

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from lockstep.assembly.session import Session
from lockstep.config.errors import ConfigError, Error, config_error, one_line, refuse
from lockstep.config.schema.configuration import Config
from lockstep.data.images.dataset_samples import shape_text
from lockstep.data.module import ImageData
from lockstep.distributed.batch import Batch
from lockstep.models.classifier import Classifier
from lockstep.system.text import plural
from lockstep.tasks.scores import MetricError, Scores
from lockstep.tasks.task import Task, checked_losses

NUM_SAMPLES = 2
CHUNK = 4096  # Targets are checked in chunks of this size, because they can be as large as images.
MAX_VALUES_SHOWN = 8  # values of a target
# This maps each stage of a Trainer to its split.
STAGES = {"train": "train", "validate": "val", "test": "test"}
# Augmentations that `moved_targets` can repeat on targets that lie in the image, and others.
MOVING = ("crop_padding", "flip", "vertical_flip", "rotation")
OTHERS = (
    "random_resized_crop.scale",
    "trivial",
    "rand_augment.num_ops",
    "mixup",
    "cutmix",
    "custom.",
)


def try_out(session: Session, data: ImageData, module: Classifier) -> None:
    """Run network, task and data together once, without side effects.

    Every rank computes the same. Raises ConfigError with one line that names the part that does not
    fit.
    """
    config = session.config
    network = f"model._target_={config.model.target}"
    size = 1 if data.batches("train").has_single_samples else NUM_SAMPLES
    module.to(session.device)
    with restore_module(module):
        batch = data.example(size)
        refuse_augmentation(config, module.task, batch)
        _train_on(config, data, module, data.augment(batch))
        _measure(config, module, data.example(size))
        if session.shards is not None:
            with _config_error(module, network, "cannot be copied for virtual shards"):
                copy.deepcopy(module.net)
        if session.world_size > 1 or session.shards is not None:
            _try_empty(config, module, data.example(0))


def refuse_augmentation(config: Config, task: Task, batch: Batch) -> None:
    """Raise ConfigError for an augmentation that the losses or the targets do not support."""
    refuse(_unsupported(config, task, batch))


def _unsupported(config: Config, task: Task, batch: Batch) -> Iterator[Error]:
    target, names = config.task.target, [*config.augment.used]
    mixing_names = [name for name in names if name in ("mixup", "cutmix")]
    if mixing_names and not task.takes_mixed:
        yield Error(
            "conflict",
            f"augment.{mixing_names[0]}",
            f"mixes two samples, and {target} has no loss of mixed ones",
            "set it to 0",
        )
    # Other targets do not lie in the image.
    if batch.targets.dim() < 3 or batch.targets.shape[-2:] != batch.inputs.shape[-2:]:
        return
    hints = {name: "switch it off" for name in names if name.startswith(OTHERS)}
    if type(task).moved_targets is Task.moved_targets:
        hints |= dict.fromkeys(MOVING, f"add moved_targets to {target}, or switch it off")
    for name in names:
        if name in hints:
            yield Error(
                "unsupported",
                f"augment.{name}",
                "would have to move the targets, too, which lie in the image",
                hints[name],
            )


def refuse_targets(config: Config, data: ImageData, module: Classifier, outputs: Tensor) -> None:
    """Raise ConfigError for targets that the task cannot learn with outputs like these (B, ...).

    Targets of a Dataset, which are created on demand, are checked in each batch.
    """
    outputs = outputs.detach()[:0]
    subsets = data.splits.by_name
    is_counted = (
        config.data.balance or config.data.folds or config.task.arguments().get("class_weights")
    )

    def check(batch: Batch) -> None:
        split = STAGES[module.trainer.state.stage or ""]
        sample_names = [str(subsets[split].names[index]) for index in batch.indices.tolist()]
        classes = subsets[split].classes if is_counted else None
        if classes is not None and not torch.equal(classes[batch.indices], batch.targets):
            raise config_error(
                "conflict",
                "data.train.targets",
                "are not those of its samples",
                "correct or remove them",
            )
        refuse_unfit(config, module.task, outputs, split, batch.targets, sample_names)

    for split, images in subsets.items():
        if len(images.targets) < images.pixels.shape[0]:  # The targets come from a Dataset.
            data.look_at_batch = check
        else:
            refuse_unfit(config, module.task, outputs, split, images.targets, images.names)


def refuse_unfit(
    config: Config,
    task: Task,
    outputs: Tensor,
    split: str,
    targets: Tensor,
    sample_names: Sequence[str],
) -> None:
    """Raise ConfigError for the first of the `targets` that the task cannot learn.

    `outputs` (0, ...) has the shape of the outputs of the network.
    """
    is_valid = torch.cat([task.fits(chunk, outputs) for chunk in targets.split(CHUNK)])
    invalid_rows = (~is_valid).nonzero().flatten().tolist()
    if not invalid_rows:
        return
    sample = targets[invalid_rows[0]]
    count = f"{len(invalid_rows)} of {plural(len(targets), 'sample')}"
    values = f"{sample.tolist()}"
    if sample.numel() > MAX_VALUES_SHOWN:
        values = f"values from {sample.min()} to {sample.max()}"
    description = f"{values} in {sample_names[invalid_rows[0]]} ({count})"
    if len(invalid_rows) == len(targets):
        description = f"{shape_text(sample)} for each sample, {description}"
    takes = task.takes.format(count=outputs.shape[1], last=outputs.shape[1] - 1)
    raise config_error(
        "value",
        f"task._target_={config.task.target}",
        f"takes {takes}, and {split} has {description}",
        "correct them, or use another task",
    )


def _train_on(config: Config, data: ImageData, module: Classifier, batch: Batch) -> None:
    network, task = f"model._target_={config.model.target}", f"task._target_={config.task.target}"
    hint = " (one image: raise global_batch_size)" if len(batch.inputs) == 1 else ""
    with _config_error(
        module, network, f"cannot take inputs of shape {tuple(batch.inputs.shape)}{hint}"
    ):
        for dropout in module.dropouts:
            dropout.shard = batch.shard
        outputs = module(batch.inputs)
    if not isinstance(outputs, Tensor) or len(outputs) != len(batch.indices):
        kind = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise config_error(
            "value",
            network,
            f"returns {kind} for {plural(len(batch.indices), 'sample')}",
            "return a tensor with a row for each",
        )
    shapes = f"outputs {tuple(outputs.shape)} and targets {shape_text(batch.targets)}"
    with _config_error(module, task, f"cannot take {shapes}"):
        refuse_targets(config, data, module, outputs)
        values, _ = checked_losses(module.task, outputs, batch)
        for score in module.task.scores(outputs, batch):
            assert score.shape == values.shape, f"scores of shape {tuple(score.shape)}"
    with _config_error(module, task, "has no gradient of its losses"):
        values.sum().backward()


def _measure(config: Config, module: Classifier, batch: Batch) -> None:
    module.eval()
    scores = module.scores["val"]
    assert isinstance(scores, Scores)
    scores.start(module.device)  # Every validation starts like this.
    with torch.no_grad():
        outputs = module(batch.inputs)
        with _config_error(module, f"task._target_={config.task.target}", "cannot be evaluated"):
            scores.update(module.task, outputs, batch)
    try:
        list(scores.numbers())
    except MetricError as error:
        raise config_error("failed", "", str(error)) from error
    except (ValueError, RuntimeError, ZeroDivisionError):
        return  # Two samples can be too few.


def _try_empty(config: Config, module: Classifier, batch: Batch) -> None:
    """Try an empty shard.

    Batch norms are in evaluation mode, because they become exact only when the training starts.
    """
    module.eval()
    module.task.train()
    problem = "cannot take an empty batch, which the shard of a worker can be"
    network = f"model._target_={config.model.target}"
    with _config_error(module, network, f"{problem} (x.flatten(1), not x.view(len(x), -1))"):
        outputs = module(batch.inputs)
    with _config_error(module, f"task._target_={config.task.target}", problem):
        values, _ = checked_losses(module.task, outputs, batch)
        values.sum().backward()


@contextmanager
def _config_error(module: Classifier, key: str, problem: str) -> Iterator[None]:
    """Turn any exception of custom code into a ConfigError of one line.

    The line contains the exception. A `view` of a convolution's outputs works in only one memory
    layout, which the line then names.
    """
    try:
        yield
    except ConfigError:
        raise
    except MetricError as error:
        raise config_error("failed", "", str(error)) from error
    except Exception as error:  # Custom code can raise any error.
        from lockstep.system.tracebacks import located

        line = one_line(error)
        if module.layout.name != "contiguous" and "view size is not compatible" in line:
            line = f"{line.rstrip('.')} (x.flatten(1)), or set trainer.memory_format=contiguous"
        raise config_error("failed", key, problem, located(line, error)) from error


@contextmanager
def restore_module(module: Classifier) -> Iterator[None]:
    """Restore buffers, gradients, modes and random states after the block.

    Nothing is compiled in the block, and no warnings are printed.
    """
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    devices = [module.device] if module.device.type == "cuda" else []
    with warnings.catch_warnings(), torch.random.fork_rng(devices), module.eager_mode():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            for submodule, is_training in modes:
                submodule.training = is_training
            module.zero_grad()
