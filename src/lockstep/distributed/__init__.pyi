from .batch_norm import ExactBatchNorm as ExactBatchNorm
from .collectives import sum_over_ranks as sum_over_ranks
from .rng import replace_dropout as replace_dropout
