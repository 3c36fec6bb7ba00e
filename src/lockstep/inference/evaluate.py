"""Evaluation of a trained network on labeled images, by any number of workers.

It computes the loss, the metrics and a report by class. Images that are named in place of those of
the run are preprocessed as the run preprocesses its images, and classes are matched by name.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import lightning as L
import numpy as np
from lightning.pytorch.utilities.model_helpers import is_overridden

from lockstep.assembly import checkpoint_io, data_record, run_parts
from lockstep.assembly.listed_images import files_of
from lockstep.assembly.session import Session, open_session
from lockstep.callbacks import reliability
from lockstep.callbacks.custom_module import metrics_of
from lockstep.config.errors import config_error
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import Data
from lockstep.data.images.image_table import SPLIT_FOLDERS, ImageTable
from lockstep.data.module import ImageData
from lockstep.data.splits import Splits, identity_statistics
from lockstep.inference import class_report, predict
from lockstep.inference import reliability as scores
from lockstep.inference.options import EvalOptions, TrainedRun
from lockstep.inference.prediction_rows import PredictionRows, ranking_argument
from lockstep.inference.row_chunks import RowFile, write_rows, write_table
from lockstep.models.calibration import has_probabilities
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.runs.files import JsonObject, write_json
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.system.redaction import redact
from lockstep.system.terminal import show_table
from lockstep.system.text import join_names, plural, similar_names

# images, their selection (val, test or all), and messages
Found = tuple[Splits, str, dict[str, str]]


def evaluate(
    folder: RunFolder, world: World | None, trained: TrainedRun, options: EvalOptions
) -> int:
    """Evaluate a run on a split of its data, or on other images.

    Prints the result, and writes scores.json. Returns the exit code.
    """
    config = trained.config
    if options.output is not None or options.pictures is not None or trained.average:
        predict.refuse_custom_module(
            config, "lockstep eval with --output, --pictures or an average"
        )
    with open_session(folder, config, world) as session:
        data, selection, notes = _load_data(session, trained, options)
        module, callbacks = run_parts.build_module(session, run_parts.image_format(data))
        if trained.average:
            module = predict.load_network(session, trained)
        split = "val" if selection == "val" else "test"
        _refuse_unfit(config, module, split, options)
        trainer = run_parts.lightning_trainer(
            session, module, callbacks=callbacks, logger=False, enable_checkpointing=False
        )
        measure = trainer.test if split == "test" else trainer.validate
        measure(
            module,
            data,
            ckpt_path=None if trained.average else trained.checkpoint,
            weights_only=True,
            verbose=False,
        )
        images = data.splits.by_name[split].take(slice(data.batches(split).num_epoch_samples))
        metrics = metrics_of(trainer, module)
        callback = reliability.callback_of(trainer)
        findings = callback and callback.findings
        if options.pictures is not None and findings is None:
            raise config_error(
                "unsupported", "--pictures", "needs one prediction for each image", "remove it"
            )
        result: JsonObject = {
            "run": str(trained.folder.path),
            "checkpoint": str(trained.checkpoint),
            "data": redact(
                config.data.arguments().get("file") or config.data.root or config.data.target
            ),
            "split": selection,
            "average": trained.average,
            "runs": [str(run.path) for run in (trained.folder, *trained.other_folders)],
            "images": len(images),
            "metrics": {
                name.removeprefix(f"{split}/"): value for name, value in sorted(metrics.items())
            },
        }
        if session.rank == 0:
            if findings is not None:
                if not findings.is_multilabel:
                    result |= class_report.scores_of(findings, data.class_names, images.groups)
                is_averaged = bool(trained.average) and config.calibrate
                default = scores.AVERAGED if is_averaged else scores.UNCALIBRATED
                entry = getattr(module.calibration, "entry", default)
                result["calibration"] = scores.report(findings, images.groups, entry)
            result |= {"notes": notes} if notes else {}
            _show(result)
        if options.output is not None:
            network = predict.load_network(session, trained)
            top_k_argument = ranking_argument(network, options.top_k)
            rows = PredictionRows(
                network, config.task.target, images.names, top_k_argument, has_truth=True
            )
            write_rows(
                session,
                network.image_format,
                images,
                rows,
                RowFile(options.output, partial(write_table, options.output, rows.header)),
            )
            if session.rank == 0:
                print(f"{plural(len(images), 'row')} in {options.output}", flush=True)
        if options.pictures is not None and findings is not None:
            draw = partial(
                class_report.draw, options.pictures, data.class_names, images, findings, result
            )
            session.on_rank_0(draw)
        if session.rank == 0:
            write_json(folder.scores, {**metrics, "report": result})
    return 0


def _load_data(
    session: Session, trained: TrainedRun, options: EvalOptions
) -> tuple[ImageData, str, dict[str, str]]:
    """Return the data to evaluate, the selection (val, test or all), and messages.

    Every rank must call it.
    """
    if options.may_differ:
        saved = checkpoint_io.read(trained.checkpoint)
        result = find_images(
            session,
            (trained.folder, *trained.other_folders),
            ImageFormat(**saved["image_format"]),
            options.split,
        )
        if result is not None:
            images, selection, notes = result
            return run_parts.serve_images(session, images), selection, notes
    if options.split == "all":
        raise config_error(
            "conflict",
            "--split all",
            "is for images that are not those of the run",
            "use test or val",
        )
    predict.refuse_other_splits(trained)
    return run_parts.image_data(session, trained.folder), options.split or "test", {}


def _refuse_unfit(
    config: Config, module: L.LightningModule, split: str, options: EvalOptions
) -> None:
    """Raise ConfigError if the module cannot be evaluated on the split, or with these options."""
    is_ours = isinstance(module, Classifier)
    if options.pictures is not None and not (is_ours and has_probabilities(module.task)):
        raise config_error(
            "unsupported",
            "--pictures",
            f"needs classes or labels, and task._target_={config.task.target}",
            "remove it",
        )
    if is_ours:
        ranking_argument(module, options.top_k)
    step = "test_step" if split == "test" else "validation_step"
    if not is_overridden(step, module):
        raise config_error(
            "missing", f"module._target_={config.module.target}", f"has no {step}", "add one"
        )


def _show(result: JsonObject) -> None:
    """Print the report of an evaluation."""
    notes, count = result.get("notes", {}), result["images"]
    images = (
        f"{plural(count, 'image')} of {result['data']}"
        if notes
        else plural(count, f"{result['split']} image")
    )
    values = [(name, f"{value:.6f}") for name, value in result["metrics"].items()]
    show_table(
        f"{result['average'] or result['checkpoint']} on {images}", [*values, *notes.items()]
    )
    class_report.show_report(result)
    if "calibration" in result:
        scores.show(result["calibration"])


def find_images(
    session: Session, runs: Sequence[RunFolder], form: ImageFormat, split: str | None
) -> Found | None:
    """Find the image files of the configuration. Every rank must call it.

    Returns None if they are those of the `runs`, whose networks are averaged. Without `split` all
    images are used, unless there is a test split. Raises ConfigError for classes that the run
    does not have, and for images of another shape.
    """

    def load(section: Data) -> Found | None:
        run_parts.refuse_unfit_arguments(section)
        files = files_of(section, completes_splits=False, is_other=True)
        table = files.table
        _refuse_similar_classes(table, form.class_names)
        overlap = data_record.overlap(runs[0], table)
        if overlap is None:
            return None
        names = {*overlap.trained}
        for run in runs[1:]:
            if (run_overlap := data_record.overlap(run, table)) is not None:
                names.update(run_overlap.trained)
        repeated_names = sorted(names)
        if split is None and 2 * len(repeated_names) > overlap.num_trained:
            raise ValueError(
                f"{plural(len(repeated_names), 'image')} of the data, such as "
                f"{repeated_names[0]}, were training images: "
                "add changed_data=accept if this is the run's data, else --split all or test"
            )
        if split in ("val", "test") and split not in table.splits:
            files = files_of(section, is_other=True, kept=data_record.recorded_splits(runs[0]))
        table = _match_classes(files.table, form.class_names)
        selection = split or ("test" if "test" in table.splits else "all")
        rows = np.arange(len(table.names)) if selection == "all" else table.splits[selection]
        splits = {
            split_name: rows if split_name in (selection, "test") else rows[:1]
            for split_name in SPLIT_FOLDERS
        }
        memory = "once" if section.memory == "auto" else section.memory
        images = replace(files, table=replace(table, splits=splits)).splits(memory)
        if (shape := tuple(images.test.pixels.shape[1:])) != tuple(form.image_shape):
            raise ValueError(
                f"{table.setting} has images of shape {shape}, "
                f"and the network takes {form.image_shape}"
            )
        notes = {
            "data": (
                "not that of the run: "
                f"{'all of its images' if selection == 'all' else f'its {selection} images'}"
            )
        }
        if overlap.replaced:
            replaced_names = join_names(overlap.replaced, 1)
            notes["changed images"] = f"{replaced_names} (same names as in the run, other contents)"
        if absent_classes := images.absent_classes("test"):
            notes["missing classes"] = join_names(absent_classes, 10)
        if repeated_names := sorted({*repeated_names}.intersection(images.test.names)):
            notes["training names"] = (
                f"{join_names(repeated_names, 1)}: check that these are other images"
            )
        return replace(images, statistics=identity_statistics(shape[0])), selection, notes

    return run_parts.once_a_node(
        session.config.data,
        load,
        rank=session.rank,
        local_rank=session.local_rank,
        is_silent=session.config.silent,
    )


def _refuse_similar_classes(table: ImageTable, run_classes: Sequence[str]) -> None:
    """Raise ValueError for a class that only looks like one of the run, such as Cat and cat."""
    foreign_classes = [name for name in table.class_names if name not in run_classes]
    alike = similar_names([*foreign_classes, *run_classes]) if foreign_classes else ""
    if alike:
        raise ValueError(
            f"{table.setting} has classes that only look like those of the run, {alike}: "
            "rename them"
        )


def _match_classes(table: ImageTable, run_classes: Sequence[str]) -> ImageTable:
    """Give classes the numbers of their names in `run_classes`.

    Raises ValueError for other classes, and for other columns.
    """
    is_one_each = table.targets.ndim == 1
    foreign_classes = [name for name in table.class_names if name not in run_classes]
    if foreign_classes or not (is_one_each or table.class_names == tuple(run_classes)):
        raise ValueError(
            f"{table.setting} has classes that the run does not have: "
            f"{join_names(foreign_classes or table.class_names, 10)}. "
            f"Its classes are {', '.join(run_classes)}: rename the others, or leave them out."
        )
    if not is_one_each:
        return table
    numbers = np.array([run_classes.index(name) for name in table.class_names])
    return replace(table, targets=numbers[table.targets], class_names=tuple(run_classes))
