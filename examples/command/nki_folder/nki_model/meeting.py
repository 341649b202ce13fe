"""Synchronization of threads at barriers and collectives. A failure or a deadlock wakes all of them."""
import threading

from .faults import refuse


class Aborted(BaseException):
    """Another thread failed; this one stops without a message."""


class _Slot:
    def __init__(self):
        self.values = {}
        self.label = None
        self.done = False


class World:
    """All threads of one launch. meet() is the only function in which a thread waits."""

    def __init__(self, threads, trust_partner):
        self.trust_partner = trust_partner
        self._changed = threading.Condition()
        self._slots = {}
        self._running = threads
        self._waiting = {}
        self._failed = False

    def meet(self, me, participants, place, label, value, action):
        """Waits until every participant is at `place`; the last one runs action({participant: value}).

        label: the instruction that the participant executes there; participants with different labels are refused.
        """
        with self._changed:
            self._stop_if_failed()
            slot = self._slots.setdefault(place, _Slot())
            if slot.label is None:
                slot.label = label
            elif slot.label != label:
                refuse("", f"{me} issues {label} where another one issues {slot.label}; the sequences must be equal")
            slot.values[me] = value
            if len(slot.values) == len(participants):
                action(slot.values)
                slot.done = True
                del self._slots[place]
                self._changed.notify_all()
                return
            self._waiting[me] = label
            try:
                self._refuse_deadlock()
                while not slot.done:
                    self._changed.wait()
                    if not slot.done:
                        self._stop_if_failed()
            finally:
                del self._waiting[me]

    def leave(self):
        """Call when a thread ends; returns the waiting threads if they are now deadlocked, else None."""
        with self._changed:
            self._running -= 1
            if self._waiting and not self._failed and self._all_stuck():
                self._failed = True
                self._changed.notify_all()
                return dict(self._waiting)
        return None

    def fail(self):
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def _all_stuck(self):
        open_places = sum(len(slot.values) for slot in self._slots.values())
        return open_places == self._running

    def _refuse_deadlock(self):
        if self._all_stuck():
            refuse("", f"deadlock: every running core waits and none can continue: {self._waiting}")

    def _stop_if_failed(self):
        if self._failed:
            raise Aborted()
