"""One number for the weights of a network, to compare two trainings by reading it."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def weights_hash(state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the tensors of a state_dict, 64 hexadecimal digits.

    For each tensor, in the order of names: `<name> <dtype> <shape>` and a line feed, as in
    "conv1.weight float32 [64, 3, 7, 7]", then its numbers in the order of indices, little-endian.
    Memory layout and device do not matter.
    """
    code = hashlib.sha256()
    for name, value in sorted(state.items()):
        if isinstance(value, Tensor):  # a custom layer may add other things
            code.update(
                f"{name} {str(value.dtype).removeprefix('torch.')} {list(value.shape)}\n".encode()
            )
            code.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return code.hexdigest()
