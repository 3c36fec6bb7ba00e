"""Which keys belong to whom: to a run that is resumed, to a sweep, to a benchmark, to the command."""

# what a resume may change, sections with all below them; everything else is the mathematics of the run, and frozen
FREE_ON_RESUME = (
    # where it is computed, and how fast
    "compile",
    "eval_batch_size",
    "data.cache",
    "data.copy_remove",
    "data.copy_to",
    "data.download",
    "data.memory",
    "data.num_workers",
    "strategy.bucket_size_mib",
    "strategy.interface",
    "strategy.name",
    "strategy.process_group_backend",
    "strategy.timeout_s",
    "strategy.variables",
    "trainer.deterministic",
    "trainer.devices",
    "trainer.loads",
    "trainer.memory_format",
    "trainer.num_nodes",
    "trainer.process_limit",
    # how long
    "trainer.max_epochs",
    "trainer.max_time_s",
    # what is watched and told
    "flip_test",
    "logger",
    "name",
    "notify",
    "silent",
    "trainer.log_every_n_steps",
    "trainer.profiler",
    # of the command
    "cluster",
    "dry_run",
    "launcher",
    "resume",
    "search",
    "sweep",
)
# callbacks that may come, go and change on a resume: they only look on, or end a training
FREE_CALLBACKS = (
    "lightning.pytorch.callbacks.DeviceStatsMonitor",
    "lightning.pytorch.callbacks.LearningRateMonitor",
    "lightning.pytorch.callbacks.Timer",
    "lockstep.callbacks.Curves",
    "lockstep.callbacks.Pictures",
)
CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"  # free where it does not choose the best weights
# where a run is trained is a matter of the command, not of the run
OF_THE_COMMAND = ("cluster", "dry_run")
# each environment of a benchmark says these
SET_BY_ENVIRONMENTS = (
    "strategy",
    "strategy.name",
    "scale_with_workers",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.loads",
    "trainer.max_time_s",
)
EVERYWHERE = ("experiment", "debug")  # groups whose options set keys of any section
OF_THE_WHOLE = (
    "launcher",
    "sweep",
    "search",
    "notify",
    "cluster",
    "dry_run",
    "silent",
)  # sections that cannot differ between the jobs of a sweep
