# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Mistakes that a checker finds before anything runs: each line that ends in `ignore` has one."""

from torch import Tensor
from typing_extensions import override

import lockstep
from lockstep.data import Images, Splits


def of_arguments(values: Tensor, part: Images) -> None:
    lockstep.train(override=["seed=1"])  # pyright: ignore[reportCallIssue]
    lockstep.load("latest", max_error="0.05")  # pyright: ignore[reportArgumentType]
    lockstep.load("latest", checkpoint="newest")  # pyright: ignore[reportArgumentType]
    lockstep.sum_over_global(values)  # pyright: ignore[reportCallIssue]
    Splits(part, part, class_names=("a", "b"))  # pyright: ignore[reportCallIssue]


def of_results() -> None:
    print(lockstep.Run("latest").sumary)  # pyright: ignore
    lockstep.submit(["seed=1", "cluster=local"]).wait()  # pyright: ignore
    predict = lockstep.load("latest")
    names: str = predict(["a.png"])[0].labels  # pyright: ignore[reportAssignmentType]
    print(names)


class Mine(lockstep.Task):
    @override
    def losses(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, outputs: Tensor
    ) -> Tensor:
        return outputs
