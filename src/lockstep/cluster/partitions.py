"""The partitions of a SLURM cluster, and the limits of this user, by its command-line tools."""

import getpass
import re
import shutil
from typing import NamedTuple

from lockstep.cluster.scheduler import call, seconds

GPUS = re.compile(r"\bgpu:(?:([^:,()]+):)?(\d+)")
LIMITS = ("Account", "Partition", "QOS", "MaxJobs", "MaxSubmit", "MaxTRES", "GrpTRES")


class Partition(NamedTuple):
    """Nodes of one kind in a partition, with GPUs, cores and MiB of each; `limit_s` None is no time limit."""

    name: str
    is_default: bool
    is_up: bool
    nodes: int
    idle: int
    gpus: int
    gpu_kinds: tuple[str, ...]
    cores: int
    memory_mib: int
    limit_s: float | None


def partitions() -> list[Partition]:
    """List the partitions that this user may see; none without a cluster. Raises ValueError if it does not answer."""
    if shutil.which("sinfo") is None:
        return []
    found, shown = [], ("--exact", "--noheader", "--format=%P|%a|%l|%F|%c|%m|%G")
    for line in call("sinfo", *shown, unless="configuration source").splitlines():
        name, state, limit, nodes, cores, memory, resources = line.split("|")
        _, idle, _, total = map(int, nodes.split("/"))  # allocated, idle, other, total
        where = (name.removesuffix("*"), name.endswith("*"), state == "up", total, idle)
        gpus = GPUS.findall(resources)
        counted = (sum(int(count) for _, count in gpus), tuple(kind for kind, _ in gpus if kind))
        found.append(Partition(*where, *counted, int(cores), int(memory), seconds(limit)))
    return found


def limits() -> list[str]:
    """List the accounts of this user with their limits, by SLURM's names; none on a cluster without a database."""
    shown = ("--noheader", "--parsable2", "show", "associations", f"user={getpass.getuser()}")
    lines = call("sacctmgr", *shown, f"format={','.join(LIMITS)}", unless="accounting_storage").splitlines()
    rows = (zip(LIMITS, line.split("|"), strict=True) for line in lines)
    return [", ".join(f"{name}={value}" for name, value in row if value) for row in rows]
