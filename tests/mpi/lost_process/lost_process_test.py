"""Test of lost processes of a ring over MPI: one that dies ends the job at once; one that is stopped is named by all
others within the deadline and a second. No process is left behind.
Usage: lost_process_test.py <launcher and its options ...> <program>"""

import os
import re
import subprocess
import sys
import time

DEADLINE = 1.5
COMMUNICATION_ERROR = 1

command, program = sys.argv[1:-1], sys.argv[-1]


def is_running(process):
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def check(kind, place, number, culprit, ranks, zero_copy):
    case = f"{kind} at {place} {number} of rank {culprit} of {ranks}, zero_copy {zero_copy}"
    start = time.monotonic()
    job = subprocess.run([*command, "-np", str(ranks), program, kind, place, str(number), str(culprit), zero_copy],
                         capture_output=True, text=True, timeout=60)
    seconds = time.monotonic() - start
    lost = re.search(r"process (\d+) of rank (\d+) is lost", job.stdout)
    complaints = []
    if not lost or int(lost.group(2)) != culprit:
        complaints.append("the process was not lost")
    if job.returncode == 0:
        complaints.append("the job ended with success")
    if seconds > 30:
        complaints.append(f"the job took {seconds:.0f} s")
    if lost:
        for _ in range(50):
            if not is_running(lost.group(1)):
                break
            time.sleep(0.1)
        else:
            complaints.append("the lost process is left behind")
    if kind == "stop":
        reports = re.findall(r"^rank (\d+): end (\d+), neighbour (-?\d+), ([\d.]+) s: (.*)$", job.stdout, re.MULTILINE)
        if sorted(int(report[0]) for report in reports) != [r for r in range(ranks) if r != culprit]:
            complaints.append("not all other ranks report")
        for rank, end, neighbour, took, text in reports:
            who = f"rank {rank} ({took} s: {text})"
            if int(end) != COMMUNICATION_ERROR:
                complaints.append(f"{who} throws no CommunicationError")
            if int(neighbour) != culprit or f"rank {culprit}" not in text:
                complaints.append(f"{who} does not name the culprit")
            if float(took) > DEADLINE + 1:
                complaints.append(f"{who} ends late")
    for complaint in complaints:
        print(f"{case}: {complaint}")
    if complaints and os.environ.get("ANNULUS_TEST_VERBOSE"):
        print(job.stdout, job.stderr)
    return not complaints


cases = [("prefetched", 0), ("prefetched", 1), ("carried", 0), ("all_gather", 1), ("compute", 2)]
right = True
for kind in ("stop", "die"):
    for index, (place, number) in enumerate(cases):
        for ranks in (2, 3):
            zero_copy = ("never", "automatic")[(index + ranks) % 2]
            right = check(kind, place, number, (index + 1) % ranks, ranks, zero_copy) and right
sys.exit(0 if right else 1)
