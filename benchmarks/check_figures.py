#!/usr/bin/env python3
"""Runs the commands of the figures that pages state, and compares: a figure that is off by more than it says fails.

benchmarks/check_figures.py                the quick ones: plans, modelled kernels, errors, pictures; a few minutes
benchmarks/check_figures.py --all          also speed, for hours and on an otherwise idle machine of the kind that the page names
benchmarks/check_figures.py --only TEXT    those whose name contains TEXT
benchmarks/check_figures.py --list         names

Uses build/release, as cmake/bootstrap.sh build makes it (--build FOLDER: another one).
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = "benchmarks/README.md"
GUIDE = "examples/guide"
NUMBER = r"(\d+(?:\.\d+)?(?:e-?\d+)?)"


def stated(page, pattern):
    """The numbers of the only place of a page that matches; '#' in the pattern stands for one number."""
    text = (ROOT / page).read_text()
    found = re.findall(pattern.replace("#", NUMBER), text)
    if len(found) != 1:
        raise SystemExit(f"{page}: {len(found)} places match {pattern!r}; one must")
    return [float(number) for number in (found[0] if isinstance(found[0], tuple) else (found[0],))]


def output(*command, **options):
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


class Within:
    """Accepts a measured value whose distance from the stated one is at most a share of it, or at most `absolute`."""

    def __init__(self, share=0.0, absolute=0.0):
        self.share, self.absolute = share, absolute

    def accepts(self, seen, said):
        return abs(seen - said) <= max(self.share * abs(said), self.absolute)

    def __str__(self):
        return f"within {100 * self.share:g} %" if self.share else f"within {self.absolute:g}"


class AtMost:
    """Accepts values up to a multiple of the stated one: for times and errors."""

    def __init__(self, factor=1.0):
        self.factor = factor

    def accepts(self, seen, said):
        return seen <= self.factor * said

    def __str__(self):
        return f"at most {self.factor:g} times"


class Figure:
    def __init__(self, name, page, pattern, measure, rule, slow=False):
        self.name, self.page, self.pattern, self.measure, self.rule, self.slow = name, page, pattern, measure, rule, slow

    def check(self):
        """Prints a line for each number; False if one is off."""
        said, seen = stated(self.page, self.pattern), self.measure()
        assert len(said) == len(seen), (self.name, said, seen)
        right = True
        for i, (a, b) in enumerate(zip(said, seen)):
            good = self.rule.accepts(b, a)
            right = right and good
            print(f"{'ok ' if good else 'OFF'}  {self.name}{f' [{i}]' if len(said) > 1 else ''}: stated {a:g}, measured {b:g}, {self.rule}")
        return right


def figures(build):
    annulus = build / "bin" / "annulus"
    tables = {}

    def plans(*arguments):
        return json.loads(output(annulus, "plan", *arguments, "--json"))

    def bytes_sent(*arguments):
        common = ("--tokens", "131072", "--ranks", "8", "--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype", "bfloat16")
        return [max(rank["bytes_sent"] for rank in each["ranks"]) / 2**20 for each in plans(*common, *arguments)]

    def modelled(ranks, tokens, heads, *kernel):
        text = output(annulus, "nki", "--cost-only", "--ranks", ranks, "--tokens-per-rank", tokens, "--query-heads", heads, "--causal", "--sharding", "striped",
                      *kernel)
        return [float(re.search(r"tensor engine utilisation\s+([\d.]+) %", text)[1])]

    def demo(pattern):
        return [float(value) for value in re.search(pattern, output(annulus, "demo")).groups()]

    def table(part, label):
        """The value that benchmarks/table.py prints for a line."""
        if part not in tables:
            tables[part] = output("benchmarks/table.py", "--build", build, "--only", part)
        found = re.search(rf"^{re.escape(label)}\s+([\d.]+)", tables[part], re.MULTILINE)
        if not found:
            raise RuntimeError(f"benchmarks/table.py --only {part} prints no line {label!r}")
        return float(found[1])

    def option(name):
        """Forward and backward, percent."""
        return lambda: [100 * table("options", f"{direction}, full, {name}, float32") for direction in ("forward", "backward")]

    def training(*arguments, folder=None, ranks=None, prefix=()):
        place = pathlib.Path(folder) if folder else ROOT
        command = [*prefix, build / "bin" / "train_bytes", *arguments, *(("--ranks", ranks) if ranks else ())]
        done = subprocess.run([str(part) for part in command], cwd=place, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout

    def curves():
        """The largest difference between the 14 curves of the training page and that of one simulated rank."""
        model = ("--layers", 2, "--width", 64, "--context", 256)
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for ranks in (1, 2, 4, 8):
                for sharding in ("contiguous", "zigzag") if ranks > 1 else ("contiguous",):
                    for comm in ("sim", "mpi"):
                        files.append(f"{comm}-{ranks}-{sharding}.csv")
                        start = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", ranks) if comm == "mpi" else ()
                        training(*model, "--sharding", sharding, "--csv", files[-1], *(("--comm", "mpi") if comm == "mpi" else ()), folder=folder,
                                 ranks=ranks if comm == "sim" else None, prefix=start)
            differences = re.findall(r"differ by at most ([\d.e+-]+)", training("--plot", *files, "--svg", "curves.svg", folder=folder))
            assert len(differences) == 13, differences
            return [max(map(float, differences))]

    def ten_minutes():
        text = training("--minutes", 9.7, "--ranks", 2, "--sharding", "zigzag")
        return [float(re.search(r"validation\s+([\d.]+) bits per byte", text)[1])]

    exact, percent = Within(share=0.001), Within(absolute=0.6)
    found = [
        Figure("bytes sent, 131,072 tokens", FIGURES, r"\| none \| # MiB \| # MiB \|", bytes_sent, exact),
        Figure("bytes sent, window", FIGURES, r"\| causal window of 4096 keys \| # MiB \| # MiB \| # of # \|",
               lambda: bytes_sent("--causal", "--window", "4095,0") +
               [len(plans("--tokens", "131072", "--ranks", "8", "--causal", "--window", "4095,0")[0]["ranks"][0]["steps"]), 8], exact),
        Figure("Trainium kernel, 4 ranks", FIGURES, r"--tokens-per-rank 4096 --query-heads 2` \| # %",
               lambda: modelled(4, 4096, 2, "--only", "fwd", "--no-keys-stationary"), percent),
        Figure("Trainium kernel, stationary keys and backward", FIGURES,
               r"--tokens-per-rank 4096 --query-heads 2` \| \d+ % \| # % \| # %",
               lambda: modelled(4, 4096, 2, "--only", "fwd") + modelled(4, 4096, 2, "--only", "bwd"), percent),
        Figure("Trainium kernel, 64 ranks", FIGURES, r"--tokens-per-rank 16384 --query-heads 1` \| # % \| # %",
               lambda: modelled(64, 16384, 1, "--only", "fwd", "--no-keys-stationary") + modelled(64, 16384, 1, "--only", "fwd"), percent),
        Figure("demo, memory", FIGURES, r"memory per rank \| # MiB \| # MiB \|\n\n.*scores alone would take # GiB",
               lambda: demo(r"(?s)peak memory of a rank\s+([\d.]+) MiB\s+([\d.]+) MiB.*scores of full attention\s+([\d.]+)")[:2] +
               [value / 1024 for value in demo(r"scores of full attention\s+([\d.]+) MiB")], Within(share=0.02)),
        Figure("demo, error", FIGURES, r"The error is #\. The scores",
               lambda: demo(r"(?s)largest relative error\s+([\d.e-]+)"), AtMost(1.5)),
        Figure("demo, time", FIGURES, r"\| time \| # s \| # s \|",
               lambda: demo(r"\n  time\s+([\d.]+) s\s+([\d.]+) s"), AtMost(1.3), slow=True),
        Figure("bytes of the guide's plan", f"{GUIDE}/ring_attention.md", r"tokens\s+and\s+8\s+heads\s+in\s+bfloat16\s+these\s+are\s+# TiB",
               lambda: [2**20 * 2**20 * 8 * 2 / 2**40], exact),
        Figure("training, curves", f"{GUIDE}/training.md", r"differ from that of one rank by at most # bits per byte", curves, AtMost(2), slow=True),
        Figure("training, ten minutes", f"{GUIDE}/training.md", r"gives \*\*# bits per byte\*\*", ten_minutes, Within(absolute=0.06), slow=True),
    ]
    for row, name in (("soft cap", "soft cap"), ("bias", "bias"), ("bias of one row", "bias row"), ("dropout", "dropout"), ("mask, all true", "mask true"),
                      ("mask, at random", "mask random")):
        found.append(Figure(f"option {row}", FIGURES, rf"\| {row} \| # % \| # % \|", option(name), Within(absolute=4), slow=True))
    for step, dims in (("forward", (64, 128)), ("backward", (64, 128))):
        for mask in ("full", "causal"):
            found.append(Figure(f"peak, {step}, {mask}", FIGURES, rf"\| {step}, {mask} \| # % \| # % \| # % \| # % \|",
                                lambda step=step, mask=mask: [
                                    table("attention", f"{step}, {mask}, {tokens} tokens, head_dim {dim}, 1 thread") for tokens in (4096, 8192) for dim in dims],
                                Within(absolute=4), slow=True))
    return found


def bounds_that_tests_assert(build):
    """Error bounds that the page states are those of the tests that it names; they must pass."""
    right = True
    for cases in re.findall(r"`build/release/tests/annulus_integration_tests \"(.*?)\"`", (ROOT / FIGURES).read_text()):
        done = subprocess.run([build / "tests" / "annulus_integration_tests", cases], cwd=ROOT, capture_output=True, text=True)
        right = right and done.returncode == 0
        print(f"{'ok ' if done.returncode == 0 else 'OFF'}  tests {cases}")
    return right


def repeated_in_readme(_):
    """The README repeats the least and the largest speedup over PyTorch of the page's table, and shows its picture."""
    page, readme = (ROOT / FIGURES).read_text(), (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (?:forward|backward), (?:full|causal)(?: \| \d+ %){4} \| ([\d.]+)x \| ([\d.]+)x", page, re.MULTILINE)
    speedups = [float(speedup) for row in rows for speedup in row]
    said = [float(value) for value in re.search(r"is ([\d.]+) to ([\d.]+) times as fast as PyTorch", readme).groups()]
    same = len(rows) == 4 and said == [min(speedups), max(speedups)]
    print(f"{'ok ' if same else 'OFF'}  README.md, speedups: stated {said}, of the page {[min(speedups), max(speedups)]}")
    drawn = output("benchmarks/chart.py", "--page", FIGURES) == (ROOT / GUIDE / "peak.svg").read_text()
    print(f"{'ok ' if drawn else 'OFF'}  picture peak.svg")
    return same and drawn


def pictures(build):
    """The pictures of plans, which the same command makes again to the byte."""
    annulus = build / "bin" / "annulus"
    balance = ("--tokens", "65536", "--ranks", "8", "--causal", "--pass", "forward")
    made = {f"balance_{name}.svg": (*balance, "--sharding", name, "--svg") for name in ("contiguous", "striped", "zigzag")}
    made["balance_documents.svg"] = (*balance, "--chunk", "8192", "--svg")
    made["balance_balanced.svg"] = ("--tokens", "16384", "--ranks", "8", "--causal", "--documents", "0,3000,3500,15500", "--pass", "forward",
                                    "--sharding", "balanced", "--svg")
    small = ("--tokens", "48", "--ranks", "4", "--pass", "forward", "--causal")
    for name, arguments in {"causal": (), "window": ("--sharding", "zigzag", "--window", "11,0"),
                            "sink_tokens": ("--sharding", "block-striped", "--block", "4", "--window", "11,0", "--sink-tokens", "2"),
                            "chunk": ("--sharding", "striped", "--chunk", "16"),
                            "documents": ("--sharding", "balanced", "--block", "4", "--documents", "0,9,14,40")}.items():
        made[f"mask_{name}.svg"] = (*small, *arguments, "--svg-mask")
    made["memory.svg"] = (*"--tokens 8388608 --ranks 64 --heads 64 --kv-heads 8 --head-dim 128 --causal --dtype bfloat16".split(),
                          "--sharding", "zigzag", "--svg-memory")
    right = True
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in made.items():
            path = pathlib.Path(folder) / name
            output(annulus, "plan", *arguments, path)
            same = path.read_bytes() == (ROOT / GUIDE / name).read_bytes()
            right = right and same
            print(f"{'ok ' if same else 'OFF'}  picture {name}")
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    build = arguments.build if arguments.build.is_absolute() else ROOT / arguments.build
    if not (build / "bin" / "annulus").exists():
        raise SystemExit(f"{build}/bin/annulus does not exist; make it with: cmake/bootstrap.sh build")
    chosen = [figure for figure in figures(build) if arguments.only in figure.name and (arguments.all or not figure.slow or arguments.only)]
    groups = {"pictures": pictures, "speeds in the README": repeated_in_readme}
    if arguments.all or arguments.only:
        groups["bounds that tests assert"] = bounds_that_tests_assert
    groups = {name: check for name, check in groups.items() if arguments.only in name}
    if arguments.list:
        print(*(figure.name for figure in chosen), *groups, sep="\n")
        return 0
    if not chosen and not groups:
        raise SystemExit(f"no figure has {arguments.only!r} in its name; --all --list prints the names")
    results = [figure.check() for figure in chosen] + [check(build) for check in groups.values()]
    print(f"{results.count(True)} of {len(results)} figures are as stated")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
