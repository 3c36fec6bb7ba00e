"""The header of a run, printed before the first step, and its summary after the last one."""

import math
import statistics

import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint

from lockstep.assembly.session import Session
from lockstep.callbacks.custom_module import metrics_of, skipped_steps, steps_done
from lockstep.callbacks.record import Record
from lockstep.callbacks.stop import Stopped
from lockstep.config import errors
from lockstep.config.checks import metric_names
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import OF_FILES
from lockstep.data.module import ImageData
from lockstep.data.splits import describe_counts, describe_groups
from lockstep.models.classifier import Classifier
from lockstep.models.counts import Metrics
from lockstep.runs.files import JsonObject
from lockstep.runs.naming import display_path, metric_name, quote_path, short_path
from lockstep.system.terminal import duration, measure, show_table
from lockstep.system.text import describe_similar, join_names, plural

ON_TEST = "the test images, for curves only; best.ckpt is the last epoch"


def facts(session: Session, data: ImageData) -> JsonObject:
    """Return the facts of a run that are known from its start."""
    run_facts: JsonObject = {
        "workers": session.world_size,
        "device": device_name(session),
        "precision": session.precision,
        "train_images": data.batches("train").num_epoch_samples,
    }
    if (worker_weights := session.config.trainer.worker_weights) is not None:
        run_facts["worker_weights"] = errors.literal(worker_weights)
    return run_facts


def summarize(
    session: Session,
    module: LightningModule,
    data: ImageData,
    checkpoint: ModelCheckpoint | None,
    record: Record,
) -> JsonObject:
    """Return the content of summary.json."""
    trainer = module.trainer
    metrics, times = metrics_of(trainer, module), record.epoch_times_s
    monitor = checkpoint and checkpoint.monitor
    score = checkpoint and checkpoint.best_model_score
    default, _ = metric_names.default(session.config)
    value = metrics.get(default, math.nan) if score is None else score.item()
    groups = {split: subset.num_groups for split, subset in data.splits.by_name.items()}
    best_path = session.folder.best_checkpoint
    summary = {
        **metrics_of_test(module, data, metrics),
        "monitor": monitor or default,
        "best": value if math.isfinite(value) else None,
        "epochs": trainer.current_epoch,
        "steps": steps_done(trainer, module),
        **skipped_steps(module),
        "training_s": round(record.training_s, 3),
        "epoch_s_median": round(statistics.median_high(times), 4) if times else None,
        "images_per_s": round(record.images_per_s, 1) if record.images_per_s else None,
        "parameters": _num_parameters(module),
        "weights_sha256": record.facts["weights_sha256"],
        **facts(session, data),
        "val_images": data.batches("val").num_epoch_samples,
        **_l2(session.config, module),
        "best_checkpoint": str(best_path) if best_path.exists() else None,
    }
    if any(groups.values()):
        summary["groups"] = groups
    return summary


def metrics_of_test(
    module: LightningModule, data: ImageData, metrics: Metrics
) -> dict[str, float | None]:
    """Return the test metrics, the first one of the task first, and the number of images.

    The values are None without a test.
    """
    names = module.metric_names if isinstance(module, Classifier) else ()
    placeholders: dict[str, float | None] = dict.fromkeys(f"test_{name}" for name in names)
    tests = {
        name.replace("/", "_"): value for name, value in metrics.items() if name.startswith("test")
    }
    num_images = data.batches("test").num_epoch_samples if tests else None
    return {**placeholders, **tests, "test_images": num_images}


def device_name(session: Session) -> str:
    if session.device.type == "cuda":
        return torch.cuda.get_device_name(session.device)
    num_threads = torch.get_num_threads() if session.shards is None else session.shards.num_threads
    return f"CPU, {plural(num_threads, 'thread')} each"


def show_header(
    session: Session, data: ImageData, module: LightningModule, *, is_resumed: bool
) -> None:
    """Print what a run trains, on what, how and where, unless it is silent."""
    config, count, device = session.config, session.world_size, device_name(session)
    if config.silent:
        return
    shape = "x".join(map(str, data.image_shape))
    split_sizes = ", ".join(_used_text(data, split) for split in data.splits.by_name)
    many = module.task.output_noun if isinstance(module, Classifier) else "classes"
    one = "class" if many == "classes" else many.removesuffix("s")
    classes = plural(len(data.class_names), one, many)
    rows = {"data": f"{split_sizes} images of {shape}, {classes}, {data.placement}"}
    if data.class_counts is not None:
        counts = describe_counts(data.class_names, data.class_counts, config.data.balance)
        rows["classes"] = counts
    if config.data.validate_on_test:
        rows["val"] = ON_TEST
    rows["groups"] = describe_groups(data.splits)
    if config.data.target in OF_FILES:
        from lockstep.assembly.listed_images import header_rows

        rows |= header_rows(config, None if is_resumed else data.splits)
    groups = [subset.groups for subset in data.splits.by_name.values()]
    rows["similar"] = describe_similar(data.class_names, groups)
    for split in ("val", "test"):
        if class_names := data.splits.absent_classes(split):
            rows[f"missing in {split}"] = join_names(class_names)
    rows["network"] = plural(_num_parameters(module), "parameter")
    rows["workers"] = f"{count} x {device}" if count > 1 else device
    if config.trainer.worker_weights is not None:
        rows["worker weights"] = errors.literal(config.trainer.worker_weights)
    if session.shards is not None:
        number = session.shards.count
        rows["shards"] = f"{number} virtual shards: the same bits on up to {number} workers"
    rows["batch"] = _batch(session, data)
    rows["optimizer"] = "" if config.has_custom_module else optimizer_text(config)
    rows["precision"] = f"{session.precision} ({session.precision_reason})"
    if isinstance(module, Classifier):
        rows["layout"] = f"{module.layout.name} ({module.layout.reason})"
        is_graphed = module.grapher and 0 not in session.worker_weights
        rows["steps"] = "replayed as CUDA graphs" if is_graphed else ""
    rows |= _l2(config, module)
    rows["run folder"] = display_path(session.folder.path)
    target = config.module.target if config.has_custom_module else config.model.target
    title = f"Lockstep: {target.rpartition('.')[2]} on {config.data.target.rpartition('.')[2]}"
    show_table(f"{title}, resumed" if is_resumed else title, rows.items())


def _l2(config: Config, module: LightningModule) -> JsonObject:
    """Return the L2 value of a linear probe by its name in a header and a summary.

    Before the training, it is a text with all values. The result is empty for other networks.
    """
    if not config.optimizer.is_newton:
        return {}
    from lockstep.models.probe import Probe

    assert isinstance(module, Probe)
    if module.chosen_l2 is not None:
        return {"l2": module.chosen_l2}
    arguments = config.optimizer.arguments()
    first_l2, factor = arguments["first_l2"], arguments["l2_factor"]
    return {"l2": f"{first_l2:g} in the first epoch, in each other one {factor:g} of that before"}


def _batch(session: Session, data: ImageData) -> str:
    """Describe the numbers of images and of micro-batches of a step."""
    batches = data.batches("train")
    size = min(batches.global_batch_size, batches.num_epoch_samples)
    count = session.config.trainer.accumulate_grad_batches
    micro_batches = f" in {count} micro-batches" if count > 1 else ""
    return f"{plural(size, 'image')} a step{micro_batches}"


def optimizer_text(config: Config) -> str:
    """Describe the optimizer, its learning rate and its schedule, which a probe does not have."""
    name = config.optimizer.target.rpartition(".")[2]
    if config.optimizer.is_newton:
        return name
    rate = "" if config.optimizer.lr is None else f" {config.optimizer.lr:g}"
    return f"{name}, learning rate{rate} ({config.scheduler.target.rpartition('.')[2]})"


def _num_parameters(module: LightningModule) -> int:
    net = module.net if isinstance(module, Classifier) else module
    return sum(parameter.numel() for parameter in net.parameters())


def _used_text(data: ImageData, split: str) -> str:
    batches = data.batches(split)
    used = f"{batches.num_epoch_samples:,}"
    if batches.num_epoch_samples < batches.num_samples:
        used += f" of {batches.num_samples:,}"
    return f"{used} {split}"


def show_summary(session: Session, summary: JsonObject) -> None:
    """Print the results of a finished run, and commands that use it, unless it is silent."""
    if session.config.silent:
        return
    folder, run, rows = session.folder, short_path(session.folder.path), dict[str, str]()
    num_tested = summary["test_images"]
    for key, value in summary.items():
        if key.startswith("test_") and key != "test_images" and value is not None:
            size = "" if rows else f" on {plural(num_tested, 'image')}"
            rows[metric_name(key)] = f"{measure(value)}{size}"
    if interval := summary.get("accuracy_interval"):
        bounds = f"{interval['low']:.4f} to {interval['high']:.4f} of the accuracy"
        if "num_groups" in interval:
            bounds += f", resampling {plural(interval['num_groups'], 'group')}"
        rows["95 % interval"] = bounds
    if summary["best_checkpoint"]:
        monitor, value = summary["monitor"], summary["best"]
        path = display_path(folder.best_checkpoint)
        text = f"none: no epoch has a finite {monitor}, {path} is the last one"
        if value is not None:
            text = f"{monitor} {measure(value)}, {path}"
        rows["last" if session.config.data.validate_on_test else "best"] = text
    if "l2" in summary:
        rows["l2"] = f"{summary['l2']:g}"
    rows["weights"] = f"SHA-256 {summary['weights_sha256'][:12]}"
    rows["pictures"] = display_path(folder.pictures) if folder.pictures.exists() else ""
    speed = f", {summary['images_per_s']:,.0f} images/s" if summary["images_per_s"] else ""
    epoch = f", {duration(summary['epoch_s_median'])} an epoch" if summary["epoch_s_median"] else ""
    rows["training"] = f"{duration(summary['training_s'])}{epoch}{speed}"
    if num_skipped := summary.get("skipped_steps"):
        rows["skipped"] = f"{plural(num_skipped, 'step')} whose gradients overflowed float16"
    is_usual = run != quote_path(folder.path)  # It lies below outputs/.
    rows["watch"] = "lockstep board" if is_usual else f"lockstep board --logdir {run}"
    is_ours = not session.config.has_custom_module
    rows["evaluate"] = f"lockstep eval {run}" if num_tested or is_ours else ""
    rows["predict"] = f"lockstep predict {run} FOLDER" if is_ours else ""
    show_table(f"Finished {plural(summary['epochs'], 'epoch')}", rows.items())


def show_stopped(session: Session, step: int, stopped: Stopped, command: str) -> None:
    """Print why a run stopped after a step, and the command that resumes it.

    A silent run prints nothing.
    """
    if session.config.silent:
        return
    print(
        f"Stopped after step {step} ({stopped.reason}), nothing is lost. Resume with:\n  {command}",
        flush=True,
    )
