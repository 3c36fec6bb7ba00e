import hashlib

import pytest
import torch
from torch import Tensor, nn

from lockstep.models.weights_hash import weights_hash


def state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "conv.weight": torch.randn(4, 3, 2, 2),
        "norm.num_batches_tracked": torch.tensor(7),
        "bias": torch.randn(4).bfloat16(),
        "empty": torch.zeros(0, 3),
        "mask": torch.tensor([True, False]),
    }


def test_the_hash_is_that_of_names_types_shapes_and_bytes() -> None:
    expected = b"a int16 [2, 1]\n\x01\x00\x02\x01" + b"b float32 []\n\x00\x00\x80\x3f"
    found = weights_hash({"b": torch.tensor(1.0), "a": torch.tensor([[1], [258]], dtype=torch.int16)})
    assert found == hashlib.sha256(expected).hexdigest()


def test_layout_order_gradients_and_what_is_no_tensor_do_not_matter() -> None:
    values, expected = state(), weights_hash(state())
    values["conv.weight"] = values["conv.weight"].contiguous(memory_format=torch.channels_last)
    assert not values["conv.weight"].is_contiguous()
    values["bias"] = nn.Parameter(values["bias"].repeat_interleave(2)[::2])
    assert weights_hash(dict(reversed(values.items()))) == expected
    assert weights_hash({**values, "layer._extra_state": {"version": 1}}) == expected


@pytest.mark.parametrize("change", ["bit", "sign of zero", "name", "shape", "type", "one less"])
def test_any_other_bit_name_shape_or_type_has_another_hash(change: str) -> None:
    values = {**state(), "zero": torch.zeros(1)}
    before = weights_hash(values)
    match change:
        case "bit":
            values["bias"].view(torch.int16)[3] ^= 1
        case "sign of zero":
            values["zero"] *= -1
        case "name":
            values["base"] = values.pop("bias")
        case "shape":
            values["conv.weight"] = values["conv.weight"].view(4, 3, 4, 1)
        case "type":
            values["mask"] = values["mask"].to(torch.uint8)
        case _:
            del values["empty"]
    assert weights_hash(values) != before
