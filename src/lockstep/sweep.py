"""What a person sees of a sweep: which job of how many begins, and a table of all at the end. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.run_folder import EXIT_STOPPED, RunFolder

STATES = {0: "finished", EXIT_STOPPED: "stopped"}


@dataclass
class Sweep:
    """The jobs of one command, in the order in which they were done."""

    num_jobs: int
    done: list[tuple[Sequence[str], RunFolder, int]] = field(default_factory=list)
    is_silent: bool = False

    def begin(self, number: int, overrides: Sequence[str], *, is_silent: bool) -> None:
        """Say that job `number`, the name of its folder, begins.

        A sweeper that proposes jobs as it goes knows no total.
        """
        self.is_silent = is_silent
        if is_silent:
            return
        from lockstep.terminal import terminal  # rich, which --help need not wait for

        place = f" ({number + 1} of {self.num_jobs})" if number < self.num_jobs else ""
        text = f"\nJob {number}{place}: {' '.join(overrides)}"
        terminal().print(text, style="bold", markup=False, soft_wrap=True)

    def end(self, overrides: Sequence[str], folder: RunFolder, code: int) -> None:
        """Take down how a job ended."""
        self.done.append((tuple(overrides), folder, code))

    @property
    def failed(self) -> list[RunFolder]:
        """The runs that failed."""
        return [folder for _, folder, code in self.done if code not in STATES]

    def show(self) -> None:
        """Print a line for each job: only the settings in which they differ are shown."""
        from rich.table import Table
        from rich.text import Text

        from lockstep.terminal import duration, terminal

        out = terminal()
        common = set.intersection(*(set(overrides) for overrides, *_ in self.done))
        table = Table(box=None, pad_edge=False, title_justify="left", header_style="bold")
        table.add_column("job", justify="right")
        table.add_column("settings", overflow="fold")
        table.add_column("state")
        for head in ("best", "test acc", "time"):
            table.add_column(head, justify="right")
        for overrides, folder, code in self.done:
            summary = folder.read_summary()
            table.add_row(
                Text(folder.path.name),
                Text(" ".join(each for each in overrides if each not in common)),
                Text(STATES.get(code, "failed"), style="" if code in STATES else "red"),
                _number(summary.get("best")),
                _number(summary.get("test_accuracy")),
                duration(summary["training_s"]) if summary else "-",
            )
        done = (
            f"{len(self.done)} of {self.num_jobs} jobs" if len(self.done) < self.num_jobs else f"{len(self.done)} jobs"
        )
        out.print(Text(f"\nSweep: {done}", style="bold"))
        out.print(table)


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "-"
