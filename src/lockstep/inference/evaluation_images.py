"""Images that an evaluation names in place of those of the run: seen as the run sees its own, classes by name."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lockstep.assembly import data_changes, run_parts
from lockstep.assembly.listed_images import files_of
from lockstep.assembly.session import Session
from lockstep.assembly.staging import once_a_node
from lockstep.config.errors import join_names
from lockstep.config.schema.target_sections import Data
from lockstep.data.images.image_table import SPLIT_FOLDERS, ImageTable
from lockstep.data.splits import Splits, identity_statistics
from lockstep.models.classifier import ImageFormat
from lockstep.runs.folder import RunFolder

Found = tuple[Splits, str, dict[str, str]]  # images, the name of the part to evaluate, and remarks


def find(here: Session, run: RunFolder, form: ImageFormat, split: str | None) -> Found | None:
    """Find the image files of the configuration, None if they are those of the run. Every rank must call it.

    Without `split` all are taken, unless there is a test split. Raises ConfigError for classes that the run does not
    have, and for images of another shape.
    """

    def load(section: Data) -> Found | None:
        run_parts.refuse_unfit_arguments(section)
        files = files_of(section, is_cut=False)
        shared = data_changes.overlap(run, files.table)
        if shared is None:
            return None
        again = shared.trained
        if split is None and 2 * len(again) > shared.num_trained:
            text = f"the data has {len(again)} of the {shared.num_trained} training images, such as {again[0]}"
            hint = "if it is the run's, add changed_data=accept, else --split all or test"
            raise ValueError(f"{text}: {hint}")
        if split in ("val", "test") and split not in files.table.splits:
            files = files_of(section)
        table = _match_classes(files.table, form.class_names)
        chosen = split or ("test" if "test" in table.splits else "all")
        rows = np.arange(len(table.names)) if chosen == "all" else table.splits[chosen]
        splits = {part: rows if part in (chosen, "test") else rows[:1] for part in SPLIT_FOLDERS}
        memory = "once" if section.memory == "auto" else section.memory
        images = replace(files, table=replace(table, splits=splits)).splits(memory)
        if (shape := tuple(images.test.pixels.shape[1:])) != tuple(form.image_shape):
            raise ValueError(f"{table.setting} has images of shape {shape}, and the network takes {form.image_shape}")
        notes = {"data": f"not that of the run: {'all of its images' if chosen == 'all' else f'its {chosen} images'}"}
        if shared.replaced:
            notes["other contents"] = (
                f"than the images of the run with the same names: {join_names(shared.replaced, 1)}"
            )
        if absent := images.absent_classes("test"):
            notes["no image"] = f"of {join_names(absent, 10)}"
        if again:
            notes["same name"] = f"as a training image: {join_names(again, 1)}; are they other images?"
        return replace(images, statistics=identity_statistics(shape[0])), chosen, notes

    config = here.config
    return once_a_node(
        config.data, load, rank=here.rank, local_rank=here.local_rank, is_silent=config.silent, held=here.held
    )


def _match_classes(table: ImageTable, known: Sequence[str]) -> ImageTable:
    """Give classes the numbers of their names in `known`. Raises ValueError for others, and for other columns."""
    is_one_each = table.targets.ndim == 1
    others = [name for name in table.class_names if name not in known]
    if others or not (is_one_each or table.class_names == tuple(known)):
        raise ValueError(
            f"{table.setting} has classes that the run does not have: {join_names(others or table.class_names, 10)}. "
            f"Its classes are {', '.join(known)}: rename the others, or leave them out."
        )
    if not is_one_each:
        return table
    numbers = np.array([known.index(name) for name in table.class_names])
    return replace(table, targets=numbers[table.targets], class_names=tuple(known))
