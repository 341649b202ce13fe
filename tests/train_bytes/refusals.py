"""Bad input of train_bytes: status 2, one line on stderr, and no file."""

import os
import subprocess
import sys
import tempfile

PROGRAM = os.path.abspath(sys.argv[1])


def refused(*arguments, says):
    before = sorted(os.listdir("."))
    done = subprocess.run([PROGRAM, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, (arguments, done)
    assert done.stdout == "", (arguments, done)
    assert done.stderr.startswith("train_bytes: ") and done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), (arguments, done)
    assert says in done.stderr, (arguments, says, done.stderr)
    assert sorted(os.listdir(".")) == before, arguments


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    with open("short.txt", "w") as file:
        file.write("too short")
    os.mkdir("empty")
    with open("text.txt", "w") as file:
        file.write("A line of text.\n" * 100)
    with open("curve.csv", "w") as file:
        file.write("step,bits_per_byte,gradient_norm,learning_rate\n0,8,1,0.1\n")

    for option in ["--ranks", "--steps", "--layers", "--width", "--heads", "--kv-heads", "--context", "--batch", "--generate"]:
        refused(option, "0", says=f"{option}: '0' is given; accepted: a whole number, 1 to")
        refused(option, "x", says="'x' is given")
    refused("--minutes", "-1", says="--minutes")
    refused("--minutes", "1", "--steps", "1", says="--steps")
    refused("--learning-rate", "nan", says="a number, 0 to 1")
    refused("--seed", "-1", says="--seed")
    refused("--clip", "0", says="--clip")
    refused("--warm-up", "-1", says="--warm-up")
    refused("--weight-decay", "-1", says="--weight-decay")
    refused("--comm", "tcp", says="accepted: sim|mpi")
    refused("--sharding", "ring", says="accepted: contiguous|striped|zigzag")
    refused("--dtype", "f16", says="accepted: f32|f64")
    refused("--heads", "4", "--kv-heads", "3", says="divides the number of heads")
    refused("--width", "36", says="a multiple of twice the heads")
    refused("--reproducible", "0", says="--reproducible: '0' is given; accepted: a whole number, 1 to")
    refused("--temperature", "1", says="--generate")
    refused("--generate", "1", "--temperature", "-1", says="--temperature")
    refused("--generate", "1", "--prompt", "", says="--prompt")
    refused("--unknown", says="--help")
    refused("word", says="--help")
    refused("--text", "absent.txt", says="absent.txt: cannot be read (No such file or directory)")
    refused("--text", "empty", says="empty: has no text")
    refused("--text", "short.txt", says="the text has 9 bytes")
    refused("--text", "text.txt", "--context", "8", "--csv", "absent/curve.csv", says="absent/curve.csv: cannot be written")
    refused("--text", "text.txt", "--context", "8", "--svg", "empty", says="empty: cannot be written")
    refused("--plot", "curve.csv", says="--svg")
    refused("--plot", "absent.csv", "--svg", "x.svg", says="absent.csv: cannot be read")
    refused("--plot", "text.txt", "--svg", "x.svg", says="text.txt: begins with 'A line of text.'")
    refused("--plot", "curve.csv", "--svg", "x.svg", "--ranks", "2", says="--ranks is given with --plot")

print("ok")
