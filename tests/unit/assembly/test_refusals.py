"""What a person reads when memory did not suffice."""

from collections.abc import Callable
from pathlib import Path

import torch

from lockstep.assembly.refusals import LESS_MEMORY, explain_error

SAID = (
    "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 79.10 GiB of which 120.50 MiB is "
    "free. Process 17 has 60.00 GiB memory in use."
)


def raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def step() -> None:
    raise torch.OutOfMemoryError(SAID)


def text(error: BaseException) -> str | None:
    return explain_error(error, Path("run"), "rank 1 of 2")


def test_what_was_asked_for_and_what_needs_less_is_told() -> None:
    asked = "Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 79.10 GiB of which 120.50 MiB is free"
    assert text(raised(step)) == f"rank 1 of 2 ran out of memory ({asked}). {LESS_MEMORY}"
    assert text(MemoryError()) == f"rank 1 of 2 ran out of memory. {LESS_MEMORY}"


def test_the_refusal_of_an_allocator_is_found_below_what_followed_from_it() -> None:
    def follows() -> None:
        try:
            step()
        except RuntimeError as error:
            raise ValueError("the graph cannot be compiled") from error

    def answered() -> None:
        try:
            step()
        except RuntimeError:
            raise ValueError("something else") from None

    assert "ran out of memory (Tried to" in (text(raised(follows)) or "")
    assert text(raised(answered)) is None
    assert text(RuntimeError("the shapes differ")) is None
    real = raised(lambda: torch.empty(2**52, dtype=torch.uint8))
    assert "tried to allocate 4503599627370496 bytes" in (text(real) or "")


def test_an_error_that_is_its_own_cause_ends_the_search() -> None:
    error = ValueError("x")

    def fail() -> None:
        raise error from error

    assert text(raised(fail)) is None
