"""Estimate speed and remaining time of a training from the times at which its batches end."""

from dataclasses import dataclass


@dataclass
class Phase:
    """The activity of a run, the time of its start, and the progress of an evaluation in batches.

    The time is that of the monotonic clock.
    """

    name: str
    since: float
    num_batches: int = 0
    num_done: int = 0


class Pace:
    """Measures the times of the batches of each epoch, in seconds of one clock.

    The first `num_warm_up` batches of an epoch are not measured. The first one compiles and
    allocates, and the host launches some more before it waits for a GPU.
    """

    def __init__(self, *, num_warm_up: int) -> None:
        self._num_warm_up = num_warm_up
        self.num_batches = self.num_done = 0
        # These are the batches of this process, and the images after the warm-up.
        self._num_seen = self._num_images = 0
        self._warm = (0.0, 0)  # time and number of batches at the end of the warm-up
        self._last = self._other_s = 0.0
        self._num_ended = 0
        self._is_inside = False
        self._batch_s: float | None = None
        self.images_per_s: float | None = None

    @property
    def has_begun(self) -> bool:
        """Return whether the first batch of this training is done."""
        return self._last > 0

    def start(self, num_batches: int) -> None:
        """Start or resume an epoch. The first finished batch tells how many batches are done."""
        self.num_batches, self.num_done, self._num_seen, self._is_inside = num_batches, 0, 0, True

    def count_batch(self, now: float, num_done: int, num_images: int) -> None:
        """Count a batch with `num_images` images, after which `num_done` of the epoch are done."""
        if self._num_ended and self.num_batches <= self._num_warm_up:  # All batches are warm-up.
            self._batch_s = now - self._last
        self._last, self.num_done = now, num_done
        self._num_seen += 1
        if self._num_seen <= self._num_warm_up:
            self._warm, self._num_images = (now, num_done), 0
            return
        self._num_images += num_images
        since, num_before = self._warm
        elapsed_s = max(now - since, 1e-9)
        self._batch_s = elapsed_s / (num_done - num_before)
        self.images_per_s = self._num_images / elapsed_s

    def end_epoch(self, now: float) -> None:
        """Add the time since the last batch, which is mostly validation.

        The same time is expected after later epochs.
        """
        self._other_s += now - self._last
        self._num_ended += 1
        self._last, self.num_done, self._is_inside = now, self.num_batches, False

    def epoch_left_s(self, now: float) -> float | None:
        """Return the seconds until the last batch of the epoch, or None while speed is unknown."""
        if self._batch_s is None:
            return None
        left_s = self._batch_s * (self.num_batches - self.num_done)
        return max(0.0, left_s - (now - self._last)) if left_s else 0.0

    def left_s(self, now: float, num_later_epochs: int) -> float | None:
        """Return the seconds until the end of the training, or None while the speed is unknown.

        In the first epoch, the validation is not included, because its time is not known yet.
        """
        epoch_left_s = self.epoch_left_s(now)
        if epoch_left_s is None or self._batch_s is None:
            return None
        other_s = self._other_s / self._num_ended if self._num_ended else 0.0
        later_s = num_later_epochs * (self.num_batches * self._batch_s + other_s)
        return epoch_left_s + self._is_inside * other_s + later_s
