"""`lockstep data prepare`: decodes a folder of images before the first training."""

import contextlib
import shlex
import sys
from collections.abc import Mapping

from lockstep.config import compose, overrides
from lockstep.runs import naming
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.system.wording import plural


def prepare(root: str, changes: Mapping[str, str | None], source: compose.Source) -> int:
    """Decode the images of a folder into the cache, with these `changes` of data.*, and print a summary.

    Returns the exit code. Raises ConfigError, FileNotFoundError or ValueError.
    """
    changed = {"root": naming.hydra_text(root), **{name: value for name, value in changes.items() if value is not None}}
    if changed.get("cache", "null") != "null":
        changed["cache"] = naming.hydra_text(changed["cache"])
    typed = ["data=image_folder", *(f"data.{name}={value}" for name, value in changed.items())]
    section = overrides.check(typed, source).configs[0].data
    if section.arguments()["cache"] is None:
        raise ValueError("data.cache=null keeps nothing: name a folder with --cache.")
    from lockstep.cli.check import files_of
    from lockstep.data.images.decode import ImageError
    from lockstep.training.staging import once_a_node

    with contextlib.ExitStack() as held:
        # keeps the copy of a URL for the training, too
        decoding = once_a_node(section, files_of, rank=0, local_rank=0, is_silent=False, held=held)
        is_new = decoding.opened() is None
        try:
            images = decoding.decoded()
        except ImageError as error:
            print("\n".join(f"lockstep: {message}" for message in error.errors), file=sys.stderr)
            return EXIT_CONFIG
    names = decoding.table.class_names
    count, channels, height, width = images.shape
    print(
        f"{plural(count, 'image')} of {channels}x{height}x{width} "
        f"in {plural(len(names), 'class', 'classes')}: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}\n"
        f"{'Decoded into' if is_new else 'Up to date:'} {decoding.path} ({images.nbytes / 2**20:,.1f} MiB)\n"
        f"Train with:\n  {naming.training_command()} {shlex.join(typed)}"
    )
    return 0
