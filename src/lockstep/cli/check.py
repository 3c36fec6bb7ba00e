"""`lockstep data check`: counts and checks images, and shows how they are used in training."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.cli.inference import need_writable
from lockstep.config import build, overrides
from lockstep.config.checks import data_presence
from lockstep.config.composing import compose
from lockstep.system.libraries import lazy


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
    config = build.resolve_config(overrides.check(override_lines, source).configs[0])
    data_presence.check(config.data)
    with lazy():
        from lockstep.cli import data_report
    return data_report.show_report(config, pictures, is_json=is_json)
