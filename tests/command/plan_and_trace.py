"""The output of annulus plan, and the trace of a call, which must agree with its plan."""

import json
import os
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import Folder, attend, run, save_operands  # noqa: E402


def plan(*arguments):
    done = run("plan", *arguments)
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout


def plans(*arguments):
    return json.loads(plan(*arguments, "--json"))


# Keys rotate without a mask: ranks - 1 shifts of k and v; in the backward pass also ranks shifts of their gradients.
ranks, tokens, heads, kv_heads, dim, value_dim, batch = 4, 64, 6, 2, 8, 16, 3
shape = ["--ranks", "4", "--tokens", "64", "--heads", "6", "--kv-heads", "2", "--head-dim", "8", "--value-dim", "16", "--batch", "3"]
forward, backward = plans(*shape, "--rotation", "keys", "--dtype", "bf16")
local = tokens // ranks
shard = batch * local * kv_heads * (dim + value_dim)
for rank in forward["ranks"]:
    assert rank["bytes_sent"] == (ranks - 1) * shard * 2, rank
    assert len(rank["steps"]) == ranks and [step["owner"] for step in rank["steps"]][0] == forward["ranks"].index(rank)
    assert rank["multiply_adds"] == batch * heads * local * tokens * (dim + value_dim)
    assert all(step["carried_rows"] == 0 for step in rank["steps"])
for rank in backward["ranks"]:
    assert rank["bytes_sent"] == (ranks - 1) * shard * 2 + ranks * shard * 4, rank
assert forward["offsets_without_step"] == [] and forward["imbalance"] == 1
assert plans(*shape, "--pass", "forward", "--rotation", "keys", "--dtype", "bf16") == [forward]
assert plans(*shape, "--pass", "backward", "--rotation", "keys", "--dtype", "bf16") == [backward]
assert plans(*shape, "--rotation", "queries", "--dtype", "bf16")[0]["rotation"] == "queries"

# Causal: zigzag and striped are balanced, contiguous is not.
balance = {name: plans("--tokens", "4096", "--ranks", "8", "--causal", "--pass", "forward", "--sharding", name)[0]["imbalance"]
           for name in ("contiguous", "striped", "zigzag")}
assert abs(balance["zigzag"] - 1) < 1e-9 and balance["striped"] < 1.01 and balance["contiguous"] > 1.8, balance
block = plans("--tokens", "4096", "--ranks", "8", "--causal", "--sharding", "block-striped", "--block", "64")[0]
assert block["sharding"] == "block-striped(64)" and 1.01 < block["imbalance"] < 1.2, block["imbalance"]

# A window skips steps of the ring, and the plan lists the skipped ones.
windowed = ["--tokens", "80", "--ranks", "8", "--causal", "--window", "9,0"]
assert plans(*windowed)[0]["offsets_without_step"] == [2, 3, 4, 5, 6, 7]
text = plan(*windowed, "--pass", "forward")
assert "2 steps of 8 are made; not made" in text and ": 2 3 4 5 6 7\n" in text, text
assert "rows ahead, bytes ahead" in text.split("columns")[1], text
unbalanced = ["--tokens", "4096", "--ranks", "8", "--causal", "--pass", "forward", "--sharding"]
assert "the busiest rank has 1.87 times the mean work: --sharding zigzag has 1\n" in plan(*unbalanced, "contiguous")
assert "times the mean work" not in plan(*unbalanced, "zigzag") + plan(*unbalanced, "striped")
assert "rank 7: 10 queries, 10 keys" in text and "window(9, 0)" in text and "bytes sent by all ranks" in text
for arguments in (["--sink-tokens", "4"], ["--query-offset", "20"], ["--chunk", "5"], ["--dtype", "f64"], ["--heads", "2"], ["--head-dim", "32"],
                  ["--value-dim", "3"], ["--batch", "2"], ["--sharding", "striped"], ["--rotation", "queries"]):
    assert plan(*windowed, *arguments) != plan(*windowed), arguments
assert plans("--queries", "40", "--keys", "80")[0]["ranks"][0]["queries"] == 10

# Plans of many ranks are summarised without --every-step; totals are those of all steps.
assert not forward["summarized"]
for arguments in (["--causal"], ["--causal", "--sharding", "striped"], ["--causal", "--window", "300,0"], ["--rotation", "queries"], []):
    many = ["--tokens", "3000", "--ranks", "48", "--heads", "2", *arguments]
    for summary, whole in zip(plans(*many), plans(*many, "--every-step")):
        rows = whole["ranks"]
        count = len(rows[0]["steps"])
        assert not whole["summarized"] and summary["summarized"] == (48 * count > 1024), arguments
        if summary["summarized"]:
            lines = summary.pop("steps")
            assert [line["first"] for line in lines[1:]] == [line["last"] + 1 for line in lines[:-1]]
            assert lines[0]["first"] == 0 and lines[-1]["last"] == count - 1 and len(lines) < count
            for line in lines:
                for i in range(line["first"], line["last"] + 1):
                    for name in ("multiply_adds", "prefetched_bytes", "carried_bytes"):
                        values = [rank["steps"][i][name] for rank in rows]
                        assert line[name] == {"least": min(values), "most": max(values)}, (arguments, i, name)
            for rank in rows:
                rank.pop("steps")
        whole["summarized"] = summary["summarized"]
        assert summary == whole, arguments
    text = plan(*many)
    assert f"bytes sent by all ranks: {whole['total_bytes_sent']}\n" in text
    listed = plan(*many, "--every-step")
    assert "rank 47: 62 queries, 62 keys" in listed and len(listed) > 5 * len(text) or len(listed) == len(text), arguments
    assert len(text) < 20000 or "rank 47:" in text, arguments
assert " 0-46 " in plan("--tokens", "4800", "--ranks", "48") and " 0-47 " in plan("--tokens", "4800", "--ranks", "48")
assert "most" in plan("--tokens", "100000", "--ranks", "100", "--causal")

# Plans of very many ranks take little time and space.
largest = ["--tokens", "1048576", "--ranks", "1024", "--sharding", "block-striped", "--block", "2"]
for arguments in ([], ["--causal"]):
    begin = time.monotonic()
    text, values = plan(*largest, *arguments), plan(*largest, *arguments, "--json")
    assert len(text) < 10000 and len(values) < 1000000, (len(text), len(values))
    assert [len(pass_of["ranks"]) for pass_of in json.loads(values)] == [1024, 1024]
    print(f"{time.monotonic() - begin:.1f} s for 1024 ranks, twice, both passes")

# The trace has one complete event for each rank and planned step, in order and within its pass.
random = np.random.default_rng(11)
with Folder():
    files = save_operands(*(random.standard_normal(s) for s in ((1, 64, 4, 8), (1, 64, 2, 8), (1, 64, 2, 8), (1, 64, 4, 8))))
    call = ["--causal", "--ranks", "4", "--sharding", "zigzag"]
    traced = attend(*files, *call, "--trace", "trace.json")
    plain = attend(*files, *call)
    assert all(np.array_equal(traced[name], plain[name]) for name in plain)
    with open("trace.json") as file:
        events = json.load(file)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    planned = dict(zip(("forward", "backward"), plans("--tokens", "64", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", *call, "--dtype", "f64")))
    for rank in range(4):
        mine = [event for event in spans if event["pid"] == rank]
        assert mine and all(event["tid"] == rank and event["dur"] >= 0 and event["ts"] >= 0 for event in mine)
        for name in ("forward", "backward"):
            steps = planned[name]["ranks"][rank]["steps"]
            computed = [event for event in mine if event["name"] == name + " compute"]
            assert [event["args"]["step"] for event in computed] == list(range(len(steps)))
            whole, = [event for event in mine if event["name"] == name]
            for event in computed:
                assert whole["ts"] <= event["ts"] and event["ts"] + event["dur"] <= whole["ts"] + whole["dur"] + 1e-3
            for lane in ("prefetched", "carried"):
                sent = [event["args"]["bytes_sent"] for event in mine if event["name"] == f"{name} wait {lane}"]
                # Builds without NDEBUG add a checksum of 8 bytes to each shift.
                extra = sum(sent) - sum(step[lane + "_bytes"] for step in steps)
                assert extra in (0, 8 * len(sent)), (rank, name, lane, extra)
        assert sum(event["cat"] == "exchange" for event in mine) >= 8

print("ok")
