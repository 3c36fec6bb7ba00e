"""The report of `lockstep data check`: the findings in all images, and their use in training."""

import statistics
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from rich.text import Text

from lockstep.assembly.listed_images import describe_shrinking
from lockstep.assembly.run_parts import once_a_node, open_source, refuse_shared_groups
from lockstep.assembly.try_out import refuse_unfit
from lockstep.config.errors import ConfigError
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import Data, is_ours
from lockstep.data.duplicates import Duplicates, find_duplicates
from lockstep.data.images.decoded_splits import Decoding
from lockstep.data.inspection import Inspection, inspect
from lockstep.data.sampler import GlobalBatches
from lockstep.data.splits import (
    ImageError,
    Splits,
    describe_counts,
    describe_groups,
    is_streamed,
    num_bytes,
    shorten_lines,
)
from lockstep.data.transfer.file_lock import Progress
from lockstep.runs.files import print_json
from lockstep.runs.folder import EXIT_FAILED
from lockstep.system.hardware import num_visible_gpus
from lockstep.system.terminal import print_line, show_table, terminal
from lockstep.system.text import describe_similar, plural, size_text
from lockstep.tasks.classification import Classification

# A sheet of images shows at most this many pairs.
MAX_PAIRS = 24


def show_report(config: Config, pictures: str | None, *, is_json: bool) -> int:
    """Inspect all images of the data of a configuration, and print the findings.

    The worst duplicates are drawn into the PNG file `pictures`. Returns the exit code, which is 1
    for broken images, wrong targets, leaks or contradictions. Raises ConfigError if the data cannot
    be read.
    """
    images, decoding, folds = _open(config)
    # Without groups, a file in two splits is a leak, which is reported below.
    if images.train.groups is not None:
        refuse_shared_groups(config, images)
    threshold = config.data.near_duplicates
    progress = Progress("Reading images", "images")
    inspection = inspect(images, progress.show, is_near=threshold > 0)
    progress = Progress("Comparing images", "images")
    duplicates = find_duplicates(inspection, folds, threshold, progress.show)

    wrong_duplicates = [duplicate for duplicate in duplicates if duplicate.kinds]
    leaks = [duplicate for duplicate in duplicates if "leak" in duplicate.kinds]
    contradictions = [duplicate for duplicate in duplicates if "contradiction" in duplicate.kinds]
    exact_duplicates = [duplicate for duplicate in duplicates if duplicate.kind == "duplicate"]
    near_duplicates = [duplicate for duplicate in duplicates if duplicate.kind == "near-duplicate"]
    broken_lines = inspection.broken
    unfit_lines = _unfit_targets(config, inspection)
    lines = [f"broken: {line}" for line in broken_lines]
    lines += [f"targets: {line}" for line in unfit_lines]
    for listed in (wrong_duplicates, exact_duplicates, near_duplicates):
        texts = [f"{duplicate.kind}: {duplicate.text}" for duplicate in listed]
        lines += shorten_lines(texts).splitlines()
    if pictures is not None:
        lines.append(_draw_pairs(Path(pictures), images, duplicates))

    all_images = [image for subset in inspection.images.values() for image in subset]
    sizes = [image.size for image in all_images if image.size is not None]
    sides = {
        side: {"min": min(pixels), "median": statistics.median(pixels), "max": max(pixels)}
        for side, pixels in zip(("height", "width"), zip(*sizes, strict=True), strict=False)
    }
    shrunk = ""
    if decoding is not None:
        shrunk = describe_shrinking(config, decoding.preprocessing, [*map(min, sizes)])
    uses = {
        "training": _use(images, decoding, sizes),
        "shrunk": shrunk,
        "memory": _placement(config, images, decoding),
        "steps": _steps(config, len(inspection.images["train"])),
    }
    target_text = leak_text = left_text = ""
    if unfit_lines:
        target_text = f"{plural(len(unfit_lines), 'split')} with some that cannot be learned"
    if "group" in config.data.arguments() and any(duplicate.distance for duplicate in leaks):
        leak_text = "; if they are bursts, name these with data.group="
    near_text: str | Text = "not looked for: data.near_duplicates=0"
    if threshold:
        near_text = _finding(near_duplicates, f"up to a distance of {threshold:g}", "yellow")
        num_left = sum(image.thumbnail is None and not image.errors for image in all_images)
        left_text = f"{num_left:,} smaller than 29 pixels, or nearly uniform" if num_left else ""
    groups = [subset.groups for subset in images.by_name.values()]
    split_text = f"in more than one split{' of a fold' if folds else ''}"
    rows: list[tuple[str, str | Text]] = [
        *((split, _counts(config, inspection, split)) for split in inspection.images),
        ("groups", describe_groups(images)),
        ("sizes", _sizes(sides)),
        *uses.items(),
        ("broken", _finding(broken_lines, "cannot be used", "red")),
        ("targets", Text(target_text, style="red")),
        ("leaks", _finding(leaks, split_text + leak_text, "red")),
        ("contradictions", _finding(contradictions, "in more than one class", "red")),
        ("duplicates", _finding(exact_duplicates, "more than once in a split", "yellow")),
        ("near-duplicates", near_text),
        ("not compared", left_text),
        ("similar", describe_similar(images.class_names, groups)),
        ("other targets", _other_targets(duplicates)),
    ]
    facts = {
        "splits": {split: _split_facts(images, split) for split in images.by_name},
        **uses,
        "sizes": sides,
        "broken": broken_lines,
        "wrong_targets": unfit_lines,
        "duplicates": [_duplicate_facts(duplicate) for duplicate in duplicates],
    }
    if is_json:
        print_json(facts)
    else:
        show_table(f"Data: {config.data.target.rpartition('.')[2]}", rows)
        for line in lines:
            print_line(terminal(), line)
    return EXIT_FAILED if broken_lines or unfit_lines or wrong_duplicates else 0


def _open(config: Config) -> tuple[Splits, Decoding | None, list[Splits]]:
    """Open the source of the data, and its splits of all folds."""

    def load(section: Data) -> tuple[Splits, Decoding | None, list[Splits]]:
        images, decoding = open_source(config.seed, section)
        # The names of a custom function may refer to other images in each fold.
        numbers = range(section.folds or 0) if is_ours(section.target) else ()
        folds = []
        for number in numbers:
            folds.append(open_source(config.seed, section.model_copy(update={"fold": number}))[0])
        return images, decoding, folds

    return once_a_node(config.data, load, rank=0, local_rank=0, is_silent=False)


def _split_facts(images: Splits, split: str) -> dict[str, Any]:
    subset, counts = images.by_name[split], images.class_counts(split) or ()
    classes = dict(zip(images.class_names, counts, strict=False))
    return {"images": len(subset), "classes": classes, "groups": subset.num_groups}


def _duplicate_facts(duplicate: Duplicates) -> dict[str, Any]:
    return {
        "kind": duplicate.kind,
        "distance": duplicate.distance,
        "fold": duplicate.fold,
        "images": [
            {"split": image.split, "name": image.name, "target": image.target}
            for image in duplicate.images
        ],
    }


def _draw_pairs(path: Path, images: Splits, duplicates: Sequence[Duplicates]) -> str:
    """Draw the first two images of each of the worst duplicates into a PNG file.

    Returns a line to print that says what was written.
    """
    if not duplicates:
        return "no pictures: there are no duplicates"
    from lockstep.callbacks import plots

    stacks: list[list[plots.Image]] = [[], []]
    captions = []
    for duplicate in duplicates[:MAX_PAIRS]:
        distance = f"distance {duplicate.distance:.4f}" if duplicate.distance else "equal"
        lines = [*duplicate.kind.split(" and "), distance]
        for stack, image in zip(stacks, duplicate.images, strict=False):
            split, position = image.split_position
            stack.append(plots.image_at(images.by_name[split].pixels, position))
            lines.append(plots.short_name(image.name, 20, is_end=True))
            lines.append(plots.short_name(f"{image.split}, {image.target}", 20))
        captions.append("\n".join(lines))
    count = plural(len(duplicates), "pair")
    if len(duplicates) > MAX_PAIRS:
        count = f"{MAX_PAIRS} of {len(duplicates):,} pairs"
    is_harmless = [not duplicate.kinds for duplicate in duplicates]
    plots.write_sheet(path, stacks, captions, is_harmless, f"Duplicates: {count}")
    return f"pictures of {count} in {path}"


def _counts(config: Config, inspection: Inspection, split: str) -> str:
    """Describe the number of images of a split, in total and per class.

    For numeric targets, the result has their range instead of the numbers per class.
    """
    targets = inspection.targets[split]
    class_names = inspection.splits.class_names
    total_text = plural(len(inspection.images[split]), "image")
    if not len(targets):
        return total_text
    is_one_number = targets.dim() == 1 and not targets.is_floating_point()
    if is_one_number and 0 <= targets.min() <= targets.max() < len(class_names):
        counts = torch.bincount(targets.long(), minlength=len(class_names)).tolist()
    elif targets.dim() != 2 or targets.shape[1] != len(class_names):
        return f"{total_text}, targets of shape {tuple(targets.shape[1:])}"
    elif bool(((targets == 0) | (targets == 1)).all()):
        counts = targets.long().sum(0).tolist()
    else:
        ranges = [
            f"{class_name} {values.min():g} to {values.max():g}, mean {values.mean():.3g}"
            for class_name, values in zip(class_names, targets.double().T, strict=True)
        ]
        return f"{total_text} ({'; '.join(ranges)})"
    balance = config.data.balance if split == "train" else 0
    return f"{total_text} ({describe_counts(class_names, counts, balance)})"


def _unfit_targets(config: Config, inspection: Inspection) -> list[str]:
    """Return an error for each split with integer targets that are not class numbers.

    Other targets and tasks are not checked, because they need the network.
    """
    is_classification = config.task.target == "lockstep.tasks.Classification"
    if config.has_custom_module or not is_classification:
        return []
    if config.task.arguments()["loss"] is not None:
        return []
    task = Classification(loss=None, label_smoothing=0, class_weights=None)
    messages = []
    for split, targets in inspection.targets.items():
        outputs = torch.empty(0, len(inspection.splits.class_names), *targets.shape[1:])
        try:
            if not targets.is_floating_point():
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


def _use(images: Splits, decoding: Decoding | None, sizes: Sequence[tuple[int, int]]) -> str:
    if decoding is None:
        pixels = images.train.pixels
        dtype = str(pixels.dtype).removeprefix("torch.")
        return f"{'x'.join(map(str, pixels.shape[1:]))} as they are, {dtype}"
    num_smaller = sum(decoding.preprocessing.scaled_size(*size) > size for size in sizes)
    enlarged_text = f"; {num_smaller:,} smaller, to be enlarged" if num_smaller else ""
    color = "RGB" if decoding.channels == 3 else "grayscale"
    return f"{color} {decoding.preprocessing.text}{enlarged_text}"


def _placement(config: Config, images: Splits, decoding: Decoding | None) -> str:
    memory = config.data.memory
    is_for_gpu = memory in ("auto", "device") and num_visible_gpus()
    gpu = ", on the GPU if they fit there" if is_for_gpu else ""
    if decoding is None:
        pixels = images.train.pixels
        total = sum(num_bytes(subset.pixels) for subset in images.by_name.values())
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
    return (
        f"{batches.num_steps:,} an epoch of {plural(config.global_batch_size, 'image')} "
        f"each, {plural(trainer.max_epochs, 'epoch')}"
    )


def _other_targets(duplicates: Sequence[Duplicates]) -> str:
    """Count the images with several targets, which is no contradiction, and name the first."""
    unlearnable = [
        duplicate
        for duplicate in duplicates
        if duplicate.is_equal and duplicate.has_targets and "contradiction" not in duplicate.kinds
    ]
    if not unlearnable:
        return ""
    names = dict.fromkeys(image.name for image in unlearnable[0].images[:3])
    return f"{len(unlearnable):,} of one image; first {' = '.join(names)}"


def _finding(items: Sized, description: str, color: str) -> Text:
    if not items:
        return Text("none", style="green")
    return Text(f"{len(items):,} {description}", style=color)
