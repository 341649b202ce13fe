"""Races of the two cores of a pair on a shared HBM tensor, detected per element in any order of the threads.

Only `core_barrier` on that tensor and collectives order the cores. Whether a collective waits for earlier accesses of
the *partner* core is not documented; `trust_partner` assumes that it does.
"""
import threading

import numpy as np

from .faults import refuse

BY_COLLECTIVE = 4


class RaceGuard:
    """Per element, the writers and readers since the last barrier. Bit 1: core 0; 2: core 1; 4: a collective."""

    def __init__(self, elements, trust_partner):
        self.lock = threading.Lock()
        self.writers = np.zeros(elements, np.uint8)
        self.readers = np.zeros(elements, np.uint8)
        self.trust_partner = trust_partner

    def read(self, window, name, core_index):
        mine = 1 << core_index
        with self.lock:
            if (window(self.writers) & (3 - mine)).any():
                refuse(name, "race: read without a core_barrier after the other core wrote it")
            readers = window(self.readers)
            np.bitwise_or(readers, np.uint8(mine), out=readers)

    def write(self, window, name, core_index):
        mine = 1 << core_index
        foreign_readers = (3 - mine) if self.trust_partner else (3 - mine) | BY_COLLECTIVE
        with self.lock:
            if (window(self.writers) & (3 - mine)).any():
                refuse(name, "race: written by both cores without a core_barrier in between")
            seen = window(self.readers) & foreign_readers
            if (seen & 3).any():
                refuse(name, "race: written without a core_barrier after the other core read it")
            if seen.any():
                refuse(name, "race: written without a core_barrier after a collective sent it")
            window(self.writers)[...] = mine

    def collective_read(self, window, name):
        with self.lock:
            if window(self.writers).any():
                refuse(name, "race: sent without a core_barrier after a core wrote it")
            readers = window(self.readers)
            np.bitwise_or(readers, np.uint8(BY_COLLECTIVE), out=readers)

    def collective_write(self, window, name):
        with self.lock:
            if not self.trust_partner and (window(self.writers).any() or (window(self.readers) & 3).any()):
                refuse(name, "race: a collective overwrites it without a core_barrier after a core used it")
            window(self.writers)[...] = 0
            window(self.readers)[...] = 0

    def barrier(self):
        with self.lock:
            self.writers[...] = 0
            self.readers[...] = 0
