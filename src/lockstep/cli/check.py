"""`lockstep data check`: counts and checks images, and shows how they are used in training."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep.cli.inference import need_writable
from lockstep.config import build, overrides
from lockstep.config.checks import data_presence
from lockstep.config.composing import compose
from lockstep.runs.files import print_json
from lockstep.runs.folder import EXIT_FAILED
from lockstep.system.libraries import lazy
from lockstep.system.terminal import print_line, show_table, terminal


def check(
    override_lines: Sequence[str],
    source: compose.Source,
    *,
    is_json: bool = False,
    pictures: str | None = None,
) -> int:
    """Check and show the data that these overrides select.

    With `is_json`, standard output is one JSON object. `pictures` is the path of a PNG file for the
    pairs of duplicates. Returns 1 for broken images, wrong targets, leaks or contradictions. Raises
    ValueError if the PNG file cannot be written.
    """
    if pictures is not None:
        if Path(pictures).suffix != ".png" or Path(pictures).is_dir():
            raise ValueError(f"--pictures {pictures}: name a file that ends in .png.")
        need_writable("--pictures", pictures)
    with contextlib.redirect_stdout(sys.stderr if is_json else sys.stdout):
        config = build.resolve_config(overrides.check(override_lines, source).configs[0])
        data_presence.check(config.data)
        with lazy():
            from lockstep.cli import data_report
        report = data_report.make_report(config, pictures)
    if is_json:
        print_json(report.facts)
    else:
        show_table(f"Data: {config.data.target.rpartition('.')[2]}", report.rows)
        out = terminal()
        for line in report.lines:
            print_line(out, line)
    return EXIT_FAILED if report.is_wrong else 0
