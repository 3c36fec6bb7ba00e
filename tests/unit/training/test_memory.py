"""What a person reads when memory did not suffice."""

from collections.abc import Callable

import pytest
import torch

from lockstep.config import compose, validation
from lockstep.config.schema import Config
from lockstep.training.memory import explained, out_of_memory

CUDA = torch.device("cuda", 1)
SAID = (
    "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 79.10 GiB of which 120.50 MiB is "
    "free. Process 17 has 60.00 GiB memory in use."
)


def config_of(*texts: str) -> Config:
    return validation.checked(compose.composed([*texts, "strategy=cpu"]))


def raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def training_step() -> None:
    raise torch.OutOfMemoryError(SAID)


def forward() -> None:
    raise torch.OutOfMemoryError(SAID)


def load() -> None:
    raise MemoryError


def text(error: BaseException, config: Config, device: torch.device = CUDA, **facts: object) -> list[str]:
    given = {"precision": "bfloat16", "has_bfloat16": True, "rank": 0, "loads": (1,), "log": "runs/a/rank0.log"}
    return explained(error, config, device, **{**given, **facts}).splitlines()  # pyright: ignore[reportArgumentType]


def settings(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines[2:-1]]


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "A Card")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (2**20, 80 * 2**30))
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda device: 15 * 2**30)


def test_device_batch_and_settings_are_named() -> None:
    config = config_of("global_batch_size=512", "trainer.accumulate_grad_batches=2")
    assert text(raised(training_step), config, rank=1, loads=(1, 3), log="runs/a/rank1.log") == [
        "rank 1 of 2 ran out of memory in a training step: it asked for 512.00 MiB more, and 120.50 MiB were free. "
        "Its tensors held up to 15.00 GiB of cuda:1 (A Card, 80.00 GiB).",
        "A step has 512 images in 2 micro-batches, up to 192 of them on this worker at once. What needs less memory:",
        "  trainer.accumulate_grad_batches=4  the same training, each step computed in 4 parts; only batch norm sees "
        "the difference",
        "  data.memory=host                   pixels that are on the GPU stay in host memory; the numbers are the same",
        "  global_batch_size=256              another training: the learning rate has to be found anew",
        "The traceback is in runs/a/rank1.log.",
    ]


def test_parts_of_a_step_divide_its_images() -> None:
    for size, more in ((9, "3"), (7, "7"), (10, "2")):
        found = settings(text(raised(training_step), config_of(f"global_batch_size={size}")))
        assert found[0] == f"trainer.accumulate_grad_batches={more}"
    assert settings(text(raised(training_step), config_of("global_batch_size=1"))) == ["data.memory=host"]


def test_only_what_can_help_is_proposed() -> None:
    step = raised(training_step)
    assert settings(text(step, config_of(), precision="float32"))[1] == "trainer.precision=bfloat16"
    assert "trainer.precision=bfloat16" not in settings(
        text(step, config_of(), precision="float32", has_bfloat16=False)
    )
    assert "data.memory=host" not in settings(text(step, config_of("data.memory=host")))
    assert "data.memory=host" not in settings(text(step, config_of(), torch.device("cpu")))
    graphs = settings(text(step, config_of("compile=reduce-overhead")))
    assert (graphs[0], len(graphs)) == ("compile=true", 3)
    assert "compile=true" not in settings(text(step, config_of("compile=reduce-overhead"), torch.device("cpu")))


def test_an_evaluation_is_cut_into_smaller_batches() -> None:
    lines = text(raised(forward), config_of("eval_batch_size=500"))
    assert lines[0].startswith("rank 0 of 1 ran out of memory in an evaluation: it asked for 512.00 MiB more")
    assert settings(lines)[0] == "eval_batch_size=250"
    assert text(raised(forward), config_of("eval_batch_size=500"), log=None) == lines[:-1]


def test_data_that_does_not_fit_goes_elsewhere(tmp_path: object) -> None:
    lines = text(raised(load), config_of("data=image_folder", f"data.root={tmp_path}"), torch.device("cpu"))
    assert lines[0].startswith("rank 0 of 1 ran out of memory. The process held up to")
    assert settings(lines)[0] == "data.memory=stream"
    assert settings(text(raised(load), config_of()))[0] == "data.memory=host"


def test_the_refusal_of_an_allocator_is_found_below_what_followed_from_it() -> None:
    def follows() -> None:
        try:
            training_step()
        except RuntimeError as error:
            raise ValueError("the graph cannot be compiled") from error

    def answered() -> None:
        try:
            training_step()
        except RuntimeError:
            raise ValueError("something else") from None

    assert isinstance(out_of_memory(raised(follows)), torch.OutOfMemoryError)
    assert out_of_memory(raised(answered)) is None
    assert out_of_memory(RuntimeError("the shapes differ")) is None
    real = raised(lambda: torch.empty(2**52, dtype=torch.uint8))
    assert out_of_memory(real) is real
