"""Prints `python train.py --help`: groups, and every key with its value, meaning, type and range."""

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from omegaconf import OmegaConf

from lockstep.cli import declarations
from lockstep.config.composing.compose import DEFAULT, Source, compose_config, groups
from lockstep.config.errors import literal
from lockstep.config.schema.configuration import NAMED
from lockstep.config.schema.type_names import kind_of
from lockstep.runs.naming import SCRIPTLESS, training_command
from lockstep.system.trees import leaves

WIDTH = 100
ELSEWHERE = ("benchmark",)  # groups that a training does not read
NO_BREAK = "\xa0"  # a type stays on one line
HEAD = "Train an image classifier: {command} [group=option ...] [key=value ...]\n"
EXAMPLES = (
    ("{command}", "the settings below, on all GPUs or the CPU"),
    ("{command} data=image_folder data.root=flowers", "one folder of images per class"),
    ("{command} model=torchvision model.name=resnet50 optimizer.lr=0.01", ""),
    ("{command} trainer.devices=4", "four workers; the weights are the same"),
    ("{command} resume=outputs/latest", "resume a run"),
    ("{command} -m optimizer.lr=0.05,0.1 seed=0,1", "a sweep: all combinations, in parallel"),
    ("{command} -m search=tpe 'optimizer.lr=interval(0.01,1)'", ""),
    ("lockstep new flowers", "create your own project"),
    ("lockstep --help", "monitor, stop, compare, evaluate, predict"),
)
COMPLETION = """
Tab completes groups, options and keys after this line; zsh and fish: install=zsh, install=fish
  eval "$({command} -sc install=bash)"
"""
FIRST = ("trainer.max_epochs", "global_batch_size", "optimizer.lr", "trainer.devices", "trainer.precision", "seed")
FOOT = """
null removes a callback or a logger: callbacks.timer=null. + sets a parameter that is not listed:
+callbacks.checkpoint.every_n_epochs=2. Options of Hydra itself: {command} --hydra-help
--trust resumes a copied run, or one of another project or user: its code and commands run here.
"""
BENCHMARK = """\
Train the chosen experiment in every environment of these machines, and report whether more workers are faster.

  lockstep benchmark                                        scikit-learn's digits
  lockstep benchmark experiment=fashion_mnist model.width=16 benchmark.budget_s=120
  lockstep benchmark benchmark.environments.parallel-cpu=null
  lockstep benchmark cluster=slurm cluster.time_min=60 trainer.num_nodes=2 cluster.gpus_per_node=4

null removes an environment. To add one:
'+benchmark.environments.two-gpus={strategy:ddp,devices:2,scale_with_workers:true}'
Exit code: 0, 1 if an environment failed, 2 for a wrong configuration, 130 after Ctrl-C (143 after SIGTERM).
"""


def show_help(overrides: Sequence[str] = (), source: Source = DEFAULT) -> None:
    tree: Any = OmegaConf.to_container(compose_config(overrides, source))
    command = training_command()
    print(HEAD.format(command=command))
    examples = [(line.format(command=command), meaning) for line, meaning in EXAMPLES]
    wide = max(len(line) for line, meaning in examples if meaning)
    for line, meaning in examples:
        print(f"  {line:<{wide}}  {meaning}".rstrip())
    if command != SCRIPTLESS:  # Hydra's completion reads its first word alone
        print(COMPLETION.format(command=command), end="")
    sections = {name: list(_key_rows(tree, name)) for name in tree if isinstance(tree[name], dict)}
    top = [(f"{key}={literal(tree[key])}", _meaning(tree, [key])) for key in tree if key not in sections]
    # one column for all but the long names of callbacks and loggers
    wide = max(len(key) for name, rows in sections.items() if name not in NAMED for key, meaning in rows if meaning)
    every = [*top, *(row for rows in sections.values() for row in rows)]
    _print("Most common keys", [row for name in FIRST for row in every if row[0].partition("=")[0] == name], wide)
    print("\nGroups and their options")
    for group, options in groups(*source.folders).items():
        if group not in ELSEWHERE:
            print(f"  {group:<12} {', '.join(options)}")
    _print("All keys", top, wide)
    for name, rows in sections.items():
        purpose = declarations.purpose(tree, name)
        _print(f"{name}: {purpose}" if purpose else name, rows, wide)
    print(FOOT.format(command=command), end="")


def show_benchmark(source: Source) -> None:
    tree: Any = OmegaConf.to_container(compose_config(["+benchmark=default"], source))
    print(BENCHMARK, end="")
    _print("Keys, in addition to those of python train.py --help", list(_key_rows(tree, "benchmark")), 0)


def _print(title: str, rows: Sequence[tuple[str, str]], wide: int) -> None:
    wide = max([wide, *(len(key) for key, meaning in rows if meaning)])
    print(f"\n{textwrap.fill(title, WIDTH)}")
    for key, meaning in rows:
        lines = textwrap.wrap(meaning, WIDTH - wide - 4, break_long_words=False, break_on_hyphens=False) or [""]
        for left, line in zip_longest([key], lines, fillvalue=""):
            print(f"  {left:<{wide}}  {line.replace(NO_BREAK, ' ')}".rstrip())


def _key_rows(tree: dict[str, Any], name: str) -> list[tuple[str, str]]:
    keys = [(key, value) for key, value in leaves(tree[name], name) if not key.endswith("._partial_")]
    return [(f"{key}={literal(value)}", _meaning(tree, key.split("."))) for key, value in keys]


def _meaning(tree: dict[str, Any], path: Sequence[str]) -> str:
    if path[-1] == "_target_":
        return ""
    field = declarations.meaning(tree, list(path))
    if field is None:
        return ""
    kind = f"({kind_of(field).replace(' ', NO_BREAK)})"
    return f"{field.description} {kind}" if field.description else kind
