"""Prints `python train.py --help`, with all groups and settings or some of them.

Also explains options of other programs.
"""

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from omegaconf import OmegaConf

from lockstep.cli import descriptions
from lockstep.config.composing.compose import DEFAULT, REFUSALS, Source, compose_config, groups
from lockstep.config.errors import ConfigError, Error, config_error, literal
from lockstep.config.overrides import plan
from lockstep.config.schema.legal_keys import Groups, foreign_name_hint, meant_key
from lockstep.runs.naming import TRAIN_COMMAND, training_command
from lockstep.system.text import question
from lockstep.system.trees import leaves

MAX_WIDTH = 100  # columns of text
LEFT = 34  # columns of settings
# A training does not read this group.
ELSEWHERE = "benchmark"
USAGE = "Train an image classifier: {command} [FOLDER] [group=option] [setting=value] ..."
EXAMPLES = (
    ("{command}", "the settings below"),
    ("{command} flowers", "one folder per class"),
    ("{command} trainer.devices=4", "four workers"),
    ("{command} resume=outputs/latest", "resume a run"),
    ("{command} -m optimizer.lr=0.05,0.1 seed=0,1", "a sweep, in parallel"),
    ("{command} -m search=tpe 'optimizer.lr=interval(0.01,1)'", ""),
    ("{command} model=torchvision model.name=resnet50 optimizer.lr=0.01", ""),
    ("{command} --help model model=timm", "one group, one option"),
    ("lockstep new flowers", "create your own project"),
    ("lockstep --help", "monitor, stop, compare, evaluate, predict"),
)
COMPLETION = """
Tab completes groups, options and settings after this line; zsh and fish: install=zsh, install=fish
  eval "$({command} -sc install=bash)"
"""
FIRST = (
    "trainer.max_epochs",
    "global_batch_size",
    "optimizer.lr",
    "trainer.devices",
    "trainer.precision",
    "seed",
)
FOOT = """
null removes a callback or a logger: callbacks.timer=null. + sets a parameter that is not listed: \
+callbacks.checkpoint.every_n_epochs=2. --trust resumes a copied run, \
or one of another project or user: \
its code and commands run here. --cfg job prints the composed settings.
"""
BENCHMARK = """\
Train the chosen experiment in every environment of these machines, \
and report whether more workers are faster.

  lockstep benchmark                                   scikit-learn's digits
  lockstep benchmark experiment=fashion_mnist benchmark.budget_s=120
  lockstep benchmark benchmark.environments.parallel-cpu=null
  lockstep benchmark cluster=slurm cluster.time_min=60 trainer.num_nodes=2

null removes an environment. To add one:
  '+benchmark.environments.two={strategy:ddp,devices:2,scale_with_workers:true}'
Exit code: 0, 1 if an environment failed, 2 for a wrong configuration, \
130 after Ctrl-C (143 after SIGTERM).
"""


def show_help(overrides: Sequence[str] = (), source: Source = DEFAULT) -> None:
    """Print all groups and settings, or some of them.

    The words without a value in `overrides`, such as `trainer` or `trainer.max_epochs`, select the
    groups and settings to print. Raises ConfigError for other names.
    """
    topics = [line for line in overrides if "=" not in line and not line.startswith("~")]
    override_lines = [line for line in overrides if line not in topics]
    try:
        cfg = compose_config(override_lines, source)
    except REFUSALS:
        if topics:
            plan(override_lines, source)  # This call raises their errors.
        cfg = compose_config((), source)
    tree: Any = OmegaConf.to_container(cfg)
    options = groups(*source.folders)
    for topic in topics:
        if topic == ELSEWHERE:
            show_benchmark(source)
        else:
            _print_part(tree, topic, options)
    if not topics:
        _print_all(tree, options)


def _print_all(tree: dict[str, Any], options: Groups) -> None:
    command = training_command()
    _print_text(f"{USAGE.format(command=command)}\n\n")
    examples = [(line.format(command=command), meaning) for line, meaning in EXAMPLES]
    _print_rows(examples, max(len(line) for line, meaning in examples if meaning))
    # Hydra's completion reads only the first word of the command.
    if command != TRAIN_COMMAND:
        _print_text(COMPLETION.format(command=command))
    print("\nMost common settings")
    for setting in FIRST:
        _print_rows(_rows(tree, setting))
    print("\nGroups and their options")
    _print_rows(
        [(group, ", ".join(options[group])) for group in options if group != ELSEWHERE],
        max(map(len, options)),
    )
    print("\nAll settings")
    # Sections come last.
    for setting in sorted(tree, key=lambda setting: isinstance(tree[setting], dict)):
        _print_section(tree, setting)
    _print_text(FOOT)


def _print_part(tree: dict[str, Any], topic: str, options: Groups) -> None:
    """Print the options and settings of a group or a section, or one setting.

    Raises ConfigError for an unknown name.
    """
    if topic not in options and not list(_rows(tree, topic)):
        path = topic.split(".")
        hint = question(
            meant_key(tree, path, options),
            foreign_name_hint(path[-1]) or f"{training_command()} --help lists them",
        )
        raise config_error("unknown", topic, "is not a group or a setting", hint)
    if topic in options:
        _print_text(f"{topic}={' | '.join(options[topic])}")
    _print_section(tree, topic)


def _print_section(tree: dict[str, Any], topic: str) -> None:
    if isinstance(tree.get(topic), dict):
        _print_text(f"\n{topic}: {descriptions.purpose(tree, topic)}".removesuffix(": "))
    _print_rows(_rows(tree, topic))


def show_benchmark(source: Source) -> None:
    tree: Any = OmegaConf.to_container(compose_config([f"+{ELSEWHERE}=default"], source))
    _print_text(f"{BENCHMARK}\nSettings, in addition to those of {training_command()} --help")
    _print_rows(_rows(tree, ELSEWHERE))


def option_error(option: str, setting: str, source: Source) -> Error:
    """Describe an option that no training has.

    `setting` is the option, written as a setting. The hint is that of its error, or to write it.
    """
    hints = [f"write {setting}"]
    try:
        plan([setting], source)
    except ConfigError as error:
        # Other errors are about settings that the typed one needs.
        keys = (setting.partition("=")[0], setting, repr(setting))
        hints = [problem.hint for problem in error.errors if problem.key in keys] + hints
    return Error("unknown", option, "is not an option", next(filter(None, hints)))


def _rows(tree: dict[str, Any], topic: str) -> Iterator[tuple[str, str]]:
    """Yield settings with their value, and their meaning.

    They are the settings in a section or in a part of it, or one setting.
    """
    head = topic.partition(".")[0]
    for key, value in leaves(tree[head], head) if head in tree else ():
        if f"{key}.".startswith(f"{topic}.") and not key.endswith("._partial_"):
            yield f"{key}={literal(value)}", _meaning(tree, key.split("."))


def _meaning(tree: dict[str, Any], path: Sequence[str]) -> str:
    kind, meaning = descriptions.describe(tree, list(path))
    if path[-1] == "_target_" or not kind:
        return ""
    kind = kind.replace("|", " | ")  # A long type can break.
    return f"{meaning} ({kind})".lstrip()


def _print_rows(rows: Iterable[tuple[str, str]], left_width: int = LEFT) -> None:
    """Print two columns. The meaning of a long name begins behind it."""
    indent = " " * (left_width + 4)
    for label, meaning in rows:
        label_text = f"  {label:<{left_width}}  "
        print(_break_lines(meaning, label_text, indent) or label_text.rstrip())


def _print_text(paragraphs: str) -> None:
    """Print a text broken into lines, except for indented lines, which are commands."""
    for line in paragraphs.splitlines():
        print(line if line.startswith(" ") else _break_lines(line))


def _break_lines(paragraph: str, initial_indent: str = "", indent: str = "") -> str:
    """Break a paragraph at the width of the terminal, or at 80 columns without one."""
    lines = textwrap.TextWrapper(
        min(MAX_WIDTH, shutil.get_terminal_size().columns),
        initial_indent=initial_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.fill(paragraph)
