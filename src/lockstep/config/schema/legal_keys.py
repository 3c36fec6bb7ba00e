"""Finds the legal keys of a configuration, and similar names for unknown ones.

No target is imported.
"""

from collections.abc import Mapping, Sequence

from lockstep.config.errors import Error
from lockstep.config.schema.configuration import CALLED, NAMED, fields, root, section
from lockstep.config.schema.target_sections import is_ours
from lockstep.system.text import near_names, question
from lockstep.system.trees import KeyPath, Tree, at, leaves

Groups = Mapping[str, Sequence[str]]  # Options of every configuration group, for hints
# Names in PyTorch scripts, Lightning, timm and MATLAB that the search for similar names misses, in
# lower case, with what to do.
FOREIGN_NAMES = {
    "epoch nepochs": "write trainer.max_epochs=...",
    "max_steps num_steps": "write trainer.max_epochs=... (an epoch: all images once)",
    "batch_size batchsize bs minibatchsize": "write global_batch_size=...",
    "learning_rate base_lr initiallearnrate": "write optimizer.lr=...",
    "wd l2regularization": "write optimizer.weight_decay=...",
    (
        "gpus num_gpus n_gpus world_size nproc_per_node num_processes pool numworkers "
        "strategy=parallel strategy=parallel-auto"
    ): "write trainer.devices=...",
    "scale_lr": "write scale_with_workers=true for batch size and learning rate",
    "strategy accelerator device cuda use_cuda distributed executionenvironment": (
        "write strategy=..."
    ),
    "trainer=gpu strategy=gpu strategy=cuda strategy=cuda:0": "write strategy=single_device",
    "trainer=ddp strategy=multi-gpu": "write strategy=ddp",
    "strategy=parallel-gpu": "write strategy=ddp trainer.num_nodes=...",
    "trainer=cpu trainer=mps trainer=ddp_sim": "write strategy=cpu",
    "strategy=parallel-cpu": "write strategy=cpu trainer.devices=...",
    "bf16 trainer.precision=bf16 trainer.precision=bf16-mixed": (
        "write trainer.precision=bfloat16"
    ),
    (
        "fp16 half amp use_amp trainer.precision=16-mixed trainer.precision=16 "
        "trainer.precision=fp16 trainer.precision=half trainer.precision=amp"
    ): (
        "write trainer.precision=float16 for GPUs without bfloat16 (T4, V100, RTX 20), "
        "else trainer.precision=bfloat16"
    ),
    "grad_clip clip_grad clip_grad_norm max_grad_norm gradientthreshold": (
        "write trainer.gradient_clip_norm=..."
    ),
    "gradient_accumulation_steps grad_accum_steps": "write trainer.accumulate_grad_batches=...",
    "log_every log_interval print_freq": "write trainer.log_every_n_steps=...",
    "val_check_interval validationfrequency": "write trainer.check_val_every_n_epoch=...",
    "info hydra_help package": (
        "write --cfg job, hydra or all (other options of Hydra were removed in 0.3)"
    ),
    "run": "write the command without it (--run was removed in 0.3)",
    "evaluate eval test_only": "write lockstep eval latest",
    "fast_dev_run": "write debug=fast",
    "plots": "write lockstep board for the curves",
    "verbose": "write silent=true to print only errors",
    "multi_run": "write -m",
    "net network arch backbone model_name": "write model=...",
    "pretrained": "write model=torchvision model.name=... model.pretrained=true",
    "model.name": "write model=torchvision model.name=...",
    "compile": "write compile=...",
    "datamodule": "write data=...",
    "root data_dir data_path data_root": "write data=image_folder data.root=...",
    "val_split validation_split val_size train_val_test_split": (
        "write data.val_fraction=... data.test_fraction=..."
    ),
    "random_erase reprob": "write augment.erasing=...",
    "early_stopping": "write callbacks=early_stopping",
    "patience validationpatience": (
        "write callbacks=early_stopping callbacks.early_stopping.patience=..."
    ),
    "partialminibatch": "write data.drop_last=true to leave out an incomplete last batch",
    "ema model_ema swa callbacks=swa": "write callbacks=ema",
    "checkpoint ckpt ckpt_path resume_from_checkpoint load_from checkpointpath": (
        "write resume=... or init_from=..."
    ),
    "launcher.mode": "write launcher.parallel=1 in place of sequential, which was removed in 0.3",
    "cluster.parallel": "write launcher.parallel=... (cluster.parallel was removed in 0.3)",
    "sweep.max_failed": "write lockstep stop latest (sweep.max_failed was removed in 0.3)",
    "logger": "write logger=...",
    "wandb use_wandb project": "write logger=wandb",
    "task_name experiment_name tags": "write name=...",
    "search.seeds": "write -m seed=... of the best points (search.seeds was removed in 0.3)",
    "seed_everything manual_seed random_seed": "write seed=...",
    "workerload": "write trainer.worker_weights=[3,1]",
    "trainer.loads loads": "write trainer.worker_weights=[3,1] (the name since 0.3)",
    "notify": "write `lockstep train ...; YOUR_COMMAND` (notify was removed in 0.3)",
    "data.copy_remove": (
        "write data.copy_to with $TMPDIR, which a cluster empties (copy_remove was removed in 0.3)"
    ),
    "callbacks.curves": (
        "write logger=tensorboard for curves (callbacks.curves was removed in 0.3)"
    ),
    "logger=csv": (
        "write logger=tensorboard for all steps, metrics.csv has the epochs "
        "(csv was removed in 0.3)"
    ),
    "strategy.gradient_dtype": (
        "write a larger global_batch_size=... for fewer all-reduces "
        "(strategy.gradient_dtype was removed in 0.3)"
    ),
    "flip_test": (
        "write augment.flip=true to train on mirror images, lockstep predict --flip to average "
        "their predictions (flip_test was removed in 0.3)"
    ),
    "data._check_": (
        "write the check into the function of data._target_=... (_check_ was removed in 0.3)"
    ),
    "log_dir logdir output_dir save_dir default_root_dir": "write hydra.run.dir=...",
    # Every run does this.
    "shuffle": "remove it: training images are shuffled in each epoch",
    "dispatchinbackground": "remove it: images are read ahead of the training",
    "sync_dist": "remove it: metrics are those of all workers",
    "sync_batchnorm sync_bn syncbatchnorm": (
        "remove it: batch norms use the images of all workers"
    ),
}


def unknown_key(
    tree: Tree, path: KeyPath, groups: Groups, names: Sequence[str] | None = None
) -> Error:
    """Describe an unknown key, with a hint.

    The hint is the setting for a name of another framework, else similar names, else all names.
    `names` are the legal ones, if the schema does not have them.
    """
    key = ".".join(path)
    *parents, unknown_name = path
    parent = at(tree, parents)
    target = parent.get("_target_") if isinstance(parent, dict) else None
    # The parameters of an entry may have any name.
    is_entry = path[0] in NAMED and isinstance(target, str)
    sections = [name for depth, name in enumerate(parents, 1) if at(tree, path[:depth]) is None]
    if not is_entry and (line := foreign_name_hint(key, unknown_name, *sections)):
        return Error("unknown", key, "is not a setting", line)
    owner = target.rpartition(".")[2] if isinstance(target, str) else ".".join(parents)
    names = legal_names(tree, parents, groups) if names is None else names
    public_names = [name for name in names or () if not name.startswith("_")]
    otherwise = "remove it; --help lists the settings"
    if owner and public_names:
        otherwise = f"{owner} has {', '.join(public_names)}"
    candidates = meant_key(tree, path, groups, names)
    # A bare name, such as epochs=5, is typed as in scripts.
    candidates = [f"{candidates[0]}=..."] if len(path) == len(candidates) == 1 else candidates
    return Error("unknown", key, "is not a setting", question(candidates, otherwise))


def legal_names(tree: Tree, path: KeyPath, groups: Groups) -> Sequence[str] | None:
    """Return the legal keys below `path`, or None if they are the parameters of a target."""
    if not path:
        root_fields = fields(root(tree))
        return [
            *root_fields,
            *(group for group in groups if group not in root_fields and "/" not in group),
        ]
    value = at(tree, path)
    if len(path) == 1 and path[0] in NAMED:
        return list(value) if isinstance(value, dict) else []
    section_type = section(tree, path)
    if section_type is None:
        return None if isinstance(value, dict) else []
    if section_type.model_config.get("extra") != "allow":
        return list(fields(section_type))
    # The files in conf/ contain all parameters of Lockstep's own targets.
    has_all = path[0] in CALLED and is_ours(at(value, ["_target_"]))
    return list(dict.fromkeys([*fields(section_type), *value])) if has_all else None


def meant_key(
    tree: Tree, path: KeyPath, groups: Groups, names: Sequence[str] | None = None
) -> list[str]:
    """Return the keys that an unknown key may mean.

    These are similar names in its section, or else similar keys of other sections.
    """
    *parents, unknown_name = path
    if names is None:
        legal_keys = legal_names(tree, parents, groups)
        names = legal_keys if legal_keys is not None else list(at(tree, parents) or ())
    if candidates := near_names(unknown_name, [name for name in names if name != unknown_name], 2):
        return [".".join([*parents, name]) for name in candidates]
    if at(tree, parents[:1]) is not None and path[0] in NAMED:
        return []
    full_key = ".".join(path)
    keys = {
        key: key.rpartition(".")[2] for key, _ in leaves(tree, "") if "." in key and key != full_key
    }
    similar_names = near_names(
        unknown_name,
        {name for key, name in keys.items() if key.partition(".")[0] not in NAMED},
        cutoff=0.75,
    )
    other_keys = [key for key, name in keys.items() if name in similar_names][:2]
    if at(tree, parents) is not None:
        return other_keys
    return near_names(full_key, keys, cutoff=0.85) or other_keys


def foreign_name_hint(*names: str) -> str:
    """Return what to do about the first of these names that a table lists, or ""."""
    for name in map(str.lower, names):
        for foreign_names, hint in FOREIGN_NAMES.items():
            if name in foreign_names.split():
                return hint
    return ""
