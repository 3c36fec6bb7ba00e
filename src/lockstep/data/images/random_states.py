"""Set the global random states that custom code draws from, and restore them afterwards."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def keep_random_states() -> Iterator[None]:
    """Restore the global states of torch (CPU), NumPy and `random` at the end."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def set_random_states(seed: int) -> None:
    """Set the global states of torch (CPU), NumPy and `random`, where 0 <= `seed` < 2**32."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed the GPUs.
    np.random.seed(seed)
    random.seed(seed)
