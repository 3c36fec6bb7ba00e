"""POSIX semaphores in memory that processes share, by the C library: Python's own have names, and cost more.

sem_post and sem_wait order what was written and read before the one against what is read and written after the other
(POSIX, section 4.12, memory synchronization), also on processors that order memory weakly.
"""

import ctypes
import math
import time


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Semaphores:
    """The C library's semaphores by their address. `post` and `has_taken` keep Python's lock: they never wait."""

    def __init__(self) -> None:
        at_once, waiting = ctypes.PyDLL(None), ctypes.CDLL(None)
        self._init, self._post, self._try = at_once.sem_init, at_once.sem_post, at_once.sem_trywait
        self._wait = waiting.sem_clockwait  # since glibc 2.30; sem_timedwait would follow a clock that is set
        self._init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
        self._post.argtypes = self._try.argtypes = (ctypes.c_void_p,)
        self._wait.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Timespec))

    def make(self, address: int) -> None:
        """Count from zero, for several processes. Raises OSError where the C library cannot."""
        if self._init(address, 1, 0):
            raise OSError("sem_init failed")

    def post(self, address: int) -> None:
        """Raise the count of a semaphore by one."""
        self._post(address)

    def has_taken(self, address: int) -> bool:
        """Lower the count by one if it is above zero. Returns whether it was."""
        return self._try(address) == 0

    def wait(self, address: int, most_s: float) -> bool:
        """Wait at most `most_s` to lower the count by one. Returns whether it did; a signal ends the wait, too."""
        until = time.monotonic() + most_s
        seconds = math.floor(until)
        limit = _Timespec(seconds, int((until - seconds) * 1e9))
        return self._wait(address, time.CLOCK_MONOTONIC, ctypes.byref(limit)) == 0
