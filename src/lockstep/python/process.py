"""A process that goes on after a training, or after a network was loaded, is put back to where it was.

A command ends with its process, so that a training may set what holds for all of it: random states, switches of torch,
filters of warnings, the search path of Python. A notebook goes on.
"""

import contextlib
import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator

from lockstep.system.lazy_imports import lazy
from lockstep.system.process import no_garbage_collection

LOGGERS = ("lightning.pytorch", "lightning.fabric")
# where torch keeps how float32 is multiplied, below torch.backends; a part comes after what it is part of
FLOAT32 = (
    "",
    "cudnn",
    "cudnn.conv",
    "cudnn.rnn",
    "cuda.matmul",
    "mkldnn",
    "mkldnn.conv",
    "mkldnn.matmul",
    "mkldnn.rnn",
)

_busy = threading.Lock()


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Put this process back, after the block, to where it was before.

    Raises RuntimeError while another thread is in such a block: random states and switches are of the whole process.
    """
    if not _busy.acquire(blocking=False):
        raise RuntimeError(
            "Another thread of this process trains or loads a network: wait for its end, or use another process."
        )
    try:
        with contextlib.ExitStack() as kept:
            kept.callback(_free)
            with no_garbage_collection(), lazy():
                import torch  # noqa: F401  # before its states are read, the way a training imports it
            kept.enter_context(warnings.catch_warnings())
            kept.enter_context(_python_kept())
            kept.enter_context(_random_states_kept())
            kept.enter_context(_switches_kept())
            kept.enter_context(float32_kept())
            yield
    finally:
        _busy.release()


def _free() -> None:
    """Give back what a training leaves in circles, Lightning's Trainer with the network and the data for one."""
    gc.unfreeze()  # what `no_garbage_collection` and a fork have left out
    gc.collect()


@contextlib.contextmanager
def _python_kept() -> Iterator[None]:
    path, variables, hook = list(sys.path), dict(os.environ), threading.excepthook
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        threading.excepthook = hook
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})
        sys.path[:] = path


@contextlib.contextmanager
def _random_states_kept() -> Iterator[None]:
    import numpy as np
    import torch

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    had_cuda = torch.cuda.is_initialized()
    device, cuda_states = (torch.cuda.current_device(), torch.cuda.get_rng_state_all()) if had_cuda else (0, [])
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if had_cuda:
            torch.cuda.set_rng_state_all(cuda_states)
        elif torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(torch.initial_seed())  # as if it started now
        if torch.cuda.is_initialized():
            torch.cuda.set_device(device)


@contextlib.contextmanager
def _switches_kept() -> Iterator[None]:
    import torch

    cudnn = torch.backends.cudnn
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, cudnn_deterministic = cudnn.benchmark, cudnn.deterministic
    num_threads, dtype, has_gradients = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        if torch.are_deterministic_algorithms_enabled() != is_deterministic:  # torch imports its compiler to be told
            torch.use_deterministic_algorithms(is_deterministic, warn_only=only_warns)
        cudnn.benchmark, cudnn.deterministic = benchmark, cudnn_deterministic
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(has_gradients)


@contextlib.contextmanager
def float32_kept() -> Iterator[None]:
    """Have torch multiply float32 after the block as before it; see `lockstep.training.precision.set_tf32`.

    torch has older and newer switches for that. It raises where an older one is read after the newer were set to what
    it cannot say; then nobody reads it, and the newer ones are all there is to put back.
    """
    import torch

    cudnn, places = torch.backends.cudnn, [torch.backends]
    for name in filter(None, FLOAT32):
        place = torch.backends
        for part in name.split("."):
            place = getattr(place, part)
        places.append(place)
    before = [place.fp32_precision for place in places]  # pyright: ignore[reportAttributeAccessIssue]
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
            place.fp32_precision = precision  # pyright: ignore[reportAttributeAccessIssue]
