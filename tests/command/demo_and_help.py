"""The demo on short texts, its progress bar, and --help."""

import os
import pty
import re
import subprocess
import sys
import tempfile

ANNULUS = sys.argv[1]


def run(*arguments):
    return subprocess.run([ANNULUS, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)


def stderr_on_terminal(*arguments):
    """The output on stderr if it is a terminal; stdout is a file. None where the system opens no pseudo-terminal."""
    try:
        ours, theirs = pty.openpty()
    except OSError as error:  # a container without /dev/pts
        print(f"skipped: the progress bar on a terminal ({error})")
        return None
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([ANNULUS, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=theirs)
        os.close(theirs)
        seen = b""
        try:
            while piece := os.read(ours, 4096):
                seen += piece
        except OSError:  # Linux reports the end of a terminal as an error
            pass
        assert process.wait() == 0
    return seen.decode()


small = ["demo", "--tokens", "300", "--ranks", "4", "--head-dim", "16"]
done = run(*small)
assert done.returncode == 0, done
assert done.stderr == "", done.stderr
assert "\r" not in done.stdout and "###" not in done.stdout, done.stdout
for word in ("300 tokens", "4 simulated ranks", "time", "GFLOP/s", "of the multiply-add peak of", "sent by a rank", "peak memory of a rank", "scores of full attention",
             "contiguous", "striped", "zigzag", "largest relative error", "bound"):
    assert word in done.stdout, (word, done.stdout)

# One core and one rank are singular.
cores = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(cores)})
alone = run("demo", "--tokens", "64", "--ranks", "1", "--head-dim", "8")
os.sched_setaffinity(0, cores)
assert "1 simulated rank\n" in alone.stdout and "peak of 1 core (" in alone.stdout, alone

# Rounding errors of float are not 0, and they are small.
error, bound = (float(x) for x in re.search(r"largest relative error +(\S+) +bound (\S+)", done.stdout).groups())
assert 0 < error <= bound < 1e-4, (error, bound)
assert float(re.search(r"zigzag (\d\S+)", done.stdout)[1]) < float(re.search(r"contiguous (\d\S+)", done.stdout)[1])

bar = stderr_on_terminal(*small)
assert bar is None or "forward and backward" in bar and "dense check" in bar and "%" in bar and "\r" in bar, bar

# The text is read and changes the results.
with tempfile.NamedTemporaryFile(suffix=".txt") as text:
    text.write(b"one ring to attend over them all " * 3)
    text.flush()
    other = run(*small, "--text", text.name)
    assert other.returncode == 0 and text.name in other.stdout, other
    errors = [re.search(r"\(output.*\)", run_of.stdout)[0] for run_of in (done, other)]
    assert errors[0] != errors[1], errors

# Texts whose gradients cancel: one byte, equal bytes, two alternating bytes, zeros.
for content in (b"x", b"a" * 500, b"ab" * 200, b"\0" * 7, b"\0", bytes(range(256))):
    with tempfile.NamedTemporaryFile(suffix=".txt") as text:
        text.write(content)
        text.flush()
        for shape in (["--tokens", "300"], ["--tokens", "1"], ["--tokens", "2000", "--heads", "2", "--kv-heads", "1"]):
            done = run("demo", "--ranks", "4", "--head-dim", "16", *shape, "--text", text.name)
            assert done.returncode == 0 and done.stderr == "", (content[:8], shape, done)
            error, bound = (float(x) for x in re.search(r"largest relative error +(\S+) +bound (\S+)", done.stdout).groups())
            assert 0 < error <= bound < 1e-4, (content[:8], shape, error, bound)

# Shapes: one rank, more ranks than tokens, one kv head, as many kv heads as query heads.
for shape in (["--ranks", "1"], ["--tokens", "3", "--ranks", "7"], ["--tokens", "1"], ["--tokens", "70", "--kv-heads", "1"],
              ["--heads", "3", "--kv-heads", "3"]):
    done = run("demo", "--head-dim", "8", *shape, *([] if "--tokens" in shape else ["--tokens", "64"]))
    assert done.returncode == 0, done

for arguments in ([], ["attend"], ["demo"], ["plan"]):
    done = run(*arguments, "--help")
    assert done.returncode == 0 and done.stderr == "" and "Usage: annulus" in done.stdout, done
assert "out.npy" in run("attend", "--help").stdout and "last" in run("attend", "--help").stdout
for option in ("q k v dout out-dir ranks comm sharding block rotation schedule schedule-group wire backend dtype threads axes causal window sink-tokens chunk scale softcap "
               "query-offset bias bias-gradient mask q-segments kv-segments sinks joint-k joint-v dropout seed require-finite verify trace").split():
    assert "--" + option in run("attend", "--help").stdout, option

done = run("--version")
assert done.returncode == 0 and done.stderr == "" and re.fullmatch(r"annulus \d+\.\d+\.\d+\n", done.stdout), done

# An instruction set that does not exist.
environment = {**os.environ, "ANNULUS_CPU_TARGET": "avx1"}
done = subprocess.run([ANNULUS, *small], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, env=environment)
assert done.returncode == 2 and done.stdout == "", done
assert re.fullmatch(r"annulus: .*ANNULUS_CPU_TARGET is 'avx1'; this processor accepts: [a-z].*\n", done.stderr), done

print("ok")
