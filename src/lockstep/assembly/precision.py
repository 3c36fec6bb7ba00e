"""The device of a rank, and the precision of a run that is chosen for it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.plugins import Precision

from lockstep.config.errors import config_error
from lockstep.config.schema.configuration import Config
from lockstep.models.classifier import Classifier
from lockstep.system.hardware import keep_freed_memory
from lockstep.system.launcher import World

# The first compute capabilities with float16 products, and with bfloat16 and TF32.
VOLTA, AMPERE = (7, 0), (8, 0)


def lightning_precision(precision: str, *, is_own: bool) -> str:
    """Return Lightning's name of a precision.

    Lightning's bfloat16 is only for custom modules (`is_own`), because the classifier has an
    autocast.
    """
    if precision == "float64":
        return "64-true"
    return "bf16-mixed" if precision == "bfloat16" and is_own else "32-true"


def resolve_precision(config: Config, device: torch.device) -> tuple[str, str]:
    """Return the precision to compute in, and the reason.

    Raises ConfigError if the device does not support it.
    """
    precision, unit = config.trainer.precision, bfloat16_unit(device)
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
    if precision == "tf32":
        if unit is None:  # bfloat16 and TF32 came with the same GPUs.
            raise config_error(
                "machine",
                "trainer.precision=tf32",
                f", but {device_name} has no TF32",
                "use float32",
            )
        reason = (
            f"as configured: float32, which {device_name} multiplies as TF32, with 11 of 24 bits"
        )
        return precision, reason
    if precision != "auto":
        return precision, "as configured"
    if unit is not None:
        return "bfloat16", f"{device_name} has {unit}"
    has_float16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= VOLTA
    hint = "; try trainer.precision=float16" if has_float16 else ""
    return "float32", f"{device_name} has no bfloat16 arithmetic{hint}"


def bfloat16_unit(device: torch.device) -> str | None:
    """Return the name of the unit of a device that computes bfloat16, or None without one."""
    if device.type == "cuda":
        return "tensor cores" if torch.cuda.get_device_capability(device) >= AMPERE else None
    flags = torch.cpu.get_capabilities()
    if flags.get("amx_bf16"):
        return "AMX"
    return "AVX512-BF16" if flags.get("avx512_bf16") else None


def set_tf32(is_on: bool) -> None:
    """Set whether float32 products and convolutions of this process round their factors to TF32.

    torch allows it for convolutions by default. torch has two types of switches, and raises an
    error if one type is read after the other was set. Lightning 2.6 and torch's compiler read the
    older ones, so the newer ones are reset (torch 2.15).
    """
    torch.backends.fp32_precision = "none"  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.fp32_precision = "none"
    torch.backends.cudnn.allow_tf32 = is_on
    torch.set_float32_matmul_precision("high" if is_on else "highest")


def end_training_precision(trainer: Trainer, module: LightningModule) -> None:
    """Make a module compute in float32 from now on, or in float64 if its weights are float64.

    The result is the same on every machine.
    """
    set_tf32(False)
    if isinstance(module, Classifier):
        module.autocast = None
    elif trainer.precision == "bf16-mixed":
        trainer.strategy.precision_plugin = Precision()


@contextmanager
def keep_float32() -> Iterator[None]:
    """Restore the settings by which torch multiplies float32 after the block.

    See `set_tf32`. Older switches that torch does not allow to read are skipped.
    """
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    # Switches come after the switches that contain them.
    switches: list[Any] = [torch.backends, cudnn, cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul]  # pyright: ignore[reportAttributeAccessIssue]
    switches += [mkldnn, mkldnn.conv, mkldnn.matmul, mkldnn.rnn]  # pyright: ignore[reportAttributeAccessIssue]
    # The stack restores the last one first.
    with ExitStack() as stack:
        for switch in reversed(switches):
            stack.callback(setattr, switch, "fp32_precision", switch.fp32_precision)
        with suppress(RuntimeError):
            stack.callback(setattr, cudnn, "allow_tf32", cudnn.allow_tf32)
        with suppress(RuntimeError):
            products = torch.get_float32_matmul_precision()
            stack.callback(torch.set_float32_matmul_precision, products)
        yield


def resolve_device(config: Config, gpus: tuple[int, ...], world: World) -> torch.device:
    """Return the device of this process, and make it torch's current one.

    On a CPU, freed memory is kept by the process.
    """
    if not gpus:
        keep_freed_memory()
        return torch.device("cpu")
    number = gpus[world.local_rank]
    if torch.cuda.device_count() <= number:
        raise RuntimeError(
            f"trainer.devices={config.trainer.devices}: torch {torch.__version__} finds "
            f"{torch.cuda.device_count()} GPUs (no CUDA in it, or an old driver?): "
            "strategy=cpu needs none."
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
