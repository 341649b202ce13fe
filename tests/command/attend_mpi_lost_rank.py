"""A stopped rank ends the whole job within the timeout and a few seconds: one line names it, and no process is left."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import ANNULUS, Folder, save_operands  # noqa: E402
from mpi import launcher, lines_of_annulus, require_mpi  # noqa: E402

require_mpi()
RANKS = 3
TRIALS = 12  # for each rank that is stopped in one part of the job
random = np.random.default_rng(12)
timeout = 2  # in seconds; longer on a machine that is too slow, or too busy, for jobs of which no rank is stopped


def slack():
    """Seconds beyond the timeout until a job has ended.

    An MPI call without a deadline gets the timeout plus one second, and two more on each further rank; ranks whose ring
    has failed wait a second for the answers of the others; the launcher takes a second to end the rest.
    """
    return 6 + timeout


def start(*arguments):
    shutil.rmtree("new", ignore_errors=True)
    return subprocess.Popen([*launcher(RANKS), ANNULUS, "attend", "--comm", "mpi", "--timeout", str(timeout), *arguments],
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
    """Waits until the job has ended, or all of its ranks but the stopped one and then the timeout, or the end."""
    running = time.monotonic()
    while job.poll() is None and time.monotonic() < min(end, running + timeout):
        if any(is_command(pid) for pid in descendants(job.pid) if pid != stopped_pid):
            running = time.monotonic()
        time.sleep(0.05)


def succeeded(job):
    """Waits for the end of a job of which no rank is stopped. One deadline may pass: the timeout is doubled."""
    global timeout
    stdout, stderr = job.communicate(timeout=300)
    if job.returncode == 0:
        return True
    assert re.search(" waited | has not returned within ", stderr + stdout) and timeout < 4, (timeout, stdout, stderr)
    print(f"timeout {timeout}: {lines_of_annulus(stderr + stdout)}")
    timeout *= 2
    return False


def stopped(rank, until, *arguments):
    """Stops the rank when until(job) returns. Returns the line that the job ends with; None if it succeeds."""
    job = start(*arguments)
    pid = process_of(job, rank)
    until(job)
    if pid is None or job.poll() is not None:
        return None if succeeded(job) else stopped(rank, until, *arguments)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    begin = time.monotonic()
    await_end(job, pid, begin + timeout + slack())
    if job.poll() is None:
        left = [other for other in descendants(job.pid) if is_command(other)]
        if left == [pid]:
            # The others have ended. The launcher waits for the stopped process, or for a lock that it shares with it.
            os.kill(pid, signal.SIGCONT)
        elif not left:
            # All have ended, and Open MPI 4's launcher deadlocks: PMIx_server_finalize joins a thread that waits for a
            # mutex.
            job.kill()
        else:
            states = [state_of(other) for other in (job.pid, *descendants(job.pid))]
            for other in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
            job.kill()
            raise AssertionError(f"rank {rank} is stopped, and others do not end", states, job.communicate())
    stdout, stderr = job.communicate(timeout=60)
    lines = lines_of_annulus(stderr + stdout)
    if job.returncode == 0:  # the rank was past its last message
        assert lines == [], lines
        return None
    # Open MPI 4's launcher may crash if a process ends within MPI_Init.
    statuses = (1, -signal.SIGKILL, -signal.SIGSEGV) if "MPI_Init" in lines[0] else (1,)
    assert job.returncode in statuses and len(lines) == 1, (rank, job.returncode, lines)
    print(f"rank {rank} stopped, ended {time.monotonic() - begin:.1f} s later: {lines[0]}")
    return lines[0]


def silent_ranks(line):
    return re.search(r" waited .*no answer from rank ([\d, ]+)$", line)[1].split(", ")


def await_file(job, path):
    """Waits until the file exists. Returns False if the job ends before."""
    while not os.path.exists(path):
        if job.poll() is not None:
            return os.path.exists(path)
        time.sleep(0.002)
    return True


def undisturbed(*arguments):
    """Runs a job. Returns the seconds until the folder of results exists, until the first result, and to the end."""
    while True:
        begin = time.monotonic()
        job = start(*arguments)
        moments = []
        for path in ("new", "new/out.npy"):
            await_file(job, path)
            moments.append(time.monotonic() - begin)
        if succeeded(job):
            return *moments, time.monotonic() - begin


def stops(ranks, moments, wanted, attempt):
    """Stops one rank after another until attempt(rank, share) has been true `wanted` times for each.

    share: fraction of the measured time after which the rank is stopped. After a stop that came too late, where
    attempt() returns None, all are halved: the machine has become faster.
    """
    for rank in ranks:
        seen, scale = 0, 1.0
        for trial in range(TRIALS):
            outcome = attempt(rank, scale * ((trial + 1) % moments) / moments)
            if outcome is None:
                scale /= 2
            seen += bool(outcome)
            if seen == wanted:
                break
        assert seen == wanted, f"rank {rank}: {seen} of {TRIALS} stops were as wanted"


def require_complete_or_absent(names):
    there = sorted(os.listdir("new")) if os.path.exists("new") else []
    assert there in ([], names), there


with Folder():
    names = ["dk.npy", "dq.npy", "dv.npy", "lse.npy", "out.npy"]
    files = save_operands(*(random.standard_normal((1, 1200, 2, 64)).astype(np.float32) for _ in range(3)))
    results = [*files, "--dout", "q.npy", "--out-dir", "new"]
    call = [*results, "--backend", "reference"]  # slow enough to stop a rank in a step of the ring
    before, out, _ = undisturbed(*call)
    assert sorted(os.listdir("new")) == names

    def stop_in_job(rank, until):
        """Returns the line that the job ends with, after the checks that hold at every moment."""
        line = stopped(rank, until, *call)
        if line is None:
            assert sorted(os.listdir("new")) == names
        elif " waited " in line:
            assert str(rank) in silent_ranks(line), (rank, line)
        else:
            # While the ranks have no ring, MPI does not tell which rank is missing.
            assert "MPI_" in line, line
        require_complete_or_absent(names)
        return line

    for rank in range(RANKS):
        stop_in_job(rank, lambda _: time.sleep(before * rank / RANKS))

    # Rank 0 creates the folder just before it scatters, so that a stop from then on is in the ring. A rank that is in a
    # long step does not answer either, hence stops are repeated until the stopped rank alone is named.
    def stop_in_ring(rank, share):
        def moment(job):
            await_file(job, "new")
            time.sleep(share * (out - before))

        line = stop_in_job(rank, moment)
        assert line is None or " waited " in line or "MPI_Finalize" in line, line
        return line and " waited " in line and silent_ranks(line) == [str(rank)]

    stops(range(RANKS), moments=4, wanted=2, attempt=stop_in_ring)

    # Only rank 0 verifies, for longer than the timeout: the others wait for it, and a stopped rank is noticed.
    verify = [*results, "--verify"]
    tokens = 1600
    while True:
        save_operands(*(random.standard_normal((1, tokens, 2, 64)).astype(np.float32) for _ in range(3)))
        _, out, end = undisturbed(*verify)
        if end - out > 1.5 * timeout:
            break
        tokens = 3 * tokens // 2

    def stop_in_verification(rank, _):
        line = stopped(rank, lambda job: await_file(job, "new/out.npy"), *verify)
        assert line is None or str(rank) in silent_ranks(line), (rank, line)
        there = sorted(os.listdir("new"))
        # Rank 0 may be stopped while it renames files.
        assert "out.npy" in there and set(there) <= set(names) if rank == 0 else there == names, there
        return line and silent_ranks(line) == [str(rank)]

    stops((0, 1), moments=1, wanted=1, attempt=stop_in_verification)

    # Large shards and only one step of the ring: every shift scatters or gathers, for long enough to stop a rank in it.
    wide = [*files, "--window", "0,0", "--out-dir", "new"]
    tokens = 8000
    while True:
        save_operands(*(random.standard_normal((1, tokens, 2, 64)).astype(np.float32) for _ in range(3)))
        before, out, _ = undisturbed(*wide)
        if out - before > 0.25:
            break
        tokens *= 2

    def stop_in_shift(rank, share):
        def moment(job):
            await_file(job, "new")
            time.sleep(share * (out - before))

        line = stopped(rank, moment, *wide)
        assert line is None or str(rank) in silent_ranks(line), (rank, line)
        require_complete_or_absent(["lse.npy", "out.npy"])
        return line and " shift, hop " in line

    stops((1, 2), moments=6, wanted=1, attempt=stop_in_shift)

print("ok")
