#!/usr/bin/env python3
"""nixlbench with the flags and the table that NIXL's own has.

    test_nixlbench.py <nixlbench>
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

PROGRAM = sys.argv[1]
TIMEOUT = 120
COLUMNS = ["Block Size (B)", "Batch Size", "B/W (GB/Sec)", "Avg Lat. (us)", "Avg Prep (us)", "P99 Prep (us)",
           "Avg Post (us)", "P99 Post (us)", "Avg Tx (us)", "P99 Tx (us)"]
SMALL = ["--total_buffer_size=4194304", "--start_block_size=4096", "--max_block_size=16384", "--max_batch_size", "4",
         "--num_iter=64", "--warmup_iter=8", "--check_consistency"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(*flags: str) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, *flags], capture_output=True, text=True, timeout=TIMEOUT)


def pair(*flags: str) -> list[tuple[int, str, str]]:
    """Two processes with the same flags: exit code, output and errors of each."""
    both = [subprocess.Popen([PROGRAM, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)]
    try:
        ends = [process.communicate(timeout=TIMEOUT) for process in both]
    finally:
        for process in both:
            process.kill()
    return [(process.returncode, out, err) for process, (out, err) in zip(both, ends)]


def rows(text: str) -> list[list[float]]:
    """The table's rows, after its header and a line of dashes."""
    lines = text.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith(COLUMNS[0]))
    assert [lines[header].find(name) >= 0 for name in COLUMNS] == [True] * len(COLUMNS), lines[header]
    assert set(lines[header + 1]) == {"-"}
    return [[float(word) for word in line.split()] for line in lines[header + 2 :] if line[:1].isdigit()]


class Nixlbench(unittest.TestCase):
    def check(self, ends: list[tuple[int, str, str]], steps: int) -> None:
        self.assertEqual([code for code, _, _ in ends], [0, 0], ends)
        tables = [out for _, out, _ in ends if COLUMNS[0] in out]
        self.assertEqual(len(tables), 1, "one of them prints")
        table = rows(tables[0])
        self.assertEqual(len(table), steps)
        for row in table:
            self.assertEqual(len(row), len(COLUMNS))
            self.assertGreater(row[2], 0)
            self.assertGreaterEqual(row[9], 0)

    def test_two_processes_meet_at_an_address(self) -> None:
        for more in ([], ["--op_type=READ"], ["--recreate_xfer", "--num_threads=2"],
                     ["--prepared_xfer=true", "--pipeline_depth=3"]):
            ends = pair("--runtime_type=ASIO", f"--asio_port={free_port()}", "--backend=UCX", *SMALL, *more)
            with self.subTest(more):
                self.check(ends, 9)

    def test_two_processes_meet_at_etcd(self) -> None:
        program = shutil.which("etcd")
        if program is None:
            self.skipTest("no etcd here")
        with tempfile.TemporaryDirectory() as folder:
            port, peers = free_port(), free_port()
            url = f"http://127.0.0.1:{port}"
            server = subprocess.Popen(
                [program, "--data-dir", folder, "--listen-client-urls", url, "--advertise-client-urls", url,
                 "--listen-peer-urls", f"http://127.0.0.1:{peers}"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                self.wait_for(url + "/health")
                ends = pair("--etcd_endpoints", url, "--benchmark_group=tests", *SMALL)
                self.check(ends, 9)
            finally:
                server.kill()
                server.wait()

    def wait_for(self, url: str) -> None:
        until = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError):
                self.assertLess(time.monotonic(), until, "etcd does not answer")
                os.sched_yield()

    def test_files_are_measured_by_one_process(self) -> None:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            for more in ([], ["--op_type=READ", "--num_files=2", "--num_threads=2"]):
                done = run("--backend=POSIX", f"--filepath={folder}", *SMALL, *more)
                with self.subTest(more):
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(len(rows(done.stdout)), 9)
            self.assertTrue(os.listdir(folder))

    def test_a_file_of_settings_has_the_same_names(self) -> None:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            path = os.path.join(folder, "bench.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write('backend = "POSIX"\ntotal_buffer_size = 1048576\nmax_block_size = 8192\nnum_iter = 8\n'
                           f'[storage]\nfilepath = "{folder}"\nposix_api_type = "AIO"\n')
            done = run("--config_file", path, "--max_block_size=4096")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(rows(done.stdout)), 1)
            self.assertIn("--posix_api_type", done.stdout)

    def test_flags_that_are_wrong_are_named(self) -> None:
        for flags, word in ((["--no_such=1"], "--no_such"), (["--num_iter=many"], "--num_iter"),
                            (["--scheme=tp"], "--scheme"), (["--initiator_seg_type=VRAM"], "--initiator_seg_type"),
                            (["--max_block_size"], "--max_block_size"),
                            (["--total_buffer_size=4096", "--max_block_size=8192"], "--total_buffer_size"),
                            (["--config_file=/nowhere"], "/nowhere"),
                            (["--backend=NO_SUCH"], "NO_SUCH"), ([], "--etcd_endpoints"),
                            (["--etcd_endpoints=http://127.0.0.1:1"], "127.0.0.1:1"),
                            (["--backend=AZURE_BLOB", *SMALL], "AZURE_BLOB")):
            done = run(*flags)
            with self.subTest(flags):
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(word, done.stderr)
        self.assertEqual(run("--help").returncode, 0)

    def test_a_transfer_that_fails_tells_its_status(self) -> None:
        def limit() -> None:  # of a file, which the agent's counters fit into; SIGXFSZ stays ignored, as Python has it
            resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))

        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            done = subprocess.run([PROGRAM, "--backend=POSIX", f"--filepath={folder}", "--total_buffer_size=67108864",
                                   "--start_block_size=33554432", "--max_block_size=33554432"], capture_output=True, text=True,
                                  timeout=TIMEOUT, preexec_fn=limit, restore_signals=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("a transfer ended with NIXL_ERR_", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
