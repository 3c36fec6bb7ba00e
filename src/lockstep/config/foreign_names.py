"""What other projects call a setting: lightning-hydra-template, Lightning's Trainer, torchvision's references, Hydra.

Each fault of a key, a value or an option that stands here ends with the line to write in its place.
"""

import re
import shlex
from functools import cache
from typing import Any, NamedTuple

from lockstep.config.faults import shown

ONE_GPU, ALL_GPUS, CPU = "strategy=single_device", "strategy=ddp", "strategy=cpu"
EARLY_STOPPING = "callbacks=early_stopping"
GO_ON = ("resume=outputs/latest", "init_from={value}")
SCHEDULE_OF_TORCH = "scheduler=constant scheduler._target_=torch.optim.lr_scheduler"
STEPS = f"{SCHEDULE_OF_TORCH}.StepLR +scheduler.step_size=30 +scheduler._interval_=epoch"
PLATEAU = f"{SCHEDULE_OF_TORCH}.ReduceLROnPlateau +scheduler.patience=5"
OF_TORCHVISION = "model=torchvision model.name={value} optimizer.lr=0.01"
SEARCH = "-m search=tpe 'optimizer.lr=tag(log,interval(0.01,1))'"
FOLDER = "data=image_folder data.root={value}"
EVALUATE = "lockstep eval latest"
JOB = "cluster=slurm trainer.devices=1"


class Cure(NamedTuple):
    """Lines to write, any of which will do, and what they mean; without a line the setting is to be left out."""

    lines: tuple[str, ...]
    why: str = ""


def _write(*lines: str, why: str = "") -> Cure:
    return Cure(lines, why)


def _leave_out(why: str) -> Cure:
    return Cure((), why)


# By a key, or by a key with a value as it is typed, in which * stands for any text. In a line {rest} is that text, and
# {value} the value. The first entry that fits counts.
CURES: dict[str, Cure] = {
    # going on, evaluating
    **dict.fromkeys(
        ("ckpt_path", "ckpt", "trainer.resume_from_checkpoint", "resume_from_checkpoint", "resume_from", "load_from"),
        _write(*GO_ON, why="a run goes on, or a new one starts with its weights"),
    ),
    "train=false": _write(EVALUATE),
    "test_only": _write(EVALUATE),
    "evaluate": _write(EVALUATE),
    "train": _leave_out("a run always trains; lockstep eval latest measures a trained one"),
    "test": _write("sweep.test=none", why="a run ends with its test; of a sweep the best trial alone is tested"),
    # workers and devices
    "trainer=gpu": _write(ONE_GPU),
    "trainer=ddp": _write(f"{ALL_GPUS} trainer.devices=4", why="batch norm is synchronized anyway"),
    **dict.fromkeys(("trainer=ddp_sim", "trainer=ddp_spawn"), _write(f"{CPU} trainer.devices=2")),
    **dict.fromkeys(("trainer=cpu", "trainer=mps"), _write(CPU)),
    **dict.fromkeys(
        ("trainer.accelerator=cpu", "trainer.accelerator=mps", "accelerator=cpu", "device=cpu"), _write(CPU)
    ),
    **dict.fromkeys(
        ("trainer.accelerator=gpu", "trainer.accelerator=cuda", "accelerator=gpu", "device=cuda", "device=gpu"),
        _write(ONE_GPU, ALL_GPUS, why="one GPU, or all of them"),
    ),
    **dict.fromkeys(("trainer.accelerator", "accelerator", "device"), _write("strategy=auto")),
    **dict.fromkeys(
        ("trainer.strategy=ddp*", "trainer.strategy=dp", "strategy=ddp_*", "strategy=dp"), _write(ALL_GPUS)
    ),
    **dict.fromkeys(("trainer.strategy=single_device", "strategy=gpu", "strategy=cuda"), _write(ONE_GPU)),
    **dict.fromkeys(
        ("trainer.strategy=fsdp*", "trainer.strategy=deepspeed*", "strategy=fsdp*", "strategy=deepspeed*"),
        _write(ALL_GPUS, why="each GPU holds the whole network"),
    ),
    "trainer.strategy*": _write("strategy=auto"),
    **dict.fromkeys(
        ("trainer.gpus", "gpus", "num_gpus", "trainer.num_processes", "world_size", "nproc_per_node"),
        _write("trainer.devices={value}"),
    ),
    **dict.fromkeys(("trainer.devices=-1", "trainer.devices=0"), _write("trainer.devices=auto")),
    **dict.fromkeys(("trainer.sync_batchnorm", "sync_batchnorm", "sync_bn"), _leave_out("batch norm always is")),
    **dict.fromkeys(
        ("trainer.use_distributed_sampler", "distributed"), _leave_out("every sample has one owner anyway")
    ),
    # precision
    **dict.fromkeys(
        (f"trainer.precision={name}" for name in ("16*", "bf16*", "fp16", "float16", "half", "'16'")),
        _write("trainer.precision=bfloat16", why="autocast"),
    ),
    **dict.fromkeys(
        (f"trainer.precision={name}" for name in ("32*", "fp32", "'32'", "highest")),
        _write("trainer.precision=float32"),
    ),
    **dict.fromkeys((f"trainer.precision={name}" for name in ("64*", "'64'")), _write("trainer.precision=float64")),
    **dict.fromkeys(("amp=true", "use_amp=true"), _write("trainer.precision=bfloat16")),
    # how long
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs", "epoch"), _write("trainer.max_epochs={value}")),
    **dict.fromkeys(
        ("trainer.max_steps", "max_steps", "num_steps", "trainer.min_steps"),
        _write("trainer.max_epochs=10", "trainer.max_time_s=600", why="a run ends by epochs or by seconds"),
    ),
    "trainer.min_epochs": _write("trainer.max_epochs={value}", why="nothing ends a run earlier by itself"),
    "trainer.max_time": _write("trainer.max_time_s=3600", why="seconds"),
    **dict.fromkeys(("trainer.fast_dev_run", "fast_dev_run", "debug=true"), _write("debug=fast")),
    "start_epoch": _write("resume=outputs/latest", why="a run that goes on knows its epoch"),
    **{
        f"trainer.limit_{split}_batches=0.*": _write(f"trainer.limit_{split}_batches=10", why="a number of batches")
        for split in ("train", "val", "test")
    },
    "trainer.overfit_batches=0.*": _write("trainer.overfit_batches=1", why="a number of batches"),
    "trainer.val_check_interval": _write("trainer.check_val_every_n_epoch=1", why="validation follows whole epochs"),
    # the step
    **dict.fromkeys(
        ("batch_size", "data.batch_size", "datamodule.batch_size", "train_batch_size", "data.train_batch_size"),
        _write("global_batch_size={value}", why="of all workers together"),
    ),
    **dict.fromkeys(("val_batch_size", "test_batch_size", "data.val_batch_size"), _write("eval_batch_size={value}")),
    **dict.fromkeys(("learning_rate", "model.lr", "model.learning_rate"), _write("optimizer.lr={value}")),
    **dict.fromkeys(
        ("trainer.gradient_clip_val", "gradient_clip_val", "clip_grad_norm", "grad_clip"),
        _write("trainer.gradient_clip_norm={value}"),
    ),
    "trainer.gradient_clip_algorithm": _write("trainer.gradient_clip_norm=0.5", why="gradients are clipped by norm"),
    "trainer.auto_lr_find": _write(SEARCH),
    "trainer.detect_anomaly": _leave_out("a loss that is not a number always ends the run, with step and samples"),
    "trainer.benchmark": _leave_out("a GPU tries its kernels anyway, but with trainer.deterministic=true"),
    "trainer.deterministic=warn": _write("trainer.deterministic=true"),
    # network, optimizer, schedule
    "model.optimizer._target_": _write("optimizer._target_={value}"),
    "model.optimizer.*": _write("optimizer.{rest}={value}", why="the optimizer is a group of its own"),
    "model.optimizer": _write("optimizer=adamw", why="the optimizer is a group of its own"),
    "model.scheduler*": _write("scheduler=cosine", why="the schedule is a group of its own"),
    "model.net._target_": _write("model._target_={value}", why="model is the network itself"),
    "model.net*": _write("model.width=64", why="model is the network itself"),
    "model.compile": _write("compile={value}"),
    **dict.fromkeys(("arch", "model_name"), _write(OF_TORCHVISION)),
    **{
        f"model={name}": _write(OF_TORCHVISION)
        for name in (
            *("resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "alexnet", "vgg16", "densenet121"),
            *(
                "mobilenet_v2",
                "mobilenet_v3_small",
                "mobilenet_v3_large",
                "efficientnet_b0",
                "convnext_tiny",
                "vit_b_16",
            ),
        )
    },
    "model=mnist": _write("model=resnet18"),
    **dict.fromkeys(
        ("pretrained", "weights"),
        _write("model=torchvision model.name=resnet18 model.pretrained=true optimizer.lr=0.01"),
    ),
    "optimizer=adam": _write("optimizer=adamw"),
    **dict.fromkeys(("scheduler=none", "scheduler=null"), _write("scheduler=constant")),
    **dict.fromkeys(("scheduler=step", "scheduler=steplr", "lr_scheduler=steplr"), _write(STEPS)),
    **dict.fromkeys(("scheduler=plateau", "scheduler=reduce_on_plateau"), _write(PLATEAU)),
    "lr_scheduler*": _write("scheduler=cosine"),
    # data
    "data=mnist": _write("data=digits", "data=fashion_mnist"),
    "data=imagenet": _write("data=image_folder data.root=imagenet"),
    **dict.fromkeys(("datamodule", "dataset"), _write("data={value}")),
    **dict.fromkeys(("paths.data_dir", "data.data_dir", "data_path", "data_dir"), _write(FOLDER)),
    "data.train_val_test_split": _write("data.val_fraction=0.1 data.test_fraction=0.2"),
    "data.pin_memory": _leave_out("batches are cut on the device itself"),
    **dict.fromkeys(
        ("data.num_workers", "num_workers", "workers"),
        _leave_out("images in memory need no workers, and data=image_folder has data.num_workers"),
    ),
    **dict.fromkeys(("mixup_alpha", "mixup"), _write("augment.mixup={value}")),
    **dict.fromkeys(("cutmix_alpha", "cutmix"), _write("augment.cutmix={value}")),
    "random_erase": _write("augment.erasing={value}"),
    **dict.fromkeys(("auto_augment", "trivial_augment"), _write("augment.trivial=true")),
    "trainer.reload_dataloaders_every_n_epochs": _leave_out("every epoch draws its order anew"),
    # callbacks
    **{
        f"callbacks.early_stopping.{name}": _write(f"{EARLY_STOPPING} callbacks.early_stopping.{name}={{value}}")
        for name in ("patience", "mode")
    },
    "callbacks.early_stopping.monitor": _write(
        f"{EARLY_STOPPING} callbacks.early_stopping.monitor={{value}} callbacks.early_stopping.mode=auto"
    ),
    "callbacks.early_stopping.*": _write(f"{EARLY_STOPPING} ++callbacks.early_stopping.{{rest}}={{value}}"),
    "callbacks.early_stopping": _write(EARLY_STOPPING),
    "early_stopping*": _write(EARLY_STOPPING),
    "callbacks.model_checkpoint.*": _write("++callbacks.checkpoint.{rest}={value}"),
    "callbacks.model_checkpoint": _write("callbacks.checkpoint.monitor=val/loss callbacks.checkpoint.mode=min"),
    "callbacks=model_checkpoint": _write("callbacks=default"),
    **dict.fromkeys(("callbacks=none", "callbacks=null"), _write("callbacks.curves=null callbacks.pictures=null")),
    **dict.fromkeys(
        ("callbacks.rich_progress_bar*", "callbacks.model_summary*", "callbacks=rich_progress_bar"),
        _leave_out("the terminal always shows progress and network; silent=true shows nothing"),
    ),
    "callbacks.learning_rate_monitor*": _leave_out("the learning rate always is a curve"),
    **dict.fromkeys(("callbacks=swa", "model_ema", "callbacks.ema*"), _write("callbacks=ema")),
    "trainer.callbacks*": _write("callbacks=default"),
    "trainer.enable_checkpointing=false": _write("callbacks.checkpoint=null callbacks.last=null"),
    "trainer.enable_progress_bar=false": _write("silent=true"),
    **dict.fromkeys(
        ("trainer.enable_progress_bar", "trainer.enable_model_summary"), _leave_out("the terminal shows both by itself")
    ),
    "trainer.num_sanity_val_steps": _leave_out("the check before the run takes its place"),
    # curves
    "logger=null": _write("logger=none"),
    "trainer.logger=false": _write("logger=none"),
    "logger=many_loggers": _write("logger=[csv,tensorboard]"),
    **{
        f"logger={name}": _write("logger=wandb", "logger=csv", "logger=tensorboard")
        for name in ("mlflow", "comet", "neptune", "aim")
    },
    **dict.fromkeys(
        ("logger.wandb.id", "logger.wandb.version"), _leave_out("a run keeps its id, also when it goes on")
    ),
    **{
        f"logger.wandb.{name}": _write(f"logger=wandb logger.wandb.{name}={{value}}") for name in ("project", "offline")
    },
    "logger.wandb.*": _write("logger=wandb ++logger.wandb.{rest}={value}"),
    "logger.csv.*": _write("logger=csv ++logger.csv.{rest}={value}"),
    "trainer.logger*": _write("logger=tensorboard", "logger=csv", "logger=wandb"),
    "wandb*": _write("logger=wandb"),
    "print_freq": _write("trainer.log_every_n_steps={value}"),
    # names and folders
    **dict.fromkeys(("task_name", "run_name", "exp_name", "experiment_name"), _write("name={value}")),
    **dict.fromkeys(("tags", "project_name"), _write("name=baseline", why="runs are found by name and by settings")),
    **dict.fromkeys(
        ("paths.output_dir", "paths.log_dir", "trainer.default_root_dir", "output_dir", "log_dir", "save_dir"),
        _write("hydra.run.dir={value}"),
    ),
    "paths*": _write("hydra.run.dir=outputs/mine"),
    **dict.fromkeys(("extras*", "print_config"), _leave_out("python train.py --cfg job prints the configuration")),
    "local": _leave_out("a file of your own in conf/experiment takes its place"),
    **dict.fromkeys(("seed_everything", "random_seed"), _write("seed={value}")),
    "trainer.profiler=*": _write("trainer.profiler=simple", "debug=profile"),
    # debug
    **{f"debug={name}": _write("debug=fast") for name in ("default", "fdr", "limit", "step", "epoch")},
    "debug=profiler": _write("debug=profile"),
    # sweeps and jobs
    "hparams_search": _write(SEARCH),
    "optimized_metric": _write("callbacks.checkpoint.monitor=val/loss callbacks.checkpoint.mode=min"),
    "hydra.sweeper.n_trials": _write("-m search=tpe search.num_trials={value} 'optimizer.lr=interval(0.01,1)'"),
    "hydra.sweeper.*": _write(SEARCH),
    "hydra.launcher.n_jobs": _write("launcher.parallel={value}"),
    "hydra.launcher.timeout_min": _write(f"{JOB} cluster.time_min={{value}}"),
    "hydra.launcher.partition": _write(f"{JOB} cluster.time_min=60 cluster.partition={{value}}"),
    **dict.fromkeys(("hydra/launcher=submitit*", "hydra.launcher.*"), _write(f"{JOB} cluster.time_min=60")),
    **dict.fromkeys(("hydra/launcher=joblib", "hydra/launcher=ray*"), _write("launcher.parallel=2")),
    "hydra/sweeper=*": _write(SEARCH),
}


def cure(key: str, value: Any = None) -> str:
    """The end of the fault of a key, an option or a value that another project has; empty for any other."""
    text = shown(value)
    for pattern, known in _patterns():
        found = pattern.fullmatch(key) or pattern.fullmatch(f"{key}={text}")
        if found is not None:
            word = "..." if value is None or isinstance(value, dict) else shlex.quote(text)
            return _told(known, value=word, rest=found.groupdict().get("rest", ""))
    return ""


def _told(known: Cure, **words: str) -> str:
    if not known.lines:
        return f": leave it out, {known.why}"
    lines = " or ".join(line.format(**words) for line in known.lines)
    return f": write {lines}" + (f" ({known.why})" if known.why else "")


@cache
def _patterns() -> list[tuple[re.Pattern[str], Cure]]:
    return [(re.compile(re.escape(text).replace(r"\*", "(?P<rest>.*)")), known) for text, known in CURES.items()]
