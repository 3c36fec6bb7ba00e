"""What a person reads when memory did not suffice."""

from pathlib import Path

import pytest
import torch

from lockstep.assembly.refusals import LESS_MEMORY, explain_error

SAID = (
    "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 79.10 GiB of "
    "which 120.50 MiB is free. Process 17 has 60.00 GiB memory in use."
)


def text(error: BaseException) -> str | None:
    return explain_error(error, Path("run"), "rank 1 of 2")


def test_out_of_memory() -> None:
    asked = (
        "Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 79.10 GiB of which 120.50 MiB "
        "is free"
    )
    assert (
        text(torch.OutOfMemoryError(SAID))
        == f"rank 1 of 2 ran out of memory ({asked}). {LESS_MEMORY}"
    )
    assert text(MemoryError()) == f"rank 1 of 2 ran out of memory. {LESS_MEMORY}"
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**52, dtype=torch.uint8)
    assert "tried to allocate 4503599627370496 bytes" in str(text(caught.value))
