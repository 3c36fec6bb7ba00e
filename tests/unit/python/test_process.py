"""What holds for a whole process is after a block as it was before it."""

import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.python.process import float32_kept, unchanged
from lockstep.system.process import no_garbage_collection
from lockstep.system.signals import STOP_SIGNALS, SignalFlag
from lockstep.training.precision import set_tf32


def torch_random() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


# by what is kept: how it is read, and what a training may do to it
KEPT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "random": (random.getstate, lambda: random.seed(7)),
    "numpy": (lambda: str(np.random.get_state()), lambda: np.random.seed(7)),
    "torch": (torch_random, lambda: torch.manual_seed(7)),
    "deterministic": (torch.are_deterministic_algorithms_enabled, lambda: torch.use_deterministic_algorithms(True)),
    "cudnn": (lambda: torch.backends.cudnn.benchmark, lambda: setattr(torch.backends.cudnn, "benchmark", True)),
    "threads": (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    "dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "gradients": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "products": (torch.get_float32_matmul_precision, lambda: set_tf32(True)),
    "sys.path": (lambda: list(sys.path), lambda: sys.path.insert(0, "elsewhere")),
    "a new variable": (lambda: dict(os.environ), lambda: os.environ.update(LOCKSTEP_NEW="1")),
    "a variable": (lambda: os.environ["PATH"], lambda: os.environ.update(PATH="")),
    "warnings": (lambda: list(warnings.filters), lambda: warnings.filterwarnings("ignore", message="never")),
    "loggers": (
        lambda: logging.getLogger("lightning.pytorch").level,
        lambda: logging.getLogger("lightning.pytorch").setLevel(logging.CRITICAL),
    ),
    "threads that fail": (lambda: threading.excepthook, lambda: setattr(threading, "excepthook", print)),
    "blocked signals": (
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]),
    ),
    "what is no garbage": (gc.get_freeze_count, lambda: freeze()),
}


def freeze() -> None:
    with no_garbage_collection():
        pass


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    """Whatever a test leaves that should have been put back harms no other."""
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize("what", KEPT)
def test_what_a_training_changes_is_put_back(what: str) -> None:
    read, change = KEPT[what]
    gc.unfreeze()
    before = read()
    with unchanged():
        change()
        assert read() != before
    assert read() == before


@pytest.mark.parametrize("what", KEPT)
def test_what_a_training_changes_is_put_back_when_it_fails(what: str) -> None:
    read, change = KEPT[what]
    gc.unfreeze()
    before = read()

    def fail() -> None:
        with unchanged():
            change()
            raise ValueError("half of it is done")

    with pytest.raises(ValueError, match="half"):
        fail()
    assert read() == before


class Circle:
    """What nothing but garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_what_a_training_leaves_in_circles_is_freed() -> None:
    with unchanged(), no_garbage_collection():
        left = weakref.ref(Circle())
    assert left() is None


def float32_switches() -> list[Any]:
    places = [torch.backends, torch.backends.cudnn, torch.backends.cudnn.conv, torch.backends.cuda.matmul]  # pyright: ignore[reportAttributeAccessIssue]
    new = [place.fp32_precision for place in places]
    return [*new, torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("has_tf32", [True, False])
@pytest.mark.parametrize("is_on", [True, False])
def test_float32_is_multiplied_as_before(precision: str, has_tf32: bool, is_on: bool) -> None:
    with float32_kept():
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = has_tf32  # pyright: ignore[reportAttributeAccessIssue]
        before = float32_switches()
        with float32_kept():
            set_tf32(is_on)
        assert float32_switches() == before


def test_float32_is_multiplied_as_before_where_only_the_newer_switches_say_it() -> None:
    with float32_kept():
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with float32_kept():
            set_tf32(False)
            assert torch.backends.cuda.matmul.fp32_precision != "tf32"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def in_a_thread(work: Callable[[], Any]) -> Any:
    """What `work` returns in another thread, or the exception that it raises."""
    found: list[Any] = []

    def do() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=do)
    thread.start()
    thread.join()
    return found[0]


def test_a_second_thread_is_told_to_wait() -> None:
    def enter() -> None:
        with unchanged():
            pass

    with unchanged():
        error = in_a_thread(enter)
    assert isinstance(error, RuntimeError)
    assert "wait for its end" in str(error)
    assert in_a_thread(enter) is None


def test_another_thread_than_the_main_one_takes_no_signals() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    flag = SignalFlag()

    def take() -> list[Any]:
        with flag.installed():
            return [signal.getsignal(number) for number in STOP_SIGNALS]

    assert in_a_thread(take) == before
    assert flag.received == 0
