"""Named cases that run a program, each in a folder of its own. A failure shows the last command line and its output.

A script ends with main(). `script.py ARGUMENT... -k window -k bias` runs the cases whose names hold one of the words.
Exit status 1: a case failed, or none has that name; 77: all were skipped.
"""

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
_last_call = "no program has run"


def arguments():
    """Removes and returns the arguments of the script, which -k may follow."""
    end = sys.argv.index("-k") if "-k" in sys.argv else len(sys.argv)
    taken, sys.argv[1:end] = sys.argv[1:end], []
    return taken


def note(done):
    """Keeps the command line and the end of the output of a program for the message of a failure."""
    global _last_call
    output = "\n".join((stream or "")[-3000:] for stream in (done.stdout, done.stderr))
    _last_call = f"$ {shlex.join(map(os.fsdecode, done.args))}\nstatus {done.returncode}\n{output}"
    return done


def run(*words, **how):
    """Runs a program to its end. how: arguments of subprocess.run."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return note(subprocess.run([*map(str, words)], **{**pipes, "text": True, "timeout": 300, **how}))


@contextlib.contextmanager
def environment(**variables):
    """Sets these environment variables within the context; None removes one."""
    before = dict(os.environ)
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _shows_last_call():
    try:
        yield
    except unittest.SkipTest:
        raise
    except Exception as error:
        error.args = (f"{error}\n{_last_call}",)
        raise


def listing():
    """All files and folders below the working directory, with the time at which each file was written."""
    there = [os.path.join(folder, name) for folder, folders, names in os.walk(".") for name in folders + names]
    return {(path, os.path.isdir(path) or os.lstat(path).st_mtime_ns) for path in there}


class Case(unittest.TestCase):
    """Cases of one program. The working directory of each is a temporary folder."""

    program = None  # its path, for one_line and refuses
    maxDiff = 2000

    def __init__(self, name="runTest"):
        super().__init__(name)
        if name != "runTest":
            setattr(self, name, _shows_last_call()(getattr(self, name)))

    @contextlib.contextmanager
    def subTest(self, *message, **parameters):
        with super().subTest(*message, **parameters), _shows_last_call():
            yield

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="annulus-test-", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)

    def contains(self, text, *words):
        for word in words:
            self.assertIn(word, text)

    def one_line(self, done, status, *words):
        """The status, nothing on stdout and one line on stderr, of printable characters, with all of the words and
        without names of C++."""
        self.assertEqual((done.returncode, done.stdout or ""), (status, ""))
        self.assertRegex(done.stderr, rf"\A{os.path.basename(self.program)}: [^\x00-\x1f\x7f]+\n\Z")
        self.assertNotRegex(done.stderr, r"\w::\w|[a-z]_[a-z]+ (is|are|=) ")
        self.contains(done.stderr, *words)

    def refuses(self, arguments, *words):
        """Status 2, one line with all of the words, and the same files as before."""
        before = listing()
        self.one_line(run(self.program, *arguments), 2, *words)
        self.assertEqual(listing(), before)

    def refuses_all(self, table, begin=(), end=()):
        """table: rows of a command line, without what all begin and end with, and words of its message."""
        for line, *words in table:
            with self.subTest(line):
                self.refuses([*begin, *shlex.split(line), *end], *words)


def main():
    result = unittest.main(exit=False, verbosity=2).result
    if result.wasSuccessful() and result.testsRun <= len(result.skipped):
        sys.exit(SKIPPED if result.skipped else "no case has that name")
    sys.exit(not result.wasSuccessful())
