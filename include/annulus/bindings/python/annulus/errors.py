"""The errors of the library as exceptions."""

from __future__ import annotations

import warnings
from difflib import get_close_matches
from typing import Any, Collection, Dict, NoReturn, Sequence


class Error(RuntimeError):
    """An error of the library: rank that detected it, step of the ring, neighbour that caused it; -1: not known."""

    status = 1

    def __init__(self, message: str, rank: int = -1, step: int = -1, neighbour: int = -1):
        super().__init__(message)
        self.rank, self.step, self.neighbour = rank, step, neighbour


class ShapeError(Error, ValueError):
    """Extents do not match."""

    status = 2


class UnsupportedError(Error, ValueError):
    """An invalid or unsupported option or operand."""

    status = 3


class CommunicationError(Error):
    """A peer is lost, late, or was called with different arguments."""

    status = 4


class OutOfMemoryError(Error, MemoryError):
    """Not enough memory."""

    status = 5


def place(value: str, words: Sequence[str], name: str) -> int:
    """The place of a word among those that an enumeration of annulus.h stands for."""
    if value not in words:
        raise UnsupportedError(f"{name} is {value!r}; accepted: {', '.join(words)}")
    return words.index(value)


def refuse_name(kind: str, name: str, accepted: Collection[str]) -> NoReturn:
    """Raises a TypeError for an argument of an unknown name, with the accepted name that is most alike."""
    alike = get_close_matches(name, accepted, 1)
    meant = f"did you mean {alike[0]!r}? " if alike else ""
    raise TypeError(f"unknown {kind} {name!r}; {meant}accepted: {', '.join(accepted)}")


#: Arguments that have another name since version 0.1.
_RENAMED = {"group": "ranks_per_group", "query_segments": "query_documents", "key_segments": "key_documents",
            "segments": "document_ids"}


def by_new_names(given: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments, those with deprecated names under the new ones."""
    for name in given:
        if name in _RENAMED:
            warnings.warn(f"{name} is deprecated: use {_RENAMED[name]}", DeprecationWarning, stacklevel=4)
    return {_RENAMED.get(name, name): value for name, value in given.items()}
