"""A trained network as one file for other programs: ONNX, or a torch.export program (.pt2)."""

import contextlib
import io
import json
import logging
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import ImageColor
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.nn import functional as F
from typing_extensions import override

from lockstep import __version__
from lockstep.assembly.run_parts import once_a_node, open_source
from lockstep.assembly.session import open_session
from lockstep.config.errors import config_error, one_line
from lockstep.data.images.image_files import ImageFiles
from lockstep.data.images.preprocessing import Preprocessing, resize, size_of
from lockstep.data.splits import ImageError, Images
from lockstep.inference import predict, selective
from lockstep.inference.options import TrainedRun
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.runs.files import JsonObject, atomic_file, print_result
from lockstep.runs.folder import EXIT_FAILED
from lockstep.runs.naming import display_path
from lockstep.system import json_output
from lockstep.system.terminal import show_table
from lockstep.system.text import plural, size_text
from lockstep.system.tracebacks import located

# Rounding in float32 causes differences of 6e-8, and sums in another order up to 1e-5 in deep
# networks. A wrong operator differs by 1e-2 or more.
LIMIT = 1e-4
NUM_CHECKED = 32  # number of images
Predict = Callable[[Tensor], Any]  # returns predictions (B, ...), or these and answers (B,)


class Exported(nn.Module):
    """Maps decoded images, uint8 (B, C, h, w) of any size, to predictions (B, ...).

    A network that was trained on custom floats takes floats of its input size. Sizes are computed
    as integers without comparisons, so that torch and ONNX keep them as variables of the file. With
    a `threshold` there are also answers int64 (B,): the number of a class, or -1.
    """

    def __init__(
        self, module: Classifier, preprocessing: Preprocessing, threshold: float | None = None
    ) -> None:
        super().__init__()
        self.threshold = threshold
        self.net = module.net
        self.calibration = module.calibration
        self.task = module.task
        self.preprocessing = preprocessing
        self.mean, self.std = (nn.Buffer(values.clone()) for values in (module.mean, module.std))

    @override
    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if not images.is_floating_point():
            images = self._apply_preprocessing(images.float()).sub(self.mean).div(self.std)
        predictions = self.task.predictions(self.calibration(self.net(images)))
        return (
            predictions
            if self.threshold is None
            else (predictions, selective.answers(predictions, self.threshold))
        )

    def _apply_preprocessing(self, images: Tensor) -> Tensor:
        (height, width), (max_height, max_width) = images.shape[2:], self.preprocessing.bounds
        # The size is at least two pixels, because one is a special case of torch.export and
        # onnxruntime.
        if self.preprocessing.fit == "letterbox":
            size: Any = (
                torch.sym_min(
                    max_height, torch.sym_max(2, _round_quotient(height * max_width, width))
                ),
                torch.sym_min(
                    max_width, torch.sym_max(2, _round_quotient(width * max_height, height))
                ),
            )
        else:
            size = (
                torch.sym_max(max_height, height * max_width // width),
                torch.sym_max(max_width, width * max_height // height),
            )
        scaled = self._scale(images, size)
        assert self.preprocessing.size is not None
        # A negative border crops. For a slice, torch.export would add a condition on the images.
        border: list[Any] = []
        for side, scaled_side in zip(self.preprocessing.size[::-1], size[::-1], strict=True):
            space = side - scaled_side
            before = (
                space // 2 if self.preprocessing.fit == "letterbox" else -_round_quotient(-space, 2)
            )
            border += [before, space - before]
        return F.pad(scaled, border, value=ImageColor.getrgb(self.preprocessing.background)[0])

    def _scale(self, images: Tensor, size: Any) -> Tensor:
        """Scale pixel values as Pillow does: the width, then the height, each rounded."""
        for step in ((images.shape[2], size[1]), size):
            images = F.interpolate(
                images,
                step,
                mode=self.preprocessing.interpolation,
                align_corners=False,
                antialias=True,
            )
            # The value is above 0.5, so that float32 sums in another order round a half to the same
            # value.
            images = images.add(0.5 + 2**-12).floor().clamp(0, 255)
        return images


def _round_quotient(numerator: Any, denominator: Any) -> Any:
    """Return Python's round() of a quotient, which ONNX lacks.

    A half is rounded to the even number.
    """
    return (2 * numerator + denominator - 1 + numerator // denominator % 2) // (2 * denominator)


def export(trained: TrainedRun, output: Path, max_error: float | None) -> int:
    """Write the network of a run to `output`, after a check on test images.

    Returns the exit code, which is 1 if the predictions of the file differ. Raises ConfigError if
    the network cannot be exported.
    """
    config, run, checkpoint = trained.config, trained.folder, trained.checkpoint
    predict.refuse_custom_module(config, "lockstep export")
    threshold, message = selective.threshold_of(
        checkpoint, config, max_error, average=trained.average
    )
    with (
        open_session(run, config, None) as session,
        warnings.catch_warnings(),
        torch.no_grad(),
    ):
        load = partial(open_source, config.seed)
        images = once_a_node(config.data, load, rank=0, local_rank=0, is_silent=False)[0].test
        module = predict.load_network(session, trained)
        form = module.image_format
        preprocessing = predict.preprocessing_of(config, form)
        exported = Exported(module, preprocessing, threshold).eval()
        axes = {0: "batch"} if form.is_float else {0: "batch", 2: "height", 3: "width"}
        class_names = [str(name) for name in form.class_names]
        facts: JsonObject = {
            "lockstep": __version__,
            "run": run.path.name,
            "checkpoint": checkpoint.name,
            "average": trained.average,
            "predictions": module.task.output_noun,
            "class_names": class_names,
            "image_shape": form.image_shape,
        }
        if not form.is_float:
            if not trained.average:  # The networks of an average may have different statistics.
                facts |= {"mean": form.mean, "std": form.std}
            for key in ("crop_percent", "fit", "interpolation", "background"):
                facts[key] = getattr(preprocessing, key)
        if threshold is not None:
            facts |= {"max_error": max_error, "threshold": threshold}
        # These are messages of the exporters about themselves. torch also logs and prints complete
        # graphs.
        warnings.simplefilter("ignore")
        logging.disable()
        try:
            make, runtime = (_onnx, "onnxruntime") if output.suffix == ".onnx" else (_pt2, "torch")
            with contextlib.redirect_stderr(io.StringIO()):
                content, running = make(
                    _program(exported, form, axes), axes, json.dumps(facts, ensure_ascii=False)
                )
            differences = [
                _differences(module, exported, running, number, image)
                for number, image in enumerate(_test_images(images))
            ]
        except ImageError:
            raise
        # Custom code, an operator that ONNX lacks, or the file on other images can fail here.
        except Exception as error:
            raise config_error(
                "failed",
                f"model._target_={config.model.target}",
                "cannot be exported",
                located(_reason(error), error),
            ) from error
        largest, largest_scaled = torch.stack(differences).amax(0).tolist()
        image_count = plural(len(differences), "test image")
        if not largest <= LIMIT:  # The negation also catches NaN.
            json_output.fail(
                f"{display_path(output)} was not written: "
                f"its predictions for {image_count} differ by up to {largest:.2g}, "
                f"more than {LIMIT:g}"
            )
            return EXIT_FAILED
        output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(output) as file:
            file.write(content)
    checks = {
        "images": len(differences),
        "by": runtime,
        "largest_difference": largest,
        "limit": LIMIT,
        "largest_scaled_difference": largest_scaled,
    }
    print_result({"file": str(output), "bytes": len(content), **facts, "checked": checks})
    shape = ", ".join(
        str(axes.get(axis, length)) for axis, length in enumerate((0, *form.image_shape))
    )
    rows = {
        "images": f"{'float32' if form.is_float else 'uint8'} ({shape})",
        "inside": "" if form.is_float else f"{preprocessing.text}; normalization",
        "predictions": (
            f"{module.task.output_noun}: {', '.join(class_names[:10])}"
            f"{', ...' if len(class_names) > 10 else ''}"
        ),
    }
    if threshold is not None:
        rows["answer"] = f"number of the class, or -1 if its probability is at most {threshold:.6g}"
    differing = f"differences up to {largest:.1g} (limit {LIMIT:g})"
    rows["checked"] = f"{image_count} by {runtime}, {differing}"
    if not form.is_float:
        scaled = f"scaled in the file: up to {largest_scaled:.1g} from `lockstep predict`"
        rows["other sizes"] = scaled
    print(message, end="")
    show_table(f"{display_path(output)} ({size_text(len(content))})", rows.items())
    return 0


def _test_images(images: Images) -> Iterator[Tensor]:
    """Yield evenly spaced test images (1, C, h, w).

    uint8 images have another size than the input of the network.
    """
    for position in (
        torch.linspace(0, len(images) - 1, min(NUM_CHECKED, len(images))).long().split(1)
    ):
        if isinstance(images.pixels, ImageFiles):
            image = images.pixels.decode(int(position)).pixels.unsqueeze(0)
        else:
            image = images.pixels[position]
        if image.is_floating_point():
            image = image.float()
        elif image.shape[1:] == images.pixels.shape[1:]:
            height, width = size_of(image)
            image = resize(image, (2 * height + 1, 2 * width - 1))
        yield image


def _program(exported: Exported, form: ImageFormat, axes: Mapping[int, str]) -> ExportedProgram:
    images = torch.zeros(
        2, *form.image_shape, dtype=torch.float32 if form.is_float else torch.uint8
    )
    shapes = ({axis: Dim(name) for axis, name in axes.items()},)
    program = torch.export.export(exported, (images,), dynamic_shapes=shapes)
    for submodule in program.graph_module.modules():  # This includes the blocks of torch.no_grad.
        for node in submodule.graph.nodes if isinstance(submodule, GraphModule) else ():
            # These are paths and lines of the code, which both formats would contain.
            node.meta.pop("stack_trace", None)
    return program


def _pt2(program: ExportedProgram, axes: Mapping[int, str], metadata: str) -> tuple[bytes, Predict]:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={"lockstep.json": metadata})
    file.seek(0)
    return file.getvalue(), torch.export.load(file).module()


def _onnx(
    program: ExportedProgram, axes: Mapping[int, str], metadata: str
) -> tuple[bytes, Predict]:
    import onnxruntime

    outputs = ["predictions", "answer"][: len(program.graph_signature.user_outputs)]
    options: Any = {
        "input_names": ["images"],
        "output_names": outputs,
        "dynamic_shapes": (dict(axes),),
    }
    onnx_program = torch.onnx.export(program, dynamo=True, verbose=False, **options)
    assert onnx_program is not None
    onnx_program.model.metadata_props["lockstep"] = metadata
    content = onnx_program.model_proto.SerializeToString()
    running = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Any:
        tensors = [
            torch.from_numpy(values) for values in running.run(None, {"images": images.numpy()})
        ]
        return tensors if len(outputs) > 1 else tensors[0]

    return content, run


def _reason(error: BaseException) -> str:
    """Return the first cause in one line.

    The exporters add pages of advice to it.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    if "Constraints violated (batch)" in str(error):
        return "its code makes the number of images a constant: use x.shape[0] in place of len(x)"
    return textwrap.shorten(f"{type(error).__name__}: {one_line(error)}", 300)


def _differences(
    module: Classifier,
    exported: Exported,
    running: Predict,
    number: int,
    image: Tensor,
) -> Tensor:
    """Return the largest differences to `predict`.

    The first is for an image that is scaled beforehand, the second for one that the file scales.
    Every other image is in a batch with its mirror image. A different answer counts as a difference
    of 1.
    """
    images = torch.cat([image, image.flip(3)])[: 1 + number % 2]
    scaled = exported.preprocessing.scale(images)
    reference = predict.predictions(module, exported.preprocessing.crop(scaled))
    differences = [_difference(exported, running(batch), reference) for batch in (scaled, images)]
    return torch.stack(differences)


def _difference(exported: Exported, outputs: Any, reference: Tensor) -> Tensor:
    predictions, has_other_answer = outputs, torch.tensor(False)
    if exported.threshold is not None:
        predictions, answer = outputs
        has_other_answer = (answer != selective.answers(predictions, exported.threshold)).any()
    return ((predictions - reference).abs().max() / reference.abs().max().clamp(min=1)).maximum(
        has_other_answer
    )
