"""Count the sums of an epoch behind its training means.

After a stop, any number of ranks can continue them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.distributed.collectives import gather_objects, sum_over_ranks

Metrics = dict[str, float]  # values by `<split>/<name>`


class EpochCounts:
    """Sums of losses, weights, samples and scores of this epoch on this rank, in float64.

    `scored` has the names of the scores. The sums are not buffers, because DDP would broadcast
    those of rank 0 to every rank.
    """

    def __init__(self, scored: Sequence[str]) -> None:
        self._scored = tuple(scored)
        self.local_sums = torch.zeros(3 + len(self._scored), dtype=torch.float64)
        self._logged = torch.zeros_like(self.local_sums)

    def to(self, device: torch.device) -> None:
        self.local_sums, self._logged = self.local_sums.to(device), self._logged.to(device)

    def add(
        self, loss: Tensor, weights: Tensor | None, scores: Iterable[Tensor], *, num_samples: int
    ) -> None:
        """Add the sums of losses, weights and scores of a shard.

        Weights are (B,), or None if samples have none. Each score is (B,).
        """
        loss_sum, weight_sum, sample_count, *score_sums = self.local_sums
        loss_sum += loss
        weight_sum += num_samples if weights is None else weights.sum()
        sample_count += num_samples
        for score_sum, score in zip(score_sums, scores, strict=True):
            score_sum += score.sum()

    def global_sums(self, *, is_end: bool) -> tuple[Tensor, Tensor]:
        """Return the sums since the last call and the sums of the epoch, on the device.

        `is_end` resets the sums of the epoch. Every rank must call it.
        """
        counts = sum_over_ranks(self.local_sums)
        since = counts - self._logged
        self._logged.copy_(counts)
        if is_end:
            self.local_sums.zero_()
            self._logged.zero_()
        return since, counts

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of each rank. Every rank must call it."""
        return {
            "counts": gather_objects(self.local_sums.tolist()),
            "logged_counts": self._logged.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any], rank: int, world_size: int) -> None:
        """Load the sums of this rank.

        If the number of ranks has changed, the total is loaded into rank 0.
        """
        rows = torch.tensor(state["counts"], dtype=torch.float64)
        if len(rows) == world_size:
            self.local_sums = rows[rank].clone()
        else:
            self.local_sums = rows.sum(0) if rank == 0 else torch.zeros_like(rows[0])
        self._logged = torch.tensor(state["logged_counts"], dtype=torch.float64)

    def means(self, prefix: str, sums: Sequence[float]) -> Metrics:
        """Return the means of loss and scores by `<prefix>/<name>`, or NaN without samples."""
        loss_sum, weight_sum, num_samples, *score_sums = sums
        means = {f"{prefix}/loss": loss_sum / weight_sum if weight_sum else math.nan}
        for name, total in zip(self._scored, score_sums, strict=True):
            means[f"{prefix}/{name}"] = total / num_samples if num_samples else math.nan
        return means
