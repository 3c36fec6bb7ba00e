"""Data, network and Lightning's Trainer of a run, built from its configuration."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torchmetrics.metric import Metric

from lockstep.config import build, errors, signatures
from lockstep.config.schema import Config
from lockstep.config.target_sections import Data
from lockstep.data.images.pixels import is_streamed
from lockstep.data.images.splits import Splits
from lockstep.data.module import Batching, ImageData
from lockstep.data.sources.datasets import seeded
from lockstep.data.transforms.augment import Augment
from lockstep.distributed import gradients
from lockstep.distributed.batch_norm import ExactBatchNorm
from lockstep.distributed.collectives import gather_objects
from lockstep.distributed.rng import seed_of
from lockstep.models import layout
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.models.layout import Layout
from lockstep.runs.folder import RunFolder
from lockstep.system import internals
from lockstep.system.hardware import num_cores
from lockstep.tasks import reduction
from lockstep.tasks.task import Task
from lockstep.training import data_record, networks, optimization, own_module
from lockstep.training.checkpoint_io import AtomicCheckpointIO
from lockstep.training.precision import lightning_precision
from lockstep.training.session import Session
from lockstep.training.staging import once_a_node

COMPILE_MODES = {False: None, True: "default", "reduce-overhead": "reduce-overhead"}


def image_data(session: Session, run: RunFolder, *, is_new: bool = False) -> ImageData:
    """The data of a run, with this rank's shard. Every rank must call it.

    Raises ConfigError when it cannot be read, or is not the data that a run which is not new was trained with.
    """
    config, trainer = session.config, session.config.trainer
    images = splits(session)
    refuse_unfit_images(config, images)
    if not is_new:
        data_record.compare(session, images, run)
    if session.folder == run:  # an evaluation writes elsewhere
        data_record.keep(session, images, run)
    return ImageData(
        images,
        batching=Batching(
            global_batch_size=config.global_batch_size,
            accumulate_grad_batches=trainer.accumulate_grad_batches,
            eval_batch_size=config.eval_batch_size,
            loads=session.loads,
            limit_train_batches=trainer.limit_train_batches,
            limit_val_batches=trainer.limit_val_batches,
            limit_test_batches=trainer.limit_test_batches,
            overfit_batches=trainer.overfit_batches,
        ),
        augment=partial(Augment, **config.augment.model_dump()),
        memory=config.data.memory,
        num_workers=_num_stream_workers(session),
        seed=config.seed,
        rank=session.rank,
        device=session.device,
    )


def splits(session: Session) -> Splits:
    """The images of the run, read where this node has them. Raises ConfigError on all ranks when they cannot be."""
    loaded = once_a_node(
        session.config.data,
        source,
        rank=session.rank,
        local_rank=session.local_rank,
        is_silent=session.config.silent,
        held=session.held,
    )
    return seeded(loaded, session.config.seed)


def source(section: Data) -> Splits:
    """The images of a source, which is told where its pixels are to live if it asks for that.

    Raises ConfigError for parameters it does not take: those of an evaluation were not checked before.
    """
    if found := signatures.errors([{"data": section.model_dump(by_alias=True)}]):
        raise errors.ConfigError(found)
    asked = {"memory": section.memory} if signatures.takes(section.target, "memory") else {}
    return build.build(section, **asked)


def refuse_unfit_images(config: Config, images: Splits) -> None:
    """Raise ConfigError where the images of a source cannot be used in the way the configuration asks for."""
    name, pixels, found = f"data._target_={config.data.target}", images.train.pixels, []
    if config.data.memory not in ("auto", "stream") and is_streamed(pixels):
        found.append(f"data.memory={config.data.memory}, but samples are made when they are needed: use stream")
    if config.data.memory == "stream" and not any(is_streamed(part.pixels) for part in images.parts.values()):
        found.append(f"data.memory=stream, but {name} does not stream its images: use data.memory=auto")
    if images.statistics is None and not isinstance(pixels, Tensor):
        hint = "return Splits(..., statistics=Statistics(mean, std)), e.g. Statistics((0.5,), (0.25,)) of one channel"
        found.append(f"{name} gives no tensor of pixels, and no statistics to normalize them by: {hint}")
    if absent := images.absent_classes("train"):
        found.append(f"{name} has no training image of {errors.several(absent)}: add some, or remove the class")
    is_bytes = images.train.dtype == torch.uint8
    used = [f"augment.{name}={errors.shown(value)}" for name, value in config.augment.model_dump().items() if value]
    if used and not is_bytes:
        hint = "leave it out, and change the images in the source"
        found.append(f"{', '.join(used)} changes uint8 images, and {name} gives floats: {hint}")
    if found:
        raise errors.ConfigError(found)


def _num_stream_workers(session: Session) -> int:
    """Processes of this rank that decode streamed images."""
    num_workers = getattr(session.config.data, "num_workers", "auto")
    return num_workers if isinstance(num_workers, int) else max(1, num_cores() // session.num_local)


def classifier(
    session: Session, image_format: ImageFormat, *, total_steps: int, is_trained: bool = False
) -> Classifier:
    """The network of the run with its training of `total_steps`; initial weights depend on the seed alone.

    Every rank must call it. Raises ConfigError for a network that is to be trained in a layout that is not safe here.
    """
    config = session.config
    torch.manual_seed(seed_of(config.seed, "weights"))
    shape, num_outputs = image_format.image_shape, len(image_format.class_names)
    with build.answering(config, "model"):
        net = build.build(config.model, in_channels=shape[0], num_classes=num_outputs)
    with build.answering(config, "task"):
        task: Task = build.build(config.task)
        task.fit_to(image_format.class_names)
        measured = _metrics(config, task, num_outputs)
    rules = optimization.parameter_rules(config, net, task)
    if is_trained:
        networks.refuse_draws(config, net, shape)
        networks.tell_of_size(session, net, shape)
        optimization.refuse_unusable(config, net, total_steps)
    with build.answering(config, "model"):
        module = Classifier(
            net,
            task,
            measured=measured,
            image_format=networks.normalized(net, image_format),
            optimizer=build.build(config.optimizer),
            scheduler=optimization.schedule(config),
            rules=rules,
            total_steps=total_steps,
            accumulate_grad_batches=config.trainer.accumulate_grad_batches,
            gradient_clip_norm=config.trainer.gradient_clip_norm,
            uses_bfloat16=session.precision == "bfloat16",
            layout=_layout(session, net, is_trained=is_trained),
            compile_mode=COMPILE_MODES[config.compile],
            has_flip_test=config.flip_test,
            seed=config.seed,
            log_every_n_steps=config.trainer.log_every_n_steps,
        )
    # Lightning widens to float64 only after it has loaded a checkpoint, which would round that to float32
    return module.double() if session.precision == "float64" else module


def module_to_evaluate(session: Session, images: ImageFormat) -> tuple[L.LightningModule, list[Callback]]:
    """The module of the run as it was trained, without its weights, and the callbacks that come first."""
    if session.config.has_own_module:
        module, companion = own_module.made(session, images, total_steps=1)
        return module, [companion]
    return classifier(session, images, total_steps=1), []


def _metrics(config: Config, task: Task, num_outputs: int) -> dict[str, Metric]:
    """The metrics of the configuration by name, told of the number of outputs where they ask for it."""
    metrics: dict[str, Metric] = {}
    for name, section in config.task.metrics.items():
        if section is None:
            continue
        signature = signatures.find(section.target)
        asked = signature.names if signature is not None else ()
        known = {**task.metric_arguments(num_outputs), **section.arguments()}
        try:
            metric = build.build(section, **{key: value for key, value in known.items() if key in asked})
        except (TypeError, ValueError) as error:
            raise ValueError(f"task.metrics.{name}._target_={section.target}: {errors.one_line(error)}") from error
        if not isinstance(metric, Metric):
            raise TypeError(f"task.metrics.{name}._target_={section.target} is no metric of torchmetrics")
        reduction.prepare(f"task.metrics.{name}", metric)
        metrics[name] = metric
    return metrics


def load_weights(module: Classifier, checkpoint: Path, init_from: str) -> None:
    """Give a network the weights, batch-norm statistics and normalization of a checkpoint, and nothing else of it.

    A new run starts with them. Raises ConfigError where they are those of another network, or of other classes.
    """
    whole = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    saved, module_state = whole["state_dict"], module.state_dict()
    shapes = [{name: list(value.shape) for name, value in state.items()} for state in (saved, module_state)]
    if wrong := next((name for name in {**shapes[1], **shapes[0]} if shapes[0].get(name) != shapes[1].get(name)), None):
        there, here = (shape.get(wrong, "nothing") for shape in shapes)
        error = f"init_from={init_from} holds another network: {wrong} is {there} there, {here} here"
        raise errors.ConfigError([f"{error}: choose model=... and data=... as there, or leave it out"])
    names = zip(whole["image_format"]["class_names"], module.image_format.class_names, strict=True)
    if other := next(((there, here) for there, here in names if there != here), None):
        error = f"init_from={init_from} was trained for other classes: {other[0]!r} there is {other[1]!r} here"
        raise errors.ConfigError([f"{error}: choose data=... as there, or leave it out"])
    module.load_state_dict(saved)


def _layout(session: Session, net: nn.Module, *, is_trained: bool) -> Layout:
    """The layout of the network, the same on every rank: DDP adds up gradients as they lie in memory."""
    uses_onednn = session.device.type == "cpu" and torch.backends.mkldnn.is_available()
    has_avx512 = torch.cpu.get_capabilities().get("avx512_f")
    num_written = layout.AVX512_NUMBERS if has_avx512 else layout.AVX2_NUMBERS
    faulty_here = layout.faulty_convolution(net, session.precision, num_written) if uses_onednn else None
    convolutions = gather_objects(faulty_here)
    faulty = next((name for name in convolutions if name is not None), None)
    memory_format = session.config.trainer.memory_format
    if memory_format == "channels_last" and faulty is not None and is_trained:  # a forward pass is safe
        error = f"trainer.memory_format=channels_last: there oneDNN crashes in the gradient of {faulty}, or "
        raise errors.ConfigError([f"{error}computes a wrong one: use trainer.memory_format=auto"])
    return layout.chosen(memory_format, faulty)


def image_format(data: ImageData) -> ImageFormat:
    """What prediction needs to know of the images of `data`."""
    is_float = data.splits.train.dtype.is_floating_point
    return ImageFormat(data.class_names, data.image_shape, data.mean, data.std, is_float)


def lightning_trainer(
    session: Session, module: L.LightningModule, *, callbacks: Sequence[Callback] = (), **settings: Any
) -> L.Trainer:
    """A Trainer for `module` on the devices of the session, without anything Lightning would add by itself."""
    config = session.config
    strategy: Any = "auto"
    if session.is_distributed:
        strategy = internals.OneStream(
            on_wrapped=partial(gradients.choose, is_bfloat16=config.strategy.gradient_dtype == "bfloat16"),
            # said here, because `devices` below refuses a GPU that two workers call by one number, each its own
            parallel_devices=[torch.device("cuda", number) for number in session.gpus] or None,
            timeout=session.timeout,
            broadcast_buffers=False,  # statistics have the same bits on all ranks already
            gradient_as_bucket_view=True,
            bucket_cap_mb=config.strategy.bucket_size_mib,
            # one of the user's own with several optimizers has a backward pass for a part of its parameters
            find_unused_parameters=config.has_own_module and not module.automatic_optimization,
        )
    return L.Trainer(
        accelerator="gpu" if session.device.type == "cuda" else "cpu",
        devices=sorted(set(session.gpus)) if session.gpus else session.num_local,
        num_nodes=config.trainer.num_nodes,
        strategy=strategy,
        precision=lightning_precision(session.precision, is_own=config.has_own_module),  # pyright: ignore[reportArgumentType]
        deterministic=_deterministic(config),
        benchmark=session.device.type == "cuda" and not config.trainer.deterministic,
        plugins=[ExactBatchNorm(), AtomicCheckpointIO(), session.environment],
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        default_root_dir=session.folder.path,
        **settings,
    )


def _deterministic(config: Config) -> bool | None:
    """What Lightning is to ask of torch: nothing (None) where it is so, for torch imports its compiler to be told."""
    is_wanted = config.trainer.deterministic
    return is_wanted if is_wanted or torch.are_deterministic_algorithms_enabled() else None
