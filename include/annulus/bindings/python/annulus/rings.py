"""Rings: one rank, simulated ranks in this process, the ranks of an mpi4py communicator."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from ctypes import byref, c_int, c_void_p
from typing import Any, Callable, Deque, List, Optional

from . import library
from .errors import Error, UnsupportedError, place
from .library import check, integer_of


class AttentionHandles:
    """Frees the attention objects of a ring on the thread that uses the ring: the garbage collector may run on any."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # garbage may be collected while it is held
        self._thread: Optional[int] = None  # that uses the ring; None: none does, any thread may free
        self._ring_is_freed = False
        self._handles: Deque[c_void_p] = deque()

    def ring_used_here(self) -> None:
        """This thread uses the ring from now on."""
        with self._lock:
            self._thread = None if self._ring_is_freed else threading.get_ident()
            self._free()

    def ring_freed(self) -> None:
        self._ring_is_freed, self._thread = True, None
        self._free_if_permitted()

    def free_later(self, handle: c_void_p) -> None:
        """Frees an object, now or when the ring is used next."""
        self._handles.append(handle)
        self._free_if_permitted()

    def _free_if_permitted(self) -> None:
        # Called by the garbage collector, possibly while this thread holds the lock of another ring: it must not wait.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._thread in (None, threading.get_ident()):
                self._free()
        finally:
            self._lock.release()

    def _free(self) -> None:
        try:
            while True:
                library.c.annulus_attention_free(self._handles.popleft())
        except IndexError:
            pass


def _free_ring(handle: c_void_p, handles: AttentionHandles) -> None:
    library.c.annulus_ring_free(handle)
    handles.ring_freed()


class Ring:
    """One rank of a ring; by itself a ring of one rank."""

    def __init__(self) -> None:
        handle = c_void_p()
        check(library.c.annulus_ring_self(byref(handle)))
        self._own(handle)

    def _own(self, handle: c_void_p) -> None:
        self._handle: Optional[c_void_p] = handle
        self.attention_handles = AttentionHandles()
        self._free = weakref.finalize(self, _free_ring, handle, self.attention_handles)

    @property
    def handle(self) -> c_void_p:
        """annulus_ring*. Raises Error if the ring is closed."""
        if self._handle is None:
            raise Error("the ring is closed; accepted: a ring that is open; those of run_ring are open in its function")
        return self._handle

    @property
    def rank(self) -> int:
        return library.c.annulus_ring_rank(self.handle)

    @property
    def size(self) -> int:
        return library.c.annulus_ring_size(self.handle)

    def close(self) -> None:
        """Leaves the ring; the same as its destruction."""
        self._handle = None
        self._free()

    def __enter__(self) -> "Ring":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ring_options(timeout: float, zero_copy: str) -> Any:
    if not abs(timeout) < 2**53:  # NaN too
        raise UnsupportedError(f"timeout is {timeout} s; accepted: 0.001 to 2**53 seconds, exclusive")
    return library.RingOptions(int(timeout * 1000), place(zero_copy, library.ZERO_COPY, "zero_copy"))


class MpiRing(Ring):
    """The ranks of an mpi4py communicator. Collective. timeout: longest wait of a rank, in seconds."""

    def __init__(self, communicator: Any, timeout: float = 600.0, zero_copy: str = "automatic"):
        handle = c_void_p()
        check(library.load("annulus_c_mpi").annulus_ring_from_mpi(
            communicator.py2f(), byref(_ring_options(timeout, zero_copy)), byref(handle)))
        self._own(handle)


class _SimulatedRing(Ring):
    def __init__(self, handle: int):
        self._handle = c_void_p(handle)
        self.attention_handles = AttentionHandles()

    def close(self) -> None:
        self.attention_handles.ring_used_here()
        self._handle = None


def run_ring(ranks: int, function: Callable[[Ring], Any], timeout: float = 600.0,
             zero_copy: str = "automatic") -> List[Any]:
    """Calls function(ring) on `ranks` threads that form a ring, and returns what they return, in rank order. The
    exception of a rank is raised again; the others then get a CommunicationError."""
    count = integer_of(ranks, c_int, "ranks")
    results: List[Any] = [None] * max(ranks, 0)
    rings: List[_SimulatedRing] = []
    exceptions = {}

    def run(handle: int, _: Any) -> int:
        with _SimulatedRing(handle) as ring:
            rings.append(ring)
            rank = ring.rank
            try:
                results[rank] = function(ring)
                return 0
            except BaseException as error:  # an exception must not leave a callback of ctypes
                exceptions[rank] = error
                status = error.status if isinstance(error, Error) else 6
                message = f"{type(error).__name__}: {error}".encode()
                return library.c.annulus_set_error(byref(library.Error(status, rank, -1, -1, message)))

    options = _ring_options(timeout, zero_copy)
    status = library.c.annulus_run_ring(count, library.RankFunction(run), None, byref(options))
    for ring in rings:
        ring.attention_handles.ring_freed()
    if status != 0:
        failed = library.c.annulus_last_error().rank
        if failed in exceptions:
            raise exceptions[failed]
    check(status)
    return results
