"""`lockstep labels`: rank images by label quality, by networks that were not trained on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.assembly import data_record, run_parts
from lockstep.assembly.session import Session, open_session
from lockstep.config.errors import config_error
from lockstep.data.splits import Splits
from lockstep.inference import confident_learning, predict, tables
from lockstep.inference.options import LabelsOptions, TrainedRun
from lockstep.runs.files import JsonObject, atomic_file, csv_text, write_json
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import quote_path
from lockstep.system.launcher import World
from lockstep.system.terminal import new_table, print_line, print_table, terminal
from lockstep.system.text import plural
from lockstep.tasks.classification import Classification

HEADER = ("file", "label", "suggested", "score", "suspicious", "split")
JUDGED_SPLITS = ("val", "test")  # splits of a run
MAX_ROWS, NUM_IMAGES = 20, 24  # in the terminal, and in the figure


def judge(
    folder: RunFolder, world: World | None, trained: TrainedRun, options: LabelsOptions
) -> int:
    """Write the list of images to a CSV file, and print a summary.

    A figure of the first images is written next to it.
    """
    predict.refuse_custom_module(trained.config, "lockstep labels")
    with open_session(folder, trained.config, world) as session:
        images = run_parts.splits(session, trained.folder, is_once=True)
        data_record.compare(session, images, trained.folder)
        paths = options.predictions or _predict(session, images, trained)

        def write() -> None:
            facts, rows = _judge(paths, images, is_run=not options.predictions)
            pictures = options.output.with_suffix(".png")
            summaries = [RunFolder(path.parent).read_summary() for path in options.predictions]
            facts |= {
                "run": str(trained.folder.path),
                "predictions": list(map(str, options.predictions)),
                "output": str(options.output),
                "pictures": str(pictures),
                "root": trained.config.data.arguments().get("root"),
                "weights": [summary.get(predict.FOLD_WEIGHTS) for summary in summaries],
            }
            pictures.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(options.output) as file:  # The list appears only after the figure.
                file.write(csv_text([HEADER, *rows]).encode(errors="surrogateescape"))
                _draw(rows[:NUM_IMAGES], images, pictures, _summary(facts))
            write_json(folder.scores, facts)
            _show(facts)

        session.on_rank_0(write)
    return 0


def _predict(session: Session, images: Splits, trained: TrainedRun) -> list[Path]:
    """Write the probabilities of the images that the run was not trained on.

    Every rank must call it.
    """
    module, paths = predict.load_network(session, trained), []
    for split in JUDGED_SPLITS:
        if not isinstance(module.task, Classification) or images.by_name[split].classes is None:
            raise config_error(
                "unsupported",
                "lockstep labels",
                f"needs one class for each image, and task._target_={session.config.task.target}",
                "use lockstep eval with --output",
            )
        paths.append(session.folder.path / f"{split}.csv")
        predict.write_probabilities(session, module, images.by_name[split], paths[-1], split)
    return paths


def _judge(
    paths: Sequence[Path], images: Splits, *, is_run: bool
) -> tuple[JsonObject, list[list[Any]]]:
    """Return facts and the rows of the list.

    The training images of a run, which it cannot judge, are at the end.
    """
    lines, classes, labels, probabilities = tables.read(paths)
    is_suspicious = confident_learning.suspicious(labels, probabilities)
    best = probabilities.argmax(1)
    calibrated, fraction = confident_learning.calibrate(labels, probabilities)
    rows: list[list[Any]] = []
    for row in confident_learning.order(labels, probabilities).tolist():
        file, label, *_, split = lines[row]
        score = float(probabilities[row, labels[row]])
        suggested, part = classes[best[row]], split if is_run else "train"
        rows.append([file, label, suggested, score, int(is_suspicious[row]), part])
    facts = {
        "images": len(labels),
        "suspicious": int(is_suspicious.sum()),
        "suspicious_by_chance": confident_learning.expected(probabilities, calibrated),
        "wrong_fraction": fraction,
        "labels": [dict(zip(HEADER, row, strict=True)) for row in rows if row[4]],
    }
    if is_run and images.train.classes is not None:
        for name, label in zip(images.train.names, images.train.classes.tolist(), strict=True):
            rows.append([str(name), classes[label], "", "", 0, "train"])
    return facts, rows


def _draw(rows: Sequence[Sequence[Any]], images: Splits, path: Path, title: str) -> None:
    from lockstep.callbacks import plots

    locations = {
        str(name): (split_images.pixels, row)
        for split_images in images.by_name.values()
        for row, name in enumerate(split_images.names)
    }
    # Images that are not judged, or were removed with changed_data=accept, are left out.
    rows = [row for row in rows if row[2] and row[0] in locations]
    captions = []
    for name, label, suggested, score, *_ in rows:
        lines = [plots.short_name(name, 16, is_end=True), plots.short_name(label, 16)]
        if suggested != label:
            lines.append(f"→ {plots.short_name(suggested, 15)}")
        captions.append("\n".join([*lines, f"score {score:.4f}"]))
    pictures = [plots.image_at(*locations[row[0]]) for row in rows]
    plots.write_sheet(path, [pictures], captions, [not row[4] for row in rows], title)


def _show(facts: JsonObject) -> None:
    out, count = terminal(), facts["suspicious"]
    if count:
        cells = [
            [row["file"], row["label"], row["suggested"], f"{row['score']:.4f}"]
            for row in facts["labels"]
        ]
        print_table(
            new_table(HEADER[:4], cells[:MAX_ROWS], out, right=HEADER[3:4], wraps=HEADER[:3]), out
        )
        if count > MAX_ROWS:
            out.print(f"... and {count - MAX_ROWS:,} more", style="dim")
        out.print()
    print_line(
        out,
        f"{_summary(facts)}, and {facts['suspicious_by_chance']:.1f} are expected if all labels "
        "are right.",
    )
    print_line(out, f"Estimated fraction of wrong labels: {100 * facts['wrong_fraction']:.1f} %.")
    if not facts["predictions"]:
        print_line(
            out,
            "Only the validation and test images are judged: the network has learned the others. "
            "A sweep over data.folds=5 data.fold=0,1,2,3,4 judges all.",
        )
    output, pictures = (quote_path(Path(facts[key])) for key in ("output", "pictures"))
    print_line(
        out,
        f"All images, the most suspicious first: {output}. The first ones as a picture: {pictures}",
    )
    print_line(out, "Correct the column label, or remove rows, and train on the list:")
    splits = "" if facts["predictions"] else " data.split_column=split"
    columns = f"data.path_column=file 'data.target_columns=[label]'{splits}"
    root = f"data.root={quote_path(Path(facts['root']))} " if facts["root"] is not None else ""
    print(f"  lockstep train data=list data.file={output} {root}{columns}", flush=True)


def _summary(facts: JsonObject) -> str:
    return f"{facts['suspicious']:,} of {plural(facts['images'], 'label')} are suspicious"
