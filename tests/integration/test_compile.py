"""A compiled network computes what the eager one does.

It is compiled once, not again for ragged batches.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lockstep.models.layout import CompiledNetwork
from tests.support.compiler import needs_compiler
from tests.support.exact import trained
from tests.support.harness import difference, own_network, train_all, write_run
from tests.support.modules import classifier

pytestmark = pytest.mark.full

OWN = [
    *own_network("Plain"),
    "data.train_size=66",  # a last batch of two samples: an empty shard, and a ragged one
]


@needs_compiler
@pytest.mark.filterwarnings("ignore")  # of the compiler's own imports
def test_graphs_of_ragged_batches() -> None:
    from torch._dynamo.utils import counters

    module = classifier(nn.Sequential(nn.Flatten(), nn.Linear(9, 4)), compiler=CompiledNetwork)
    pixels = torch.arange(8 * 9).to(torch.uint8).view(8, 1, 3, 3)
    counters.clear()
    expected = [module.net._call_impl((pixels[:size] - 127.5) / 63.75) for size in range(9)]
    for is_training, sizes in ((True, (4, 4, 1, 0, 4)), (False, (8, 3, 8, 0))):
        module.train(is_training)
        with torch.set_grad_enabled(is_training):
            for size in sizes:
                torch.testing.assert_close(module(pixels[:size]), expected[size])
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


@needs_compiler
@pytest.mark.processes
def test_compiled_any_workers(tmp_path: Path, figure: Any) -> None:
    eager = trained(tmp_path / "eager", OWN)
    settings = ("compile=true", "trainer.devices=2", "trainer.worker_weights=[3,1]")
    compiled = write_run(tmp_path / "compiled", [*OWN, *settings])
    train_all([compiled], 2)
    worst = difference(eager, compiled)
    figure(f"compiled, 2 workers: largest difference to one eager process {worst:.1e}")
    assert worst <= 1e-9, "the compiler rounds in its own way, in float64 too"
