"""`lockstep machine`: prints the hardware of this machine, and a command that uses it."""

import os
import sys
from typing import Any

from lockstep.monitoring.formatting import NONE
from lockstep.runs.files import print_json
from lockstep.runs.folder import EXIT_FAILED
from lockstep.runs.naming import training_command
from lockstep.system import hardware, processes
from lockstep.system.terminal import new_table, print_table, show_table, terminal
from lockstep.system.text import size_text


def show_machine(*, is_json: bool) -> int:
    """Print the hardware of this machine.

    Returns the exit code, which is 1 if torch cannot use the GPUs.
    """
    gpus, error = processes.call(_gpus) if hardware.num_visible_gpus() else ([], "")
    facts = {
        "gpus": gpus,
        "cores": hardware.num_cores(),
        "cores_of_machine": os.cpu_count(),
        "memory_bytes": hardware.memory_bytes(),
        "free_bytes": hardware.available_bytes(),
        "scratch": hardware.scratch_disks(),
        # On CPUs, one process with all threads of a machine is faster than several processes.
        "command": training_command() + (f" trainer.devices={len(gpus)}" if gpus else ""),
    }
    if is_json:
        print_json(facts)
    else:
        _show(facts)
    if error:
        print(f"lockstep: {error}", file=sys.stderr)
    return EXIT_FAILED if error else 0


def _gpus() -> tuple[list[dict[str, Any]], str]:
    """Return the GPUs as torch sees them, or the error of torch.

    This starts CUDA on each GPU, which takes some memory there.
    """
    import torch

    from lockstep.assembly.precision import bfloat16_unit

    try:
        gpus, numbers = [], range(torch.cuda.device_count())
        for number in numbers:
            free, total = torch.cuda.mem_get_info(number)
            capability = torch.cuda.get_device_capability(number)
            others = [other for other in numbers if other != number]
            gpus.append(
                {
                    "name": torch.cuda.get_device_name(number),
                    "memory_bytes": total,
                    "free_bytes": free,
                    "compute_capability": ".".join(map(str, capability)),
                    "bfloat16": bfloat16_unit(torch.device("cuda", number)) is not None,
                    "linked_to": [
                        other
                        for other in others
                        if torch.cuda.can_device_access_peer(number, other)
                    ],
                }
            )
        return gpus, ""
    except RuntimeError as error:
        # The driver raises this error.
        return [], f"torch cannot use the GPUs: {' '.join(str(error).split())}"


def _show(facts: dict[str, Any]) -> None:
    out, gpus, free = terminal(), facts["gpus"], facts["free_bytes"]
    lines = []
    for number, gpu in enumerate(gpus):
        capability = f"{gpu['compute_capability']}{', bfloat16' if gpu['bfloat16'] else ''}"
        lines.append(
            (
                str(number),
                gpu["name"],
                size_text(gpu["memory_bytes"]),
                size_text(gpu["free_bytes"]),
                capability,
                " ".join(map(str, gpu["linked_to"])) or NONE,
            )
        )
    if gpus:
        print_table(
            new_table(
                ("GPU", "name", "memory", "free", "capability", "linked to"),
                lines,
                out,
                right=("memory", "free"),
            ),
            out,
        )
    memory = size_text(facts["memory_bytes"])
    if free is not None:
        memory += f", {size_text(free)} free"
    rows = [
        ("GPUs", "" if gpus else "none"),
        ("cores", f"{facts['cores']} of {facts['cores_of_machine']} for this process"),
        ("memory", memory),
    ]
    for name, disk in facts["scratch"].items():
        place = f" in {disk['path']}" if disk["path"] != name else ""
        rows.append((name, f"{size_text(disk['free_bytes'])} free{place}"))
    show_table("This machine", rows)
    print("Train with:", facts["command"], sep="\n  ")
