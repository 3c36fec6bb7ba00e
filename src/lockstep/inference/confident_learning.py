"""Labels that disagree with the probabilities of networks not trained on them.

This module computes confident learning (Northcutt, Jiang and Chuang 2021, arXiv:1911.00068) on
arrays. The result is that of cleanlab's `find_label_issues` with filter_by="confident_learning".
Labels (N,) are class numbers, and probabilities are (N, K).
"""

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Probabilities = NDArray[np.float64]

CLOSE = 1e-6  # Probabilities closer than this count as equal, as in cleanlab.
TEMPERATURES = np.geomspace(0.1, 5, 81)
NUM_DRAWS = 20


def thresholds(labels: Labels, probabilities: Probabilities) -> Probabilities:
    """Return the mean probability of each class on the images with its label (K,).

    The value is 2 for a class without any image.
    """
    count = probabilities.shape[1]
    sizes = np.bincount(labels, minlength=count)
    sums = np.bincount(labels, _of_labels(labels, probabilities), count)
    return np.where(sizes > 0, np.maximum(sums / np.maximum(sizes, 1), 2 * CLOSE), 2.0)


def confident_classes(labels: Labels, probabilities: Probabilities) -> Labels:
    """Return the class whose threshold is reached (N,), or -1 if there is none.

    If several classes reach their threshold, it is the most probable one.
    """
    reached = probabilities >= thresholds(labels, probabilities) - CLOSE
    several = reached.sum(1) > 1
    return np.where(
        reached.any(1), np.where(several, probabilities.argmax(1), reached.argmax(1)), -1
    )


def suspicious(labels: Labels, probabilities: Probabilities) -> NDArray[np.bool_]:
    """Return whether another class is the confident one, and more probable than the label (N,)."""
    classes = confident_classes(labels, probabilities)
    raised_probabilities = probabilities.copy()
    raised_probabilities[np.arange(len(labels)), labels] += CLOSE
    return (classes >= 0) & (classes != labels) & (raised_probabilities.argmax(1) != labels)


def order(labels: Labels, probabilities: Probabilities) -> Labels:
    """Return the rows in order, the most suspicious first (N,).

    Suspicious labels come first, and then the least probable ones.
    """
    return np.lexsort((_of_labels(labels, probabilities), ~suspicious(labels, probabilities)))


def calibrate(labels: Labels, probabilities: Probabilities) -> tuple[Probabilities, float]:
    """Return the probabilities at the best temperature, and the fraction of wrong labels.

    The temperature fits the labels best. A label is wrong with the same probability for all images,
    and is then any other class. The likelihood of both is maximized by the EM algorithm at each of
    TEMPERATURES, so that wrong labels do not make the probabilities less confident. The fraction is
    at most 0.5. If most labels of two classes are wrong, the names are swapped.
    """
    num_others = probabilities.shape[1] - 1
    logits = np.log(np.maximum(probabilities, CLOSE / 2))  # A file has six decimals.
    logits -= logits.max(1, keepdims=True)

    def fit(temperature: float) -> tuple[float, float, float]:
        powers, fraction = np.exp(logits / temperature), 0.1
        likelihoods = _of_labels(labels, powers) / powers.sum(1)
        for _ in range(100):
            noise = fraction * (1 - likelihoods) / num_others
            fraction = min(float(np.mean(noise / (noise + (1 - fraction) * likelihoods))), 0.5)
        return (
            float(
                np.log(
                    (1 - fraction) * likelihoods + fraction * (1 - likelihoods) / num_others
                ).mean()
            ),
            temperature,
            fraction,
        )

    _, temperature, fraction = max(map(fit, TEMPERATURES))
    powers = np.exp(logits / temperature)
    return powers / powers.sum(1, keepdims=True), fraction


def expected(probabilities: Probabilities, calibrated: Probabilities) -> float:
    """Return the expected number of suspicious labels if all are right.

    The labels are drawn from `calibrated`, and the result is the mean of NUM_DRAWS draws.
    """
    draws, sums = np.random.default_rng(0), calibrated.cumsum(1)
    counts = []
    for _ in range(NUM_DRAWS):
        labels = (sums > draws.random((len(sums), 1)) * sums[:, -1:]).argmax(1)
        counts.append(int(suspicious(labels, probabilities).sum()))
    return float(np.mean(counts))


def _of_labels(labels: Labels, probabilities: Probabilities) -> Probabilities:
    return probabilities[np.arange(len(labels)), labels]
