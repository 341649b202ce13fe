"""Lost processes of a ring over MPI: one that dies ends the job at once; one that is stopped is named by all others
within the deadline and a second. No process is left behind.

    lost_process_test.py <launcher and its options ...> <program>
"""

import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "support"))
sys.dont_write_bytecode = True
import cases  # noqa: E402  (found through the lines above)

DEADLINE = 1.5
COMMUNICATION_ERROR = 1
*LAUNCHER, PROGRAM = cases.arguments()
# Place of a rank's work, number of times it has been there, lost rank, ranks, zero_copy: each place on 2 and on 3
# ranks, which read each other's memory or not.
STOPS = [("prefetched", 0, 1, 2, "never"), ("prefetched", 1, 2, 3, "automatic"),
         ("carried", 0, 1, 2, "never"), ("carried", 0, 0, 3, "automatic"),
         ("all_gather", 1, 0, 2, "automatic"), ("all_gather", 1, 1, 3, "never"),
         ("compute", 2, 1, 2, "never"), ("compute", 2, 2, 3, "automatic")]


def is_running(process):
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class LostProcess(cases.Case):
    def lose(self, kind, place, number, culprit, ranks, zero_copy):
        """Returns what the job printed, after the checks of both kinds."""
        job = cases.run(*LAUNCHER, "-np", ranks, PROGRAM, kind, place, number, culprit, zero_copy, timeout=60)
        self.assertNotEqual(job.returncode, 0)
        lost = re.search(rf"process (\d+) of rank {culprit} is lost", job.stdout)
        self.assertTrue(lost, "the process was not lost")
        for _ in range(50):
            if not is_running(lost[1]):
                break
            time.sleep(0.1)
        self.assertFalse(is_running(lost[1]), "the lost process is left behind")
        return job.stdout

    def test_one_that_stops_is_named_by_all_others(self):
        for place, number, culprit, ranks, zero_copy in STOPS:
            with self.subTest(place, number=number, culprit=culprit, ranks=ranks, zero_copy=zero_copy):
                text = self.lose("stop", place, number, culprit, ranks, zero_copy)
                reports = re.findall(r"^rank (\d+): end (\d+), neighbour (-?\d+), ([\d.]+) s: (.*)$", text, re.M)
                self.assertEqual(sorted(int(report[0]) for report in reports),
                                 [r for r in range(ranks) if r != culprit])
                for rank, end, neighbour, seconds, message in reports:
                    self.assertEqual((int(end), int(neighbour)), (COMMUNICATION_ERROR, culprit), f"of rank {rank}")
                    self.assertIn(f"rank {culprit}", message)
                    self.assertLessEqual(float(seconds), DEADLINE + 1, f"of rank {rank}")

    def test_one_that_dies_ends_the_job(self):
        """The launcher does so, wherever the process was."""
        for ranks, zero_copy in ((2, "never"), (3, "automatic")):
            with self.subTest(ranks=ranks, zero_copy=zero_copy):
                begin = time.monotonic()
                self.lose("die", "carried", 0, 1, ranks, zero_copy)
                self.assertLess(time.monotonic() - begin, 30)


cases.main()
