"""Names of settings in PyTorch scripts, Lightning, timm and MATLAB, where the search for near names misses them."""

NAMES = {
    "trainer.max_epochs=...": "epoch nepochs max_steps num_steps",
    "global_batch_size=...": "batch_size batchsize bs",
    "optimizer.lr=...": "learning_rate base_lr InitialLearnRate",
    "optimizer.weight_decay=...": "wd L2Regularization",
    "trainer.devices=...": "gpus num_gpus n_gpus world_size nproc_per_node num_processes",
    "strategy=...": "strategy accelerator device cuda use_cuda distributed ExecutionEnvironment",
    "strategy=single_device": "trainer=gpu strategy=gpu strategy=cuda",
    "strategy=ddp": "trainer=ddp",
    "strategy=cpu": "trainer=cpu trainer=mps trainer=ddp_sim",
    "trainer.precision=bfloat16": "bf16 trainer.precision=bf16 trainer.precision=bf16-mixed",
    "trainer.precision=float16 for GPUs without bfloat16 (T4, V100, RTX 20), else trainer.precision=bfloat16": (
        "fp16 half amp use_amp trainer.precision=16-mixed trainer.precision=16 trainer.precision=fp16 "
        "trainer.precision=half trainer.precision=amp"
    ),
    "trainer.gradient_clip_norm=...": "grad_clip clip_grad clip_grad_norm max_grad_norm GradientThreshold",
    "trainer.accumulate_grad_batches=...": "gradient_accumulation_steps grad_accum_steps",
    "trainer.log_every_n_steps=...": "log_every log_interval print_freq",
    "trainer.check_val_every_n_epoch=...": "val_check_interval",
    "lockstep eval latest": "evaluate eval test_only",
    "debug=fast": "fast_dev_run",
    "model=...": "net network arch backbone model_name",
    "model=torchvision model.name=... model.pretrained=true": "pretrained",
    "compile=...": "compile",
    "data=...": "datamodule",
    "data=image_folder data.root=...": "data_dir data_path",
    "data.val_fraction=... data.test_fraction=...": "val_split validation_split val_size train_val_test_split",
    "augment.erasing=...": "random_erase reprob",
    "callbacks=early_stopping": "patience early_stopping ValidationPatience",
    "callbacks=ema": "ema model_ema swa callbacks=swa",
    "resume=... or init_from=...": "checkpoint ckpt ckpt_path resume_from_checkpoint load_from CheckpointPath",
    "logger=...": "logger",
    "logger=wandb": "wandb use_wandb project",
    "name=...": "task_name experiment_name tags",
    "seed=...": "seed_everything manual_seed random_seed",
    "hydra.run.dir=...": "log_dir logdir output_dir save_dir default_root_dir",
}


def hint(*names: str) -> str:
    """Return the replacement of the first of these names that is listed above, or ""."""
    return next((f"write {line}" for name in names for line, theirs in NAMES.items() if name in theirs.split()), "")
