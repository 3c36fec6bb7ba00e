"""Hash the weights of a network, so that two trainings can be compared by eye."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def weights_hash(state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the tensors of a state_dict, as 64 hex digits.

    Tensors are hashed in the order of their names. For each, `<name> <dtype> <shape>` and a line
    feed are hashed, as in "conv1.weight float32 [64, 3, 7, 7]". Its numbers follow in the order of
    indices, little-endian. Memory layout and device do not matter.
    """
    code = hashlib.sha256()
    for name, value in sorted(state.items()):
        if isinstance(value, Tensor):  # A custom layer may add other objects.
            code.update(
                f"{name} {str(value.dtype).removeprefix('torch.')} {list(value.shape)}\n".encode()
            )
            code.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return code.hexdigest()
