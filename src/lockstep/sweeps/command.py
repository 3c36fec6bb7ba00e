"""A sweep from its first trial to its table: trials are prepared, run on the devices of this machine, and compared."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lockstep import config as configuration
from lockstep import environment
from lockstep.cluster import submission
from lockstep.config import ConfigError, leaves
from lockstep.run_folder import LIVE_STATES, RunFolder, shown, write_atomically
from lockstep.schema import Config
from lockstep.sweeps import devices, views
from lockstep.sweeps.course import Course, Source
from lockstep.sweeps.devices import Devices, Machine
from lockstep.sweeps.ledger import DONE, Ledger, Trial, trial_of
from lockstep.sweeps.pool import Pool
from lockstep.sweeps.table import Objective, Table, table, write

# what may change when a sweep goes on
WHERE = ("trainer.devices", "trainer.num_nodes", "trainer.loads", "trainer.max_time_s", "silent")
ELSEWHERE = (*configuration.NOT_OF_A_TRAINING, "strategy")
MONITOR = "val/accuracy"  # where no checkpoint says another one


class Grid:
    """Trials that are all known from the start: those that are not done yet."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._left = [trial for trial in trials if trial.state not in DONE]

    def proposed(self, num_free: int) -> Sequence[Trial]:
        """All of them, the first time."""
        found, self._left = self._left, []
        return found

    def is_poor(self, trial: Trial) -> bool:
        """None is."""
        return False

    def ended(self, trial: Trial, state: str) -> None:
        """Nothing follows."""


def prepared(
    ledger: Ledger, overrides: Sequence[str], compose: Callable[[int], tuple[Config, str]]
) -> tuple[Trial, Config]:
    """The trial of some overrides, known or new, and its configuration, which is saved in its folder.

    `compose` makes the configuration and the name of the folder of a trial by its number. Raises ConfigError where the
    trial is known with other values: then it is not the same sweep any more.
    """
    own = trial_of(overrides)
    trial = ledger.find(own)
    is_new = trial is None
    if trial is None:
        trial = ledger.add(own)
    config, subdir = compose(trial.number)
    if is_new:
        trial.folder = RunFolder(ledger.path / subdir)
    if config.scale_with_workers and config.trainer.devices == "auto":
        raise ConfigError(["scale_with_workers=true: say how many workers a trial of a sweep has, trainer.devices=..."])
    config = configuration.scaled(config)
    saved = submission.for_job(config)
    folder = trial.folder
    if folder.config.exists():
        _check_same(ledger, trial, configuration.load(folder.config), saved)
    folder.path.mkdir(parents=True, exist_ok=True)
    if trial.state not in (*DONE, *LIVE_STATES):
        configuration.save(saved, folder.config)
        text = "".join(f"{override}\n" for override in environment.without_secrets(own))
        write_atomically(folder.overrides, text)
    return trial, config


def _check_same(ledger: Ledger, trial: Trial, saved: Config, config: Config) -> None:
    """Raise ConfigError where a trial would compute something else; how many workers do so is another matter."""
    before, after = (dict(leaves(configuration.to_tree(each), "")) for each in (saved, config))
    keys = [key for key in {**before, **after} if not (key in WHERE or key.partition(".")[0] in ELSEWHERE)]
    changed = [key for key in keys if before.get(key) != after.get(key)]
    if changed:
        cure = "sweep.name=... starts another sweep"
        raise ConfigError([f"trial {trial.number} of {shown(ledger.path)} was made with another {changed[0]}: {cure}"])


def run(
    ledger: Ledger,
    source: Source,
    configs: dict[int, Config],
    *,
    config: Config,
    total: int,
    objectives: Sequence[Objective],
) -> int:
    """Run the trials of a source, write and show the table. Returns the exit code.

    `configs` has the configuration of every trial by number, and may grow; `config` says what holds for all of them.
    `total` is how many there are to be.
    """
    machine = machine_here()
    try:
        at_once = devices.num_at_once(config.launcher, machine, total, list(configs.values()) or [config])
        for each in configs.values():
            devices.need(each, machine, at_once)
    except ValueError as error:
        raise ConfigError([str(error)]) from error

    def known(running: dict[int, str] | None = None) -> Table:
        return table(ledger, objectives, running or {})

    pool = Pool(Devices(machine, at_once))
    course = Course(
        ledger=ledger,
        source=source,
        pool=pool,
        view=views.Silent() if config.silent else views.Shown(known, total),
        need_of=lambda trial: devices.need(configs[trial.number], machine, at_once),
        at_once=at_once,
        max_failed=config.sweep.max_failed,
        task="train" if config.sweep.test == "all" else "train-without-test",
    )
    ledger.stop_flag.clear_stop()  # of a sweep that was killed before it could
    ledger.write()
    if not config.silent:
        print(_begins(ledger, total, at_once), flush=True)
    try:
        code = course.run()
    finally:
        write(ledger, known())
    best = known().best
    is_through = all(trial.state in (*DONE, "failed") for trial in ledger.trials)
    if is_through and best is not None and config.sweep.test == "best" and best.test_accuracy is None:
        if not config.silent:
            print(f"Testing the best trial, {best.trial.number} ...", flush=True)
        tested = Course(
            ledger=ledger,
            source=Once(best.trial),
            pool=pool,
            view=views.Silent(),
            need_of=course.need_of,
            at_once=1,
            max_failed=None,
            task="test",
        ).run()
        code = code or tested
        write(ledger, known())
    if not config.silent:
        views.show(known(), shown(ledger.path))
    return code


def _begins(ledger: Ledger, total: int, at_once: int) -> str:
    """What is to be done, and what is done already."""
    where, num_done = shown(ledger.path), sum(trial.state in DONE for trial in ledger.trials)
    plural = "s" if total > 1 else ""
    if num_done >= total:
        return f"All {num_done} trial{plural} of {where} are done: sweep.name=... starts another sweep."
    many = f"{at_once} at once" if at_once > 1 else "one at a time"
    if num_done:
        return f"Going on with {where}: {num_done} of {total} trial{plural} are done; the others {many}."
    return f"A sweep of {total} trial{plural}, {many}, in {where}"


class Once(Grid):
    """A single task on a trial that is done."""

    def __init__(self, trial: Trial) -> None:
        self._left = [trial]


def machine_here() -> Machine:
    """The GPUs and cores this process may use."""
    num_gpus = environment.num_visible_gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")] if visible else [str(number) for number in range(num_gpus)]
    return Machine(tuple(names[:num_gpus]), tuple(environment.cores()))


def monitored(config: Config) -> Objective:
    """What best.ckpt is chosen by."""
    for section in config.callbacks.values():
        if section is not None and section.target.endswith(".ModelCheckpoint"):
            arguments = section.arguments()
            if arguments.get("monitor"):
                return Objective(str(arguments["monitor"]), arguments.get("mode", "min") == "max")
    return Objective(MONITOR, True)


@contextlib.contextmanager
def opened(path: Path, name: str | None, command: Sequence[str]) -> Iterator[Ledger]:
    """The ledger of a sweep, held for this process, in its folder, which is made where it is not there.

    Raises ConfigError where it cannot be read, or is held by another process.
    """
    path.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(RunFolder(path.resolve()).lock())
            ledger = Ledger.opened(path.resolve(), name, environment.without_secrets(command))
        except BlockingIOError as error:
            raise ConfigError(
                [f"{shown(path)} is being run by another process: stop it, or wait for its end"]
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError([f"{shown(path)}/sweep.json cannot be read: choose another sweep.name"]) from error
        yield ledger
