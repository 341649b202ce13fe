"""Bad input of train_bytes: status 2, one line on stderr, and no file."""

import os
import pathlib
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import cases  # noqa: E402  (found through the line above)

(PROGRAM,) = map(os.path.abspath, cases.arguments())
NUMBERS = "--ranks --steps --layers --width --heads --kv-heads --context --batch --generate".split()
# Arguments, words of the message.
REFUSED = [
    *[(f"{option} 0", f"{option}: '0' is given; accepted: a whole number, 1 to") for option in NUMBERS],
    *[(f"{option} x", "'x' is given") for option in NUMBERS],
    ("--minutes -1", "--minutes"),
    ("--minutes 1 --steps 1", "--steps"),
    ("--learning-rate nan", "a number, 0 to 1"),
    ("--seed -1", "--seed"),
    ("--clip 0", "--clip"),
    ("--warm-up -1", "--warm-up"),
    ("--weight-decay -1", "--weight-decay"),
    ("--comm tcp", "accepted: sim|mpi"),
    ("--sharding ring", "accepted: contiguous|striped|zigzag"),
    ("--dtype f16", "accepted: float32|float64"),
    ("--heads 4 --kv-heads 3", "divides the number of heads"),
    ("--width 36", "a multiple of twice the heads"),
    ("--reproducible 0", "--reproducible: '0' is given; accepted: a whole number, 1 to"),
    ("--temperature 1", "--generate"),
    ("--generate 1 --temperature -1", "--temperature"),
    ("--generate 1 --prompt ''", "--prompt"),
    ("--unknown", "--help"),
    ("word", "--help"),
    ("--text absent.txt", "absent.txt: cannot be read (No such file or directory)"),
    ("--text empty", "empty: has no text"),
    ("--text short.txt", "the text has 9 bytes"),
    ("--text text.txt --context 8 --csv absent/curve.csv", "absent/curve.csv: cannot be written"),
    ("--text text.txt --context 8 --svg empty", "empty: cannot be written"),
    ("--plot curve.csv", "--svg"),
    ("--plot absent.csv --svg x.svg", "absent.csv: cannot be read"),
    ("--plot text.txt --svg x.svg", "text.txt: begins with 'A line of text.'"),
    ("--plot curve.csv --svg x.svg --ranks 2", "--ranks is given with --plot"),
]


class Refusals(cases.Case):
    program = PROGRAM

    def test_input(self):
        os.mkdir("empty")
        for name, text in (("short.txt", "too short"), ("text.txt", "A line of text.\n" * 100),
                           ("curve.csv", "step,bits_per_byte,gradient_norm,learning_rate\n0,8,1,0.1\n")):
            pathlib.Path(name).write_text(text)
        self.refuses_all(REFUSED)


cases.main()
