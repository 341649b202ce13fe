"""The output of annulus plan, and the trace of a call, which must agree with its plan."""

import json
import os
import sys
import time
from xml.etree import ElementTree

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

# The actions of a rank: as the guide shows them, and as JSON.
guide = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "guide", "schedules.md")
with open(guide, encoding="utf-8") as page:
    shown = page.read().split("## The list of actions", 1)[1]
command = shown.split("```sh\n", 1)[1].split("\n", 1)[0].split()
assert command[:2] == ["annulus", "plan"], command
assert plan(*command[2:]) == shown.split("```text\n", 1)[1].split("```", 1)[0]
(listed,) = plans(*command[2:])
listed = listed["actions"]
assert listed["rank"] == 1 and {"name": "resident sums", "rows": 4, "bytes": 192, "partial_results": 1} in listed["slots"]
assert [action["name"] for action in listed["actions"]].count("work") == 3
assert listed["actions"][0] == {"step": None, "lane": 0, "name": "pack", "words": "keys [0, 4) into rows 0 [0, 4)"}
assert sum(slot["bytes"] for slot in listed["slots"]) == plans(*command[2:])[0]["ranks"][1]["peak_buffer_bytes"]
assert "rank 0 of 2, " in plan("--tokens", "8", "--ranks", "2", "--pass", "forward", "--actions")
for refused, message in (("2", "accepted: a rank from 0 to 1"), ("x", "accepted: a rank, or nothing for rank 0")):
    done = run("plan", "--tokens", "8", "--ranks", "2", "--actions", refused)
    assert done.returncode == 2 and message in done.stderr, done

# A wire type: two bytes for each element of what travels ahead; gradients keep their type.
wire = plans(*shape, "--rotation", "keys", "--dtype", "f32", "--wire", "bf16")
assert [one["total_bytes_sent"] for one in wire] == [one["total_bytes_sent"] for one in (forward, backward)]
assert wire[0]["wire"] == "bfloat16" and forward["wire"] == "as_stored"

# Both directions: as many bytes in all, half of them each way, and each rank works on rows of both neighbours.
both = plans(*shape, "--rotation", "keys", "--dtype", "bf16", "--schedule", "both-directions")
for one, two in zip((forward, backward), both):
    assert one["schedule"] == "ring" and two["schedule"] == "both_directions" and "bytes_sent_each_way" not in one
    assert one["total_bytes_sent"] == two["total_bytes_sent"] == 2 * two["bytes_sent_each_way"][0]
    assert two["bytes_sent_each_way"][0] == two["bytes_sent_each_way"][1]
    assert [rank["multiply_adds"] for rank in one["ranks"]] == [rank["multiply_adds"] for rank in two["ranks"]]
text = plan(*shape, "--schedule", "both-directions", "--pass", "forward")
assert "of them forwards 0.0527 MiB and backwards 0.0527 MiB\n" in text, text
text = plan(*shape, "--schedule", "both-directions", "--pass", "forward", "--every-step")
assert "travel in both directions\n" in text and "kv heads 0 to 0 forwards" in text and "kv heads 1 to 1 backwards" in text, text
# The keys of one kv head: their first halves forwards, their second halves backwards.
one_head = ["1" if before == "--kv-heads" else word for before, word in zip(["", *shape], shape)]
text = plan(*one_head, "--rotation", "keys", "--schedule", "both-directions", "--pass", "forward", "--every-step")
assert "16 keys, keys 0 to 7 forwards" in text and "16 keys, keys 8 to 15 backwards" in text, text
one, two = (plans(*one_head, "--rotation", "keys", "--schedule", schedule)[0] for schedule in ("ring", "both-directions"))
assert one["total_bytes_sent"] == 2 * two["bytes_sent_each_way"][0] == 2 * two["bytes_sent_each_way"][1], two
pairs = [[sum(step["visible_pairs"] for step in rank["steps"]) for rank in of["ranks"]] for of in (one, two)]
assert pairs[0] == pairs[1], pairs
slow = [*shape, "--flops", "1e15", "--bandwidth", "1e6", "--pass", "forward", "--rotation", "keys"]
estimates = plans(*slow)[0]["estimates"]
seconds = [min(one["seconds"] for one in estimates if one["schedule"] == schedule) for schedule in ("ring", "both_directions")]
assert abs(seconds[1] / seconds[0] - 0.5) < 1e-3, seconds

# Causal: zigzag and striped are balanced, contiguous is not.
balance = {name: plans("--tokens", "4096", "--ranks", "8", "--causal", "--pass", "forward", "--sharding", name)[0]["imbalance"]
           for name in ("contiguous", "striped", "zigzag")}
assert abs(balance["zigzag"] - 1) < 1e-9 and balance["striped"] < 1.01 and balance["contiguous"] > 1.8, balance
block = plans("--tokens", "4096", "--ranks", "8", "--causal", "--sharding", "block-striped", "--block", "64")[0]
assert block["sharding"] == "block-striped(64)" and 1.01 < block["imbalance"] < 1.2, block["imbalance"]

# A reproducible backward pass sends each rank's gradients straight to their owner, three shards instead of four; with
# zigzag two partial results of each row.
fixed = ["--reproducible", "--reproducible-leaf", "8"]
reproducible = plans(*shape, *fixed, "--rotation", "keys", "--dtype", "bf16")
assert reproducible[0]["reproducible"] and not forward["reproducible"]
for rank in reproducible[1]["ranks"]:
    assert rank["bytes_sent"] == (ranks - 1) * shard * 2 + (ranks - 1) * shard * 4, rank
for rank in plans(*shape, *fixed, "--rotation", "keys", "--dtype", "bf16", "--sharding", "zigzag")[1]["ranks"]:
    assert rank["bytes_sent"] == (ranks - 1) * shard * 2 + (ranks - 1) * 2 * shard * 4, rank
assert "reproducible: leaves of 8 positions, partial results sent for a row: 2\n" in plan(*shape, *fixed, "--rotation", "keys", "--sharding", "zigzag", "--pass", "backward")
assert "times the mean work: --sharding zigzag" in plan("--tokens", "4096", "--ranks", "4", "--causal", "--reproducible")
refused = run("plan", *shape, "--reproducible", "--reproducible-leaf", "3")
assert refused.returncode == 2 and "whole leaves of reproducible_leaf = 3" in refused.stderr and refused.stderr.count("\n") == 1, refused
# Documents: the plan counts the pairs within them; balanced shards have the same work.
starts = [0, 100, 1500, 1510, 3000]
packed = ["--tokens", "4096", "--ranks", "8", "--causal", "--documents", ",".join(map(str, starts))]
pairs = sum(n * (n + 1) // 2 for n in np.diff(starts + [4096]).tolist())
for name in ("contiguous", "zigzag", "balanced"):
    for pass_of in plans(*packed, "--sharding", name):
        found = sum(step["visible_pairs"] for rank in pass_of["ranks"] for step in rank["steps"])
        assert found == pairs, (name, found, pairs)
        assert (pass_of["imbalance"] < 1.03) == (name == "balanced"), (name, pass_of["imbalance"])
assert {rank["queries"] for rank in plans(*packed, "--sharding", "balanced")[0]["ranks"]} == {512}
assert ", 5 documents\n" in plan(*packed) and "--sharding balanced would be 1.00\n" in plan(*packed)
assert plans(*packed, "--sharding", "balanced", "--block", "64") != plans(*packed, "--sharding", "balanced")
assert plans("--tokens", "4096", "--ranks", "8", "--causal", "--sharding", "balanced")[0]["imbalance"] < 1.001

# Estimates of both rotations: work alone, and with messages.
rates = ["--tokens", "64", "--ranks", "4", "--heads", "2", "--head-dim", "8", "--pass", "forward", "--flops", "1e6"]
keys, queries = plans(*rates)[0]["estimates"][:2]
work = 2 * 2 * 64 * 64 * 16 / 1e6 / 4
assert keys["rotation"] == "keys" and queries["rotation"] == "queries"
assert abs(keys["seconds"] - work) < 1e-9 and abs(queries["seconds"] - work) < 1e-9 and abs(keys["exposed_seconds"]) < 1e-9
keys, queries, *others = plans(*rates, "--bandwidth", "1e3", "--latency", "0.5", "--overlap", "0")[0]["estimates"]
shift = 16 * 2 * 16 * 4 / 1e3 + 0.5
assert [one["schedule"] for one in others] == ["both_directions", "two_levels", "tiles", "all_gather"], others
on_wire = plans(*rates, "--bandwidth", "1e3", "--dtype", "f32", "--wire", "bf16")[0]["estimates"]
assert [one["schedule"] for one in on_wire[2:]] == [one["schedule"] for one in others], on_wire
assert others[3]["group"] == 4 and abs(others[3]["seconds"] - work - 0.5 - 3 * (shift - 0.5)) < 1e-9, others
assert abs(keys["seconds"] - work - 3 * shift) < 1e-9 and abs(keys["exposed_seconds"] - 3 * shift) < 1e-9, keys
assert queries["seconds"] != keys["seconds"] and abs(sum(keys["step_seconds"]) - keys["seconds"]) < 1e-9
far = plans(*rates, "--bandwidth", "1e3", "--latency", "0.5", "--group", "2", "--far-bandwidth", "1e2", "--far-latency", "9")[0]["estimates"]
assert far[0]["seconds"] > keys["seconds"]
# Of 3 shifts of the double ring one leads to another group; each of the ring has a sender at the end of a group.
assert (far[-1]["schedule"], far[-1]["group"]) == ("double_ring", 2), far
assert abs(far[0]["seconds"] - far[-1]["seconds"] - 2 * (9 + 20.48 - shift)) < 1 and far[-1]["seconds"] < far[0]["seconds"], far
# A group that is asked for is that of its schedule among the candidates.
of_groups = [
    {one["schedule"]: one for one in plans("--tokens", "64", "--ranks", "8", "--heads", "8", "--pass", "forward",
                                           "--schedule", "two-levels", "--schedule-group", str(group), "--flops", "1e6",
                                           "--bandwidth", "1e3")[0]["estimates"]}
    for group in (2, 4)
]
assert [one["two_levels"]["group"] for one in of_groups] == [2, 4], of_groups
assert of_groups[0]["two_levels"]["seconds"] != of_groups[1]["two_levels"]["seconds"], of_groups
assert of_groups[0]["tiles"] == of_groups[1]["tiles"], of_groups
text = plan(*rates, "--bandwidth", "1e6", "--step-overhead", "0.001")
assert "estimated times of the forward pass\n" in text and "ms of step 3" in text, text
assert "estimated" not in plan("--tokens", "64")

# Schedules in which ranks form groups: fewer bytes, and the work of the ring.
wide = ["--tokens", "65536", "--ranks", "64", "--heads", "32", "--pass", "forward", "--rotation", "keys"]
ring = plans(*wide)[0]
for schedule, group in (("two-levels", 8), ("tiles", 8), ("all-gather", 64)):
    given = ["--schedule-group", str(group)]
    one = plans(*(wide[:-2] if schedule == "all-gather" else wide), "--schedule", schedule, *given)[0]
    assert one["schedule"] == schedule.replace("-", "_") and one["group"] == group and one["bytes_in_groups"] > 0, one
    assert sum(rank["multiply_adds"] for rank in one["ranks"]) == sum(rank["multiply_adds"] for rank in ring["ranks"])
    assert schedule == "all-gather" or one["total_bytes_sent"] < 0.3 * ring["total_bytes_sent"], one
# On a wire of 16 bits they send as many bytes as 16-bit operands, and take part in the choice.
for schedule in ("tiles", "all-gather", "auto"):
    given = [*(wide[:-2]), "--schedule", schedule]
    bytes_of = [plans(*given, *types)[0]["total_bytes_sent"] for types in (["--dtype", "f32", "--wire", "f16"], ["--dtype", "f16"], ["--dtype", "f32"])]
    assert bytes_of[0] < bytes_of[2] and (bytes_of[0] == bytes_of[1]) == (schedule != "auto"), (schedule, bytes_of)
text = plan(*wide, "--schedule", "tiles", "--schedule-group", "8")
assert "tiles: groups of 8 ranks, 8 on each ring between groups\n" in text and "8 steps; in each, a rank\n" in text, text
assert ", of them within groups 7280 MiB\n" in text, text
double = plans(*wide, "--schedule", "double-ring", "--schedule-group", "8")[0]
assert double["group"] == 8 and double["total_bytes_sent"] == ring["total_bytes_sent"], double
# Its groups are the near ranks of the rates, where these have a group.
assert plans(*wide, "--schedule", "double-ring", "--flops", "1e12", "--group", "16")[0]["group"] == 16
text = plan(*wide, "--schedule", "double-ring", "--schedule-group", "8")
assert "double_ring: rings of 8 ranks, and a ring of 8 such groups\n" in text, text

# A window skips steps of the ring, and the plan lists the skipped ones.
windowed = ["--tokens", "80", "--ranks", "8", "--causal", "--window", "9,0"]
assert plans(*windowed)[0]["offsets_without_step"] == [2, 3, 4, 5, 6, 7]
text = plan(*windowed, "--pass", "forward")
assert "2 steps of 8, as no rank needs the rows of the rank 2-7 places back; in each, a rank\n" in text and "window(9, 0)" in text, text
listed = plan(*windowed, "--pass", "forward", "--every-step")
assert "2 steps of 8 are made; not made" in listed and ": 2 3 4 5 6 7\n" in listed, listed
assert "rows ahead, bytes ahead" in listed.split("columns")[1], listed
assert "rank 7: 10 queries, 10 keys" in listed and "bytes sent by all ranks" in listed
unbalanced = ["--tokens", "4096", "--ranks", "8", "--causal", "--pass", "forward", "--sharding"]
for detail in ([], ["--every-step"]):
    assert "the busiest rank has 1.87 times the mean work: --sharding zigzag would be 1.00\n" in plan(*unbalanced, "contiguous", *detail)
assert "times the mean work" not in plan(*unbalanced, "zigzag") + plan(*unbalanced, "striped")
for arguments in (["--sink-tokens", "4"], ["--query-offset", "20"], ["--chunk", "5"], ["--dtype", "f64"], ["--heads", "2"], ["--head-dim", "32"],
                  ["--value-dim", "3"], ["--batch", "2"], ["--sharding", "striped"], ["--rotation", "queries"]):
    assert plan(*windowed, *arguments) != plan(*windowed), arguments
assert plans("--queries", "40", "--keys", "80")[0]["ranks"][0]["queries"] == 10

# The answer comes first, as the guide shows it: 63 shifts of shards of 16 MiB; 2 (128 + 128) operations for each of 32
# heads and half of the pairs.
with open(os.path.join(os.path.dirname(guide), "command.md"), encoding="utf-8") as page:
    command, text = page.read().split("names a better sharding:", 1)[1].split("```")[1:4:2]
text = text.removeprefix("text\n")
assert plan(*command.split()[3:]) == text, text
for line in ("sends      1008 MiB; all ranks together 64512 MiB", "computes   8.8 TFLOP; all ranks together 563 TFLOP",
             "balance: 1.00, the largest work of a rank over the mean", "64 steps; in each, a rank"):
    assert line + "\n" in text, line
assert [line.split()[0] for line in text.splitlines()[-2:]] == ["0-62", "63"], text
# It fits a screen, also where no two steps are alike.
scattered = ["--tokens", "6400", "--ranks", "64", "--causal", "--documents", ",".join(map(str, range(0, 6400, 370)))]
for arguments in (["--tokens", "6400", "--ranks", "64", "--causal"], ["--tokens", "6400", "--ranks", "64", "--causal", "--window", "500,0"], scattered):
    text = plan(*arguments)
    assert text.count("\n") <= 40 and max(map(len, text.split("\n"))) <= 120, text

# The JSON of many ranks is a summary without --every-step; totals are those of all steps.
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
    listed = plan(*many, "--every-step")
    assert "rank 47: 62 queries, 62 keys" in listed and f"bytes sent by all ranks: {whole['total_bytes_sent']}\n" in listed, arguments
    assert len(listed) > 2 * len(plan(*many)), arguments

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

    # Balanced shards of packed documents, some of them padded: the same results up to rounding.
    ids = np.repeat([[4, 4, 9, 0], [1, 2, 2, 2]], 16, axis=1)
    np.save("ids.npy", ids)
    two = save_operands(*(random.standard_normal(s) for s in ((2, 64, 4, 8), (2, 64, 2, 8), (2, 64, 2, 8), (2, 64, 4, 8))))
    packed = [*two, "--causal", "--ranks", "4", "--q-segments", "ids.npy", "--kv-segments", "ids.npy"]
    natural = attend(*packed)
    for block in ([], ["--block", "4"]):
        balanced = attend(*packed, "--sharding", "balanced", *block)
        for name, values in natural.items():
            assert np.array_equal(np.isfinite(balanced[name]), np.isfinite(values)), name
            assert np.allclose(balanced[name], values, rtol=1e-11, atol=1e-12), name

    # annulus trace reads it: the table has the sums of the file, the picture one rectangle for each span.
    done = run("trace", "trace.json", "--svg", "timeline.svg")
    assert done.returncode == 0 and done.stderr == "", done
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:3]}
    assert list(rows) == ["forward", "backward"]
    for name, row in rows.items():
        compute = [sum(event["dur"] for event in spans if event["pid"] == rank and event["name"] in (name + " compute", name + " synchronize"))
                   for rank in range(4)]
        waits = [event for event in spans if event["name"].startswith(name + " wait")]
        assert row[0] == "4" and abs(float(row[2]) - sum(compute) / 4e3) < 0.01, row
        assert abs(float(row[3]) - sum(event["dur"] for event in waits) / 4e3) < 0.01, row
        assert abs(float(row[6]) - max(compute) * 4 / sum(compute)) < 0.01, row
        assert abs(float(row[7]) - sum(event["args"]["bytes_sent"] for event in waits) / 4 / 2**20) < 0.01, row
    picture = ElementTree.parse("timeline.svg").getroot()
    hints = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    for hint, kinds in (("compute", ("compute", "synchronize")), ("wait", ("wait",)), ("message in flight", ("wait",))):
        assert sum(text.startswith(hint + ",") for text in hints) == sum(event["name"].split(" ")[1:2] in [[kind] for kind in kinds] for event in spans), hint

    # Other files are refused, and no picture is left.
    for number, (text, reason) in enumerate((("", "is not JSON"), ("[1]", "has no array"), ('{"traceEvents": [3]}', "has no pass"),
                                             ('{"traceEvents": [{"ph": "X"}]}', 'without the text "name"'),
                                             ('{"traceEvents": [{"ph": "X", "name": "forward", "pid": 0, "ts": 1}]}', 'the number "dur"'),
                                             ('{"traceEvents": [{"ph": "X", "name": "forward", "pid": 0, "ts": -1, "dur": 1}]}', "negative"),
                                             ('{"traceEvents": [{"ph": "X", "name": "forward", "pid": 0, "ts": 0, "dur": 1e300}]}', "10^18 or more"),
                                             ('{"traceEvents": [{"ph": "X", "name": "forward", "pid": 1e9, "ts": 1, "dur": 1}]}', "has rank"),
                                             ('{"traceEvents": [{"ph": "X", "name": "forward compute", "pid": 0, "ts": 1, "dur": 1}]}', "no whole forward"))):
        with open("bad.json", "w") as file:
            file.write(text)
        done = run("trace", "bad.json", "--svg", "bad.svg")
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, (text, done)
        assert reason in done.stderr and "accepted: a file written by annulus attend --trace" in done.stderr, (text, done)
        assert not os.path.exists("bad.svg")
    os.mkfifo("pipe.json")
    done = run("trace", "pipe.json")
    assert done.returncode == 2 and "pipe.json: is not a regular file; accepted: a file" in done.stderr, done
    assert run("trace", "missing.json").returncode == 2 and run("trace").returncode == 2
    assert run("trace", "trace.json", "--svg", "trace.json").returncode == 2

    # Pictures of plans: a cell for each rank and step with its work, and idle cells where there is none.
    hints_of = lambda path: [title.text for title in ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}title")]
    assert plan(*call, "--tokens", "64", "--svg", "balance.svg") == plan(*call, "--tokens", "64")
    cells = [text for text in hints_of("balance.svg") if text.startswith("rank ")]
    expected = [f"rank {r}, step {i}, keys of rank {step['owner']}: {step['multiply_adds']} multiply-adds"
                for pass_of in plans(*call, "--tokens", "64") for r, rank in enumerate(pass_of["ranks"]) for i, step in enumerate(rank["steps"])]
    assert cells == expected
    # A row of the picture of a mask has a rectangle for each run of visible keys.
    plan("--tokens", "12", "--ranks", "2", "--sharding", "zigzag", "--causal", "--window", "2,0", "--sink-tokens", "1", "--documents", "0,7",
         "--svg-mask", "mask.svg")
    runs = [text for text in hints_of("mask.svg") if text.startswith("query ")]
    rank_of = lambda query: 0 if query < 3 or query >= 9 else 1
    expected = []
    for query in range(12):
        seen = [key for key in range(query + 1) if (query - key <= 2 or key == 0) and (query < 7) == (key < 7)]
        first = [key for key in seen if key - 1 not in seen]
        last = [key for key in seen if key + 1 not in seen]
        expected += [f"query {query} of rank {rank_of(query)}: keys {a} to {b}" for a, b in zip(first, last)]
    assert runs == expected, (runs, expected)
    plan("--queries", "3", "--keys", "5", "--query-offset", "2", "--ranks", "1", "--causal", "--svg-mask", "mask.svg")
    assert [text for text in hints_of("mask.svg") if text.startswith("query ")] == [
        f"query {query} of rank 0: keys 0 to {query + 2}" for query in range(3)]
    plan("--tokens", "4096", "--ranks", "4", "--svg-memory", "memory.svg", "--pass", "forward")
    texts = [text.text for text in ElementTree.parse("memory.svg").getroot().iter("{http://www.w3.org/2000/svg}text")]
    # Scores of 4096 x 4096 floats and four tensors of 4096 x 64 of them.
    assert "68 MiB" in texts and "ring of 4, each" in texts and "4k" in texts, texts
    plan("--tokens", "4096", "--ranks", "4", "--svg-memory", "memory.svg", "--schedule", "auto", "--flops", "1e12")
    ElementTree.parse("memory.svg")
    for arguments in (["--ranks", "65", "--tokens", "650", "--svg", "x.svg"],
                      ["--queries", "5", "--keys", "6", "--svg-memory", "x.svg"],
                      ["--tokens", "12", "--svg-memory", "x.svg"],
                      ["--tokens", "97", "--svg-mask", "x.svg"],
                      ["--tokens", "97", "--svg", "x.svg", "--svg-mask", "y.svg"],
                      ["--tokens", "64", "--svg", "x.svg", "--svg-mask", "x.svg"],
                      ["--tokens", "64", "--svg", "x.svg", "--svg-memory", os.path.join(".", "x.svg")],
                      ["--tokens", "12", "--ranks", "9", "--svg-mask", "x.svg"],
                      ["--tokens", "64", "--svg", "missing/x.svg"],
                      ["--tokens", "64", "--sharding", "balanced", "--svg-memory", "x.svg"]):
        done = run("plan", *arguments)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done
        assert not os.path.exists("x.svg")

print("ok")
