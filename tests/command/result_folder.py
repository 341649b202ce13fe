"""The output folder: one run at a time, complete results or none, also if a run is stopped or the disk is full."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time

import numpy as np

from support.arrays import ArrayCase, load, same, save_operands
from support.command import ANNULUS, main, note, run

OPERANDS = np.random.default_rng(23).standard_normal((4, 1, 700, 2, 32)).astype("f4")
RESULTS = {"out", "lse", "dq", "dk", "dv"}
SMALL_DISK = "mount -t tmpfs -o size=4k none disk"


def start(*arguments, **how):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([ANNULUS, *arguments], text=True, **pipes, **how)


def ended(process):
    out, err = process.communicate(timeout=300)
    return note(subprocess.CompletedProcess(process.args, process.returncode, out, err))


def entries():
    return sorted(os.path.join(path, name) for path, folders, names in os.walk(".") for name in folders + names)


def inode(folder, name):
    try:
        return os.stat(os.path.join(folder, name + ".npy")).st_ino
    except FileNotFoundError:
        return None


def wait_until(condition, process):
    while not condition() and process.poll() is None:
        time.sleep(0.001)
    return condition()


def limit(name, size):
    return lambda: resource.setrlimit(name, (size, size))


def in_small_disk(script, *arguments):
    return ["unshare", "-m", "sh", "-c", f"{SMALL_DISK} && {script}", *arguments]


class ResultFolder(ArrayCase):
    def setUp(self):
        super().setUp()
        few = save_operands(*OPERANDS[:, :, :8])
        os.mkdir("few")
        for name in few[1::2]:
            shutil.move(name, "few")
        self.few = ["attend", *(os.path.join("few", word) if word.endswith(".npy") else word for word in few)]
        self.call = ["attend", *save_operands(*OPERANDS), "--backend", "reference", "--threads", "1"]

    def complete(self, folder):
        """Checks that the folder has the results of the call, and removes it."""
        found = load(folder)
        self.assertEqual(set(found), RESULTS)
        self.assertTrue(same(found, self.expected()))
        shutil.rmtree(folder)

    def expected(self):
        if not hasattr(ResultFolder, "results"):
            ResultFolder.results = self.attend(*self.call[1:], out="expected")
        return ResultFolder.results

    def started(self, folder, *arguments, **how):
        """A process that has created the folder."""
        process = start(*self.call, "--out-dir", folder, *arguments, **how)
        self.assertTrue(wait_until(lambda: os.path.isdir(folder), process))
        return process

    def test_two_runs_that_start_in_one_new_folder(self):
        for pair in range(60):
            folder = os.path.join("pair", "of", str(pair))
            both = [ended(process) for process in [start(*self.call, "--out-dir", folder) for _ in range(2)]]
            # One succeeds, the other is refused or runs after it.
            self.assertIn(sorted(done.returncode for done in both), ([0, 0], [0, 2]))
            for done in both:
                if done.returncode == 2:
                    self.one_line(done, 2, "another run writes there", "accepted")
            self.assertEqual(set(load(folder)), RESULTS)

    def test_a_running_call_excludes_others_and_a_killed_one_does_not(self):
        process = self.started("busy")
        time.sleep(0.02)
        second = run(*self.call, "--out-dir", os.path.join(".", "busy"))
        if process.poll() is None:
            self.one_line(second, 2, "busy: another run writes there")
        process.kill()
        process.communicate()
        self.assertEqual(run(*self.call, "--out-dir", "busy").returncode, 0)

    def test_one_process_may_use_a_folder_for_two_purposes(self):
        done = run("nki", "--simulate",
                   *"--tokens-per-rank 16 --head-dim 16 --ranks 2 --emit both --out-dir both".split())
        self.assertEqual(done.returncode, 0)
        self.contains(os.listdir("both"), "out.npy", "README.md")

    def test_signals_leave_all_results_or_none(self):
        begin = time.monotonic()
        self.expected()
        self.attend(*self.call[1:], "--trace", "timed.json", out="timed")
        whole = time.monotonic() - begin
        os.remove("timed.json")
        before = entries()
        for stop in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            for part in range(12):
                with self.subTest(stop.name, part=part):
                    self.stop(stop, part, whole)
                    self.assertEqual(entries(), before)

    def stop(self, stop, part, whole):
        """Stops a call when the folder has been created, a little later, or after a part of the whole time."""
        folder = os.path.join("stopped", "here")
        process = start(*self.call, "--out-dir", folder, "--trace", "stopped.json", restore_signals=True,
                        preexec_fn=limit(resource.RLIMIT_CORE, 0))
        if part < 4:
            wait_until(lambda: os.path.isdir("stopped"), process)
        time.sleep(part * 0.002 if part < 4 else whole * part / 12)
        process.send_signal(stop)
        code = ended(process).returncode
        self.assertIn(code, (0, -stop))
        if code == 0 or os.path.exists("stopped"):
            self.complete(folder)
            os.rmdir("stopped")
            with open("stopped.json") as file:
                json.load(file)
            os.remove("stopped.json")

    def test_signals_that_the_parent_ignores(self):
        for ignored in (signal.SIGHUP, signal.SIGINT):
            with self.subTest(ignored.name):
                process = self.started("kept", restore_signals=False,
                                       preexec_fn=lambda: signal.signal(ignored, signal.SIG_IGN))
                process.send_signal(ignored)
                self.assertEqual(ended(process).returncode, 0)
                self.complete("kept")

    def test_file_size_limit_leaves_no_file(self):
        before = entries()
        for size, arguments, *words in [
                (8192, [*self.call, "--out-dir", "limited"], "limited"),
                (8192, [*self.call, "--out-dir", "limited", "--trace", "limited.json"], "limited"),
                (4096, [*self.few, "--out-dir", "limited", "--trace", "limited.json", "--ranks", "30"],
                 "limited.json")]:
            with self.subTest(arguments[-4:]):
                done = run(*arguments, preexec_fn=limit(resource.RLIMIT_FSIZE, size))
                self.one_line(done, 1, "cannot be written (File too large)", *words)
                self.assertEqual(entries(), before)

    def test_older_results_stay_if_new_ones_cannot_be_written(self):
        self.expected()
        self.assertEqual(run(*self.call, "--out-dir", "older").returncode, 0)
        done = run(*self.call, "--out-dir", "older", preexec_fn=limit(resource.RLIMIT_FSIZE, 8192))
        self.assertEqual(done.returncode, 1)
        self.complete("older")

    def test_out_is_removed_first_and_renamed_last(self):
        """If out.npy exists, all results are of one run."""
        os.mkdir("watched")
        for name in RESULTS:
            np.save(os.path.join("watched", name + ".npy"), np.zeros(1))
        old = {name: inode("watched", name) for name in RESULTS}
        process = start(*self.call, "--out-dir", "watched")
        while process.poll() is None:
            first, *seen, last = [(name, inode("watched", name)) for name in ["out", *sorted(RESULTS - {"out"}), "out"]]
            if first == last != ("out", None):
                self.assertEqual(len({number == old[name] for name, number in [first, *seen]}), 1, seen)
        self.assertEqual(ended(process).returncode, 0)
        times = {name: os.stat(os.path.join("watched", name + ".npy")).st_ctime_ns for name in RESULTS}
        self.assertEqual(times["out"], max(times.values()))

    def test_temporary_names_cannot_be_predicted(self):
        """So nobody can plant a link under them."""
        open("victim", "w").close()
        def plant():
            for number in range(8):
                os.symlink(os.path.abspath("victim"), f".annulus-{os.getpid()}-{number}.text.partial")
        done = run(*self.call, "--out-dir", "linked", "--trace", "linked.json", preexec_fn=plant)
        self.assertEqual(done.returncode, 0)
        self.assertEqual((os.path.getsize("victim"), os.path.islink("linked.json")), (0, False))
        with open("linked.json") as file:
            json.load(file)

    def test_full_disk(self):
        os.mkdir("disk")
        if not shutil.which("unshare") or subprocess.run(in_small_disk("true"), capture_output=True).returncode != 0:
            self.skipTest("no small disk can be mounted here")
        for arguments in ([*self.call, "--out-dir", "disk"],
                          [*self.few, "--ranks", "40", "--out-dir", "elsewhere", "--trace", "disk/trace.json"],
                          ["nki", *"--cost-only --tokens-per-rank 512 --ranks 2 --listing disk/listing.txt".split()]):
            with self.subTest(arguments[-2:]):
                script = in_small_disk('"$0" "$@"; status=$?; ls -A disk; exit $status', ANNULUS, *arguments)
                done = note(subprocess.run(script, capture_output=True, text=True, timeout=300))
                left, done.stdout = done.stdout, ""
                self.one_line(done, 1, "cannot be written (No space left on device)")
                self.assertNotIn("Success", done.stderr)
                self.assertNotRegex(left, r"partial|\.npy")
                self.assertFalse(left and "disk" in arguments, left)


main()
