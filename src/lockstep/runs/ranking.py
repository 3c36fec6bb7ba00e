"""The order of two epochs, or of two runs, by a monitored value.

It decides for best.ckpt, early stopping and sweeps.
"""

import math

LOSS = "val/loss"  # the metric that decides between equal values


def rank(value: float | None, loss: float | None, *, is_max: bool) -> tuple[bool, float, float]:
    """Return the key by which a monitored value is sorted, the best first.

    Of equal values, the one with the lower loss is better. A value that is missing or not finite is
    worse than all others, regardless of its loss.
    """
    if value is None or not math.isfinite(value):
        return True, 0.0, 0.0
    return (
        False,
        -value if is_max else value,
        math.inf if loss is None or math.isnan(loss) else loss,
    )
