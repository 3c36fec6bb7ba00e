"""How fast a training goes, and when it will be through: told from the moments at which its batches end."""


class Pace:
    """Times of the batches of one epoch after the other; every moment is in seconds of one clock.

    The first `num_warm_up` batches of an epoch are not measured: the first one compiles and allocates, and on a GPU the
    host asks for some more before it has to wait for the device.
    """

    def __init__(self, *, num_warm_up: int) -> None:
        self._num_warm_up = num_warm_up
        self.num_batches = self.num_done = 0
        self._num_seen = self._num_images = 0  # batches of this process, and images after the warm-up
        self._warm = (0.0, 0)  # moment and batches at the end of the warm-up
        self._last = self._other_s = 0.0
        self._num_ended = 0
        self._is_inside = False
        self._batch_s: float | None = None
        self.images_per_s: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a batch of this training is through."""
        return self._last > 0

    def start(self, num_batches: int) -> None:
        """An epoch of so many batches begins, or goes on: its first batch that ends says how many are done."""
        self.num_batches, self.num_done, self._num_seen, self._is_inside = num_batches, 0, 0, True

    def batch_ended(self, now: float, num_done: int, num_images: int) -> None:
        """`num_done` batches of the epoch are through, the last one with so many images."""
        self._last, self.num_done = now, num_done
        self._num_seen += 1
        if self._num_seen <= self._num_warm_up:
            self._warm, self._num_images = (now, num_done), 0
            return
        self._num_images += num_images
        since, num_before = self._warm
        used = max(now - since, 1e-9)
        self._batch_s = used / (num_done - num_before)
        self.images_per_s = self._num_images / used

    def epoch_ended(self, now: float) -> None:
        """What came after the last batch, validation above all, will come after the others, too."""
        self._other_s += now - self._last
        self._num_ended += 1
        self._last, self.num_done, self._is_inside = now, self.num_batches, False

    def epoch_left_s(self, now: float) -> float | None:
        """Seconds until the last batch of the epoch; None before the speed is known."""
        if self._batch_s is None:
            return None
        left_s = self._batch_s * (self.num_batches - self.num_done)
        return max(0.0, left_s - (now - self._last)) if left_s else 0.0

    def left_s(self, now: float, num_later_epochs: int) -> float | None:
        """Seconds until the end of the training; None before the speed is known.

        Where no epoch has ended yet, nothing is known of the validation, and it is left out.
        """
        epoch_left_s = self.epoch_left_s(now)
        if epoch_left_s is None or self._batch_s is None:
            return None
        other_s = self._other_s / self._num_ended if self._num_ended else 0.0
        later_s = num_later_epochs * (self.num_batches * self._batch_s + other_s)
        return epoch_left_s + self._is_inside * other_s + later_s
