"""The record of a job, job.json, as a submission writes it."""

from typing import Any


def fields(**changes: Any) -> dict[str, Any]:
    """A local job of one worker on the CPU, with these `changes`."""
    known = {
        "id": "local-1",
        "engine": "local",
        "name": "x",
        "task": "train",
        "cluster": {},
        "num_nodes": 1,
    }
    known |= {
        "workers_per_node": 1,
        "gpus_per_node": 0,
        "submitted": 1.0,
        "log": "log",
        "code": "copy",
        "cwd": "/",
    }
    return {**known, "host": "elsewhere", **changes}
