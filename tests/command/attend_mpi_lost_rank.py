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
RANKS, TIMEOUT = 3, 2
# An MPI call without a deadline gets the timeout plus one second, and two more on each further rank; ranks whose ring
# has failed wait a second for the answers of the others; the launcher takes a second to end the rest.
SLACK = 8
LAUNCHER_SLACK = 2
random = np.random.default_rng(12)


def start(*arguments, timeout=TIMEOUT):
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
    """Waits until the job has ended, or all of its ranks but the stopped one and then LAUNCHER_SLACK, or the end."""
    running = time.monotonic()
    while job.poll() is None and time.monotonic() < min(end, running + LAUNCHER_SLACK):
        if any(is_command(pid) for pid in descendants(job.pid) if pid != stopped_pid):
            running = time.monotonic()
        time.sleep(0.05)


def stopped(rank, until, *arguments, timeout=TIMEOUT):
    """Stops the rank when until() returns. Returns the line that the job ends with; None if it succeeded before."""
    job = start(*arguments, timeout=timeout)
    pid = process_of(job, rank)
    until()
    try:
        if pid is None or job.poll() is not None:
            raise ProcessLookupError
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        job.communicate(timeout=60)
        return None
    begin = time.monotonic()
    await_end(job, pid, begin + timeout + SLACK)
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


def wait_for(path):
    end = time.monotonic() + 60
    while not os.path.exists(path):
        assert time.monotonic() < end, path
        time.sleep(0.01)


def remove_results():
    for name in os.listdir("new"):
        os.remove(os.path.join("new", name))


with Folder():
    files = save_operands(*(random.standard_normal((1, 3000, 2, 64)).astype(np.float32) for _ in range(3)))
    results = [*files, "--dout", "q.npy", "--out-dir", "new"]
    call = [*results, "--backend", "reference"]  # slow enough to stop a rank in the ring
    job = start(*call)
    process_of(job, 0)
    begin = time.monotonic()
    assert job.wait() == 0, job.communicate()
    whole = time.monotonic() - begin
    assert len(os.listdir("new")) == 5
    remove_results()

    named, exact = 0, 0
    moments = 9
    for moment in range(moments):
        rank = moment % RANKS
        line = stopped(rank, lambda: time.sleep(whole * moment / moments), *call)
        files_there = os.listdir("new")
        if line is None or " waited " not in line:
            # While the ranks have no ring, MPI does not tell which rank is missing.
            assert line is None or "MPI_" in line, line
        else:
            assert str(rank) in silent_ranks(line), (rank, line)
            named += 1
            exact += silent_ranks(line) == [str(rank)]
        # Results are complete or not there; a job that ended well has all of them.
        assert len(files_there) == 5 if line is None else len(files_there) in (0, 5), (line, files_there)
        assert not any(name.startswith(".") for name in files_there), files_there
        remove_results()
    # A rank that is in a long step does not answer either, hence the tolerances.
    assert named >= moments // 2 and exact >= named - 1, (named, exact)

    # Only rank 0 verifies, for longer than the timeout: the others wait for it, and a stopped rank is noticed.
    verify = [*results, "--verify"]
    job = start(*verify, timeout=1)
    wait_for("new/out.npy")
    begin = time.monotonic()
    stdout, stderr = job.communicate(timeout=300)
    assert job.returncode == 0 and "largest relative error" in stdout, stderr
    assert time.monotonic() - begin > 2, "the verification is too short to test this"
    remove_results()
    for rank in (0, 1):
        line = stopped(rank, lambda: wait_for("new/out.npy"), *verify, timeout=1)
        assert line and silent_ranks(line) == [str(rank)], line
        assert len(os.listdir("new")) in (1, 5), os.listdir("new")  # rank 0 may be stopped while it renames files
        remove_results()

    # Large shards and only one step of the ring: every shift scatters or gathers. Rank 0 creates the folder just before
    # it scatters.
    tokens = 100000
    files = save_operands(*(random.standard_normal((1, tokens, 2, 64)).astype(np.float32) for _ in range(3)))
    wide = [*files, "--window", "0,0", "--out-dir", "wide"]
    job = start(*wide)
    wait_for("wide")
    begin = time.monotonic()
    wait_for("wide/out.npy")
    whole = time.monotonic() - begin
    assert job.wait() == 0, job.communicate()

    def part_of_the_job(share):
        wait_for("wide")
        time.sleep(share * whole)

    shards = 0
    for moment in range(6):
        rank = 1 + moment % 2
        shutil.rmtree("wide", ignore_errors=True)
        line = stopped(rank, lambda: part_of_the_job(moment / 6), *wide)
        assert line is None or str(rank) in silent_ranks(line), (rank, line)
        shards += line is not None and " shift, hop " in line
        assert not os.path.exists("wide") or sorted(os.listdir("wide")) in ([], ["lse.npy", "out.npy"]), os.listdir("wide")
    assert shards > 0

print(f"ok: {named} of {moments} stops were in the ring")
