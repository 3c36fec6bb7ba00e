"""Data, module and Lightning's Trainer of a run, built from its configuration."""

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.layer_sync import LayerSync
from torch import Tensor

from lockstep.assembly import data_record, networks
from lockstep.assembly.agreement import readable, together
from lockstep.assembly.checkpoint_io import AtomicCheckpointIO
from lockstep.assembly.precision import lightning_precision
from lockstep.assembly.session import Session
from lockstep.callbacks.reliability import Reliability
from lockstep.config import build
from lockstep.config.checks import signatures
from lockstep.config.errors import Error, config_error, literal, refuse
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import OF_FILES, Data, is_ours
from lockstep.data.images.image_table import real_names
from lockstep.data.module import Batching, ImageData
from lockstep.data.splits import Fold, Kept, Splits, identity_statistics, is_streamed
from lockstep.data.transforms.augment import Augment
from lockstep.distributed.batch_norm import ExactBatchNorm
from lockstep.models.classifier import ImageFormat
from lockstep.runs.folder import RunFolder
from lockstep.system import internals
from lockstep.system.hardware import num_cores
from lockstep.system.text import join_names, plural

if TYPE_CHECKING:
    from lockstep.data.images.decoded_splits import Decoding
    from lockstep.data.transforms.custom import CustomTransforms

T = TypeVar("T")
NUM_REPEATED = 16  # images that custom transforms change twice, to compare


def image_data(session: Session, run: RunFolder, *, is_new: bool = False) -> ImageData:
    """Load the data of a run, with this rank's shard. Every rank must call it.

    Raises ConfigError if the data cannot be read, or is not the data with which the run was
    started. A run that `is_new` has no checkpoint, and may have no record of its data.
    """
    # An evaluation writes to another folder.
    images = splits(session, run, is_once=session.folder != run)
    refuse_unfit_images(session.config, images)
    data_record.compare(session, images, run, is_new=is_new)
    if session.folder == run:
        data_record.keep(session, images, run)
    # Only the record needs the files, which are large.
    return serve_images(session, replace(images, files=None))


def refuse_unfit_images(config: Config, images: Splits) -> None:
    """Raise ConfigError if the images of a source do not fit the settings of data and augment."""
    refuse_shared_groups(config, images)
    refuse(_unfit_images(config, images))


def _unfit_images(config: Config, images: Splits) -> Iterator[Error]:
    name = f"data._target_={config.data.target}"
    pixels = images.train.pixels
    memory = config.data.memory
    if memory not in ("auto", "stream") and is_streamed(pixels):
        yield Error(
            "conflict",
            f"data.memory={memory}",
            f", but {name} makes samples on demand",
            "use data.memory=stream",
        )
    if memory == "stream" and not any(
        is_streamed(subset.pixels) for subset in images.by_name.values()
    ):
        yield Error(
            "conflict",
            "data.memory=stream",
            f", but {name} does not stream its images",
            "use data.memory=auto",
        )
    if images.statistics is None and not isinstance(pixels, Tensor):
        yield Error(
            "missing",
            name,
            "returns neither pixels nor statistics of them",
            "return Splits(..., statistics=Statistics(mean, std))",
        )
    if config.data.drop_last and len(pixels) < config.global_batch_size:
        yield Error(
            "range",
            "data.drop_last=true",
            f"leaves no batch of {config.global_batch_size} of {len(pixels)} training images",
            "use a smaller global_batch_size",
        )
    uses = {
        "data.balance": config.data.balance,
        "task.class_weights": config.task.arguments().get("class_weights"),
    }
    counting_settings = [
        f"{key}={value}" for key, value in uses.items() if value and not isinstance(value, list)
    ]
    if counting_settings and images.class_counts("train") is None:
        yield Error(
            "missing",
            counting_settings[0],
            "needs the class of each training image",
            f"let {name} return them, a Dataset as `targets` (no target_transform)",
        )
    if (absent_classes := images.absent_classes("train")) and (
        counting_settings or len(images.train.targets)
    ):
        yield Error(
            "missing",
            name,
            f"has no training image of {join_names(absent_classes)}",
            "add some, or remove the class",
        )
    augment = config.augment
    augmentations = [f"augment.{name}={literal(value)}" for name, value in augment.used.items()]
    if augmentations and images.train.dtype != torch.uint8:
        yield Error(
            "conflict",
            ", ".join(augmentations),
            f"needs uint8 images, and {name} returns floats",
            "remove it, and change the images in the source",
        )
    if config.data.validate_on_test and len(images.val):
        yield Error(
            "conflict",
            "data.validate_on_test=true",
            f"leaves {plural(len(images.val), 'given validation image')} unused",
            "move them to train, or validate on them with data.validate_on_test=false",
        )
    if not len(images.val) and not config.data.validate_on_test:
        yield Error(
            "missing",
            name,
            "has no validation images",
            "set data.val_fraction=0.1 to split them from train",
        )
    side = min(pixels.shape[-2:])
    if augment.crop_border == "reflect" and augment.crop_padding >= side:
        yield Error(
            "range",
            f"augment.crop_padding={augment.crop_padding}",
            f"reflects more than the images of {name} have",
            f"use less than their shorter side, {side}",
        )
    if augment.cutout_inside and augment.cutout > side:
        yield Error(
            "range",
            f"augment.cutout={augment.cutout}",
            f"does not fit inside the images of {name}",
            f"use at most their shorter side, {side}",
        )


def refuse_shared_groups(config: Config, images: Splits) -> None:
    """Raise ConfigError for a group or a file in two splits, unless that is accepted.

    It would make an evaluation too optimistic.
    """
    files, names_by_unit, table = dict[str, str](), dict[str, dict[str, str]](), images.files
    if table is not None:
        files = dict(
            zip(table.names, real_names(table.folder, table.names, table.states), strict=True)
        )
    for split, subset in images.by_name.items():
        units = subset.groups or [files[name] for name in subset.names if files]
        names_by_unit[split] = dict(zip(units, subset.names, strict=False))
    unit = "file" if images.train.groups is None else "group"
    for (first_split, first_units), (second_split, second_units) in itertools.combinations(
        names_by_unit.items(), 2
    ):
        shared_units = [group for group in first_units if group in second_units]
        if shared_units and config.data.shared_groups == "refuse":
            example = shared_units[0]
            raise config_error(
                "conflict",
                "data.shared_groups=refuse",
                f"forbids {plural(len(shared_units), unit)} in both {first_split} and "
                f"{second_split}, such as {example} "
                f"({first_units[example]}, {second_units[example]})",
                "move their images, or set data.shared_groups=accept",
            )


def serve_images(session: Session, images: Splits) -> ImageData:
    """Serve this rank's shard of images."""
    config, trainer = session.config, session.config.trainer
    if config.data.validate_on_test:
        images = replace(images, val=images.test)
    crop = config.augment.random_resized_crop
    random_crop = None
    if crop.scale is not None:
        from lockstep.data.images.random_crop import RandomCrop

        random_crop = RandomCrop(scale=crop.scale, ratio=crop.ratio, seed=config.seed)
    change = _custom_transforms(config)
    augment = config.augment.model_dump(exclude={"random_resized_crop", "custom"})
    data = ImageData(
        images,
        batching=Batching(
            global_batch_size=config.global_batch_size,
            accumulate_grad_batches=trainer.accumulate_grad_batches,
            eval_batch_size=config.eval_batch_size,
            rank=session.rank,
            worker_weights=session.worker_weights,
            limits={
                "train": trainer.limit_train_batches,
                "val": trainer.limit_val_batches,
                "test": trainer.limit_test_batches,
            },
            overfit_batches=trainer.overfit_batches,
            seed=config.seed,
            balance=config.data.balance,
            drop_last=config.data.drop_last,
        ),
        augment=partial(Augment, **augment, by_shard=session.shards and session.shards.map),
        crop=random_crop,
        change=change,
        device=session.device,
        memory=config.data.memory,
        num_workers=_num_workers(session, images),
    )
    if change is not None:
        count = min(NUM_REPEATED, len(images.train))
        readable(lambda: change.refuse_unrepeatable(lambda: data.example(count).inputs))
    return data


def _custom_transforms(config: Config) -> "CustomTransforms | None":
    """Build the custom transforms of training images, or return None if there are none.

    Raises ConfigError for a transform that cannot be built or sent to worker processes.
    """
    sections = config.augment.custom_sections
    if not sections:
        return None
    from lockstep.data.images.dataset_samples import refuse_unpicklable
    from lockstep.data.transforms.custom import CustomTransforms

    transforms = {}
    for key, section in sections.items():
        with build.target_errors(key, section):
            transforms[key] = build.build(section)
        readable(partial(refuse_unpicklable, transforms[key], key))
    return CustomTransforms(transforms, config.seed)


def _num_workers(session: Session, images: Splits) -> int:
    """Return the number of processes that prepare images for this rank."""
    if session.config.data.num_workers != "auto":
        return session.config.data.num_workers
    # Cropping cached images costs little compared with training on the CPU.
    has_spare_cores = session.device.type == "cuda" or is_streamed(images.train.pixels)
    return max(1, num_cores() // session.num_local) if has_spare_cores else 1


def splits(session: Session, run: RunFolder, *, is_once: bool = False) -> Splits:
    """Load the images of the run, and keep recorded ones in their splits.

    Raises ConfigError on all ranks. For an evaluation (`is_once`) each rank reads only the images
    that it uses, and the checkpoint has the statistics.
    """
    recorded_splits = together(lambda: data_record.recorded_splits(run))
    images = once_a_node(
        session.config.data,
        partial(source, is_once=is_once, kept=recorded_splits),
        rank=session.rank,
        local_rank=session.local_rank,
        is_silent=session.config.silent,
    )
    if is_once:
        images = replace(images, statistics=identity_statistics(images.train.pixels.shape[1]))
    return seed_splits(images, session.config.seed)


def once_a_node(
    section: Data, load: Callable[[Data], T], *, rank: int, local_rank: int, is_silent: bool
) -> T:
    """Return `load(section)` once its files are available on this node. Every rank must call it.

    Downloads go to data.root, on rank 0 first. Raises ConfigError on all ranks, with the errors of
    all nodes.
    """
    section = together(section.resolve_paths)
    is_first = local_rank == 0
    # Only the first process of a machine prints.
    with redirect_stdout(io.StringIO()) if is_silent or not is_first else nullcontext():
        if section.is_copied:
            from lockstep.assembly import data_copies

            local, remark = data_copies.stage(section, is_first=is_first)
            return readable(lambda: load(local), remark)
        results: list[T] = []
        if section.arguments().get("download"):
            # A folder that all nodes share is filled only once.
            for is_turn in (rank == 0, rank > 0 and is_first):
                results += together(lambda: [load(section)] if is_turn else [])  # noqa: B023
        return results[0] if results else readable(lambda: load(section))


def source(section: Data, *, is_once: bool = False, kept: Kept = None) -> Splits:
    """Load the images of a source.

    Raises ConfigError for parameters that the source does not accept. Those of an evaluation were
    not checked before.
    """
    refuse_unfit_arguments(section)
    fold = None if section.folds is None else Fold(section.fold, section.folds)
    names = signatures.parameter_names(section.target)
    if fold is not None and "fold" not in names:
        raise config_error(
            "unsupported",
            f"data.folds={section.folds}",
            f", but data._target_={section.target} has no parameter `fold`",
            "remove data.folds",
        )
    memory = section.memory
    has_cache = is_ours(section.target) and "cache" in section.arguments()
    settings = {
        "memory": "once" if is_once and memory == "auto" and has_cache else memory,
        "fold": fold,
        "kept": kept,
    }
    arguments = {
        name: value for name, value in settings.items() if name in names and value is not None
    }
    return build.build(section, **arguments)


def open_source(seed: int, section: Data) -> "tuple[Splits, Decoding | None]":
    """Return the images of a source. Images of files are not decoded."""
    if section.target not in OF_FILES:
        return seed_splits(source(section), seed), None
    from lockstep.assembly.listed_images import files_of

    decoding = files_of(section)
    return decoding.list_splits(), decoding


def refuse_unfit_arguments(section: Data) -> None:
    """Raise ConfigError for arguments that a source does not accept."""
    refuse(signatures.errors([{"data": section.model_dump(by_alias=True)}]))


def seed_splits(splits: Splits, seed: int) -> Splits:
    """Set the seed of a run in pixels that draw random numbers. Others are unchanged."""
    for split, images in splits.by_name.items():
        pixels: Any = images.pixels
        if hasattr(pixels, "seed"):
            seeded_images = replace(images, pixels=replace(pixels, seed=seed))
            splits = replace(splits, **{split: seeded_images})
    return splits


def image_format(data: ImageData) -> ImageFormat:
    return ImageFormat(
        data.class_names,
        data.image_shape,
        data.mean,
        data.std,
        is_float=data.splits.train.dtype.is_floating_point,
    )


def build_module(
    session: Session, images: ImageFormat, total_steps: int = 1, *, is_trained: bool = False
) -> tuple[LightningModule, list[Callback]]:
    """Build the module of the run without its trained weights.

    Returns it with the callbacks that must come first.
    """
    config = session.config
    if config.has_custom_module:
        from lockstep.assembly import custom_module

        module, companion = custom_module.build_module(session, images, total_steps)
        return module, [companion]
    first_callbacks: list[Callback] = []
    if config.head_only is True:  # The value each_epoch is not meant here.
        from lockstep.assembly.frozen_features import FrozenFeatures

        first_callbacks.append(FrozenFeatures(session))
    first_callbacks.append(Reliability(is_applied=config.calibrate))
    return networks.classifier(
        session, images, total_steps=total_steps, is_trained=is_trained
    ), first_callbacks


class _LayerSync(ExactBatchNorm, LayerSync):
    """The exact batch norms as a plugin of Lightning.

    Lightning swaps them in before it wraps the model, and swaps them back afterwards.
    """


def lightning_trainer(
    session: Session,
    module: LightningModule,
    *,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Trainer:
    """Build a Trainer for `module` on the devices of the session.

    It has none of Lightning's default callbacks.
    """
    config = session.config
    strategy: Any = "auto"
    if session.is_distributed:
        from lockstep.distributed import gradients

        strategy = internals.one_stream(
            on_wrapped=None if session.shards is not None else gradients.choose,
            # The devices are set here, because `devices` below rejects a GPU that two workers call
            # by the same number.
            parallel_devices=[torch.device("cuda", number) for number in session.gpus] or None,
            timeout=session.timeout,
            broadcast_buffers=False,  # Statistics already have the same bits on all ranks.
            gradient_as_bucket_view=True,
            bucket_cap_mb=config.strategy.bucket_size_mib,
            # With several optimizers, each backward pass computes the gradients of some parameters
            # only.
            find_unused_parameters=config.has_custom_module and not module.automatic_optimization,
        )
    return Trainer(
        accelerator="gpu" if session.device.type == "cuda" else "cpu",
        devices=sorted(set(session.gpus)) if session.gpus else session.num_local,
        num_nodes=config.trainer.num_nodes,
        strategy=strategy,
        precision=lightning_precision(  # pyright: ignore[reportArgumentType]
            session.precision, is_own=config.has_custom_module
        ),
        deterministic=config.trainer.deterministic or None,  # False would import torch's compiler.
        plugins=[_LayerSync(), _checkpoint_io(session), session.environment],
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        default_root_dir=session.folder.path,
        **settings,
    )


def _checkpoint_io(session: Session) -> AtomicCheckpointIO:
    """Return the plugin that writes checkpoints.

    On a GPU, a thread writes the best and the last state while the training continues. On a CPU the
    thread would take time from the training. Loggers that upload a checkpoint read it as soon as it
    is saved, so it is then written without the thread.
    """
    folder, loggers = session.folder, session.config.logger.values()
    is_read = any(
        section is not None and section.arguments().get("log_model") for section in loggers
    )
    behind = (
        (folder.best_checkpoint, folder.last_checkpoint)
        if session.device.type == "cuda" and not is_read
        else ()
    )
    return AtomicCheckpointIO(
        session.exit_stack.enter_context(ThreadPoolExecutor(1, "checkpoints")), behind
    )
