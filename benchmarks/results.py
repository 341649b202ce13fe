"""Reader of the JSON files that benchmark programs write with --benchmark_out: medians over repetitions."""

import collections
import json
import statistics


def load(paths):
    """Returns {name: {counter: median over repetitions}}; names are without the suffixes that Google Benchmark adds.

    Further keys: "seconds", and "least <counter>" and "most <counter>" over the repetitions. Raises SystemExit if a case
    has failed.
    """
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    for path in paths:
        with open(path, encoding="utf-8") as file:
            benchmarks = json.load(file)["benchmarks"]
        for run in benchmarks:
            if run.get("error_occurred"):
                raise SystemExit(f"{path}: {run['name']}: {run['error_message']}")
            if run.get("run_type") != "iteration":
                continue
            name = "/".join(
                part for part in run["run_name"].split("/") if part != "manual_time" and not part.startswith("iterations:")
            )
            scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}[run["time_unit"]]
            runs[name]["seconds"].append(run["real_time"] * scale)
            for key, value in run.items():
                if isinstance(value, (int, float)) and key not in ("iterations", "threads", "repetitions", "repetition_index"):
                    runs[name][key].append(value)
    medians = {}
    for name, counters in runs.items():
        medians[name] = {key: statistics.median(values) for key, values in counters.items()}
        medians[name].update({f"least {key}": min(values) for key, values in counters.items()})
        medians[name].update({f"most {key}": max(values) for key, values in counters.items()})
    return medians


def context(path):
    """Returns Google Benchmark's description of the machine."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)["context"]


def attention_name(program, step, mask, tokens, dim, threads=1, element="float32", heads=4):
    """Returns the name of a case of annulus_attention_bench."""
    return f"{program}/{step}/{mask}/{element}/tokens:{tokens}/dim:{dim}/heads:{heads}/threads:{threads}"
