"""cuDNN's search in a fit, seen from the network: the flag works without a GPU."""

from collections.abc import Iterator

import lightning as L
import pytest
import torch
from torch import Tensor, nn

from lockstep.callbacks.cudnn import NUM_PLANS, CudnnSearch
from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.data.sampler import GlobalBatches
from tests.support.modules import classifier

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec.* is deprecated")


class Sees(nn.Sequential):
    """A network that records, in each pass: whether it trains, its images, and whether cuDNN searches."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(9, 4))
        self.seen: list[tuple[bool, int, bool]] = []

    def forward(self, input: Tensor) -> Tensor:
        self.seen.append((self.training, len(input), torch.backends.cudnn.benchmark))
        return super().forward(input)


@pytest.fixture
def net() -> Iterator[Sees]:
    """A network after two epochs of 3 + 1 micro-batches, each with a validation."""
    net, limit = Sees(), torch.backends.cudnn.benchmark_limit
    trainer = L.Trainer(
        max_epochs=2,
        num_sanity_val_steps=0,
        accelerator="cpu",
        logger=False,
        callbacks=[CudnnSearch(8)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    images = ShardDataset(torch.zeros(14, 1, 3, 3, dtype=torch.uint8), torch.arange(14) % 4)

    def loader(size: int, parts: int) -> ShardLoader:
        settings = {"shuffle_seed": None, "rank": 0, "loads": [1], "num_batches": None}
        batches = GlobalBatches(14, global_batch_size=size, accumulate_grad_batches=parts, **settings)  # pyright: ignore[reportArgumentType]
        return ShardLoader(images, batches)

    trainer.fit(classifier(net, accumulate_grad_batches=2), loader(8, 2), loader(8, 1))
    yield net
    assert torch.backends.cudnn.benchmark_limit == NUM_PLANS
    torch.backends.cudnn.benchmark_limit = limit


def test_only_whole_global_batches_are_searched_for_and_no_evaluation_is(net: Sees) -> None:
    training = [(True, 4, True), (True, 4, True), (True, 4, False), (True, 2, False)]
    assert net.seen == [*training, (False, 8, False), (False, 6, False)] * 2
    assert not torch.backends.cudnn.benchmark
