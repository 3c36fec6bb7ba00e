"""A drawing of an epoch over three workers: `python -m tests.support.shards > docs/images/shards.svg`.

The picture of docs/exactness.md; who owns what is asked of the sampler itself.
"""

from lockstep.data.sampler import GlobalBatches
from lockstep.distributed.partition import Shard
from tests.support.svg import page

NUM_SAMPLES, MICRO_BATCH, PER_STEP, LOADS = 22, 5, 2, (2, 1, 1)
CELL, LEFT, RIGHT, TOP, ROW = 34, 192, 56, 76, 50  # pixels
GAP_OF_PARTS, GAP_OF_STEPS = 8, 30
STYLE = """
  .middle { text-anchor: middle }
  .cell { stroke-width: 1.2 }
  .own0 { fill: #cfe3fb; stroke: #2f6fb8 }
  .own1 { fill: #fbe0b8; stroke: #a8690c }
  .own2 { fill: #cdeed6; stroke: #2c7f49 }
  .free { fill: none; stroke: #d1d9e0 }
  .empty { fill: none; stroke: #59636e; stroke-dasharray: 4 3 }
  @media (prefers-color-scheme: dark) {
    .own0 { fill: #16365c; stroke: #5b9be3 }
    .own1 { fill: #4d3408; stroke: #d79b3c }
    .own2 { fill: #12402a; stroke: #4fb374 }
    .free { stroke: #2a313a }
    .empty { stroke: #9198a1 }
  }"""


def shards() -> list[list[Shard]]:
    """The shares of each rank, one for every micro-batch of the epoch."""
    batches = [
        GlobalBatches(
            NUM_SAMPLES,
            global_batch_size=MICRO_BATCH * PER_STEP,
            accumulate_grad_batches=PER_STEP,
            shuffle_seed=None,
            rank=rank,
            loads=LOADS,
            num_batches=None,
        )
        for rank in range(len(LOADS))
    ]
    return [[found.shard for found in each] for each in batches]


def drawing() -> str:
    """The picture as SVG, light or dark as the page around it."""
    of_rank = shards()
    num_ranks, world = len(LOADS), range(len(LOADS))
    bottom = TOP + ROW * (num_ranks + 1)
    parts = [_label(0, "order of the epoch", "from seed and epoch")]
    parts += [_label(rank + 1, f"worker {rank}", f"load {LOADS[rank]} of {sum(LOADS)}") for rank in world]
    for micro_step, found in enumerate(zip(*of_rank, strict=True)):
        shard = found[0]
        first = shard.step * MICRO_BATCH * PER_STEP  # of this step in the order of the epoch
        begin = micro_step * MICRO_BATCH
        left = _x(begin)
        middle = left + shard.size * CELL // 2
        if begin == first:
            width = CELL * shard.group_size + GAP_OF_PARTS * (-(-shard.group_size // MICRO_BATCH) - 1)
            parts.append(
                _text(left + width // 2, 30, f"step {shard.step + 1}: {shard.group_size} images", "name middle")
            )
            scale = f"loss: sum &#215; {num_ranks} / {shard.group_size}"
            parts.append(_text(left + width // 2, bottom + 22, scale, "middle"))
        parts.append(_text(middle, TOP - 12, f"micro-batch of {shard.size}", "note middle"))
        for rank, own in enumerate(found):
            for place in range(begin, begin + shard.size):
                is_own = own.lo <= place - first < own.hi
                if is_own:
                    parts += [_cell(place, 0, f"own{rank}"), _number(place, 0, place - first)]
                    parts += [_cell(place, rank + 1, f"own{rank}"), _number(place, rank + 1, place - first)]
                elif not own.is_empty:
                    parts.append(_cell(place, rank + 1, "free"))
            if own.is_empty:
                y = TOP + ROW * (rank + 1)
                box = f'x="{left}" y="{y}" width="{shard.size * CELL - 3}" height="{CELL - 3}"'
                parts.append(f'<rect class="empty" {box} rx="4"/>')
                parts.append(_text(middle, y + 20, "empty", "note middle"))
    note = "A number is a position in the global batch: it decides which image is there and what is drawn for it."
    parts.append(_text(24, bottom + 54, note, "note"))
    width = _x(NUM_SAMPLES - 1) + CELL + RIGHT
    return page(width, bottom + 74, f"An epoch of {NUM_SAMPLES} images over three workers", parts, STYLE)


def _x(place: int) -> int:
    """The left end of a place in the order of the epoch."""
    num_parts, num_steps = place // MICRO_BATCH, place // (MICRO_BATCH * PER_STEP)
    return LEFT + place * CELL + (num_parts - num_steps) * GAP_OF_PARTS + num_steps * GAP_OF_STEPS


def _text(x: int, y: int, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{text}</text>'


def _label(row: int, name: str, about: str) -> str:
    y = TOP + ROW * row
    return _text(24, y + 14, name, "") + _text(24, y + 31, about, "note")


def _cell(place: int, row: int, kind: str) -> str:
    box = f'x="{_x(place)}" y="{TOP + ROW * row}" width="{CELL - 3}" height="{CELL - 3}"'
    return f'<rect class="cell {kind}" {box} rx="4"/>'


def _number(place: int, row: int, number: int) -> str:
    return _text(_x(place) + (CELL - 3) // 2, TOP + ROW * row + 20, str(number), "middle")


if __name__ == "__main__":
    print(drawing())
