#!/usr/bin/env python3
"""Runs the benchmarks and prints results next to their goals: medians over repetitions.

benchmarks/table.py                  builds the preset native, runs everything, three times each (about an hour), prints
benchmarks/table.py --build FOLDER   programs of another build
benchmarks/table.py --only ring      one of attention, options, short, decode, cache, headers, ring, mpi_ring, reproducible, merge
benchmarks/table.py --print-only     prints the results of the last run, in FOLDER/benchmarks/results
"""

import argparse
import itertools
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

from results import attention_name, context, load

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ("attention", "options", "short", "decode", "cache", "headers", "ring", "mpi_ring", "reproducible", "merge")

# Percent of the multiply-add peak, one thread: {(pass, mask, head_dim): {tokens: goal}}
GOALS = {
    ("forward", "full", 64): {4096: 90, 8192: 90},
    ("forward", "full", 128): {4096: 93, 8192: 93},
    ("forward", "causal", 64): {4096: 86, 8192: 89},
    ("forward", "causal", 128): {4096: 89, 8192: 91},
    ("backward", "full", 64): {4096: 88, 8192: 88},
    ("backward", "full", 128): {4096: 88, 8192: 88},
    ("backward", "causal", 64): {4096: 86, 8192: 88},
    ("backward", "causal", 128): {4096: 87, 8192: 86},
}
# Percent of the peak of bfloat16 products, 4096 tokens, one thread: {(pass, mask): (head_dim 64, 128)}
BFLOAT16_GOALS = {
    ("forward", "full"): (83, 89),
    ("forward", "causal"): (79, 85),
    ("backward", "full"): (80, 80),
    ("backward", "causal"): (75, 78),
}
SPEEDUP_PER_THREAD_GOAL = 0.97
RAGGED_GOAL, WINDOW_GOAL, PACKED_GOAL = 1.08, 1.15, 1.2
RING_GOALS = {"contiguous/{}/full": 0.97, "zigzag/{}/causal": 0.95}
MPI_SPEEDUP_PER_RANK_GOAL = 0.95
# Percent of the speed of the same call without the option.
REPRODUCIBLE_GOAL = 90
REPRODUCIBLE_SERVING_GOALS = {"prefill": 91, "decode": 80}
# Speed with an option relative to the same case without: {option: (forward, backward)}; a predicate that means causal,
# to a causal mask.
OPTION_GOALS = {
    "soft_cap": (0.85, 0.85),
    "bias": (0.80, 0.85),
    "bias_row": (0.92, 0.92),
    "bias_gradient": (None, 0.75),
    "dropout": (0.65, 0.75),
    "mask_true": (0.85, 0.85),
    "mask_random": (0.85, 0.85),
    "mask_blocks": (1 / 1.15, 1 / 1.15),
    "predicate": (0.60, 0.70),
}
# Speed of a sequence of 256 tokens relative to one of 4096, and of 16 documents of 256 tokens relative to one.
SHORT_GOAL, DOCUMENTS_GOAL = 0.90, 0.90
# Percent of the bytes per second of a loop that only reads keys and values.
DECODE_GOAL = 85
# Speed of annulus::cpu at its widest instruction set relative to headers that are compiled with -march=native.
HEADERS_GOAL = 0.98
OPTION_TOKENS = 2048
# Sets of cases of annulus_attention_bench other than the table.
ATTENTION_CASES = ("options", "short")
# Cases that are measured for each instruction set, and with headers alone.
LEVEL_CASES = "^cpu/(forward|backward)/(full|causal)/float32/tokens:4096/dim:(64|128)/heads:4/threads:1/"


def build(folder, names, cases):
    """Builds the programs with the preset native, unless another build is named. Refuses one that is not to measure."""
    if folder:
        cache = pathlib.Path(folder) / "CMakeCache.txt"
        if cases != "tiny" and cache.exists() and "ANNULUS_SHORT_BUILD:BOOL=ON" in cache.read_text():
            raise SystemExit(f"--build {folder}: a short build, not optimised; accepted: one with ANNULUS_SHORT_BUILD=OFF")
        return pathlib.Path(folder)
    subprocess.run(["cmake", "--preset", "native", "-DANNULUS_BUILD_BENCHMARKS=ON"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    folder = ROOT / "build" / "native"
    targets = subprocess.run(["cmake", "--build", folder, "--target", "help"], check=True, capture_output=True, text=True).stdout
    wanted = set(names) | ({"attention"} if {"headers", *ATTENTION_CASES} & set(names) else set())
    programs = [f"annulus_{name}_bench" for name in PROGRAMS if name in wanted and name not in ATTENTION_CASES]
    if names == PROGRAMS:
        programs.append("annulus_million_tokens")
    known = [program for program in programs if program in targets]
    subprocess.run(["cmake", "--build", folder, "--target", *known], check=True)
    return folder


def run(folder, name, out, repetitions, cases, only=None, target=None):
    """Runs one program; False if it cannot be run. only: a regex of cases. target: an instruction set."""
    program = folder / "benchmarks" / f"annulus_{name}_bench"
    if not program.exists():
        return False
    command = [str(program), f"--cases={cases}", f"--benchmark_repetitions={repetitions}", f"--benchmark_out={out}"]
    environment = dict(os.environ)
    if target:
        environment["ANNULUS_CPU_TARGET"] = target
    if only:
        command.append(f"--benchmark_filter={only}")
    if name in ("attention", "headers"):
        # Other load on the machine affects all cases alike.
        command += ["--benchmark_enable_random_interleaving=true"]
    if cases == "tiny":
        command += ["--benchmark_min_time=0"]
    if name == "mpi_ring":
        launcher = shutil.which("mpirun") or shutil.which("mpiexec")
        if not launcher:
            return False
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        command = [launcher, "-np", "2", *command]
    result = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: status {result.returncode}\n{result.stderr}")
    return True


def turn_file(results, turn, name):
    return results / f"turn_{turn}_{name}.json"


def run_turns(folder, results, turns, cases):
    """Runs annulus::cpu and the headers alone in turns; False if they cannot be run."""
    for old in results.glob("turn_*.json"):
        old.unlink()
    only = None if cases == "tiny" else LEVEL_CASES
    order = [(turn, name) for turn in range(turns) for name in ("headers", "attention")]
    return all(run(folder, name, turn_file(results, turn, name), 1, cases, only) for turn, name in order)


def line(what, reached, goal="", more=""):
    print(f"{what:<62} {reached:>9} {goal:>7}  {more}".rstrip())


def share(values):
    return f"{values['GFLOP/s']:.0f} GFLOP/s, {values['least peak_%']:.0f} to {values['most peak_%']:.0f} %, busy {values['busy_%']:.0f} %"


def print_shares(seen, threads):
    line("percent of the peak", "reached", "goal")
    for (step, mask, dim), goals in GOALS.items():
        for tokens, goal in goals.items():
            values = seen.get(attention_name("cpu", step, mask, tokens, dim))
            if values:
                line(f"{step}, {mask}, {tokens} tokens, head_dim {dim}, 1 thread", f"{values['peak_%']:.1f}", str(goal), share(values))
    for element in ("bfloat16", "float16", "float64"):
        for (step, mask), goals in BFLOAT16_GOALS.items():
            for dim, goal in zip((64, 128), goals):
                values = seen.get(attention_name("cpu", step, mask, 4096, dim, element=element))
                if values:
                    line(f"{step}, {mask}, 4096 tokens, head_dim {dim}, {element}", f"{values['peak_%']:.1f}",
                         str(goal) if element == "bfloat16" else "", share(values))
    print()
    line("speedup over one thread", "reached", "goal")
    for (step, mask, dim), goals in GOALS.items():
        for tokens in goals:
            one = seen.get(attention_name("cpu", step, mask, tokens, dim))
            many = seen.get(attention_name("cpu", step, mask, tokens, dim, threads))
            if one and many:
                line(f"{step}, {mask}, {tokens} tokens, head_dim {dim}, {threads} threads", f"{many['GFLOP/s'] / one['GFLOP/s']:.2f}",
                     f"{SPEEDUP_PER_THREAD_GOAL * threads:.2f}",
                     f"the peak itself {many['peak_GFLOP/s'] / one['peak_GFLOP/s']:.2f}; busy {many['busy_%']:.0f} %")


def print_ratios(seen):
    def ratio(what, case, base, goal):
        if case in seen and base in seen:
            line(what, f"{seen[case]['ps_per_pair_dim'] / seen[base]['ps_per_pair_dim']:.2f}", f"{goal:.2f}",
                 f"{seen[case]['ps_per_pair_dim']:.1f} ps; error {seen[case]['error']:.1e}")

    print()
    line("time for a visible pair and dimension, relative", "reached", "goal")
    for step in ("forward", "backward"):
        for dim in (64, 128):
            for tokens in (4095, 4097):
                ratio(f"{step}, {tokens} tokens, head_dim {dim}, to 4096 tokens", attention_name("cpu", step, "full", tokens, dim),
                      attention_name("cpu", step, "full", 4096, dim), RAGGED_GOAL)
        for dim in (80, 96):
            ratio(f"{step}, 4096 tokens, head_dim {dim}, to head_dim 128", attention_name("cpu", step, "full", 4096, dim),
                  attention_name("cpu", step, "full", 4096, 128), RAGGED_GOAL)
        ratio(f"{step}, window 1024 of 32768 tokens, head_dim 64, to full", attention_name("cpu", step, "window", 32768, 64),
              attention_name("cpu", step, "full", 8192, 64), WINDOW_GOAL)
        ratio(f"{step}, 16 documents in 16384 tokens, head_dim 64, to full", attention_name("cpu", step, "packed", 16384, 64),
              attention_name("cpu", step, "full", 8192, 64), PACKED_GOAL)


def print_options(seen):
    print()
    line("speed with an option, relative to the same case without", "reached", "goal")
    for element in ("float32", "bfloat16"):
        for i, step in enumerate(("forward", "backward")):
            for option, goals in OPTION_GOALS.items():
                for mask in ("full", "causal"):
                    name = attention_name("cpu", step, f"{mask}+{option}", OPTION_TOKENS, 64, element=element)
                    if name not in seen:
                        continue
                    plain = "causal" if option == "predicate" else mask
                    base = seen[attention_name("cpu", step, plain, OPTION_TOKENS, 64, element=element)]
                    line(f"{step}, {mask}, {option.replace('_', ' ')}, {element}", f"{seen[name]['GFLOP/s'] / base['GFLOP/s']:.2f}",
                         f"{goals[i]:.2f}", f"{seen[name]['GFLOP/s']:.0f} of {base['GFLOP/s']:.0f} GFLOP/s")


def print_short(seen):
    print()
    line("speed of short sequences, relative", "reached", "goal")

    def ratio(what, case, base, goal):
        line(what, f"{seen[case]['GFLOP/s'] / seen[base]['GFLOP/s']:.2f}", goal, f"{seen[case]['GFLOP/s']:.0f} of {seen[base]['GFLOP/s']:.0f} GFLOP/s")

    threads = max(int(name.rsplit(":", 1)[1]) for name in seen)
    for element, step, (mask, documents), dim in itertools.product(
            ("float32", "bfloat16"), ("forward", "backward"), (("full", "documents"), ("causal", "causal_documents")), (64, 128)):
        def name_of(mask, tokens, threads=1):
            return attention_name("cpu", step, mask, tokens, dim, threads, element)

        what, one, several = f"{step}, {mask}, {element}, head_dim {dim}", name_of(mask, 256), name_of(documents, 4096)
        if one not in seen:
            continue
        ratio(f"{what}, 256 tokens to 4096", one, name_of(mask, 4096), f"{SHORT_GOAL:.2f}")
        ratio(f"{what}, 16 documents of 256 to one", several, one, f"{DOCUMENTS_GOAL:.2f}")
        if threads > 1:
            ratio(f"{what}, 16 documents of 256, {threads} threads to 1", name_of(documents, 4096, threads), several,
                  f"{SPEEDUP_PER_THREAD_GOAL * threads:.2f}")


def print_baselines(seen):
    print()
    line("speedup over Eigen expressions, 4096 tokens, 1 thread", "plain", "blocked")
    for step, mask, dim in GOALS:
        ours = seen.get(attention_name("cpu", step, mask, 4096, dim))
        others = [seen.get(attention_name(program, step, mask, 4096, dim)) for program in ("plain_eigen", "blocked_eigen")]
        if ours and all(others):
            line(f"{step}, {mask}, head_dim {dim}", *(f"{ours['GFLOP/s'] / other['GFLOP/s']:.2f}" for other in others),
                 more=f"{others[0]['GFLOP/s']:.0f} and {others[1]['GFLOP/s']:.0f} GFLOP/s")


def print_levels(levels):
    """levels: {instruction set: results}"""
    print()
    line("float, 4096 tokens, 1 thread, by instruction set", "GFLOP/s", "% peak")
    for target, seen in levels.items():
        for step, mask, dim in GOALS:
            values = seen.get(attention_name("cpu", step, mask, 4096, dim))
            if values:
                line(f"{target}: {step}, {mask}, head_dim {dim}", f"{values['GFLOP/s']:.0f}", f"{values['peak_%']:.1f}")


def print_turns(results):
    turns = []
    while turn_file(results, len(turns), "attention").exists():
        turns.append([load([turn_file(results, len(turns), name)]) for name in ("attention", "headers")])
    if not turns:
        return
    ours, native = (context(turn_file(results, 0, name))["annulus_cpu_target"] for name in ("attention", "headers"))
    print()
    line(f"annulus::cpu ({ours}) relative to headers ({native})", "reached", "goal")
    for step, mask, dim in GOALS:
        name = attention_name("cpu", step, mask, 4096, dim)
        pairs = [(library[name], headers[name]) for library, headers in turns]
        ratios = [library["GFLOP/s"] / headers["GFLOP/s"] for library, headers in pairs]
        speeds = [statistics.median(values["GFLOP/s"] for values in column) for column in zip(*pairs)]
        line(f"{step}, {mask}, 4096 tokens, head_dim {dim}, 1 thread", f"{statistics.median(ratios):.3f}", f"{HEADERS_GOAL:.2f}",
             f"{min(ratios):.3f} to {max(ratios):.3f} in {len(turns)} turns; {speeds[0]:.0f} and {speeds[1]:.0f} GFLOP/s")


def print_rings(seen):
    print()
    line("speed of a ring relative to one rank", "reached", "goal")
    for name, values in seen.items():
        kind, ranks, sharding, step, mask = name.split("/")[:5]
        goal = ""
        if kind == "mpi":
            goal = f"{MPI_SPEEDUP_PER_RANK_GOAL * int(ranks.split(':')[1]):.2f}" if mask == "full" else ""
        else:
            goal = next((f"{g:.2f}" for case, g in RING_GOALS.items() if f"{sharding}/{step}/{mask}" == case.format(step)), "")
        line(f"{kind}, {ranks.split(':')[1]} ranks, {sharding}, {step}, {mask}", f"{values['speed_of_one_rank']:.2f}", goal,
             f"{values['GFLOP/s']:.0f} GFLOP/s, exposed {values['exposed_%']:.1f} %; by CPU time {values['cpu_of_one_rank_%']:.1f} %, "
             f"exposed {values['exposed_cpu_%']:.1f} %; balance {values['balance_%']:.0f} %")


def print_reproducible(seen):
    print()
    line("reproducible, percent of the speed without it", "reached", "goal")
    for name, values in seen.items():
        if name.startswith("reproducible/serving/"):
            _, _, step, heads, tokens = name.split("/")[:5]
            line(f"{step}, {heads[6:]} heads of 128, {tokens[7:]} tokens in the cache", f"{values['speed_%']:.0f}",
                 str(REPRODUCIBLE_SERVING_GOALS[step]), f"by CPU time {values['cpu_speed_%']:.0f} %")
            continue
        _, ranks, sharding, step, mask = name.split("/")[:5]
        line(f"{ranks.split(':')[1]} ranks, {sharding}, {step}, {mask}", f"{values['speed_%']:.0f}", str(REPRODUCIBLE_GOAL),
             f"by CPU time {values['cpu_speed_%']:.0f} %; bytes {values['bytes_%']:.0f} %")


def print_decodes(seen):
    print()
    line("one query, percent of the memory's read bandwidth", "reached", "goal")
    for name, values in seen.items():
        _, element, heads, _, keys, threads = name.split("/")[:6]
        line(f"{element}, heads {heads[6:]} of 128, {keys[5:]} keys, threads {threads[8:]}", f"{values['read_%']:.0f}", str(DECODE_GOAL),
             f"{values['GB/s']:.1f} of {values['read_GB/s']:.1f} GB/s")


def print_caches(seen):
    print()
    line("one query against a cache, percent of the memory's read bandwidth", "reached", "goal")
    for name, values in seen.items():
        _, element, heads, batch, keys, pages, ranks, threads = name.split("/")[:8]
        goal = str(DECODE_GOAL) if heads == "heads:8:8" else ""
        line(f"{element}, heads {heads[6:]} of 128, batch {batch[6:]}, {keys[5:]} keys, {pages} pages, ranks {ranks[6:]}, threads {threads[8:]}",
             f"{values['read_%']:.0f}", goal,
             f"{values['GB/s']:.1f} of {values['read_GB/s']:.1f} GB/s, {values['sent_B']:.0f} bytes sent a row")


def print_merges(seen):
    print()
    line("merging, percent of a copy's bytes per second", "reached")
    for name, values in seen.items():
        line(name.replace("/KiB:", ", KiB "), f"{values['copy_%']:.0f}", "", f"{values['GB/s']:.1f} of {values['copy_GB/s']:.1f} GB/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", help="folder of a build of this library (default: builds the preset native)")
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="may be given several times")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cases", choices=("table", "tiny"), default="table", help="tiny: a smoke test that prints no table")
    parser.add_argument("--print-only", action="store_true")
    arguments = parser.parse_args()

    names = tuple(arguments.only or PROGRAMS)
    folder = pathlib.Path(arguments.build or ROOT / "build" / "native") if arguments.print_only else build(arguments.build, names, arguments.cases)
    results = folder / "benchmarks" / ("results_tiny" if arguments.cases == "tiny" else "results")
    results.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in names:
        path = results / f"{name}.json"
        if name == "headers":
            path = turn_file(results, 0, name)
            measured = arguments.print_only or run_turns(folder, results, arguments.repetitions, arguments.cases)
        elif name in ATTENTION_CASES:
            cases = name if arguments.cases == "table" else arguments.cases
            measured = arguments.print_only or run(folder, "attention", path, arguments.repetitions, cases)
        else:
            measured = arguments.print_only or run(folder, name, path, arguments.repetitions, arguments.cases)
        if measured and path.exists():
            files[name] = path
    if not files:
        raise SystemExit(f"nothing was measured: no benchmark programs or results in {folder / 'benchmarks'}")
    if arguments.cases == "tiny":
        load(files.values())
        return

    machine = context(next(iter(files.values())))
    print(f"{machine['num_cpus']} CPUs, instructions {machine['annulus_cpu_target']}, load {machine['load_avg']}, {machine['date']}\n")
    if "attention" in files:
        seen = load([files["attention"]])
        threads = max(int(name.rsplit(":", 1)[1]) for name in seen)
        print_shares(seen, threads)
        print_ratios(seen)
        print_baselines(seen)
        levels = {}
        for target in machine["annulus_cpu_targets"].split():
            path = results / f"attention_{target}.json"
            if arguments.print_only or run(folder, "attention", path, arguments.repetitions, arguments.cases, LEVEL_CASES, target):
                if path.exists():
                    levels[target] = load([path])
        print_levels(levels)
    if "options" in files:
        print_options(load([files["options"]]))
    if "short" in files:
        print_short(load([files["short"]]))
    if "headers" in files:
        print_turns(results)
    rings = [files[name] for name in ("ring", "mpi_ring") if name in files]
    if rings:
        print_rings(load(rings))
    if "reproducible" in files:
        print_reproducible(load([files["reproducible"]]))
    if "decode" in files:
        print_decodes(load([files["decode"]]))
    if "cache" in files:
        print_caches(load([files["cache"]]))
    if "merge" in files:
        print_merges(load([files["merge"]]))


if __name__ == "__main__":
    sys.exit(main())
