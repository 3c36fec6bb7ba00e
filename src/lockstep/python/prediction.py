"""`lockstep.Prediction` and `lockstep.Predictions`: the outputs of a network for images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from torch import Tensor
from typing_extensions import override

from lockstep.inference import selective

CERTAIN = 0.5  # A label is predicted from this probability on.
MAX_PREDICTIONS_SHOWN = 5  # predictions in `repr`


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """The prediction for one image: `values` (C, ...) in host memory, for each of `class_names`.

    Values are the probabilities of classes or of labels, or numbers. `kind` is the type of the
    names: classes, labels, numbers, or that of a custom task. `file` is the image file, or None.
    The class is `unknown` up to a probability of `threshold`. For a file that cannot be read,
    `error` is the reason, and values are NaN.
    """

    values: Tensor
    class_names: tuple[str, ...]
    kind: str
    file: str | None
    threshold: float | None = None
    error: str | None = None

    @property
    def class_name(self) -> str:
        """The most probable class, or `unknown`.

        Raises AttributeError for other types of predictions, and ValueError with the `error` of a
        file, like the properties below.
        """
        values = self._only("class_name", "classes")
        number = values.argmax()
        if self.threshold is not None:
            number = selective.answers(values.unsqueeze(0), self.threshold)
        return (*self.class_names, selective.UNKNOWN)[int(number)]

    @property
    def probability(self) -> float:
        """The probability of the most probable class, 0 to 1."""
        return self._only("probability", "classes").max().item()

    @property
    def probabilities(self) -> dict[str, float]:
        """The probability of every class or label, 0 to 1."""
        return self._dict(self._only("probabilities", "classes", "labels"))

    @property
    def labels(self) -> list[str]:
        """The labels with a probability of at least 0.5."""
        values = self._dict(self._only("labels", "labels"))
        return [label for label, value in values.items() if value >= CERTAIN]

    @property
    def numbers(self) -> dict[str, float]:
        """The number for every name."""
        return self._dict(self._only("numbers", "numbers"))

    def _only(self, property_name: str, *kinds: str) -> Tensor:
        if self.error is not None:
            raise ValueError(self.error)
        if self.kind not in kinds or self.values.dim() != 1:
            raise AttributeError(
                f"A prediction of {self.kind} of shape {tuple(self.values.shape)} "
                f"has no {property_name}: use its values."
            )
        return self.values

    def _dict(self, values: Tensor) -> dict[str, float]:
        return dict(zip(self.class_names, values.tolist(), strict=True))

    @override
    def __repr__(self) -> str:
        if self.error is not None:
            return f"Prediction(error: {self.error})"
        if self.values.shape != (len(self.class_names),):
            return f"Prediction({self.kind} of shape {tuple(self.values.shape)})"
        if self.kind == "classes":
            return f"Prediction({self.class_name!r}, probability {self.probability:.4f})"
        values = [f"{name!r}: {value:.4g}" for name, value in self._dict(self.values).items()]
        return f"Prediction({', '.join(values)})"


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(Sequence[Prediction]):
    """The predictions for B images, in their order: a sequence of `Prediction`.

    `values` (B, C, ...) are in host memory. `files` has the file of each image, or None. `errors`
    has the reason for each file that cannot be read.
    """

    values: Tensor
    class_names: tuple[str, ...]
    kind: str
    files: tuple[str | None, ...]
    threshold: float | None = None
    errors: Mapping[str | None, str] = field(default_factory=dict)

    @override
    def __len__(self) -> int:
        return len(self.files)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> "Predictions": ...
    @override
    def __getitem__(self, index: int | slice) -> "Prediction | Predictions":
        values, file = self.values[index], self.files[index]
        if isinstance(file, tuple):
            return replace(self, values=values, files=file)
        return Prediction(
            values, self.class_names, self.kind, file, self.threshold, self.errors.get(file)
        )

    @override
    def __repr__(self) -> str:
        items = list(map(repr, self[:MAX_PREDICTIONS_SHOWN]))
        if len(self) > MAX_PREDICTIONS_SHOWN:
            items.append(f"... {len(self) - MAX_PREDICTIONS_SHOWN:,} more")
        return f"Predictions([{', '.join(items)}])"
