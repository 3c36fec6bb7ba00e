import hashlib

import torch
from torch import nn

from lockstep.models.weights_hash import weights_hash


def test_names_types_shapes_bytes() -> None:
    expected = b"a int16 [2, 1]\n\x01\x00\x02\x01" + b"b float32 []\n\x00\x00\x80\x3f"
    found = weights_hash(
        {"b": torch.tensor(1.0), "a": torch.tensor([[1], [258]], dtype=torch.int16)}
    )
    assert found == hashlib.sha256(expected).hexdigest()


def test_layout_and_order_ignored() -> None:
    torch.manual_seed(0)
    values = {
        "conv.weight": torch.randn(4, 3, 2, 2),
        "norm.num_batches_tracked": torch.tensor(7),
        "bias": torch.randn(4).bfloat16(),
        "empty": torch.zeros(0, 3),
        "mask": torch.tensor([True, False]),
    }
    expected = weights_hash(values)
    values["conv.weight"] = values["conv.weight"].contiguous(memory_format=torch.channels_last)
    assert not values["conv.weight"].is_contiguous()
    values["bias"] = nn.Parameter(values["bias"].repeat_interleave(2)[::2])
    assert weights_hash(dict(reversed(values.items()))) == expected
    assert weights_hash({**values, "layer._extra_state": {"version": 1}}) == expected
