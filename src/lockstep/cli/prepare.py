"""Decodes a folder of images ahead of the first training."""

import contextlib
import shlex
import sys
from collections.abc import Mapping

from lockstep.config import compose, overrides
from lockstep.config.target_sections import Data
from lockstep.data.images import cache as caches
from lockstep.data.images.listing import list_classes
from lockstep.data.transfer import remote
from lockstep.runs import naming
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.system.redaction import redacted
from lockstep.system.wording import plural


def prepare(root: str, changes: Mapping[str, str | None], source: compose.Source) -> int:
    """Have the images of a folder in the cache, with the settings of a training with these `changes` of data.*.

    Prints what is there. Returns the exit code; raises ConfigError, FileNotFoundError or ValueError.
    """
    changed = {"root": naming.hydra_text(root), **{name: value for name, value in changes.items() if value is not None}}
    if changed.get("cache", "null") != "null":
        changed["cache"] = naming.hydra_text(changed["cache"])
    typed = ["data=image_folder", *(f"data.{name}={value}" for name, value in changed.items())]
    section = overrides.check(typed, source).configs[0].data
    settings = section.arguments()
    cache, image_size, channels = settings["cache"], settings["image_size"], settings["channels"]
    background = settings["background"]
    if cache is None:
        raise ValueError("data.cache=null keeps nothing: name a folder with --cache.")
    setting = f"data.root={redacted(root)}"
    listing = list_classes(_fetched(section) if remote.is_url(root) else root)
    entry = caches.entry(cache, listing, image_size=image_size, channels=channels, background=background)
    table = entry.opened()
    is_new = table is None
    if table is None:
        from lockstep.data.images.decode import ImageFault
        from lockstep.data.sources.folders import Folder

        try:
            table = Folder(setting, listing, image_size, channels, background, cache).decoded()
        except ImageFault as error:
            print("\n".join(f"lockstep: {fault}" for fault in error.faults), file=sys.stderr)
            return EXIT_CONFIG
    count, _, height, width = table.shape
    some = ", ".join(listing.class_names[:10]) + (", ..." if len(listing.class_names) > 10 else "")
    print(
        f"{plural(count, 'image')} of {channels}x{height}x{width} "
        f"in {plural(len(listing.class_names), 'class', 'classes')}: {some}\n"
        f"{'Decoded into' if is_new else 'Up to date:'} {entry.path} ({table.nbytes / 2**20:,.1f} MiB)\n"
        f"Train with:\n  {naming.training_command()} {shlex.join(typed)}"
    )
    return 0


def _fetched(section: Data) -> str:
    """The folder of the files behind a URL, which the training finds, too."""
    from lockstep.training.staging import once_a_node

    def folder(local: Data) -> str:
        return local.arguments()["root"]

    with contextlib.ExitStack() as held:
        return once_a_node(section, folder, rank=0, local_rank=0, is_silent=False, held=held)
