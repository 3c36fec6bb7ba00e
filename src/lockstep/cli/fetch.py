"""`lockstep data fetch`: downloads the data and weights of a training.

Jobs on nodes without a network can then use them.
"""

from collections.abc import Sequence
from pathlib import Path

from lockstep.config import overrides
from lockstep.config.checks import data_presence
from lockstep.config.composing import compose
from lockstep.config.errors import config_error
from lockstep.config.schema.target_sections import VARIABLE, Data
from lockstep.runs.files import print_result
from lockstep.system.terminal import show_table
from lockstep.system.text import plural


def fetch(
    override_lines: Sequence[str], source: compose.Source, folders: Path | None = None
) -> int:
    """Download what a training with these overrides needs, and print where it is.

    The images are also written as files of classes into `folders`. Returns the exit code.
    """
    if folders and folders.exists() and (not folders.is_dir() or any(folders.iterdir())):
        raise config_error("exists", f"--folders {folders}", "is not empty", "name a new folder")
    config = overrides.check(override_lines, source).configs[0]
    data, is_url = config.data, config.data.is_remote
    if is_url and VARIABLE.search(data.copy_to or ""):
        raise config_error(
            "conflict",
            f"data.copy_to={data.copy_to}",
            "is on the job's machine",
            "remove it to use data.cache here",
        )
    changes: dict[str, object] = {"download": True} if "download" in data.arguments() else {}
    if not is_url:
        changes["copy_to"] = None  # The nodes copy the files of this machine.
    section = data.model_copy(update=changes)
    data_presence.check(section)
    data_presence.check_weights(config)
    from lockstep.assembly import pretrained_weights
    from lockstep.assembly.run_parts import once_a_node, open_source

    def load(local_section: Data) -> tuple[str, str | None, int, int]:
        images, decoding = open_source(config.seed, local_section)
        if folders is not None:
            from lockstep.cli.class_folders import write_class_folders

            write_class_folders(images, folders)
        folder = decoding.table.folder if decoding is not None else local_section.root
        description = plural(sum(map(len, images.by_name.values())), "image")
        if folder:
            description += f" in {folder}"
        num_channels = images.train.pixels.shape[1]
        return description, local_section.root, num_channels, len(images.class_names)

    description, root, *shape = once_a_node(section, load, rank=0, local_rank=0, is_silent=False)
    file, weights = config.model.arguments().get("pretrained"), ""
    if pretrained_weights.fetch_weights(config, *shape):
        weights = "in the cache of the library, which TORCH_HOME or HF_HOME moves"
        if isinstance(file, str):
            weights = file
    print_result({"data": description, "root": root, "weights": weights or None})
    rows = [
        ("data", description),
        ("weights", weights),
        ("for jobs", f"data.root={root}" if is_url else ""),
        ("folders", "" if folders is None else str(folders)),
    ]
    show_table(f"Data: {section.target.rpartition('.')[2]}", rows)
    return 0
