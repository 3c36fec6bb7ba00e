"""What a person reads when memory did not suffice."""

from pathlib import Path

import pytest
import torch

from lockstep.assembly.refusals import LESS_MEMORY, explain_error

SAID = (
    "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 79.10 GiB of which 120.50 MiB is "
    "free. Process 17 has 60.00 GiB memory in use."
)


def text(error: BaseException) -> str | None:
    return explain_error(error, Path("run"), "rank 1 of 2")


def following(cause: Exception, *, is_answered: bool = False) -> Exception:
    """An error that was raised from another one, or in place of it (from None)."""
    error = ValueError("the graph cannot be compiled")
    error.__cause__ = None if is_answered else cause
    error.__context__ = cause
    return error


def test_out_of_memory() -> None:
    asked = "Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 79.10 GiB of which 120.50 MiB is free"
    assert text(torch.OutOfMemoryError(SAID)) == f"rank 1 of 2 ran out of memory ({asked}). {LESS_MEMORY}"
    assert text(MemoryError()) == f"rank 1 of 2 ran out of memory. {LESS_MEMORY}"
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**52, dtype=torch.uint8)
    assert "tried to allocate 4503599627370496 bytes" in str(text(caught.value))


def test_cause_found() -> None:
    refused = torch.OutOfMemoryError(SAID)
    assert "ran out of memory (Tried to" in str(text(following(refused)))
    assert text(following(refused, is_answered=True)) is None
    own = ValueError("x")
    own.__cause__ = own
    assert text(own) is None
