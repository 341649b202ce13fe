"""The output of annulus plan, and the trace of a call, which must agree with its plan."""

import json
import os
import pathlib
import time
from xml.etree import ElementTree

import numpy as np

from support.arrays import ArrayCase, same, save_all, save_operands
from support.command import main, run

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "guide"
SVG = "{http://www.w3.org/2000/svg}"
RANKS, TOKENS, HEADS, KV_HEADS, DIM, VALUE_DIM, BATCH = 4, 64, 6, 2, 8, 16, 3
SHAPE = (f"--ranks {RANKS} --tokens {TOKENS} --heads {HEADS} --kv-heads {KV_HEADS} --head-dim {DIM} "
         f"--value-dim {VALUE_DIM} --batch {BATCH}")
LOCAL = TOKENS // RANKS
SHARD = BATCH * LOCAL * KV_HEADS * (DIM + VALUE_DIM)
KEYS_ROTATE = f"{SHAPE} --rotation keys --dtype bf16"
ONE_KV_HEAD = SHAPE.replace(f"--kv-heads {KV_HEADS}", "--kv-heads 1") + " --rotation keys"


def multiply_adds(plan):
    return [rank["multiply_adds"] for rank in plan["ranks"]]


def visible_pairs(plan):
    return [sum(step["visible_pairs"] for step in rank["steps"]) for rank in plan["ranks"]]


def hints(path):
    """The titles in a picture, which say what each of its shapes means."""
    return [title.text for title in ElementTree.parse(path).getroot().iter(SVG + "title")]


class PlanCase(ArrayCase):
    def plan(self, arguments):
        done = run("plan", *arguments.split())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def plans(self, arguments):
        return json.loads(self.plan(arguments + " --json"))

    def near(self, found, expected, bound=1e-9):
        self.assertLess(abs(found - expected), bound, (found, expected))


class Plans(PlanCase):
    def test_keys_rotate(self):
        """ranks - 1 shifts of k and v; in the backward pass also ranks shifts of their gradients."""
        forward, backward = self.plans(KEYS_ROTATE)
        for number, rank in enumerate(forward["ranks"]):
            self.assertEqual(rank["bytes_sent"], (RANKS - 1) * SHARD * 2)
            self.assertEqual((len(rank["steps"]), rank["steps"][0]["owner"]), (RANKS, number))
            self.assertEqual(rank["multiply_adds"], BATCH * HEADS * LOCAL * TOKENS * (DIM + VALUE_DIM))
            self.assertEqual({step["carried_rows"] for step in rank["steps"]}, {0})
        for rank in backward["ranks"]:
            self.assertEqual(rank["bytes_sent"], (RANKS - 1) * SHARD * 2 + RANKS * SHARD * 4)
        self.assertEqual((forward["offsets_without_step"], forward["imbalance"]), ([], 1))
        self.assertEqual(self.plans(KEYS_ROTATE + " --pass forward"), [forward])
        self.assertEqual(self.plans(KEYS_ROTATE + " --pass backward"), [backward])
        self.assertEqual(self.plans(f"{SHAPE} --rotation queries --dtype bf16")[0]["rotation"], "queries")

    def test_actions_as_the_guide_shows_them_and_as_json(self):
        shown = (GUIDE / "schedules.md").read_text(encoding="utf-8").split("## The list of actions", 1)[1]
        command = shown.split("```sh\n", 1)[1].split("\n", 1)[0].removeprefix("annulus plan ")
        self.assertEqual(self.plan(command), shown.split("```text\n", 1)[1].split("```", 1)[0])
        (plan,) = self.plans(command)
        listed = plan["actions"]
        self.assertEqual(listed["rank"], 1)
        self.assertIn({"name": "resident sums", "rows": 4, "bytes": 192, "partial_results": 1}, listed["slots"])
        self.assertEqual([action["name"] for action in listed["actions"]].count("work"), 3)
        self.assertEqual(listed["actions"][0],
                         {"step": None, "lane": 0, "name": "pack", "words": "keys [0, 4) into rows 0 [0, 4)"})
        rank = plan["ranks"][1]
        self.assertEqual(sum(slot["bytes"] for slot in listed["slots"]), rank["peak_buffer_bytes"])
        self.assertEqual((rank["operand_bytes"], rank["result_bytes"]), (3 * 4 * 4 * 4, 4 * (4 + 2) * 4))
        self.assertIn("rank 0 of 2, ", self.plan("--tokens 8 --ranks 2 --pass forward --actions"))

    def test_wire_of_two_bytes_for_all_that_travels_ahead(self):
        """Gradients keep their type."""
        plain, wire = self.plans(KEYS_ROTATE), self.plans(f"{SHAPE} --rotation keys --dtype float32 --wire bfloat16")
        self.assertEqual(self.plans(f"{SHAPE} --rotation keys --dtype f32 --wire bf16"), wire)
        self.assertEqual([one["total_bytes_sent"] for one in wire], [one["total_bytes_sent"] for one in plain])
        self.assertEqual((wire[0]["wire"], plain[0]["wire"]), ("bfloat16", "as_stored"))

    def test_work_of_all_ranks_beyond_64_bits(self):
        """Each rank's is counted in integers, their sum is not."""
        tokens, heads = 38_000_000, 64
        text = self.plan(f"--tokens {tokens} --ranks 64 --heads {heads} --kv-heads 8 --head-dim 128 --causal "
                         "--sharding zigzag --pass forward")
        self.contains(text, f"all ranks together {tokens * (tokens + 1) * heads * (128 + 128) / 1e12:.0f} TFLOP")

    def test_both_directions(self):
        """As many bytes in all, half of them each way, and each rank works on rows of both neighbours."""
        for one, two in zip(self.plans(KEYS_ROTATE), self.plans(KEYS_ROTATE + " --schedule both-directions")):
            self.assertEqual((one["schedule"], two["schedule"]), ("ring", "both_directions"))
            self.assertNotIn("bytes_sent_each_way", one)
            self.assertEqual(two["total_bytes_sent"], one["total_bytes_sent"])
            self.assertEqual(two["bytes_sent_each_way"], [one["total_bytes_sent"] // 2] * 2)
            self.assertEqual(multiply_adds(one), multiply_adds(two))
        text = self.plan(SHAPE + " --schedule both-directions --pass forward")
        self.assertIn("of them forwards 0.0527 MiB and backwards 0.0527 MiB\n", text)
        text = self.plan(SHAPE + " --schedule both-directions --pass forward --every-step")
        self.contains(text, "travel in both directions\n", "kv heads 0 to 0 forwards", "kv heads 1 to 1 backwards")

    def test_both_directions_of_one_kv_head(self):
        """The first halves of its keys travel forwards, the second halves backwards."""
        text = self.plan(ONE_KV_HEAD + " --schedule both-directions --pass forward --every-step")
        self.contains(text, "16 keys, keys 0 to 7 forwards", "16 keys, keys 8 to 15 backwards")
        one, two = (self.plans(f"{ONE_KV_HEAD} --schedule {schedule}")[0] for schedule in ("ring", "both-directions"))
        self.assertEqual(two["bytes_sent_each_way"], [one["total_bytes_sent"] // 2] * 2)
        self.assertEqual(visible_pairs(one), visible_pairs(two))

    def test_balance_of_causal_work(self):
        causal = "--tokens 4096 --ranks 8 --causal --pass forward --sharding"
        balance = {name: self.plans(f"{causal} {name}")[0]["imbalance"]
                   for name in ("contiguous", "striped", "zigzag", "balanced")}
        self.near(balance["zigzag"], 1)
        self.assertLess(balance["striped"], 1.01)
        self.assertLess(balance["balanced"], 1.001)
        self.assertGreater(balance["contiguous"], 1.8)
        block = self.plans(f"{causal} block-striped --block 64")[0]
        self.assertEqual(block["sharding"], "block-striped(64)")
        self.assertTrue(1.01 < block["imbalance"] < 1.2)
        for detail in ("", " --every-step"):
            self.assertIn("the busiest rank has 1.87 times the mean work: --sharding zigzag would be 1.00\n",
                          self.plan(f"{causal} contiguous{detail}"))
        self.assertNotIn("times the mean work", self.plan(f"{causal} zigzag") + self.plan(f"{causal} striped"))

    def test_reproducible(self):
        """Each rank's gradients go straight to their owner, three shards instead of four; with zigzag two partial
        results of each row."""
        fixed = f"{SHAPE} --reproducible --reproducible-leaf 8 --rotation keys --dtype bf16"
        self.assertTrue(self.plans(fixed)[0]["reproducible"])
        self.assertFalse(self.plans(KEYS_ROTATE)[0]["reproducible"])
        for sharding, partial in (("contiguous", 1), ("zigzag", 2)):
            for rank in self.plans(f"{fixed} --sharding {sharding}")[1]["ranks"]:
                self.assertEqual(rank["bytes_sent"], (RANKS - 1) * SHARD * 2 + (RANKS - 1) * partial * SHARD * 4)
        self.assertIn("reproducible: leaves of 8 positions, partial results sent for a row: 2\n",
                      self.plan(fixed + " --sharding zigzag --pass backward"))
        self.assertIn("times the mean work: --sharding zigzag",
                      self.plan("--tokens 4096 --ranks 4 --causal --reproducible"))

    def test_documents(self):
        """The plan counts the pairs within them; balanced shards have the same work."""
        starts = [0, 100, 1500, 1510, 3000]
        packed = f"--tokens 4096 --ranks 8 --causal --documents {','.join(map(str, starts))}"
        pairs = sum(n * (n + 1) // 2 for n in np.diff(starts + [4096]).tolist())
        for name in ("contiguous", "zigzag", "balanced"):
            for plan in self.plans(f"{packed} --sharding {name}"):
                with self.subTest(name):
                    self.assertEqual(sum(visible_pairs(plan)), pairs)
                    self.assertEqual(plan["imbalance"] < 1.03, name == "balanced")
        balanced = self.plans(packed + " --sharding balanced")
        self.assertEqual({rank["queries"] for rank in balanced[0]["ranks"]}, {512})
        self.assertNotEqual(self.plans(packed + " --sharding balanced --block 64"), balanced)
        self.contains(self.plan(packed), ", 5 documents\n", "--sharding balanced would be 1.00\n")

    def test_groups_send_fewer_bytes_for_the_work_of_the_ring(self):
        wide = "--tokens 65536 --ranks 64 --heads 32 --pass forward"
        ring = self.plans(wide + " --rotation keys")[0]
        for schedule, group, rotation in (("two-levels", 8, "keys"), ("tiles", 8, "keys"), ("all-gather", 64, "auto")):
            with self.subTest(schedule):
                one = self.plans(f"{wide} --rotation {rotation} --schedule {schedule} --schedule-group {group}")[0]
                self.assertEqual((one["schedule"], one["group"]), (schedule.replace("-", "_"), group))
                self.assertGreater(one["bytes_in_groups"], 0)
                self.assertEqual(sum(multiply_adds(one)), sum(multiply_adds(ring)))
                self.assertTrue(schedule == "all-gather" or one["total_bytes_sent"] < 0.3 * ring["total_bytes_sent"])
        for schedule in ("tiles", "all-gather", "auto"):
            with self.subTest(schedule, wire="f16"):
                plans = [self.plans(f"{wide} --schedule {schedule} --dtype {types}")[0]
                         for types in ("f32 --wire f16", "f16", "f32")]
                f32_on_wire, f16, f32 = (one["total_bytes_sent"] for one in plans)
                self.assertLess(f32_on_wire, f32)
                self.assertEqual(f32_on_wire == f16, schedule != "auto")
        text = self.plan(wide + " --rotation keys --schedule tiles --schedule-group 8")
        self.contains(text, "tiles: groups of 8 ranks, 8 on each ring between groups\n", "8 steps; in each, a rank\n",
                      ", of them within groups 7280 MiB\n")

    def test_double_ring(self):
        double = "--tokens 65536 --ranks 64 --heads 32 --pass forward --rotation keys --schedule"
        one = self.plans(double + " double-ring --schedule-group 8")[0]
        self.assertEqual((one["group"], one["total_bytes_sent"]),
                         (8, self.plans(double + " ring")[0]["total_bytes_sent"]))
        # Its groups are the near ranks of the rates, where these have a group.
        self.assertEqual(self.plans(double + " double-ring --flops 1e12 --group 16")[0]["group"], 16)
        self.assertIn("double ring: rings of 8 ranks, and a ring of 8 such groups\n",
                      self.plan(double + " double-ring --schedule-group 8"))

    def test_a_window_skips_steps_which_the_plan_lists(self):
        windowed = "--tokens 80 --ranks 8 --causal --window 9,0"
        self.assertEqual(self.plans(windowed)[0]["offsets_without_step"], [2, 3, 4, 5, 6, 7])
        self.contains(self.plan(windowed + " --pass forward"), "window(9, 0)",
                      "2 steps of 8, as no rank needs the rows of the rank 2-7 places back; in each, a rank\n")
        listed = self.plan(windowed + " --pass forward --every-step")
        self.contains(listed, "2 steps of 8 are made; not made", ": 2 3 4 5 6 7\n", "rank 7: 10 queries, 10 keys",
                      "bytes sent by all ranks")
        self.assertIn("rows ahead, bytes ahead", listed.split("columns")[1])
        plain = self.plan(windowed)
        for options in ("--sink-tokens 4", "--query-offset 20", "--chunk 5", "--dtype f64", "--heads 2",
                        "--head-dim 32", "--value-dim 3", "--batch 2", "--sharding striped", "--rotation queries"):
            with self.subTest(options):
                self.assertNotEqual(self.plan(f"{windowed} {options}"), plain)
        self.assertEqual(self.plans("--queries 40 --keys 80")[0]["ranks"][0]["queries"], 10)

    def test_the_answer_comes_first_as_the_guide_shows_it(self):
        """63 shifts of shards of 16 MiB; 2 (128 + 128) operations for each of 32 heads and half of the pairs; q of
        32 MiB and k and v of 8 MiB each, output of 32 MiB and two floats a row."""
        page = (GUIDE / "command.md").read_text(encoding="utf-8")
        command, text = page.split("names a better sharding:", 1)[1].split("```")[1:4:2]
        text = text.removeprefix("text\n")
        self.assertEqual(self.plan(" ".join(command.split()[3:])), text)
        self.contains(text, "sends      1008 MiB; all ranks together 64512 MiB\n",
                      "needs      178 MiB: operands 48 MiB, results 33 MiB, buffers 97 MiB\n",
                      "computes   8.8 TFLOP; all ranks together 563 TFLOP\n",
                      "balance: 1.00, the largest work of a rank over the mean\n", "64 steps; in each, a rank\n")
        self.assertEqual([line.split()[0] for line in text.splitlines()[-2:]], ["0-62", "63"])

    def test_fits_a_screen(self):
        """Also where no two steps are alike."""
        for options in ("", "--window 500,0", "--documents " + ",".join(map(str, range(0, 6400, 370)))):
            with self.subTest(options):
                lines = self.plan(f"--tokens 6400 --ranks 64 --causal {options}").splitlines()
                self.assertLessEqual(len(lines), 40)
                self.assertLessEqual(max(map(len, lines)), 120)

    def test_json_of_many_ranks_is_a_summary_without_every_step(self):
        self.assertFalse(self.plans(SHAPE)[0]["summarized"])
        for options in ("--causal", "--causal --sharding striped", "--causal --window 300,0", "--rotation queries", ""):
            with self.subTest(options):
                many = f"--tokens 3000 --ranks 48 --heads 2 {options}"
                for summary, whole in zip(self.plans(many), self.plans(many + " --every-step")):
                    self.check_summary(summary, whole)
                listed = self.plan(many + " --every-step")
                self.contains(listed, "rank 47: 62 queries, 62 keys",
                              f"bytes sent by all ranks: {whole['total_bytes_sent']}\n")
                self.assertGreater(len(listed), 2 * len(self.plan(many)))

    def check_summary(self, summary, whole):
        """Totals are those of all steps."""
        ranks = whole["ranks"]
        count = len(ranks[0]["steps"])
        self.assertEqual((whole["summarized"], summary["summarized"]), (False, 48 * count > 1024))
        if summary["summarized"]:
            lines = summary.pop("steps")
            self.assertEqual([line["first"] for line in lines], [0, *(line["last"] + 1 for line in lines[:-1])])
            self.assertEqual(lines[-1]["last"], count - 1)
            self.assertLess(len(lines), count)
            for line in lines:
                for i in range(line["first"], line["last"] + 1):
                    for name in ("multiply_adds", "prefetched_bytes", "carried_bytes"):
                        values = [rank["steps"][i][name] for rank in ranks]
                        self.assertEqual(line[name], {"least": min(values), "most": max(values)}, (i, name))
            for rank in ranks:
                rank.pop("steps")
        self.assertEqual(summary, {**whole, "summarized": summary["summarized"]})

    def test_plans_of_very_many_ranks_take_little_time_and_space(self):
        for options in ("", " --causal"):
            with self.subTest(options):
                begin = time.monotonic()
                largest = f"--tokens 1048576 --ranks 1024 --sharding block-striped --block 2{options}"
                text, values = self.plan(largest), self.plan(largest + " --json")
                self.assertLess(len(text), 10000)
                self.assertLess(len(values), 1000000)
                self.assertEqual([len(plan["ranks"]) for plan in json.loads(values)], [1024, 1024])
                print(f"{time.monotonic() - begin:.1f} s for 1024 ranks, twice, both passes")


class Estimates(PlanCase):
    RATES = "--tokens 64 --ranks 4 --heads 2 --head-dim 8 --pass forward --flops 1e6"
    WORK = 2 * 2 * 64 * 64 * 16 / 1e6 / 4
    SHIFT = 16 * 2 * 16 * 4 / 1e3 + 0.5  # of a bandwidth of 1e3 and a latency of 0.5
    SLOW = "--bandwidth 1e3 --latency 0.5"

    def estimates(self, arguments):
        return self.plans(arguments)[0]["estimates"]

    def test_of_work_alone(self):
        keys, queries = self.estimates(self.RATES)[:2]
        self.assertEqual((keys["rotation"], queries["rotation"]), ("keys", "queries"))
        for one in (keys, queries):
            self.near(one["seconds"], self.WORK)
        self.near(keys["exposed_seconds"], 0)

    def test_with_messages(self):
        keys, queries, *others = self.estimates(f"{self.RATES} {self.SLOW} --overlap 0")
        self.near(keys["seconds"], self.WORK + 3 * self.SHIFT)
        self.near(keys["exposed_seconds"], 3 * self.SHIFT)
        self.near(sum(keys["step_seconds"]), keys["seconds"])
        self.assertNotEqual(queries["seconds"], keys["seconds"])
        self.assertEqual([one["schedule"] for one in others], ["both_directions", "two_levels", "tiles", "all_gather"])
        self.assertEqual(others[3]["group"], 4)
        self.near(others[3]["seconds"], self.WORK + 0.5 + 3 * (self.SHIFT - 0.5))
        on_wire = self.estimates(self.RATES + " --bandwidth 1e3 --dtype f32 --wire bf16")
        self.assertEqual([one["schedule"] for one in on_wire[2:]], [one["schedule"] for one in others])

    def test_with_groups(self):
        keys = self.estimates(f"{self.RATES} {self.SLOW} --overlap 0")[0]
        ring, *_, double = self.estimates(f"{self.RATES} {self.SLOW} --group 2 --far-bandwidth 1e2 --far-latency 9")
        self.assertGreater(ring["seconds"], keys["seconds"])
        # Of 3 shifts of the double ring one leads to another group; each of the ring has a sender at a group's end.
        self.assertEqual((double["schedule"], double["group"]), ("double_ring", 2))
        self.near(ring["seconds"] - double["seconds"], 2 * (9 + 20.48 - self.SHIFT), 1)

    def test_a_group_that_is_asked_for_is_that_of_its_schedule(self):
        two, four = ({one["schedule"]: one for one in self.estimates(
            "--tokens 64 --ranks 8 --heads 8 --pass forward --schedule two-levels --flops 1e6 --bandwidth 1e3 "
            f"--schedule-group {group}")} for group in (2, 4))
        self.assertEqual((two["two_levels"]["group"], four["two_levels"]["group"]), (2, 4))
        self.assertNotEqual(two["two_levels"]["seconds"], four["two_levels"]["seconds"])
        self.assertEqual(two["tiles"], four["tiles"])

    def test_both_directions_take_half_the_time_of_messages(self):
        estimates = self.estimates(f"{SHAPE} --flops 1e15 --bandwidth 1e6 --pass forward --rotation keys")
        ring, both = (min(one["seconds"] for one in estimates if one["schedule"] == schedule)
                      for schedule in ("ring", "both_directions"))
        self.near(both / ring, 0.5, 1e-3)

    def test_text(self):
        text = self.plan(self.RATES + " --bandwidth 1e6 --step-overhead 0.001")
        self.contains(text, "estimated times of the forward pass\n", "ms of step 3")
        self.assertNotIn("estimated", self.plan("--tokens 64"))


CALL = "--causal --ranks 4 --sharding zigzag"
SHAPES = ((64, 4, 8), (64, 2, 8), (64, 2, 8), (64, 4, 8))
# Content of a file, words of the message.
NO_TRACES = [
    ("", "is not JSON"), ("[1]", "has no array"), ('{"traceEvents": [3]}', "has no pass"),
    ('{"traceEvents": [{"ph": "X"}]}', 'without the text "name"'),
    ('{"traceEvents": [{"ph": "X", "name": "forward", "pid": 0, "ts": 1}]}', 'the number "dur"'),
    ('{"traceEvents": [{"ph": "X", "name": "forward", "pid": 0, "ts": -1, "dur": 1}]}', "negative"),
    ('{"traceEvents": [{"ph": "X", "name": "forward", "pid": 0, "ts": 0, "dur": 1e300}]}', "10^18 or more"),
    ('{"traceEvents": [{"ph": "X", "name": "forward", "pid": 1e9, "ts": 1, "dur": 1}]}', "has rank"),
    ('{"traceEvents": [{"ph": "X", "name": "forward compute", "pid": 0, "ts": 1, "dur": 1}]}', "no whole forward"),
]


class Trace(PlanCase):
    def setUp(self):
        super().setUp()
        random = np.random.default_rng(11)
        self.files = save_operands(*(random.standard_normal((1, *shape)) for shape in SHAPES))

    def spans(self):
        """The complete events of a traced call."""
        self.traced = self.attend(*self.files, *CALL.split(), "--trace", "trace.json")
        events = json.loads(pathlib.Path("trace.json").read_text())["traceEvents"]
        return [event for event in events if event["ph"] == "X"]

    def test_does_not_change_the_results(self):
        self.spans()
        self.assertTrue(same(self.traced, self.attend(*self.files, *CALL.split())))

    def test_has_one_event_for_each_rank_and_planned_step(self):
        spans = self.spans()
        planned = self.plans(f"--tokens 64 --heads 4 --kv-heads 2 --head-dim 8 {CALL} --dtype f64")
        for rank in range(4):
            mine = [event for event in spans if event["pid"] == rank]
            self.assertTrue(mine and all(event["tid"] == rank and event["dur"] >= 0 and event["ts"] >= 0
                                         for event in mine))
            self.assertGreaterEqual(sum(event["cat"] == "exchange" for event in mine), 8)
            for name, plan in zip(("forward", "backward"), planned):
                with self.subTest(name, rank=rank):
                    self.check_pass(name, mine, plan["ranks"][rank]["steps"])

    def check_pass(self, name, events, steps):
        """The events of one rank: in order, within the pass, and with the bytes of the plan."""
        computed = [event for event in events if event["name"] == name + " compute"]
        self.assertEqual([event["args"]["step"] for event in computed], list(range(len(steps))))
        (whole,) = [event for event in events if event["name"] == name]
        for event in computed:
            self.assertLessEqual(whole["ts"], event["ts"])
            self.assertLessEqual(event["ts"] + event["dur"], whole["ts"] + whole["dur"] + 1e-3)
        for lane in ("prefetched", "carried"):
            sent = [event["args"]["bytes_sent"] for event in events if event["name"] == f"{name} wait {lane}"]
            # Builds without NDEBUG add a checksum of 8 bytes to each shift.
            self.assertIn(sum(sent) - sum(step[lane + "_bytes"] for step in steps), (0, 8 * len(sent)))

    def test_table_has_the_sums_of_the_file_and_the_picture_a_rectangle_for_each_span(self):
        spans = self.spans()
        done = run("trace", "trace.json", "--svg", "timeline.svg")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = {name: values for name, *values in (line.split() for line in done.stdout.splitlines()[1:3])}
        self.assertEqual(list(rows), ["forward", "backward"])
        for name, row in rows.items():
            compute = [sum(event["dur"] for event in spans if event["pid"] == rank
                           and event["name"] in (name + " compute", name + " synchronize")) for rank in range(4)]
            waits = [event for event in spans if event["name"].startswith(name + " wait")]
            self.assertEqual(row[0], "4")
            self.near(float(row[2]), sum(compute) / 4e3, 0.01)
            self.near(float(row[3]), sum(event["dur"] for event in waits) / 4e3, 0.01)
            self.near(float(row[6]), max(compute) * 4 / sum(compute), 0.01)
            self.near(float(row[7]), sum(event["args"]["bytes_sent"] for event in waits) / 4 / 2**20, 0.01)
        kinds = [event["name"].split(" ")[1] for event in spans if " " in event["name"]]
        for hint, of in (("compute", ("compute", "synchronize")), ("wait", ("wait",)),
                         ("message in flight", ("wait",))):
            self.assertEqual(sum(text.startswith(hint + ",") for text in hints("timeline.svg")),
                             sum(map(kinds.count, of)), hint)

    def test_other_files_are_refused_and_no_picture_is_left(self):
        for text, words in NO_TRACES:
            with self.subTest(words):
                pathlib.Path("bad.json").write_text(text)
                self.refuses(["trace", "bad.json", "--svg", "bad.svg"], words,
                             "accepted: a file written by annulus attend --trace")
        os.mkfifo("pipe.json")
        self.refuses(["trace", "pipe.json"], "pipe.json: is not a regular file; accepted: a file")
        self.refuses(["trace", "missing.json"], "missing.json")
        self.refuses(["trace"], "required")
        self.spans()
        self.refuses(["trace", "trace.json", "--svg", "trace.json"], "trace.json")

    def test_balanced_shards_of_packed_documents(self):
        """Some of them padded: the same results up to rounding."""
        random = np.random.default_rng(12)
        save_all(ids=np.repeat([[4, 4, 9, 0], [1, 2, 2, 2]], 16, axis=1))
        packed = [*save_operands(*(random.standard_normal((2, *shape)) for shape in SHAPES)),
                  *"--causal --ranks 4 --q-segments ids.npy --kv-segments ids.npy".split()]
        natural = self.attend(*packed)
        for block in ([], ["--block", "4"]):
            balanced = self.attend(*packed, "--sharding", "balanced", *block)
            for name, values in natural.items():
                self.assertTrue(np.array_equal(np.isfinite(balanced[name]), np.isfinite(values)), name)
                self.assertTrue(np.allclose(balanced[name], values, rtol=1e-11, atol=1e-12), name)


class Pictures(PlanCase):
    BAD = [("--ranks 65 --tokens 650 --svg x.svg", "64"),
           ("--queries 5 --keys 6 --svg-memory x.svg", "as many queries as keys"),
           ("--tokens 12 --svg-memory x.svg", "four tokens a rank"),
           ("--tokens 97 --svg-mask x.svg", "up to 96"),
           ("--tokens 97 --svg x.svg --svg-mask y.svg", "up to 96"),
           ("--tokens 64 --svg x.svg --svg-mask x.svg", "x.svg"),
           ("--tokens 64 --svg x.svg --svg-memory ./x.svg", "x.svg"),
           ("--tokens 12 --ranks 9 --svg-mask x.svg", "up to 8 ranks"),
           ("--tokens 64 --svg missing/x.svg", "missing/x.svg"),
           ("--tokens 64 --sharding balanced --svg-memory x.svg", "without --sharding balanced")]

    def queries(self):
        return [text for text in hints("mask.svg") if text.startswith("query ")]

    def test_a_cell_for_each_rank_and_step_with_its_work(self):
        call = CALL + " --tokens 64"
        self.assertEqual(self.plan(call + " --svg balance.svg"), self.plan(call))
        cells = [f"rank {r}, step {i}, keys of rank {step['owner']}: {step['multiply_adds']} multiply-adds"
                 for plan in self.plans(call)
                 for r, rank in enumerate(plan["ranks"]) for i, step in enumerate(rank["steps"])]
        self.assertEqual([text for text in hints("balance.svg") if text.startswith("rank ")], cells)

    def test_a_rectangle_of_the_mask_for_each_run_of_visible_keys(self):
        self.plan("--tokens 12 --ranks 2 --sharding zigzag --causal --window 2,0 --sink-tokens 1 --documents 0,7 "
                  "--svg-mask mask.svg")
        expected = []
        for query in range(12):
            seen = [key for key in range(query + 1) if (query - key <= 2 or key == 0) and (query < 7) == (key < 7)]
            first, last = [key for key in seen if key - 1 not in seen], [key for key in seen if key + 1 not in seen]
            rank = 0 if query < 3 or query >= 9 else 1
            expected += [f"query {query} of rank {rank}: keys {a} to {b}" for a, b in zip(first, last)]
        self.assertEqual(self.queries(), expected)
        self.plan("--queries 3 --keys 5 --query-offset 2 --ranks 1 --causal --svg-mask mask.svg")
        self.assertEqual(self.queries(), [f"query {query} of rank 0: keys 0 to {query + 2}" for query in range(3)])

    def test_memory(self):
        """Each of 4 ranks has four tensors of 1024 x 64 floats, lse and its remainder, and the buffers of its plan."""
        call = "--tokens 4096 --ranks 4 --pass forward"
        self.plan(call + " --svg-memory memory.svg")
        tensors = 4 * 1024 * 64 * 4 + 2 * 1024 * 4
        bytes_of_token = (tensors + self.plans(call)[0]["ranks"][0]["peak_buffer_bytes"]) / 4096
        texts = [text.text for text in ElementTree.parse("memory.svg").getroot().iter(SVG + "text")]
        self.contains(texts, "one device", "4 ranks, each", "4k", "80 GiB",
                      f"fits {80 * 2**30 / bytes_of_token / 2**20:.0f}M tokens")
        self.plan("--tokens 4096 --ranks 4 --svg-memory memory.svg --schedule auto --flops 1e12")
        ElementTree.parse("memory.svg")

    def test_refused(self):
        self.refuses_all(self.BAD, ["plan"])


main()
