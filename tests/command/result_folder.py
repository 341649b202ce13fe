"""The output folder: one run at a time, complete results or none, also if a run is stopped or the disk is full."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import ANNULUS, Folder, load, run, save_operands  # noqa: E402

random = np.random.default_rng(23)
RESULTS = {"out", "lse", "dq", "dk", "dv"}


def start(*arguments, **how):
    return subprocess.Popen([ANNULUS, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)


def ended(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def one_line(err, *words):
    assert err.startswith("annulus: ") and err.count("\n") == 1 and err.endswith("\n"), err
    assert all(word in err for word in words), (words, err)


def entries(folder="."):
    return sorted(os.path.join(path, name) for path, folders, names in os.walk(folder) for name in folders + names)


def wait_until(condition, process):
    while not condition() and process.poll() is None:
        time.sleep(0.001)
    return condition()


def limited_file_size(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


with Folder():
    arrays = [random.standard_normal((1, 700, 2, 32)).astype("f4") for _ in range(4)]
    os.mkdir("few")
    os.chdir("few")
    few = [os.path.join("few", argument) if argument.endswith(".npy") else argument for argument in save_operands(*(array[:, :8] for array in arrays))]
    os.chdir("..")
    files = save_operands(*arrays)
    call = ["attend", *files, "--backend", "reference", "--threads", "1"]

    assert run(*call, "--out-dir", "first").returncode == 0
    expected = load("first")

    # Two runs that start in one new folder: one succeeds, the other is refused or runs after it.
    for pair in range(60):
        both = [start(*call, "--out-dir", os.path.join("pair", "of", str(pair))) for _ in range(2)]
        outcomes = [ended(process) for process in both]
        assert sorted(code for code, _, _ in outcomes) in ([0, 0], [0, 2]), outcomes
        for code, out, err in outcomes:
            if code == 2:
                one_line(err, "another run writes there", "accepted")
                assert out == ""
        assert set(load(os.path.join("pair", "of", str(pair)))) == RESULTS

    # A running call excludes others; a killed one does not.
    process = start(*call, "--out-dir", "busy")
    assert wait_until(lambda: os.path.isdir("busy"), process)
    time.sleep(0.02)
    second = run(*call, "--out-dir", os.path.join(".", "busy"))
    if process.poll() is None:
        assert second.returncode == 2, second
        one_line(second.stderr, "busy: another run writes there")
    process.kill()
    process.communicate()
    assert run(*call, "--out-dir", "busy").returncode == 0
    shutil.rmtree("busy")

    # One process may use the same folder for two purposes.
    done = run("nki", "--simulate", "--tokens-per-rank", "16", "--head-dim", "16", "--ranks", "2", "--emit", "both", "--out-dir", "both")
    assert done.returncode == 0 and {"out.npy", "README.md"} <= set(os.listdir("both")), done

    # Signals, at any time: all results or none, no other file, and the status of the signal.
    before = entries()
    begin = time.monotonic()
    assert run(*call, "--out-dir", "timed", "--trace", "timed.json").returncode == 0
    whole = time.monotonic() - begin
    shutil.rmtree("timed")
    os.remove("timed.json")
    for stop in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        for part in range(12):
            process = start(*call, "--out-dir", os.path.join("stopped", "here"), "--trace", "stopped.json", restore_signals=True,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
            if part < 4:
                wait_until(lambda: os.path.isdir("stopped"), process)
                time.sleep(part * 0.002)
            else:
                time.sleep(whole * part / 12)
            process.send_signal(stop)
            code, out, err = ended(process)
            assert code in (0, -stop), (code, err)
            if code == 0 or os.path.exists("stopped"):
                found = load(os.path.join("stopped", "here"))
                assert set(found) == RESULTS and all(np.array_equal(found[name], expected[name]) for name in RESULTS), found.keys()
                with open("stopped.json") as file:
                    json.load(file)
                os.remove("stopped.json")
                shutil.rmtree("stopped")
            assert entries() == before, set(entries()) ^ set(before)
    for ignored in (signal.SIGHUP, signal.SIGINT):
        process = start(*call, "--out-dir", "kept", restore_signals=False, preexec_fn=lambda: signal.signal(ignored, signal.SIG_IGN))
        assert wait_until(lambda: os.path.isdir("kept"), process)
        process.send_signal(ignored)
        assert ended(process)[0] == 0
        shutil.rmtree("kept")

    # A file size limit is an error like others: status 1, the reason, and no file left.
    for arguments in (["--out-dir", "limited"], ["--out-dir", "limited", "--trace", "limited.json"]):
        code, out, err = ended(start(*call, *arguments, preexec_fn=limited_file_size(8192)))
        assert code == 1, (code, err)
        one_line(err, "cannot be written (File too large)", "limited")
        assert entries() == before, set(entries()) ^ set(before)
    code, out, err = ended(start("attend", *few, "--out-dir", "limited", "--trace", "limited.json", "--ranks", "30", preexec_fn=limited_file_size(4096)))
    assert code == 1, (code, err)
    one_line(err, "limited.json", "cannot be written (File too large)")
    assert entries() == before, set(entries()) ^ set(before)

    # Older results stay if the new ones cannot be written.
    shutil.copytree("first", "older")
    code, out, err = ended(start(*call, "--out-dir", "older", preexec_fn=limited_file_size(8192)))
    assert code == 1 and all(np.array_equal(array, expected[name]) for name, array in load("older").items()), (code, err)

    # out.npy is removed first and renamed last: if it exists, all results are of one run.
    os.makedirs("watched")
    for name in RESULTS:
        np.save(os.path.join("watched", name + ".npy"), np.zeros(1))
    old = {name: os.stat(os.path.join("watched", name + ".npy")).st_ino for name in RESULTS}
    process = start(*call, "--out-dir", "watched")
    mixed = 0
    while process.poll() is None:
        seen = {}
        for name in ["out", *sorted(RESULTS - {"out"}), "out again"]:
            try:
                seen[name] = os.stat(os.path.join("watched", name.split()[0] + ".npy")).st_ino
            except FileNotFoundError:
                seen[name] = None
        if seen["out"] is not None and seen["out"] == seen["out again"]:
            mixed += len({seen[name] == old[name] for name in RESULTS}) > 1
    assert mixed == 0 and ended(process)[0] == 0
    times = {name: os.stat(os.path.join("watched", name + ".npy")).st_ctime_ns for name in RESULTS}
    assert times["out"] == max(times.values()), times

    # Temporary names cannot be predicted, so nobody can plant a link under them.
    open("victim", "w").close()
    def plant():
        for number in range(8):
            os.symlink(os.path.abspath("victim"), f".annulus-{os.getpid()}-{number}.text.partial")
    process = start(*call, "--out-dir", "linked", "--trace", "linked.json", preexec_fn=plant)
    assert ended(process)[0] == 0
    assert os.path.getsize("victim") == 0 and not os.path.islink("linked.json")
    with open("linked.json") as file:
        json.load(file)

    # A full disk, if one can be mounted: the error names the reason.
    script = 'mount -t tmpfs -o size=4k none disk && "$0" "$@"; status=$?; ls -A disk; exit $status'
    os.mkdir("disk")
    if shutil.which("unshare") and subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=4k none disk"], capture_output=True).returncode == 0:
        for arguments in ([*call, "--out-dir", "disk"], ["attend", *few, "--ranks", "40", "--out-dir", "elsewhere", "--trace", "disk/trace.json"],
                          ["nki", "--cost-only", "--tokens-per-rank", "512", "--ranks", "2", "--listing", "disk/listing.txt"]):
            done = subprocess.run(["unshare", "-m", "sh", "-c", script, ANNULUS, *arguments], capture_output=True, text=True, timeout=300)
            assert done.returncode == 1, (arguments, done)
            one_line(done.stderr, "cannot be written (No space left on device)")
            assert "Success" not in done.stderr and "partial" not in done.stdout and ".npy" not in done.stdout, done
            if "disk" in arguments:
                assert done.stdout == "", done.stdout
    else:
        print("no small disk can be mounted here")

print("ok")
