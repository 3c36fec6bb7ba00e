"""`lockstep export`: the network of a run as a file for other programs, checked on images of the run."""

import argparse
from pathlib import Path

from lockstep.cli import inference
from lockstep.config import presence, saved_run, signatures
from lockstep.launch.worker import import_training
from lockstep.training import refusals

NEEDED = ("onnx", "onnxruntime", "onnxscript")


def run(arguments: argparse.Namespace, current: Path) -> int:
    """Write the network of a checkpoint to a file. Returns the exit code. Raises FileNotFoundError or ValueError."""
    output = Path(arguments.output).resolve()
    if output.suffix not in (".onnx", ".pt2") or output.is_dir():
        raise ValueError(f"--output {arguments.output}: name a file that ends in .onnx or .pt2.")
    missing = [name for name in NEEDED if not signatures.is_there(name)] if output.suffix == ".onnx" else []
    if missing:
        hint = "pip install 'lockstep[export]', or name a file that ends in .pt2"
        raise ValueError(f"--output {arguments.output} needs {', '.join(missing)}: {hint}.")
    if (error := refusals.unwritable(output.parent)) is not None:
        raise ValueError(f"--output {arguments.output}: {error}.")
    folder, checkpoint, saved, source = inference.opened(arguments, current)
    here = saved_run.on_this_machine(saved, devices=1, strategy="cpu")
    config = saved_run.changed(folder, here, arguments.overrides, source)
    presence.check(config.data)
    trainer = config.trainer.model_copy(update={"precision": "float32", "memory_format": "contiguous"})
    config = config.model_copy(update={"compile": False, "trainer": trainer})
    import_training()
    from lockstep.training import export

    return export.export(config, folder, checkpoint, output)
