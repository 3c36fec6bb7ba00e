"""The command `python -m benchmarks.gpu --out FOLDER`; docs/gpu.md describes its use."""

import argparse
import sys
from pathlib import Path

from benchmarks.gpu.runner import EXIT_UNUSABLE, REHEARSAL, Stage, Stopping, run

# Of every stage the function below benchmarks.gpu, and its limit in seconds: about twice what one H100 with 16 cores
# took (docs/gpu.md). All default stages together end in two or three calls of 540 s.
STAGES = {
    "facts": ("facts.facts", 60),
    "smoke": ("runs.smoke", 120),
    "probe": ("probe.probe", 120),
    "graph": ("exactness.graph", 120),
    "fashion_mnist": ("recipes.fashion_mnist", 180),
    "recipes": ("recipes.recipes", 300),
    "speed": ("speed.speed", 180),
    "ddp": ("exactness.ddp", 120),
    "options": ("runs.options", 180),
    "tests": ("runs.tests", 400),
    "cifar10": ("recipes.cifar10", 400),
}
DEFAULT = [name for name in STAGES if name != "cifar10"]


def _stages(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no stage {', '.join(unknown)}: choose from {', '.join(STAGES)}")
    return names


def main() -> int:
    """Run the requested stages. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Check and measure Lockstep on a GPU, stage by stage.",
        epilog="Exit code: 0 all passed, 1 some failed or missed their aim, 2 wrong arguments or no GPU, "
        "75 nothing failed, but the budget's end or a signal cut it.",
    )
    parser.add_argument("--out", type=Path, required=True, help="new folder: results.json, gpu.md and logs.txt")
    parser.add_argument("--stages", type=_stages, default=DEFAULT, help=f"default: {','.join(DEFAULT)}; also cifar10")
    parser.add_argument("--budget", type=float, default=540.0, metavar="S", help="seconds for all, default: 540")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets, default: data")
    parser.add_argument("--patience", type=float, default=1.0, metavar="X", help="multiplies the limits of the stages")
    parser.add_argument(
        REHEARSAL, action="store_true", dest="is_rehearsal", help="tiny networks: tries the command, measures nothing"
    )
    arguments = parser.parse_args()
    if (arguments.out / "results.json").exists():
        print(f"{arguments.out} holds the results of another call: name a new folder", file=sys.stderr)
        return EXIT_UNUSABLE
    extra = [REHEARSAL] if arguments.is_rehearsal else []
    stages = []
    for name in dict.fromkeys(["facts", *arguments.stages]):  # a page without its GPU is useless
        function, limit_s = STAGES[name]
        words = [sys.executable, "-m", "benchmarks.gpu.stage", function, *extra]
        stages.append(Stage(name, limit_s * arguments.patience, words))
    words = ["--stages", ",".join(arguments.stages), "--budget", f"{arguments.budget:g}", *extra]
    title = " ".join(["python -m benchmarks.gpu", *words])
    return run(stages, arguments.out, title=title, data=arguments.data, budget_s=arguments.budget, stopping=Stopping())


if __name__ == "__main__":
    sys.exit(main())
