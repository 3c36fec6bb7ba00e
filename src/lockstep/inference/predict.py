"""`lockstep predict`, and the network and images that other commands share with it."""

import contextlib
import io
from dataclasses import replace
from functools import partial
from pathlib import Path

import lightning as L
import torch
from torch import Tensor, nn

from lockstep.assembly import checkpoint_io, data_record, networks, run_parts
from lockstep.assembly.agreement import together
from lockstep.assembly.session import Session, open_session
from lockstep.callbacks.custom_module import hash_of
from lockstep.config.errors import config_error
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import OF_FILES
from lockstep.data.images.preprocessing import PREPROCESSING_KEYS, Preprocessing
from lockstep.data.module import ImageData
from lockstep.data.sources.folders import unlabeled_folder
from lockstep.data.splits import Images
from lockstep.distributed.collectives import gather_objects
from lockstep.inference import prediction_table, selective
from lockstep.inference.options import PredictOptions, TrainedRun
from lockstep.inference.prediction_rows import PredictionRows, ranking_argument
from lockstep.inference.row_chunks import RowFile, RowWriter, write_rows, write_table
from lockstep.models import calibration
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.models.ensemble import Ensemble
from lockstep.runs.files import JsonObject, write_json
from lockstep.runs.folder import EXIT_FAILED, RunFolder
from lockstep.runs.naming import display_path
from lockstep.system.launcher import World
from lockstep.system.text import plural
from lockstep.tasks.classification import Classification

# This key of summary.json has the hash of the network of fold_predictions.csv.
FOLD_WEIGHTS = "fold_weights_sha256"


def predict(
    folder: RunFolder, world: World | None, trained: TrainedRun, options: PredictOptions
) -> int:
    """Write or print the prediction of every image of a source, each once and in order.

    Returns the exit code, which is 1 on rank 0 if files of a folder cannot be read. Such files are
    skipped and listed on standard error.
    """
    config, output = trained.config, options.output
    refuse_custom_module(config, "lockstep predict")
    with open_session(folder, config, world) as session:
        threshold, text = together(
            lambda: selective.threshold_of(
                trained.checkpoint, config, options.max_error, average=trained.average
            )
        )
        print(text if session.rank == 0 else "", end="", flush=True)
        module = load_network(session, trained)
        images = images_of(session, trained, options.source, module.image_format)
        top_k_argument = ranking_argument(module, options.top_k, is_shown=output is None)
        rows = PredictionRows(module, config.task.target, images.names, top_k_argument, threshold)
        json_rows: list[JsonObject] = []
        write: RowWriter = partial(prediction_table.show, module.task, rows.header)
        if output is not None:
            write = partial(write_table, output, rows.header)
        elif options.is_json:
            write = partial(prediction_table.list_rows, module.task, rows.header, json_rows)
        if threshold is not None:
            write = partial(prediction_table.count_answers, write)
        file = RowFile(output or folder.path / "predictions", write, options.is_strict)
        errors = write_rows(session, module.image_format, images, rows, file)
        result: JsonObject = {
            "predictions": len(images) - len(errors),
            "unreadable": len(errors),
            "average": trained.average,
        }
        if options.is_json and output is None:
            result["rows"] = json_rows
        return report(session, "prediction", output, result, errors)


def report(
    session: Session, noun: str, output: Path | None, result: JsonObject, errors: list[str]
) -> int:
    """Print and record a `result` and the `errors`.

    The result contains the number of rows by their `noun`. Errors are those of images without a
    row. Returns the exit code.
    """
    num_rows = result[f"{noun}s"]
    if session.rank == 0:
        if output is not None:
            print(f"{plural(num_rows, noun)} in {output}", flush=True)
        write_json(session.folder.scores, {"output": output and str(output), **result})
    if not errors:
        return 0
    count = (
        f"{len(errors)} of {plural(num_rows + len(errors), 'image')} cannot be read and are left "
        "out"
    )
    # The command prints a recorded failure.
    session.folder.record_failure("\n".join([*errors, f"{count}; --strict writes nothing then\n"]))
    return EXIT_FAILED


def refuse_custom_module(config: Config, who: str) -> None:
    """Raise ConfigError for a run of a custom LightningModule, which has no task that predicts."""
    if config.has_custom_module:
        raise config_error(
            "unsupported",
            who,
            f"needs the predictions of a task, and module._target_={config.module.target} has none",
            "load its checkpoint with Lightning",
        )


def load_network(session: Session, trained: TrainedRun) -> Classifier:
    """Load the network of a run on the device of this process, ready to predict.

    It can be the average of several networks. Every rank must call it. Raises ConfigError for an
    average without probabilities, and for networks of other classes or images.
    """
    # Threads call the network, and the switches of the compiler apply to the complete process.
    if session.device.type == "cpu" or trained.average:
        session = replace(session, config=session.config.model_copy(update={"compile": False}))
    members = [
        _load_member(session, folder.checkpoints / trained.checkpoint.name)
        for folder in (trained.folder, *trained.other_folders)
    ]
    module = members[0]
    if trained.average and not calibration.has_probabilities(module.task):
        raise config_error(
            "unsupported",
            f"task._target_={session.config.task.target}",
            "has no probabilities to be averaged",
            "give one run, not flipped",
        )
    forms = [member.image_format._replace(mean=(), std=()) for member in members]
    if any(form != forms[0] for form in forms):
        raise config_error(
            "conflict",
            display_path(trained.folder.path),
            "and other trials of its setting have different classes or image sizes",
            "give one run",
        )
    if trained.average:
        module.net = Ensemble(members, is_flipped=trained.is_flipped)
        module.calibration = nn.Identity()
        if not module.image_format.is_float:  # Each member normalizes by its own statistics.
            module.mean, module.std = torch.zeros_like(module.mean), torch.ones_like(module.std)
    return module.to(session.device).eval()


def _load_member(session: Session, checkpoint: Path) -> Classifier:
    saved = checkpoint_io.read(checkpoint)
    module = networks.classifier(session, ImageFormat(**saved["image_format"]), total_steps=1)
    module.load_state_dict(saved["state_dict"])
    if session.config.calibrate:
        calibration.restore(module, saved)
    return module


def preprocessing_of(config: Config, image_format: ImageFormat) -> Preprocessing:
    """Return how the run preprocesses image files.

    Without image files, or without one image size, it is a center crop on the configured
    background, which is white by default.
    """
    arguments, size = config.data.arguments(), image_format.image_shape[1:]
    if config.data.target not in OF_FILES or arguments["image_size"] is None:
        return Preprocessing.from_keys(
            size, "auto", "crop", "auto", arguments.get("background", "white")
        )
    return Preprocessing.from_keys(size, *(arguments[key] for key in PREPROCESSING_KEYS[1:]))


def predictions(module: Classifier, inputs: Tensor) -> Tensor:
    """Return calibrated predictions (B, ...) for inputs (B, C, H, W) of the `Classifier`.

    They are on the device of the module.
    """
    with torch.inference_mode():
        return module.task.predictions(module.calibration(module(inputs.to(module.device))))


def images_of(
    session: Session, trained: TrainedRun, source: str, image_format: ImageFormat
) -> Images:
    """Return the images of a source: a split of the data of a run, a folder or a file.

    Every rank must call it.
    """
    if source in ("val", "test"):
        refuse_other_splits(trained)
        splits = run_parts.splits(session, trained.folder, is_once=True)
        data_record.compare(session, splits, trained.folder)
        return splits.test if session.config.data.validate_on_test else splits.by_name[source]
    preprocessing = preprocessing_of(session.config, image_format)
    channels = image_format.image_shape[0]
    with (
        contextlib.nullcontext() if session.rank == 0 else contextlib.redirect_stdout(io.StringIO())
    ):
        images, digest = together(
            lambda: unlabeled_folder(source, preprocessing=preprocessing, channels=channels)
        )
    if len(set(gather_objects(digest))) > 1:
        raise config_error("changed", source, "changed while the workers listed it", "start again")
    return images


def refuse_other_splits(trained: TrainedRun) -> None:
    """Raise ConfigError if networks to be averaged were trained on other images, as in folds.

    Some of them would then know the images of a split. Every rank must call it.
    """
    if not trained.other_folders:
        return
    first, *others = together(
        lambda: list(map(data_record.recorded_splits, (trained.folder, *trained.other_folders)))
    )
    if any(splits != first for splits in others):
        raise config_error(
            "conflict",
            "the average",
            "cannot use this split, on which some of its networks were trained",
            "name a folder, or read out_of_fold.csv of a sweep over folds",
        )


def write_fold(session: Session, data: ImageData, module: L.LightningModule) -> JsonObject:
    """Write the predictions of a tested module for its fold into the run folder.

    Every rank must call it. Runs of other tasks than classification write none. Returns the SHA-256
    of the weights for the summary.
    """
    images, fold = data.splits.test, str(session.config.data.fold)
    if (
        isinstance(module, Classifier)
        and isinstance(module.task, Classification)
        and images.classes is not None
    ):
        with module.eager_mode():  # `load_network` does not compile either.
            write_probabilities(
                session, module.to(session.device).eval(), images, session.folder.fold_rows, fold
            )
        return {FOLD_WEIGHTS: hash_of(module)}
    return {}


def write_probabilities(
    session: Session, module: Classifier, images: Images, output: Path, fold: str
) -> None:
    """Write the class, the prediction, all probabilities and `fold` of each image.

    Every rank must call it. The images must have classes.
    """
    class_names, classes = module.image_format.class_names, images.classes
    assert classes is not None

    def rows_of(positions: Tensor, pixels: Tensor, targets: Tensor) -> list[list[str]]:
        probabilities = predictions(module, pixels)
        rows: list[list[str]] = []
        for position, values in zip(positions.tolist(), probabilities, strict=True):
            labels = [class_names[classes[position]], class_names[int(values.argmax())]]
            rows.append(
                [
                    str(images.names[position]),
                    *labels,
                    *(f"{value:.6f}" for value in values.tolist()),
                    fold,
                ]
            )
        return rows

    header = ["file", "truth", "prediction", *class_names, "fold"]
    write_rows(
        session,
        module.image_format,
        images,
        rows_of,
        RowFile(output, partial(write_table, output, header)),
    )
