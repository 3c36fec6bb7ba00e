"""How exact: graphs against eager steps, several processes and GPUs against one. tests/system/test_gpu.py has more."""

import json
from functools import partial

import torch

from benchmarks.gpu.stage import Aim, Bench, command
from lockstep.runs.folder import RunFolder
from tests.support.harness import ACCUMULATE_AUGMENT, SMALL, difference

TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
BFLOAT16 = [override for override in SMALL if not override.startswith(("strategy=", "trainer.precision="))]
FLOAT64 = [*BFLOAT16, "trainer.precision=float64"]
REPLAYED = {
    "float64": ("trainer.precision=float64",),
    "bfloat16": (),
    "micro-batches": (*ACCUMULATE_AUGMENT, "callbacks=ema", "flip_test=true"),
}
EXACT, BITWISE = Aim("<=", 1e-12), Aim("<=", 0.0)


def graph(bench: Bench) -> None:
    """Compare replayed trainings with eager ones, bit by bit; each shape is replayed after its first steps."""
    bench.together(*((name, partial(_replayed, name=name)) for name in REPLAYED))


def _replayed(bench: Bench, name: str) -> None:
    settings = (*BFLOAT16, "trainer.devices=1", "trainer.deterministic=true", "trainer.max_epochs=5")
    settings = (*settings, f"model.width={bench.width}", *REPLAYED[name])
    eager, _ = bench.train(f"{name} eager", *settings, "trainer.graph=false")
    replayed, done = bench.train(f"{name} replayed", *settings, "trainer.graph=true")
    is_replayed = "replayed as CUDA graphs" in done.output and "no CUDA graphs" not in done.output
    bench.check(f"{name}: steps are replayed", is_replayed)
    what = f"{name}: graph against eager, dropout, remainder"
    bench.figure(what, [difference(eager, replayed)], "{:.1e}", BITWISE, predicted="0")


def ddp(bench: Bench) -> None:
    """Every way to be one of several processes, against one process."""
    num_gpus = torch.cuda.device_count()
    norms = [("batch norm by gloo", lambda bench: _norms(bench, "gloo"))]
    if num_gpus > 1:
        norms.append(("batch norm by NCCL", lambda bench: _norms(bench, "nccl")))
    bench.together(("one rank by NCCL", _one_rank), *norms)
    if num_gpus > 1:
        bench.attempt("several GPUs", lambda bench: _several_gpus(bench, min(num_gpus, 4)))


def _one_rank(bench: Bench) -> None:
    """Compare workers of torchrun, and those of Lockstep, with no process group at all."""
    alone, _ = bench.train("alone", *FLOAT64, "trainer.devices=1")
    started, _ = bench.train("started", *FLOAT64, "trainer.devices=1", "strategy=ddp")
    joined = RunFolder(bench.scratch / "joined")
    words = ("train.py", *FLOAT64, "strategy=ddp", f"hydra.run.dir={joined.path}")
    command("torchrun", *TORCHRUN, "--nproc-per-node=1", *words).expect(0)
    for what, run in (("Lockstep", started), ("torchrun", joined)):
        bench.figure(f"DDP of 1 rank, NCCL, started by {what}", [difference(alone, run)], "{:.1e}", EXACT)


def _several_gpus(bench: Bench, most: int) -> None:
    alone, _ = bench.train("single", *FLOAT64, "trainer.devices=1")
    for loads in ("3,1", *(",".join("1" * count) for count in range(2, most + 1))):
        count = len(loads.split(","))
        several, _ = bench.train(f"gpus {loads}", *FLOAT64, f"trainer.devices={count}", f"trainer.loads=[{loads}]")
        bench.figure(f"{count} GPUs by NCCL, loads [{loads}]", [difference(alone, several)], "{:.1e}", EXACT)


def _norms(bench: Bench, backend: str) -> None:
    path = bench.scratch / f"norms-{backend}.json"
    words = ("--nproc-per-node=2", "-m", "benchmarks.gpu.norms", backend, str(path))
    command(f"norms {backend}", *TORCHRUN, *words).expect(0)
    for name, worst in json.loads(path.read_text()).items():
        aim = EXACT if name.startswith("float64") else Aim("<=", 1e-4)
        bench.figure(f"batch norm of 2 processes by {backend}, {name}", [worst], "{:.1e}", aim)
