"""Reading ahead: the next batches are made by a thread while the last one is worked on."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _End:
    """The last thing the thread hands over: why there is no more."""

    error: BaseException | None


def read_ahead(items: Iterable[T], depth: int, prepare: Callable[[T], T]) -> Iterator[T]:
    """Yield `prepare(item)` of every item, in order; a thread is up to `depth` of them ahead of the one handed out.

    What an item raises is raised in its place. The thread has ended when the iteration has, also when it is left early.
    """
    done: SimpleQueue[Any] = SimpleQueue()
    slots = Semaphore(depth)
    is_left = Event()

    def work() -> None:
        error = None
        try:
            source = iter(items)
            while slots.acquire() and not is_left.is_set():
                done.put(prepare(next(source)))
        except StopIteration:
            pass
        except BaseException as raised:  # handed over to the thread that asked
            error = raised
        done.put(_End(error))

    thread = Thread(target=work, name="read ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := done.get(), _End):
            slots.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        is_left.set()
        slots.release()
        thread.join()
