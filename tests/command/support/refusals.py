"""Checks of calls that must be refused."""

import os

from command import run

calls = []


def listing():
    """All files and folders, with the time at which each file was written."""
    there = {(folder, name) for folder, folders, names in os.walk(".") for name in folders + names}
    return {(folder, name, os.path.isdir(os.path.join(folder, name)) or os.lstat(os.path.join(folder, name)).st_mtime_ns)
            for folder, name in there}


def refused(*arguments, says):
    """Status 2, one line with all of the words, and the same files as before."""
    calls.append(arguments)
    before = listing()
    done = run(*arguments)
    assert done.returncode == 2, (arguments, done)
    assert done.stdout == "", (arguments, done)
    assert done.stderr.startswith("annulus: ") and done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), (arguments, done)
    assert all(32 <= ord(c) != 127 for c in done.stderr[:-1]), (arguments, done)
    for word in [says] if isinstance(says, str) else says:
        assert word in done.stderr, (arguments, word, done.stderr)
    assert listing() == before, arguments
