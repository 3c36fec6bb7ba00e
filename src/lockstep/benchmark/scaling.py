"""What a step is made of, and what it becomes on more workers. Pure arithmetic on measured times.

An all-reduce of n bytes over W workers costs t = 2 R * latency + 2 (W-1)/W * n / bandwidth, with R rounds of messages:
W-1 in a ring (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms"), ceil(log2 W) by recursive halving
and doubling (Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH"; a
little more where W is no power of two) and in the two trees of NCCL (Sanders, Speck and Träff 2009, "Two-tree
algorithms for full bandwidth broadcast, reduction and scan"). gloo sends rings, which is what its latency is taken
from; a prediction assumes trees, which is what libraries for many workers take.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from lockstep.system.wording import plural

FAR = (8, 64, 1024)  # workers a prediction is made for
MIB = 2**20
STEADY = 0.15
STEADIER = (
    "Something else is likely at work on this machine: end it, or give this more time (benchmark.budget_s, "
    "benchmark.probe_s, benchmark.probe_steps), and repeat it."
)
PAYS = 1.1  # a smaller factor is no gain, its inverse no loss: runs differ by that much


@dataclass(frozen=True)
class Spread:
    """The median of `count` measurements, their extremes, and their median absolute deviation from the median."""

    median: float
    low: float
    high: float
    deviation: float
    count: int

    @property
    def error(self) -> float:
        """Two standard errors of the median: 1.4826 deviation estimates sigma, sqrt(pi/2) sigma/sqrt(n) its error."""
        return 2 * math.sqrt(math.pi / 2) * 1.4826 * self.deviation / math.sqrt(self.count)


def spread(values: Sequence[float]) -> Spread:
    """Median, extremes, deviation and number of at least one value."""
    middle = median(values)
    return Spread(middle, min(values), max(values), median(abs(value - middle) for value in values), len(values))


@dataclass(frozen=True)
class Terms:
    """What one optimizer step of `num_workers` is made of, in seconds.

    `communication` is the full step less the same step without synchronization, pair by pair; `message` and `gradient`
    are all-reduces of one number and of all gradients. The three are None for a single worker.
    A step makes `num_all_reduces`, of buckets of gradients and in each batch norm backward, and `num_all_gathers`, in
    each batch norm forward.
    """

    num_workers: int
    step: Spread
    input: Spread
    compute: Spread
    communication: Spread | None
    message: Spread | None
    gradient: Spread | None
    gradient_bytes: int
    num_all_reduces: int
    num_all_gathers: int
    backend: str | None = None  # gloo or nccl, what the workers talked by; None: a single worker

    @property
    def is_unsteady(self) -> bool:
        """Whether steps vary so much that their medians say nothing."""
        return any(is_unsteady(step_s) for step_s in (self.step, self.compute))

    @property
    def communication_s(self) -> float:
        """The median time of communication in a step, in seconds, never below 0."""
        return max(0.0, self.communication.median) if self.communication is not None else 0.0

    @property
    def is_noise(self) -> bool:
        """Whether the measured communication cannot be told from nothing."""
        return self.communication is not None and self.communication.median <= self.communication.error

    @property
    def total_s(self) -> float:
        """One step with the fetching of its batch."""
        return self.compute.median + self.input.median + self.communication_s

    def shares(self) -> dict[str, float]:
        """Parts of the time of a step; they sum to 1."""
        parts = {"compute": self.compute.median, "input": self.input.median}
        if self.communication is not None:
            parts["communication"] = self.communication_s
        return {name: value / self.total_s for name, value in parts.items()}


def is_unsteady(measured: Spread | None) -> bool:
    """Whether half of the measurements are further from the median than `STEADY` of it."""
    return measured is not None and measured.deviation > STEADY * measured.median


def tree_rounds(num_workers: int) -> int:
    """Rounds of messages in which a number reaches all workers: each round doubles those that have it."""
    return (num_workers - 1).bit_length()


def measured_rounds(terms: Terms) -> int:
    """Rounds of the all-reduces that were measured: gloo sends rings, NCCL trees where they are faster."""
    return tree_rounds(terms.num_workers) if terms.backend == "nccl" else terms.num_workers - 1


@dataclass(frozen=True)
class Network:
    """What connects the workers, as the two all-reduces show it. A bandwidth too large to be seen is infinite."""

    latency_s: float
    bytes_per_s: float

    def step_s(self, terms: Terms, num_workers: int, num_rounds: int) -> float:
        """Communication of the step of `terms` by `num_workers`: its collectives one after the other.

        An all-gather is half an all-reduce; what batch norms send is small, so that only its latency counts.
        """
        latency_s = (2 * terms.num_all_reduces + terms.num_all_gathers) * num_rounds * self.latency_s
        return latency_s + 2 * (num_workers - 1) / num_workers * terms.gradient_bytes / self.bytes_per_s


def network(terms: Terms) -> Network | None:
    """The latency and bandwidth that the all-reduces of a run tell of; None where only one worker was measured."""
    if terms.num_workers < 2 or terms.message is None or terms.gradient is None:
        return None
    moving_s = terms.gradient.median - terms.message.median
    moved = 2 * (terms.num_workers - 1) / terms.num_workers * terms.gradient_bytes
    latency_s = terms.message.median / (2 * measured_rounds(terms))
    return Network(latency_s, moved / moving_s if moving_s > 0 else math.inf)


@dataclass(frozen=True)
class Prediction:
    """One step of `num_workers`, each computing what a worker computed when it was measured."""

    num_workers: int
    communication_s: float
    step_s: float
    efficiency: float


def synchronization_s(terms: Terms) -> float:
    """What synchronization costs beyond its messages: merging batch statistics, and waiting. Not below 0."""
    return max(0.0, terms.communication_s - messages_s(terms))


def messages_s(terms: Terms) -> float:
    """What the messages of a step take by the model, sent as they were when it was measured."""
    between = network(terms)
    return between.step_s(terms, terms.num_workers, measured_rounds(terms)) if between is not None else 0.0


def predict(terms: Terms, num_workers: int) -> Prediction | None:
    """Weak scaling: T(W) = compute + input + synchronization + communication(W), efficiency T(1) / T(W).

    T(1) is compute + input; nothing overlaps; messages go along trees. None where communication was not measured, and
    where steps vary so much that nothing can be said.
    """
    between = network(terms)
    if between is None or terms.is_unsteady:
        return None
    alone_s = terms.compute.median + terms.input.median
    communication_s = between.step_s(terms, num_workers, tree_rounds(num_workers))
    step_s = alone_s + communication_s + (synchronization_s(terms) if num_workers > 1 else 0.0)
    return Prediction(num_workers, communication_s, step_s, alone_s / step_s)


def num_buckets(gradient_bytes: int, bucket_mib: int) -> int:
    """All-reduces DDP cuts the gradients into: a first one of at most 1 MiB, then of `bucket_mib`."""
    return 1 + math.ceil(max(0, gradient_bytes - MIB) / (bucket_mib * MIB))


@dataclass(frozen=True)
class Result:
    """What the words about an environment need; `device` is cpu or gpu, `epoch_s` the time of its epochs."""

    name: str
    device: str
    num_workers: int
    images_per_s: float
    terms: Terms | None
    epoch_s: Spread | None = None

    @property
    def unsteady(self) -> str:
        """What varied too much to say anything of speed, from the shortest to the longest; "" where all was steady."""
        if self.terms is not None and self.terms.is_unsteady:
            times = self.terms.step if is_unsteady(self.terms.step) else self.terms.compute
            return f"steps took {milliseconds(times.low)} to {milliseconds(times.high)}"
        if self.epoch_s is not None and is_unsteady(self.epoch_s):
            return f"epochs took {self.epoch_s.low:.3g} s to {self.epoch_s.high:.3g} s"
        return ""


def verdict(results: Sequence[Result]) -> list[str]:
    """Whether more workers pay, and why: a sentence or two for each environment with several."""
    words: list[str] = []
    for result in results:
        if result.num_workers < 2:
            continue
        alone = next((r for r in results if r.device == result.device and r.num_workers == 1), None)
        words.append(" ".join(filter(None, [_comparison(result, alone), _reason(result), _forecast(result)])))
    if not words:
        return [
            "No environment with several workers was measured, so communication is unknown: whether more workers pay "
            "is not said, and nothing is predicted."
        ]
    return words


def _comparison(result: Result, alone: Result | None) -> str:
    who = f"{result.name} ({plural(result.num_workers, 'worker')})"
    if alone is None:
        return f"{who}: no single worker on the same device was measured, so that there is nothing to compare it with."
    unsteady = " and ".join(f"in {run.name} {run.unsteady}" for run in (alone, result) if run.unsteady)
    if unsteady:
        return (
            f"{who}: {unsteady}, half of them more than {STEADY:.0%} off their median, so that nothing is said of "
            f"whether more workers pay. {STEADIER}"
        )
    factor = result.images_per_s / alone.images_per_s
    pays = "more workers pay" if factor >= PAYS else "more workers cost" if factor <= 1 / PAYS else "it makes no odds"
    text = f"{who} trains {factor:.2f} times the images per second of {alone.name}: {pays}."
    if result.device == "cpu":
        return text + " Both use the same cores, so that sharing them among processes adds no arithmetic."
    return text


def _reason(result: Result) -> str:
    terms = result.terms
    if terms is None:
        return "What a step is made of was not measured."
    if terms.is_unsteady:
        return "What a step is made of is not said either, nor what it becomes with more workers."
    parts = ", ".join(f"{percent(part)} {name}" for name, part in terms.shares().items())
    text = f"Of a step of {milliseconds(terms.total_s)}, {parts}."
    if terms.communication is None:
        return text
    if terms.is_noise:
        error = milliseconds(terms.communication.error)
        return f"{text} Communication is within the noise of the measurement, {error}."
    shares = terms.shares()
    largest = "input" if shares["input"] > shares["communication"] else "communication"
    if shares[largest] < 0.1:
        return f"{text} Neither input nor communication takes a tenth: the arithmetic of the network is what counts."
    return f"{text} What is not arithmetic is mostly {largest}."


def _forecast(result: Result) -> str:
    terms = result.terms
    far = [p for p in (predict(terms, n) for n in FAR) if p is not None] if terms is not None else []
    if terms is None or not far:
        return ""
    predictions = ", ".join(f"{percent(p.efficiency)} with {p.num_workers:,}" for p in far)
    comparison = (
        f"{milliseconds(messages_s(terms))} a step by the model, {milliseconds(terms.communication_s)} were measured"
    )
    more = "the rest is the merging of batch statistics and waiting"
    why = more if synchronization_s(terms) > 0 else "it overstates them here"
    return (
        f"Its messages take {comparison}: {why}. Predicted efficiency: {predictions} workers, if their network is like "
        "the one measured here and messages go along trees."
    )


def percent(part: float) -> str:
    """A part as a percentage of two digits."""
    return f"{part:.0%}" if part >= 0.0995 else f"{part:.1%}" if part >= 0.00095 else "under 0.1%"


def milliseconds(seconds: float) -> str:
    """Seconds in ms, to three digits."""
    value = 1000 * seconds
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"
