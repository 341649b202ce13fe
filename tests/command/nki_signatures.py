"""Every call in printed kernels is one that the NKI version and the chip have: golden files, and a sweep of kernels."""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "support"), str(HERE.parent / "nki")]
from command import Folder, run  # noqa: E402
from signatures import VERSIONS, problems  # noqa: E402

# The check finds each kind of problem.
WRONG = {
    "nisa.nc_matmul(dst=a, stationary=b)": "nisa.nc_matmul lacks moving",
    "nisa.nc_matmul(dst=a[0:128, 0:513], stationary=b, moving=c)": "nisa.nc_matmul has 513 elements in dst",
    "nisa.tensor_copy(dst=a[0:129, 0:1], src=b)": "nisa.tensor_copy has 129 partitions in dst",
    "nisa.tensor_copy(dst=a, src=b, speed=1)": "nisa.tensor_copy has no speed",
    "nisa.tensor_copy(a, src=b, dst=c)": "nisa.tensor_copy has 1 positional arguments",
    "nisa.tensor_scalar(dst=a, data=b, op0=nl.add, operand0=1.0, engine=(nisa.engine.vector, nisa.engine.gpsimd)[i])":
        "nisa.tensor_scalar on gpsimd",
    "nisa.tensor_scalar_reduce(dst=a, data=b, op0=nl.add, operand0=1.0, reduce_op=nl.add, reduce_cmd=c)":
        "nisa.tensor_scalar_reduce has no reduce_cmd in 0.3",
    "nisa.exponential(dst=a, src=b)": "nisa.exponential is not on trn2",
    "nisa.fill(dst=a)": "nisa.fill is unknown",
    "nisa.reciprocal(dst=a, data=nl.one)": "nl.one is unknown",
}
for text, wanted in WRONG.items():
    assert problems(text, "0.3", "trn2")[0] == [wanted], (text, problems(text, "0.3", "trn2"))
assert problems("nisa.exponential(dst=a, src=b)", "0.3", "trn3") == ([], 1)

for path in (HERE.parent / "nki" / "print" / "golden").glob("*.py"):
    found, _ = problems(path.read_text(), "0.3", "trn2")
    assert not found, (path.name, found[:5])

CASES = [
    ["--ranks", 4, "--tokens-per-rank", 512, "--query-heads", 2, "--causal", "--sharding", "striped"],
    ["--ranks", 2, "--tokens-per-rank", 512, "--causal", "--sharding", "zigzag", "--head-dim", 256, "--dtype", "f32"],
    # Stages whose instructions run on engines that the schedule chooses.
    ["--ranks", 4, "--tokens-per-rank", 4096, "--query-heads", 2, "--causal", "--sharding", "zigzag"],
    ["--ranks", 2, "--tokens-per-rank", 512, "--window", "100,0", "--softcap", 20, "--sinks", 2, "--tp-q", "--tp-k"],
    ["--ranks", 1, "--tokens-per-rank", 320, "--documents", "0,100,200", "--lnc", 1, "--query-heads", 4, "--kv-heads", 2],
    ["--ranks", 2, "--tokens-per-rank", 512, "--backward", "keys", "--chunk", 128],
    ["--ranks", 2, "--tokens-per-rank", 512, "--bias", "heads,queries,keys", "--bias-gradient", "--bias-dtype", "bf16", "--softcap", 20],
]
calls = 0
with Folder() as folder:
    for number, arguments in enumerate(CASES):
        for target in ("trn2", "trn3"):
            for version in VERSIONS if number == 0 else (VERSIONS[0], VERSIONS[-1]):
                name = f"kernels-{number}-{target}-{version}"
                done = run("nki", "--emit", name, "--target", target, "--nki-version", version, *arguments)
                assert done.returncode == 0, (arguments, target, version, done)
                for path in sorted(pathlib.Path(folder, name).glob("ring_attention_*.py")):
                    found, count = problems(path.read_text(), version, target)
                    assert not found, (arguments, target, version, path.name, found[:5])
                    calls += count
assert calls > 5000, calls
print(f"ok: {calls} calls")
