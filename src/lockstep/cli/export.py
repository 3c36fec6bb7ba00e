"""`lockstep export`: writes the network of a run to a file for other programs.

The file is checked on images of the run.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from lockstep.cli import inference
from lockstep.config import saved_run
from lockstep.config.checks import data_presence, signatures
from lockstep.launch.worker import import_training
from lockstep.runs import naming, permissions

NEEDED = ("onnx", "onnxruntime", "onnxscript")


def run_export(arguments: argparse.Namespace, current: Path) -> int:
    """Write the network of a checkpoint to a file, and return the exit code.

    Raises FileNotFoundError or ValueError.
    """
    inference.refuse_training_overrides(
        arguments.overrides, "remove it, the file computes in float32"
    )
    missing = [package for package in NEEDED if not signatures.is_there(package)]
    requirement = f"needs {', '.join(missing)}: pip install {' '.join(missing)}"
    if arguments.output is None:
        run = naming.find(arguments.run)
        permissions.need_own(run, "name a file with --output", is_trusted=arguments.trust)
        arguments.output = str(run.network.with_suffix(".pt2") if missing else run.network)
        if missing:
            print(f"As network.pt2, because network.onnx {requirement}", flush=True)
    output = Path(arguments.output).resolve()
    if output.suffix not in (".onnx", ".pt2") or output.is_dir():
        raise ValueError(f"--output {arguments.output}: name a file that ends in .onnx or .pt2.")
    if missing and output.suffix == ".onnx":
        raise ValueError(
            f"--output {arguments.output} {requirement}, or name a file that ends in .pt2."
        )
    inference.need_writable("--output", arguments.output)
    trained, source = inference.open_run(arguments, current)
    here = saved_run.adapt_to_machine(trained.config, devices=1, strategy="cpu")
    config = saved_run.change_run(trained.folder, here, arguments.overrides, source).config
    data_presence.check(config.data)
    trainer = config.trainer.model_copy(
        update={"precision": "float32", "memory_format": "contiguous"}
    )
    config = config.model_copy(update={"compile": False, "trainer": trainer})
    import_training()
    from lockstep.inference import export

    return export.export(replace(trained, config=config), output, arguments.max_error)
