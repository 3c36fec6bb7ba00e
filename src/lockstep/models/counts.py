"""The sums of an epoch behind its training means, continued after a stop by any number of ranks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.distributed.collectives import gather_objects, sum_over_ranks


class EpochCounts:
    """Sums of losses, weights, samples and scores of this epoch on this rank, in float64.

    `scored` are the names of the scores. No buffers: DDP would give every rank those of rank 0.
    """

    def __init__(self, scored: Sequence[str]) -> None:
        self._scored = tuple(scored)
        self.own = torch.zeros(3 + len(self._scored), dtype=torch.float64)
        self._logged = torch.zeros_like(self.own)

    def to(self, device: torch.device) -> None:
        self.own, self._logged = self.own.to(device), self._logged.to(device)

    def add(
        self, loss: Tensor, weights: Tensor | None, scores: Iterable[Tensor], *, num_samples: int
    ) -> None:
        """Add a shard: the sum of its losses, weights (B,) where samples have them, and of each score (B,)."""
        loss_sum, weight_sum, sample_count, *score_sums = self.own
        loss_sum += loss
        weight_sum += num_samples if weights is None else weights.sum()
        sample_count += num_samples
        for score_sum, score in zip(score_sums, scores, strict=True):
            score_sum += score.sum()

    def global_sums(self, *, is_end: bool) -> tuple[Tensor, Tensor]:
        """Return the sums since the last call and those of the epoch, which `is_end` resets, on the device.

        Every rank must call it.
        """
        counts = sum_over_ranks(self.own)
        since = counts - self._logged
        self._logged.copy_(counts)
        if is_end:
            self.own.zero_()
            self._logged.zero_()
        return since, counts

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of each rank. Every rank must call it."""
        return {"counts": gather_objects(self.own.tolist()), "logged_counts": self._logged.tolist()}

    def load_state_dict(self, state: Mapping[str, Any], rank: int, world_size: int) -> None:
        """Load the sums of this rank; of another number of ranks, their sums into rank 0."""
        rows = torch.tensor(state["counts"], dtype=torch.float64)
        if len(rows) == world_size:
            self.own = rows[rank].clone()
        else:
            self.own = rows.sum(0) if rank == 0 else torch.zeros_like(rows[0])
        self._logged = torch.tensor(state["logged_counts"], dtype=torch.float64)

    def means(self, sums: Sequence[float]) -> dict[str, float]:
        loss_sum, weight_sum, num_samples, *score_sums = sums
        scores = {
            name: _ratio(total, num_samples)
            for name, total in zip(self._scored, score_sums, strict=True)
        }
        return {"loss": _ratio(loss_sum, weight_sum), **scores}


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan
