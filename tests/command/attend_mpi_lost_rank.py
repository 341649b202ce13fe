"""A stopped rank ends the whole job within the timeout and a few seconds: one line names it, and no process is left."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time

import numpy as np

from support.arrays import save_operands
from support.command import ANNULUS, main, note
from support.mpi import MpiCase, launcher, lines_of_annulus, needs_mpi

RANKS = 3
TRIALS = 12  # for each rank that is stopped in one part of the job
GRADIENTS = ["dk.npy", "dq.npy", "dv.npy", "lse.npy", "out.npy"]
OPERANDS = "--q q.npy --k k.npy --v v.npy --out-dir new".split()
WITH_GRADIENTS = [*OPERANDS, "--dout", "q.npy"]
random = np.random.default_rng(12)
timeout = 1.5  # in seconds; longer on a machine that is too slow, or too busy, for jobs of which no rank is stopped


def slack():
    """Seconds beyond the timeout until a job has ended.

    An MPI call without a deadline gets the timeout plus one second, and two more on each further rank; ranks whose ring
    has failed wait a second for the answers of the others; the launcher takes a second to end the rest.
    """
    return 6 + timeout


def start(*arguments):
    shutil.rmtree("new", ignore_errors=True)
    return subprocess.Popen([*launcher(RANKS), ANNULUS, "attend", "--comm", "mpi", "--timeout", str(timeout),
                             *arguments],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def descendants(pid):
    children = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                children.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(entry))
        except OSError:
            pass
    found = children.get(pid, [])
    for child in found:
        found += children.get(child, [])
    return found


def is_command(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe") == os.path.realpath(ANNULUS)
    except OSError:  # it has ended
        return False


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read()[:60]
    except OSError:
        return f"{pid} has ended"


def process_of(job, rank):
    """Waits until the process of the rank has started and returns its id; None if the job ends before."""
    names = {b"OMPI_COMM_WORLD_RANK=%d" % rank, b"PMI_RANK=%d" % rank}
    while job.poll() is None:
        for pid in descendants(job.pid):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if is_command(pid) and names & set(file.read().split(b"\0")):
                        return pid
            except OSError:
                pass
        time.sleep(0.002)
    return None


def await_end(job, stopped_pid, end):
    """Waits until the job has ended, or all of its ranks but the stopped one and then a second, or the end."""
    running = time.monotonic()
    while job.poll() is None and time.monotonic() < min(end, running + 1):
        if any(is_command(pid) for pid in descendants(job.pid) if pid != stopped_pid):
            running = time.monotonic()
        time.sleep(0.05)


def await_file(job, path):
    """Waits until the file exists, or the job ends."""
    while not os.path.exists(path) and job.poll() is None:
        time.sleep(0.002)


def output_of(job, limit):
    stdout, stderr = job.communicate(timeout=limit)
    note(subprocess.CompletedProcess(job.args, job.returncode, stdout, stderr))
    return stderr + stdout


def silent_ranks(line):
    return re.search(r" waited .*no answer from rank ([\d, ]+)$", line)[1].split(", ")


def save(tokens):
    save_operands(*(random.standard_normal((1, tokens, 2, 64)).astype(np.float32) for _ in range(3)))


@needs_mpi
class LostRank(MpiCase):
    def succeeded(self, job):
        """Waits for the end of a job of which no rank is stopped. A deadline may pass: the timeout doubles, up to 12."""
        global timeout
        output = output_of(job, 300)
        if job.returncode == 0:
            return True
        self.assertRegex(output, " waited | has not returned within ")
        self.assertLess(timeout, 8)
        print(f"timeout {timeout}: {lines_of_annulus(output)}")
        timeout *= 2
        return False

    def undisturbed(self, arguments):
        """Runs a job. Returns the seconds until it has a folder of results, a first result, and to its end."""
        while True:
            begin = time.monotonic()
            job = start(*arguments)
            moments = []
            for path in ("new", "new/out.npy"):
                await_file(job, path)
                moments.append(time.monotonic() - begin)
            if self.succeeded(job):
                return *moments, time.monotonic() - begin

    def end(self, job, pid):
        """Ends what is left of a job whose process pid is stopped, and fails if that is another rank."""
        left = [other for other in descendants(job.pid) if is_command(other)]
        if left == [pid]:
            # The others have ended. The launcher waits for the stopped process, or for a lock that it shares with it.
            os.kill(pid, signal.SIGCONT)
        elif not left:
            # All have ended. Open MPI 4's launcher may deadlock: PMIx_server_finalize joins a thread that waits for a
            # mutex.
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(timeout=10)
            job.kill()
        else:
            states = [state_of(other) for other in (job.pid, *descendants(job.pid))]
            for other in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
            job.kill()
            output_of(job, 60)
            self.fail(f"others than the stopped rank do not end: {states}")

    def stopped(self, rank, until, arguments):
        """Stops the rank when until(job) returns. Returns the line that the job ends with; None if it succeeds."""
        job = start(*arguments)
        pid = process_of(job, rank)
        until(job)
        if pid is None or job.poll() is not None:
            return None if self.succeeded(job) else self.stopped(rank, until, arguments)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        await_end(job, pid, begin + timeout + slack())
        if job.poll() is None:
            self.end(job, pid)
        lines = lines_of_annulus(output_of(job, 60))
        if job.returncode == 0:  # the rank was past its last message
            self.assertEqual(lines, [])
            return None
        self.assertEqual(len(lines), 1)
        # Open MPI 4's launcher may crash if a process ends within MPI_Init.
        self.assertIn(job.returncode, (1, -signal.SIGKILL, -signal.SIGSEGV) if "MPI_Init" in lines[0] else (1,))
        print(f"rank {rank} stopped, ended {time.monotonic() - begin:.1f} s later: {lines[0]}")
        return lines[0]

    def stops(self, ranks, moments, attempt):
        """Stops one rank after another until attempt(rank, share) has been true for each.

        share: fraction of the measured time after which the rank is stopped, another one first for each rank. After a
        stop that came too late, where attempt() returns None, all are halved: the machine has become faster.
        """
        for rank in ranks:
            scale = 1.0
            for trial in range(TRIALS):
                outcome = attempt(rank, scale * ((trial + 1 + rank) % moments) / moments)
                if outcome:
                    break
                if outcome is None:
                    scale /= 2
            self.assertTrue(outcome, f"rank {rank}: none of {TRIALS} stops was as wanted")

    def complete_or_absent(self, names):
        self.assertIn(sorted(os.listdir("new")) if os.path.exists("new") else [], ([], names))

    def stop_in_job(self, rank, until, arguments):
        """Returns the line that the job ends with, after the checks that hold at every moment."""
        line = self.stopped(rank, until, arguments)
        if line is None:
            self.assertEqual(sorted(os.listdir("new")), GRADIENTS)
        elif " waited " in line:
            self.assertIn(str(rank), silent_ranks(line))
        else:
            # While the ranks have no ring, MPI does not tell which rank is missing.
            self.assertIn("MPI_", line)
        self.complete_or_absent(GRADIENTS)
        return line

    def test_before_and_in_the_ring(self):
        """Rank 0 creates the folder just before it scatters, so that a stop from then on is in the ring. A rank that is
        in a long step does not answer either, hence stops are repeated until the stopped rank alone is named."""
        save(1200)
        call = [*WITH_GRADIENTS, "--backend", "reference"]  # slow enough to stop a rank in a step of the ring
        before, out, _ = self.undisturbed(call)
        self.assertEqual(sorted(os.listdir("new")), GRADIENTS)
        for rank in (0, 2):
            self.stop_in_job(rank, lambda _: time.sleep(before * rank / RANKS), call)

        def stop_in_ring(rank, share):
            def moment(job):
                await_file(job, "new")
                time.sleep(share * (out - before))

            line = self.stop_in_job(rank, moment, call)
            self.assertTrue(line is None or " waited " in line or "MPI_Finalize" in line, line)
            return line and " waited " in line and silent_ranks(line) == [str(rank)]

        self.stops(range(RANKS), 4, stop_in_ring)

    def test_while_rank_0_verifies(self):
        """For longer than the timeout: the others wait for it, and a stopped rank is noticed."""
        verify = [*WITH_GRADIENTS, "--verify"]
        tokens = 1200
        while True:
            save(tokens)
            _, out, end = self.undisturbed(verify)
            if end - out > 1.5 * timeout:
                break
            tokens = 3 * tokens // 2

        def stop_in_verification(rank, _):
            line = self.stopped(rank, lambda job: await_file(job, "new/out.npy"), verify)
            if line is not None:
                self.assertIn(str(rank), silent_ranks(line))
            there = set(os.listdir("new"))
            # Rank 0 may be stopped while it renames files.
            self.assertTrue({"out.npy"} <= there <= set(GRADIENTS) and (rank == 0 or len(there) == 5), there)
            return line and silent_ranks(line) == [str(rank)]

        self.stops((0, 1), 1, stop_in_verification)

    def test_in_a_shift(self):
        """Large shards and only one step of the ring: every shift scatters or gathers, for long enough for a stop."""
        wide = [*OPERANDS, "--window", "0,0"]
        tokens = 8000
        while True:
            save(tokens)
            before, out, _ = self.undisturbed(wide)
            if out - before > 0.25:
                break
            tokens *= 2

        def stop_in_shift(rank, share):
            def moment(job):
                await_file(job, "new")
                time.sleep(share * (out - before))

            line = self.stopped(rank, moment, wide)
            if line is not None:
                self.assertIn(str(rank), silent_ranks(line))
            self.complete_or_absent(["lse.npy", "out.npy"])
            return line and " shift, hop " in line

        self.stops((1,), 6, stop_in_shift)


main()
