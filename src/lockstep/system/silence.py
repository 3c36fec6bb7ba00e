"""Silences banners and warnings of libraries that do not apply to Lockstep."""

import logging
import threading
import warnings


def silence_libraries() -> None:
    """Silence Lightning's banners, and warnings that do not apply here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        r".*sync_dist=True.*",  # our values are global already; the mean over ranks would be wrong
        r".*The ``compute`` method of metric .* was called before the ``update``.*",  # an empty shard counts nothing
        r".*does not have many workers.*",  # a batch is one gather: workers would only copy it
        r".*passed in a `val_dataloader` but have no `validation_step`.*",  # a custom module may have none
        r".*smaller than the logging interval.*",  # the epoch's means are logged anyway
        r".*WeightAveraging callback, but loading.*",  # evaluation needs the averaged weights
        r".*callbacks used to create the checkpoint need to be provided.*",  # an evaluation needs none of them
        r".*could not find the monitored key.*",  # before the first validation; the name was checked
        r".*Checkpoint directory .* exists and is not empty.*",  # a resume continues in its folder
        r".*The `srun` command is available.*",  # Lockstep finds out itself
        r".*`broadcast_buffers` is deprecated.*",  # its successor is not in torch 2.11 to 2.14, 2026-11-21
        r".*Please use the new API settings to control TF32.*",  # see set_tf32
        r".*in eval mode at the start of training.*",  # batch norms of what is frozen
        r".*Detected call of `lr_scheduler.step\(\)` before.*",  # the first updates in float16 may be skipped
        r".*LeafSpec.* is deprecated.*",  # Lightning 2.6.6 on torch 2.15, 2026-11-21
    ):
        warnings.filterwarnings("ignore", message=message)
    threading.excepthook = _show_thread_failure


def _show_thread_failure(failed: threading.ExceptHookArgs) -> None:
    """Skip the error of TensorBoard's writing thread: its writer raises the same in the training."""
    if type(failed.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failed)
