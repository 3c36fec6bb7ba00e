"""The network of a run with its task, optimizer, schedule and layout.

All of them are built from the configuration.
"""

import copy
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from torchmetrics.metric import Metric

from lockstep.assembly.session import Session
from lockstep.config import build
from lockstep.config.checks import signatures
from lockstep.config.errors import Error, config_error, one_line, refuse
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import is_ours
from lockstep.distributed.collectives import gather_objects
from lockstep.distributed.partition import Shard
from lockstep.distributed.rng import drawing_layer, replace_dropout, seed_of
from lockstep.models import layout
from lockstep.models.classifier import Classifier, Execution, ImageFormat, Recipe
from lockstep.models.parameter_groups import ParameterRule, rule_of
from lockstep.models.pretrained_metadata import attach_ends, origin_of
from lockstep.models.schedules import Schedule
from lockstep.system.output import print_error
from lockstep.tasks.classification import Classification
from lockstep.tasks.scores import prepare_metric
from lockstep.tasks.task import Task

if TYPE_CHECKING:
    from lockstep.models.graphs import GraphedModule

AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# On images this many times smaller than those a network was made for, its last feature maps have
# few pixels left.
MUCH_SMALLER = 4


def classifier(
    session: Session, image_format: ImageFormat, *, total_steps: int, is_trained: bool = False
) -> Classifier:
    """Build the network of the run for `total_steps` of training. Every rank must call it.

    The initial weights depend only on the seed. Raises ConfigError.
    """
    config = session.config
    if session.shards is not None:
        # The rounding of a kernel depends on its number of threads, so several parts compute at
        # once instead.
        torch.set_num_threads(1)
    torch.manual_seed(seed_of(config.seed, "weights"))
    shape, num_outputs = image_format.image_shape, len(image_format.class_names)
    with build.section_errors(config, "model"):
        net = build.build(config.model, in_channels=shape[0], num_classes=num_outputs)
    with build.section_errors(config, "task"):
        task: Task = build.build(config.task)
        task.fit_to(image_format.class_names)
        metrics = _metrics(config, task, num_outputs)
    if session.precision in AUTOCAST and not isinstance(task, Classification):
        from lockstep.models.float32_head import widen_head

        widen_head(net, num_outputs)
    rules: list[ParameterRule] = []
    if config.parameters or not any(parameter.requires_grad for parameter in net.parameters()):
        rules = parameter_rules(config, net, task, num_outputs)
    if is_trained and config.model.target != "lockstep.models.ResNet18":
        refuse_draws(config, net, shape)
    # If the network is trained, both are tried. The training calls them again, for its groups.
    with build.section_errors(config, "optimizer"):
        make_optimizer = build.build(config.optimizer)
        optimizer = make_optimizer(list(net.parameters())) if is_trained else None
    with build.section_errors(config, "scheduler"):
        make_scheduler, interval = build.build(config.scheduler), config.scheduler.interval
        schedule = Schedule(make_scheduler, interval, *build.monitored_metric(config))
        if optimizer is not None:
            schedule.build(optimizer, total_steps)
    recipe = Recipe(
        optimizer=make_optimizer,
        scheduler=schedule,
        rules=rules,
        total_steps=total_steps,
        accumulate_grad_batches=config.trainer.accumulate_grad_batches,
        gradient_clip_norm=config.trainer.gradient_clip_norm,
        seed=config.seed,
        log_every_n_steps=config.trainer.log_every_n_steps,
    )
    origin = origin_of(net)
    side, original_side = min(shape[1:]), origin.image_size or 0
    is_much_smaller = is_trained and side * MUCH_SMALLER < original_side
    if is_much_smaller and session.is_shown:
        message = f"The network was made for images of {original_side} pixels, these have {side}"
        print_error(f"{message}: set a larger data.image_size, or model=resnet18.")
    if origin.mean is not None and origin.std is not None:
        image_format = image_format._replace(mean=origin.mean, std=origin.std)
    kind: type[Classifier] = Classifier
    if config.optimizer.is_newton:
        from lockstep.models.probe import Probe

        kind = Probe
    with build.section_errors(config, "model"):
        execution = Execution(
            layout=_layout(session, net, is_trained=is_trained),
            autocast=AUTOCAST.get(session.precision),
            compiler=layout.CompiledNetwork if config.compile else None,
            grapher=_grapher(session),
            shards=session.shards,
        )
        module = kind(
            net,
            task,
            metrics=metrics,
            image_format=image_format,
            recipe=recipe,
            execution=execution,
        )
    # Lightning widens to float64 only after it has loaded a checkpoint, which would round the
    # checkpoint to float32.
    return module.double() if session.precision == "float64" else module


def refuse_draws(config: Config, net: nn.Module, image_shape: tuple[int, int, int]) -> None:
    """Raise ConfigError if a layer draws random numbers in a function call.

    Such numbers would depend on the rank. The check runs a copy of the network on two images. A
    network that cannot be copied, or does not run on a CPU, is not checked.
    """
    with (
        build.section_errors(config, "model"),
        suppress(RuntimeError, AssertionError, NotImplementedError),
    ):
        trial = copy.deepcopy(net)
        for dropout in replace_dropout(trial, config.seed):
            dropout.shard = Shard(0, 0, 0, 2, 0, 2, 2)
        layer = drawing_layer(trial, torch.zeros(2, *image_shape))
        if layer is not None:
            raise config_error(
                "unsupported",
                f"model._target_={config.model.target}",
                f": the layer {layer} draws random numbers that differ between workers",
                "use nn.Dropout or nn.Dropout2d",
            )


def parameter_rules(
    config: Config, net: nn.Module, task: nn.Module, num_outputs: int
) -> list[ParameterRule]:
    """Build the rules of `parameters`.

    Raises ConfigError for a rule without effect, and if no parameter is trained.
    """
    sections = {
        name: section.model_dump()
        for name, section in config.parameters.items()
        if section is not None
    }
    for keys in sections.values():
        if not keys["pattern"]:
            head = "|".join(map(re.escape, attach_ends(net, num_outputs).head))
            keys["pattern"] = rf"^({head})\."
    rules = [ParameterRule(name, **keys) for name, keys in sections.items()]
    parameters = dict([*net.named_parameters(), *task.named_parameters("task")])
    refuse(_rule_errors(rules, parameters))
    return rules


def _rule_errors(
    rules: list[ParameterRule], parameters: dict[str, nn.Parameter]
) -> Iterator[Error]:
    for rule in rules:
        key = f"parameters.{rule.name}.pattern={rule.pattern}"
        matches = [name for name in parameters if re.search(rule.pattern, name)]
        effective_names = [name for name in matches if rule_of(name, rules) is rule]
        if not matches:
            layers = ", ".join(dict.fromkeys(name.partition(".")[0] for name in parameters))
            yield Error("unknown", key, "matches no parameter", f"the network has {layers}")
        elif not effective_names:
            yield Error(
                "conflict",
                key,
                f"matches only what parameters.{rule_of(matches[0], rules).name} matches before it",
                "put it first",
            )
        elif rule.weight_decay and all(parameters[name].ndim <= 1 for name in effective_names):
            yield Error(
                "conflict",
                key,
                "matches norms and biases only, which are not decayed",
                "remove its weight_decay",
            )
    trained_names = [name for name, value in parameters.items() if value.requires_grad]
    if all(rule_of(name, rules).frozen_epochs is None for name in trained_names):
        yield Error(
            "conflict",
            "parameters",
            "freezes the whole network permanently",
            "leave some parameters to train",
        )


def _metrics(config: Config, task: Task, num_outputs: int) -> dict[str, Metric]:
    """Build the metrics by name, with those arguments of the task that they accept."""
    metrics: dict[str, Metric] = {}
    for name, section in config.task.metrics.items():
        if section is None:
            continue
        setting = f"task.metrics.{name}._target_={section.target}"
        names = signatures.parameter_names(section.target)
        arguments = {**task.metric_arguments(num_outputs), **section.arguments()}
        try:
            metric = build.build(
                section, **{key: arguments[key] for key in names if key in arguments}
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{setting}: {one_line(error)}") from error
        if not isinstance(metric, Metric):
            raise TypeError(f"{setting} is not a torchmetrics metric")
        prepare_metric(f"task.metrics.{name}", metric)
        metrics[name] = metric
    return metrics


def _grapher(session: Session) -> "type[GraphedModule] | None":
    """Return the class that replays training steps as CUDA graphs.

    Returns None unless all workers support it and the network allows it.
    """
    config = session.config
    graph = config.trainer.graph
    is_wanted = is_ours(config.model.target) if graph == "auto" else graph
    # Gloo reduces statistics in host memory.
    can = session.world_size == 1 or dist.get_backend() == "nccl"
    is_plain = not config.compile and session.shards is None
    if not (is_wanted and can and session.device.type == "cuda" and is_plain):
        return None
    from lockstep.models.graphs import GraphedModule

    return GraphedModule


def _layout(session: Session, net: nn.Module, *, is_trained: bool) -> layout.Layout:
    """Choose the layout of the network, the same on every rank.

    DDP adds up gradients in the order in which they are laid out in memory.
    """
    faulty_layer = None
    if session.device.type == "cpu" and torch.backends.mkldnn.is_available():
        has_avx512 = torch.cpu.get_capabilities().get("avx512_f")
        num_written = layout.AVX512_NUMBERS if has_avx512 else layout.AVX2_NUMBERS
        faulty_layer = layout.faulty_convolution(net, session.precision, num_written)
    # The name "" is the network itself.
    faulty_layers = [name for name in gather_objects(faulty_layer) if name is not None]
    faulty_layer = faulty_layers[0] if faulty_layers else None
    memory_format = session.config.trainer.memory_format
    # A forward pass is safe.
    if memory_format == "channels_last" and faulty_layer is not None and is_trained:
        raise config_error(
            "machine",
            "trainer.memory_format=channels_last",
            f": oneDNN crashes or errs in the gradient of {faulty_layer} on this CPU",
            "use auto",
        )
    return layout.choose_layout(memory_format, faulty_layer)
