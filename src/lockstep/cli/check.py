"""`lockstep data check`: counts and checks images, and shows how they are used in training."""

import contextlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lockstep.cli.inference import need_writable
from lockstep.config import build, overrides
from lockstep.config.checks import data_presence
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import Data, is_ours
from lockstep.data.transfer.file_lock import Progress
from lockstep.runs.files import print_json
from lockstep.runs.folder import EXIT_FAILED
from lockstep.system.hardware import num_visible_gpus
from lockstep.system.libraries import lazy
from lockstep.system.terminal import print_line, show_table, terminal
from lockstep.system.text import describe_similar, plural, size_text

# Duplicates are listed by kind. False stands for those that are errors.
KINDS = (False, "duplicate", "near-duplicate")
# A sheet of images shows at most this many pairs.
MAX_PAIRS = 24

if TYPE_CHECKING:
    from lockstep.data.duplicates import Duplicates
    from lockstep.data.images.decoded_splits import Decoding
    from lockstep.data.inspection import Inspection
    from lockstep.data.splits import Splits


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
        rows, lines, facts, is_wrong = _check(config, pictures)
    if is_json:
        print_json(facts)
    else:
        show_table(f"Data: {config.data.target.rpartition('.')[2]}", rows)
        out = terminal()
        for line in lines:
            print_line(out, line)
    return EXIT_FAILED if is_wrong else 0


def _check(
    config: Config, pictures: str | None
) -> tuple[list[tuple[str, str | Text]], list[str], dict[str, Any], bool]:
    """Return the result of the check in several forms, and whether there are errors.

    The forms are rows of a table, lines below it, and the same as plain values.
    """
    with lazy():
        from lockstep.assembly.listed_images import describe_shrinking
        from lockstep.assembly.run_parts import once_a_node, open_source, refuse_shared_groups
        from lockstep.data.duplicates import find_duplicates
        from lockstep.data.inspection import inspect
        from lockstep.data.splits import describe_groups, shorten_lines

    progress = Progress("Reading images", "images")

    def load(section: Data) -> tuple["Splits", "Decoding | None", list["Splits"]]:
        # The names of a custom function may refer to other images in each fold.
        numbers = range(section.folds) if section.folds and is_ours(section.target) else ()
        folds = [section.model_copy(update={"fold": number}) for number in numbers]
        source, *fold_sources = (
            open_source(config.seed, section_of_fold) for section_of_fold in (section, *folds)
        )
        return *source, [images for images, _ in fold_sources]

    images, decoding, folds = once_a_node(config.data, load, rank=0, local_rank=0, is_silent=False)
    # Without groups, a file in two splits is a leak, which is reported below.
    if images.train.groups is not None:
        refuse_shared_groups(config, images)
    threshold = config.data.near_duplicates
    inspection = inspect(images, progress.show, is_near=threshold > 0)
    progress = Progress("Comparing images", "images")
    duplicates = find_duplicates(inspection, folds, threshold, progress.show)
    picture_lines = [] if pictures is None else [_draw_pairs(Path(pictures), images, duplicates)]
    all_images = [image for subset in inspection.images.values() for image in subset]
    sizes = [image.size for image in all_images if image.size is not None]
    descriptions = {
        "training": _use(images, decoding, sizes),
        "shrunk": describe_shrinking(config, decoding.preprocessing, list(map(min, sizes)))
        if decoding is not None
        else "",
        "memory": _placement(config, images, decoding),
        "steps": _steps(config, len(inspection.images["train"])),
    }
    broken_lines, unfit_lines = inspection.broken, _unfit_targets(config, inspection)
    sides = {
        side: {"min": min(pixels), "median": statistics.median(pixels), "max": max(pixels)}
        for side, pixels in zip(("height", "width"), zip(*sizes, strict=True), strict=False)
    }
    leaks, contradictions = (
        [duplicate for duplicate in duplicates if kind in duplicate.kinds]
        for kind in ("leak", "contradiction")
    )
    error_duplicates, exact_duplicates, near_duplicates = (
        [duplicate for duplicate in duplicates if (not duplicate.kinds and duplicate.kind) == kind]
        for kind in KINDS
    )
    unlearnable = [
        duplicate
        for duplicate in duplicates
        if duplicate.is_equal and duplicate.has_targets and "contradiction" not in duplicate.kinds
    ]
    leak_text = f"in more than one split{' of a fold' if folds else ''}"
    if "group" in config.data.arguments() and any(duplicate.distance for duplicate in leaks):
        leak_text += "; if they are bursts, name these with data.group="
    near_text = _finding(len(near_duplicates), f"up to a distance of {threshold:g}", is_wrong=False)
    num_left = (
        sum(image.thumbnail is None and not image.errors for image in all_images)
        if threshold
        else 0
    )
    wrong_targets = (
        f"{plural(len(unfit_lines), 'split')} with some that cannot be learned"
        if unfit_lines
        else ""
    )
    rows: list[tuple[str, str | Text]] = [
        *((split, _counts(config, inspection, split)) for split in inspection.images),
        ("groups", describe_groups(images)),
        ("sizes", _sizes(sides)),
        *descriptions.items(),
        ("broken", _finding(len(broken_lines), "cannot be used", is_wrong=True)),
        ("targets", Text(wrong_targets, style="red")),
        ("leaks", _finding(len(leaks), leak_text, is_wrong=True)),
        ("contradictions", _finding(len(contradictions), "in more than one class", is_wrong=True)),
        (
            "duplicates",
            _finding(len(exact_duplicates), "more than once in a split", is_wrong=False),
        ),
        ("near-duplicates", near_text if threshold else "not looked for: data.near_duplicates=0"),
        (
            "not compared",
            f"{num_left:,} smaller than 29 pixels, or nearly uniform" if num_left else "",
        ),
        (
            "similar",
            describe_similar(
                images.class_names, [subset.groups for subset in images.by_name.values()]
            ),
        ),
        ("other targets", _first("of one image", unlearnable)),
    ]
    lines = [f"broken: {line}" for line in broken_lines] + [
        f"targets: {line}" for line in unfit_lines
    ]
    for duplicates_of_kind in (error_duplicates, exact_duplicates, near_duplicates):
        lines += shorten_lines(
            [f"{duplicate.kind}: {duplicate.text}" for duplicate in duplicates_of_kind]
        ).splitlines()
    counts = {
        split: dict(zip(images.class_names, images.class_counts(split) or (), strict=False))
        for split in images.by_name
    }
    keys = ("split", "name", "target")
    image_facts = [
        [dict(zip(keys, image, strict=False)) for image in duplicate.images]
        for duplicate in duplicates
    ]
    facts = {
        "splits": {
            split: {"images": len(subset), "classes": counts[split], "groups": subset.num_groups}
            for split, subset in images.by_name.items()
        },
        **descriptions,
        "sizes": sides,
        "broken": broken_lines,
        "wrong_targets": unfit_lines,
        "duplicates": [
            {
                "kind": duplicate.kind,
                "distance": duplicate.distance,
                "fold": duplicate.fold,
                "images": member_facts,
            }
            for duplicate, member_facts in zip(duplicates, image_facts, strict=True)
        ],
    }
    return (
        rows,
        lines + picture_lines,
        facts,
        bool(broken_lines or unfit_lines or leaks or contradictions),
    )


def _draw_pairs(path: Path, images: "Splits", duplicates: Sequence["Duplicates"]) -> str:
    """Draw the first two images of each of the worst duplicates into a PNG file.

    Returns a line to print that says what was written.
    """
    if not duplicates:
        return "no pictures: there are no duplicates"
    from lockstep.callbacks import plots

    stacks, captions = list[list[plots.Image]]([[], []]), list[str]()
    for duplicate in duplicates[:MAX_PAIRS]:
        lines = [
            *duplicate.kind.split(" and "),
            f"distance {duplicate.distance:.4f}" if duplicate.distance else "equal",
        ]
        for stack, (split, image_name, target, (part_name, position), *_) in zip(
            stacks, duplicate.images, strict=False
        ):
            stack.append(plots.image_at(images.by_name[part_name].pixels, position))
            lines += [
                plots.short_name(image_name, 20, is_end=True),
                plots.short_name(f"{split}, {target}", 20),
            ]
        captions.append("\n".join(lines))
    count = (
        plural(len(duplicates), "pair")
        if len(captions) == len(duplicates)
        else f"{MAX_PAIRS} of {len(duplicates):,} pairs"
    )
    plots.write_sheet(
        path,
        stacks,
        captions,
        [not duplicate.kinds for duplicate in duplicates],
        f"Duplicates: {count}",
    )
    return f"pictures of {count} in {path}"


def _counts(config: Config, inspection: "Inspection", split: str) -> str:
    """Describe the number of images of a split, in total and per class.

    For numeric targets, the result has their range instead of the numbers per class.
    """
    import torch

    from lockstep.data.splits import describe_counts

    targets, class_names = inspection.targets[split], inspection.splits.class_names
    total_text = plural(len(inspection.images[split]), "image")
    if not len(targets):
        return total_text
    is_one_number = targets.dim() == 1 and not targets.is_floating_point()
    if is_one_number and 0 <= targets.min() <= targets.max() < len(class_names):
        counts = torch.bincount(targets.long(), minlength=len(class_names)).tolist()
    elif (
        targets.dim() == 2
        and targets.shape[1] == len(class_names)
        and bool(((targets == 0) | (targets == 1)).all())
    ):
        counts = targets.long().sum(0).tolist()
    elif targets.dim() == 2 and targets.shape[1] == len(class_names):
        values = zip(
            class_names,
            targets.amin(0).tolist(),
            targets.mean(0).tolist(),
            targets.amax(0).tolist(),
            strict=True,
        )
        ranges = [
            f"{class_name} {low:g} to {high:g}, mean {mean:.3g}"
            for class_name, low, mean, high in values
        ]
        return f"{total_text} ({'; '.join(ranges)})"
    else:
        return f"{total_text}, targets of shape {tuple(targets.shape[1:])}"
    return (
        f"{total_text} "
        f"({describe_counts(class_names, counts, config.data.balance if split == 'train' else 0)})"
    )


def _unfit_targets(config: Config, inspection: "Inspection") -> list[str]:
    """Return an error for each split with integer targets that are not class numbers.

    Other targets and tasks are not checked, because they need the network.
    """
    is_usual = (
        config.task.target == "lockstep.tasks.Classification"
        and config.task.arguments()["loss"] is None
    )
    if config.has_custom_module or not is_usual:
        return []
    import torch

    from lockstep.assembly.try_out import refuse_unfit
    from lockstep.tasks.classification import Classification

    task, messages = Classification(loss=None, label_smoothing=0, class_weights=None), list[str]()
    for split, targets in inspection.targets.items():
        if targets.is_floating_point():
            continue
        outputs = torch.empty(0, len(inspection.splits.class_names), *targets.shape[1:])
        try:
            refuse_unfit(config, task, outputs, split, targets, inspection.labeled_names[split])
        except ConfigError as error:
            messages += map(str, error.errors)
    return messages


def _sizes(sides: Mapping[str, Mapping[str, float]]) -> str:
    if not sides:
        return "unknown: no image can be used"
    if all(side["min"] == side["max"] for side in sides.values()):
        return f"all {sides['height']['min']}x{sides['width']['min']} pixels (HxW)"
    return ", ".join(
        "{} {min:,} to {max:,}, median {median:,.0f}".format(name, **side)
        for name, side in sides.items()
    )


def _use(images: "Splits", decoding: "Decoding | None", sizes: Sequence[tuple[int, int]]) -> str:
    if decoding is None:
        pixels = images.train.pixels
        channels, height, width = pixels.shape[1:]
        return (
            f"{channels}x{height}x{width} as they are, {str(pixels.dtype).removeprefix('torch.')}"
        )
    num_smaller = sum(decoding.preprocessing.scaled_size(*size) > size for size in sizes)
    enlarged_text = f"; {num_smaller:,} smaller, to be enlarged" if num_smaller else ""
    return (
        f"{'RGB' if decoding.channels == 3 else 'grayscale'} "
        f"{decoding.preprocessing.text}{enlarged_text}"
    )


def _placement(config: Config, images: "Splits", decoding: "Decoding | None") -> str:
    from lockstep.data.splits import ImageError, is_streamed, num_bytes

    memory = config.data.memory
    gpu = (
        ", on the GPU if they fit there"
        if num_visible_gpus() and memory in ("auto", "device")
        else ""
    )
    if decoding is None:
        pixels, total = (
            images.train.pixels,
            sum(num_bytes(subset.pixels) for subset in images.by_name.values()),
        )
        if is_streamed(pixels):
            return f"streamed: made when they are needed ({pixels.reason})"
        return f"{size_text(total)} in host memory{gpu}"
    try:
        total = decoding.num_bytes
    except ImageError:
        return "unknown: the first image is broken"
    if reason := decoding.streaming_reason(memory):
        return f"streamed: decoded when they are needed ({reason}), {size_text(total)} in all"
    if decoding.cache is None:
        return f"{size_text(total)} decoded into memory in every run{gpu}"
    state = "up to date" if decoding.open_cache() is not None else "to be decoded once"
    return f"{size_text(total)} in {decoding.cache_folder}, {state}{gpu}"


def _steps(config: Config, num_images: int) -> str:
    from lockstep.data.sampler import GlobalBatches

    trainer = config.trainer
    if trainer.overfit_batches:
        num_images = min(num_images, trainer.overfit_batches * config.global_batch_size)
    batches = GlobalBatches(
        num_images,
        global_batch_size=config.global_batch_size,
        accumulate_grad_batches=trainer.accumulate_grad_batches,
        shuffle_seed=None,
        rank=0,
        worker_weights=[1],
        num_batches=trainer.limit_train_batches,
        drop_last=config.data.drop_last,
    )
    size, epochs = plural(config.global_batch_size, "image"), plural(trainer.max_epochs, "epoch")
    return f"{batches.num_steps:,} an epoch of {size} each, {epochs}"


def _first(description: str, duplicates: Sequence["Duplicates"]) -> str:
    """Count duplicates, and name the images of the first one.

    The result is empty without any.
    """
    return (
        (
            f"{len(duplicates):,} {description}; first "
            f"{' = '.join(dict.fromkeys(image.name for image in duplicates[0].images[:3]))}"
        )
        if duplicates
        else ""
    )


def _finding(count: int, description: str, *, is_wrong: bool) -> Text:
    if not count:
        return Text("none", style="green")
    return Text(f"{count:,} {description}", style="red" if is_wrong else "yellow")
