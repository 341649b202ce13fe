"""The demo on short texts, its progress bar, and --help."""

import os
import pathlib
import pty
import re
import subprocess
import tempfile

from support.command import ANNULUS, Case, environment, main, run

SMALL = "demo --tokens 300 --ranks 4 --head-dim 16".split()
WORDS = ("300 tokens", "4 simulated ranks", "time", "GFLOP/s", "of the multiply-add peak of", "sent by a rank",
         "peak memory of a rank", "scores of full attention", "contiguous", "striped", "zigzag",
         "largest relative error", "bound")
# One rank, more ranks than tokens, one kv head, as many kv heads as query heads.
SHAPES = ["--tokens 64 --ranks 1", "--tokens 3 --ranks 7", "--tokens 1", "--tokens 70 --kv-heads 1",
          "--tokens 64 --heads 3 --kv-heads 3"]
# Their gradients cancel: one byte, equal bytes, two alternating bytes, zeros.
TEXTS = (b"x", b"a" * 500, b"ab" * 200, b"\0" * 7, b"\0", bytes(range(256)))
OPTIONS_OF_ATTEND = """q k v dout out-dir ranks comm sharding block rotation schedule schedule-group wire backend dtype
threads axes causal window sink-tokens chunk scale softcap query-offset bias bias-gradient mask q-segments kv-segments
sinks joint-k joint-v dropout seed require-finite verify trace""".split()


def stderr_on_terminal(*arguments):
    """The status, and the output on stderr if it is a terminal; stdout is a file."""
    ours, theirs = pty.openpty()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([ANNULUS, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=theirs)
        os.close(theirs)
        seen = b""
        try:
            while piece := os.read(ours, 4096):
                seen += piece
        except OSError:  # Linux reports the end of a terminal as an error
            pass
        os.close(ours)
        return process.wait(), seen.decode()


class Demo(Case):
    def demo(self, *arguments):
        done = run(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def check_error(self, text):
        """Rounding errors of float are not 0, and they are small."""
        error, bound = (float(x) for x in re.search(r"largest relative error +(\S+) +bound (\S+)", text).groups())
        self.assertTrue(0 < error <= bound < 1e-4, (error, bound))

    def test_prints_costs_shardings_and_errors(self):
        text = self.demo(*SMALL)
        self.contains(text, *WORDS)
        self.assertNotRegex(text, r"\r|###")
        self.check_error(text)
        of = {name: float(re.search(rf"{name} (\d\S+)", text)[1]) for name in ("zigzag", "contiguous")}
        self.assertLess(of["zigzag"], of["contiguous"])

    def test_one_core_and_one_rank_are_singular(self):
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        self.addCleanup(os.sched_setaffinity, 0, cores)
        self.contains(self.demo(*"demo --tokens 64 --ranks 1 --head-dim 8".split()), "1 simulated rank\n",
                      "peak of 1 core (")

    def test_progress_bar_on_a_terminal(self):
        try:
            status, bar = stderr_on_terminal(*SMALL)
        except OSError as error:
            self.skipTest(f"no pseudo-terminal, as in a container without /dev/pts: {error}")
        self.assertEqual(status, 0)
        self.contains(bar, "forward and backward", "dense check", "%", "\r")

    def test_the_text_changes_the_results(self):
        pathlib.Path("other.txt").write_bytes(b"one ring to attend over them all " * 3)
        text, other = self.demo(*SMALL), self.demo(*SMALL, "--text", "other.txt")
        self.contains(other, "other.txt")
        self.assertEqual(len({re.search(r"\(output.*\)", one)[0] for one in (text, other)}), 2)

    def test_texts_whose_gradients_cancel(self):
        for content in TEXTS:
            pathlib.Path("text.txt").write_bytes(content)
            for shape in ("--tokens 300", "--tokens 1", "--tokens 2000 --heads 2 --kv-heads 1"):
                with self.subTest(shape, content=content[:8]):
                    self.check_error(self.demo(*"demo --ranks 4 --head-dim 16 --text text.txt".split(), *shape.split()))

    def test_shapes(self):
        for shape in SHAPES:
            with self.subTest(shape):
                self.demo("demo", "--head-dim", "8", *shape.split())

    def test_instruction_set_that_does_not_exist(self):
        with environment(ANNULUS_CPU_TARGET="avx1"):
            self.refuses(SMALL, "ANNULUS_CPU_TARGET is 'avx1'; this processor accepts: ")


class Help(Case):
    def test_of_each_subcommand(self):
        for subcommand in ([], ["attend"], ["demo"], ["plan"]):
            with self.subTest(subcommand):
                done = run(*subcommand, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.contains(done.stdout, "Usage: annulus")

    def test_of_attend_names_its_results_and_options(self):
        self.contains(run("attend", "--help").stdout, "out.npy", "last",
                      *("--" + option for option in OPTIONS_OF_ATTEND))

    def test_version(self):
        done = run("--version")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\Aannulus \d+\.\d+\.\d+\n\Z")


main()
