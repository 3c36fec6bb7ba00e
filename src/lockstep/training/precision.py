"""The number format that a run computes in, on what it finds."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from lockstep.config import errors
from lockstep.config.schema import Config

AMPERE = (8, 0)  # the first compute capability with bfloat16 and TF32
# bfloat16 is the classifier's own autocast, around the network alone
LIGHTNING_PRECISION = {"bfloat16": "32-true", "tf32": "32-true", "float32": "32-true", "float64": "64-true"}


def lightning_precision(precision: str, *, is_own: bool) -> str:
    """What Lightning is told; bfloat16 of a module of the user's own (`is_own`) is its own, around the whole step."""
    return "bf16-mixed" if precision == "bfloat16" and is_own else LIGHTNING_PRECISION[precision]


def chosen_precision(config: Config, device: torch.device) -> tuple[str, str]:
    """The precision to compute in, and why. Raises ConfigError for one that the device does not have."""
    precision, unit = config.trainer.precision, bfloat16_unit(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
    if precision == "tf32" and unit is None:  # GPUs got both at once
        raise errors.ConfigError([f"trainer.precision=tf32, but {name} has no TF32: use float32"])
    if precision == "tf32":
        return precision, f"as asked: float32, of which {name} multiplies 11 of 24 bits"
    if precision != "auto":
        return precision, "as asked"
    return ("bfloat16", f"{name} has {unit}") if unit else ("float32", f"{name} has no bfloat16 arithmetic")


def bfloat16_unit(device: torch.device) -> str | None:
    """What of a device computes bfloat16; None where nothing does."""
    if device.type == "cuda":
        return "tensor cores" if torch.cuda.get_device_capability(device) >= AMPERE else None
    flags = torch.cpu.get_capabilities()
    return next((label for key, label in (("amx_bf16", "AMX"), ("avx512_bf16", "AVX512-BF16")) if flags.get(key)), None)


def set_tf32(is_on: bool) -> None:
    """Whether float32 products and convolutions of this process may round their factors to TF32.

    torch lets convolutions do so from the start. It has two kinds of switches, and raises where one kind is read after
    the other was set. Lightning 2.6 and torch's compiler read the older, so the newer are reset (torch 2.15).
    """
    torch.backends.fp32_precision = "none"  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.fp32_precision = "none"
    torch.backends.cudnn.allow_tf32 = is_on
    torch.set_float32_matmul_precision("high" if is_on else "highest")


@contextlib.contextmanager
def float32_kept() -> Iterator[None]:
    """Have torch multiply float32 after the block as before it; see `set_tf32`.

    torch has older and newer switches for that. It raises where an older one is read after the newer were set to what
    it cannot say; then nobody reads it, and the newer ones are all there is to put back.
    """
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    # a part comes after what it is part of
    places: list[Any] = [torch.backends, cudnn, cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul]  # pyright: ignore[reportAttributeAccessIssue]
    places += [mkldnn, mkldnn.conv, mkldnn.matmul, mkldnn.rnn]  # pyright: ignore[reportAttributeAccessIssue]
    before = [place.fp32_precision for place in places]
    convolutions: bool | None = None
    products: str | None = None
    with contextlib.suppress(RuntimeError):
        convolutions = cudnn.allow_tf32
    with contextlib.suppress(RuntimeError):
        products = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        if products is not None:
            torch.set_float32_matmul_precision(products)
        if convolutions is not None:
            cudnn.allow_tf32 = convolutions  # pyright: ignore[reportAttributeAccessIssue]
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision
