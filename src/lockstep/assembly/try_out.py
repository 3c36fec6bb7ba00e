"""A trial of network, loss and metrics with two samples before the first step, with one-line errors."""

import contextlib
import copy
import itertools
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lockstep.assembly.session import Session
from lockstep.config.errors import ConfigError, Error, literal, one_line
from lockstep.config.schema.configuration import Config
from lockstep.data.images.image_table import real_names
from lockstep.data.module import ImageData
from lockstep.data.splits import Splits, is_streamed
from lockstep.distributed.batch import Batch
from lockstep.models.classifier import Classifier
from lockstep.system.wording import join_names, plural
from lockstep.tasks.scores import MetricError, Scores
from lockstep.tasks.task import Task, checked_losses

NUM_SAMPLES = 2
CHUNK = 4096  # targets checked in one call; they can be as large as images
MOST_SHOWN = 8  # values of a target
STAGES = {"train": "train", "validate": "val", "test": "test"}  # the split of each stage of a Trainer
# augmentations that `moved_targets` can repeat on targets that lie in the image, and others
MOVING = ("crop_padding", "flip", "vertical_flip", "rotation")
OTHERS = ("random_resized_crop.scale", "trivial", "rand_augment.num_ops", "mixup", "cutmix")


def try_out(here: Session, data: ImageData, module: Classifier) -> None:
    """Run network, task and data together once, without side effects.

    Every rank computes the same. Raises ConfigError with one line that names the part that does not fit.
    """
    config = here.config
    size = 1 if data.batches("train").has_single_samples else NUM_SAMPLES
    module.to(here.device)
    with restore_module(module):
        batch = data.example(size)
        refuse_augmentation(config, module.task, batch)
        _train_on(config, data, module, data.augment(batch))
        _measure(config, module, data.example(size))
        if here.shards is not None:
            with _config_error(module, f"model._target_={config.model.target}", "cannot be copied for virtual shards"):
                copy.deepcopy(module.net)
        if here.world_size > 1 or here.shards is not None:
            _try_empty(config, module, data.example(0))


def refuse_unfit_images(config: Config, images: Splits) -> None:
    """Raise ConfigError if the images of a source do not fit the settings of data and augment."""
    refuse_shared_groups(config, images)
    name, pixels, memory = f"data._target_={config.data.target}", images.train.pixels, config.data.memory
    found: list[Error] = []
    if memory not in ("auto", "stream") and is_streamed(pixels):
        found.append(
            Error(
                "conflict", f"data.memory={memory}", f", but {name} makes samples on demand", "use data.memory=stream"
            )
        )
    if memory == "stream" and not any(is_streamed(part.pixels) for part in images.parts.values()):
        found.append(
            Error("conflict", "data.memory=stream", f", but {name} does not stream its images", "use data.memory=auto")
        )
    if images.statistics is None and not isinstance(pixels, Tensor):
        hint = "return Splits(..., statistics=Statistics(mean, std))"
        found.append(Error("missing", name, "returns neither pixels nor statistics of them", hint))
    uses = {"data.balance": config.data.balance, "task.class_weights": config.task.arguments().get("class_weights")}
    counting = [f"{key}={value}" for key, value in uses.items() if value and not isinstance(value, list)]
    if counting and images.class_counts("train") is None:
        hint = f"let {name} return them, a Dataset as `targets` (no target_transform)"
        found.append(Error("missing", counting[0], "needs the class of each training image", hint))
    if (absent := images.absent_classes("train")) and (counting or len(images.train.targets)):
        found.append(
            Error("missing", name, f"has no training image of {join_names(absent)}", "add some, or remove the class")
        )
    augment = config.augment
    used = [f"augment.{name}={literal(value)}" for name, value in augment.used.items()]
    if used and images.train.dtype != torch.uint8:
        hint = "remove it, and change the images in the source"
        found.append(Error("conflict", ", ".join(used), f"needs uint8 images, and {name} returns floats", hint))
    side = min(pixels.shape[-2:])
    if augment.crop_border == "reflect" and augment.crop_padding >= side:
        key, hint = f"augment.crop_padding={augment.crop_padding}", f"use less than their shorter side, {side}"
        found.append(Error("range", key, f"reflects more than the images of {name} have", hint))
    if augment.cutout_inside and augment.cutout > side:
        key, hint = f"augment.cutout={augment.cutout}", f"use at most their shorter side, {side}"
        found.append(Error("range", key, f"does not fit inside the images of {name}", hint))
    if found:
        raise ConfigError(*found)


def refuse_shared_groups(config: Config, images: Splits) -> None:
    """Raise ConfigError for a group or a file in two splits, unless that is accepted.

    It would make an evaluation too good.
    """
    files, named, table = dict[str, str](), dict[str, dict[str, str]](), images.files
    if table is not None:
        files = dict(zip(table.names, real_names(table.folder, table.names, table.states), strict=True))
    for split, part in images.parts.items():
        units = part.groups or [files[name] for name in part.names if files]
        named[split] = dict(zip(units, part.names, strict=False))
    unit = "file" if images.train.groups is None else "group"
    for (one, first), (other, second) in itertools.combinations(named.items(), 2):
        shared = [group for group in first if group in second]
        if shared and config.data.shared_groups == "refuse":
            example = f"{shared[0]} ({first[shared[0]]}, {second[shared[0]]})"
            problem = f"forbids {plural(len(shared), unit)} in both {one} and {other}, such as {example}"
            hint = "move their images, or set data.shared_groups=accept"
            raise ConfigError(Error("conflict", "data.shared_groups=refuse", problem, hint))


def refuse_augmentation(config: Config, task: Task, batch: Batch) -> None:
    """Raise ConfigError for an augmentation that the losses or the targets of the task do not support."""
    target = config.task.target
    used = config.augment.used
    mixing = [name for name in used if name in ("mixup", "cutmix")]
    wrong: list[Error] = []
    if mixing and not task.takes_mixed:
        problem = f"mixes two samples, and {target} has no loss of mixed ones"
        wrong.append(Error("conflict", f"augment.{mixing[0]}", problem, "set it to 0"))
    if batch.targets.dim() > 2 and batch.targets.shape[-2:] == batch.inputs.shape[-2:]:  # they lie in the image
        can_move = type(task).moved_targets is not Task.moved_targets
        for name in (name for name in used if name in OTHERS or (name in MOVING and not can_move)):
            hint = "switch it off" if name in OTHERS else f"add moved_targets to {target}, or switch it off"
            wrong.append(
                Error(
                    "unsupported",
                    f"augment.{name}",
                    "would have to move the targets, too, which lie in the image",
                    hint,
                )
            )
    if wrong:
        raise ConfigError(*wrong)


def refuse_targets(config: Config, data: ImageData, module: Classifier, outputs: Tensor) -> None:
    """Raise ConfigError for targets that the task cannot learn with outputs like these (B, ...).

    Targets of a Dataset, which are made on demand, are checked in each batch.
    """
    outputs = outputs.detach()[:0]
    parts = data.splits.parts
    is_counted = config.data.balance or config.data.folds or config.task.arguments().get("class_weights")

    def check(batch: Batch) -> None:
        split = STAGES[module.trainer.state.stage or ""]
        names = [str(parts[split].names[index]) for index in batch.indices.tolist()]
        listed = parts[split].classes if is_counted else None
        if listed is not None and not torch.equal(listed[batch.indices], batch.targets):
            raise ConfigError(
                Error("conflict", "data.train.targets", "are not those of its samples", "correct or remove them")
            )
        refuse_unfit(config, module.task, outputs, split, batch.targets, names)

    for split, images in parts.items():
        if len(images.targets) < images.pixels.shape[0]:  # of a Dataset
            data.look_at_batch = check
        else:
            refuse_unfit(config, module.task, outputs, split, images.targets, images.names)


def refuse_unfit(
    config: Config, task: Task, outputs: Tensor, split: str, targets: Tensor, names: Sequence[str]
) -> None:
    """Raise ConfigError with the first of the `targets` that the task cannot learn with outputs like these (0, ...)."""
    good = torch.cat([task.fits(part, outputs) for part in targets.split(CHUNK)])
    bad = (~good).nonzero().flatten().tolist()
    if not bad:
        return
    sample, dtype = targets[bad[0]], str(targets.dtype).removeprefix("torch.")
    values = f"values from {sample.min()} to {sample.max()}" if sample.numel() > MOST_SHOWN else f"{sample.tolist()}"
    found = f"{values} in {names[bad[0]]} ({len(bad)} of {plural(len(targets), 'sample')})"
    if len(bad) == len(targets):
        found = f"{dtype} of shape {tuple(sample.shape)} for each sample, {found}"
    takes = task.takes.format(count=outputs.shape[1], last=outputs.shape[1] - 1)
    problem = f"takes {takes}, and {split} has {found}"
    raise ConfigError(
        Error("value", f"task._target_={config.task.target}", problem, "correct them, or use another task")
    )


def _train_on(config: Config, data: ImageData, module: Classifier, batch: Batch) -> None:
    network, task = f"model._target_={config.model.target}", f"task._target_={config.task.target}"
    with _config_error(module, network, f"cannot take inputs of shape {tuple(batch.inputs.shape)}"):
        for dropout in module.dropouts:
            dropout.shard = batch.shard
        outputs = module(batch.inputs)
    if not isinstance(outputs, Tensor) or len(outputs) != len(batch.indices):
        kind = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        problem = f"returns {kind} for {plural(len(batch.indices), 'sample')}"
        raise ConfigError(Error("value", network, problem, "return a tensor with a row for each"))
    shapes = f"outputs {tuple(outputs.shape)} and targets {batch.targets.dtype} {tuple(batch.targets.shape)}"
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
    scores.start(module.device)  # as every validation does
    with torch.no_grad():
        outputs = module(batch.inputs)
        with _config_error(module, f"task._target_={config.task.target}", "cannot be evaluated"):
            scores.update(module.task, outputs, batch)
    try:
        list(scores.numbers())
    except MetricError as error:
        raise ConfigError(Error("failed", "", str(error))) from error
    except (ValueError, RuntimeError, ZeroDivisionError):
        return  # two samples can be too few


def _try_empty(config: Config, module: Classifier, batch: Batch) -> None:
    """Try an empty shard. Batch norms are in evaluation mode: they are made exact only when the training starts."""
    module.eval()
    module.task.train()
    problem = "cannot take an empty batch, which the shard of a worker can be"
    network, advice = f"model._target_={config.model.target}", "(x.flatten(1), not x.view(len(x), -1))"
    with _config_error(module, network, f"{problem} {advice}"):
        outputs = module(batch.inputs)
    with _config_error(module, f"task._target_={config.task.target}", problem):
        values, _ = checked_losses(module.task, outputs, batch)
        values.sum().backward()


@contextlib.contextmanager
def _config_error(module: Classifier, key: str, problem: str) -> Iterator[None]:
    """Turn any exception of custom code into a ConfigError of one line, with the exception for a fix.

    A `view` of a convolution's outputs works in only one memory layout: it is named.
    """
    try:
        yield
    except ConfigError:
        raise
    except MetricError as error:
        raise ConfigError(Error("failed", "", str(error))) from error
    except Exception as error:  # of custom code
        from lockstep.system.tracebacks import located

        line = one_line(error)
        if module.layout.name != "contiguous" and "view size is not compatible" in line:
            line = f"{line.rstrip('.')} (x.flatten(1)), or set trainer.memory_format=contiguous"
        raise ConfigError(Error("failed", key, problem, located(line, error))) from error


@contextlib.contextmanager
def restore_module(module: Classifier) -> Iterator[None]:
    """Restore buffers, gradients, modes and random states after the block; compile nothing, and print no warnings."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    modes = [(part, part.training) for part in module.modules()]
    devices = [module.device] if module.device.type == "cuda" else []
    with warnings.catch_warnings(), torch.random.fork_rng(devices), module.eager_mode():
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
