#!/usr/bin/env python3
"""Scrapes the counters that agents and the command line serve, with Prometheus's own parser.

    test_scrape.py <towline> <counting_agents>

Exits 77 where the parser is not installed.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    print("skipped: no prometheus_client here; scripts/install-deps test installs it")
    sys.exit(77)

TOWLINE, AGENTS = sys.argv[1:3]
TIMEOUT = 30
NEAR = 'near "quoted" \\ back'
TRANSFERS, BLOCKS, BYTES = 5, 5 * 8, 5 * 8 * 4096


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def scrape(address: str) -> dict[str, list]:
    """Samples by name."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain"), answer.headers["Content-Type"]
        text = answer.read().decode()
    samples: dict[str, list] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((family.type, sample.labels, sample.value))
    return samples


class Scrape(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.configured = f"127.0.0.1:{free_port()}"
        cls.agents = subprocess.Popen(
            [AGENTS, cls.configured], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        cls.started = cls.agents.stdout.readline().strip()
        assert cls.started, "the agents did not start"

    @classmethod
    def tearDownClass(cls) -> None:
        cls.agents.stdin.close()
        assert cls.agents.wait(TIMEOUT) == 0
        cls.agents.stdout.close()

    def value(self, samples: dict[str, list], name: str, **labels: str) -> float:
        found = [
            (kind, value)
            for kind, its, value in samples.get(name, [])
            if all(its.get(label) == wanted for label, wanted in labels.items())
        ]
        self.assertEqual(len(found), 1, f"{name} {labels}: {found} of {samples.get(name)}")
        return found[0][1]

    def check_near(self, samples: dict[str, list]) -> None:
        series = {"agent": NEAR, "peer": "far", "backend": "tcp", "direction": "tx"}
        self.assertEqual(self.value(samples, "towline_transfers_total", **series), TRANSFERS)
        self.assertEqual(self.value(samples, "towline_blocks_total", **series), BLOCKS)
        self.assertEqual(self.value(samples, "towline_bytes_total", **series), BYTES)
        histogram = "towline_transfer_latency_seconds"
        count = self.value(samples, f"{histogram}_count", **series)
        self.assertEqual(count, TRANSFERS)
        self.assertGreater(self.value(samples, f"{histogram}_sum", **series), 0)
        buckets = [
            (float(labels["le"]), value)
            for _, labels, value in samples[f"{histogram}_bucket"]
            if all(labels.get(label) == wanted for label, wanted in series.items())
        ]
        self.assertEqual(buckets, sorted(buckets))
        self.assertEqual(buckets[-1], (float("inf"), count))
        self.assertEqual([value for _, value in buckets], sorted(value for _, value in buckets))
        kinds = {kind for kind, labels, _ in samples[f"{histogram}_bucket"]}
        self.assertEqual(kinds, {"histogram"})
        self.assertEqual(self.value(samples, "towline_agent_info", agent=NEAR), 1)

    def test_an_agent_serves_its_own_metrics(self) -> None:
        for address in (self.started, self.configured):
            samples = scrape(address)
            self.check_near(samples)
            self.assertFalse([s for s in samples["towline_agent_info"] if s[1]["agent"] == "far"])

    def test_the_command_line_serves_the_hosts(self) -> None:
        command = [TOWLINE, "metrics", "--prometheus", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                address = server.stdout.readline().split("http://")[1].split("/")[0]
                for _ in range(3):
                    samples = scrape(address)
                    self.check_near(samples)
                    self.value(samples, "towline_agent_info", agent="far", pid=str(self.agents.pid))
                with self.assertRaises(urllib.error.HTTPError):
                    urllib.request.urlopen(f"http://{address}/elsewhere", timeout=TIMEOUT)
            finally:
                server.terminate()
            self.assertEqual(server.wait(TIMEOUT), 0)

    def test_a_taken_address_says_so(self) -> None:
        command = [TOWLINE, "metrics", "--prometheus", self.configured]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 1)
        self.assertIn(self.configured, done.stderr)
        for bad in ("nonsense", "127.0.0.1:1,127.0.0.1:2"):
            done = subprocess.run([TOWLINE, "metrics", "--prometheus", bad], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("host:port", done.stderr)

    def test_the_table_and_json_say_the_same(self) -> None:
        table = subprocess.run([TOWLINE, "metrics"], capture_output=True, text=True, check=True).stdout
        line = next(line for line in table.splitlines() if line.startswith(NEAR) and f" {self.agents.pid} " in line and " tx " in line)
        self.assertIn("160 KiB", line)
        printed = subprocess.run([TOWLINE, "metrics", "--json"], capture_output=True, check=True).stdout
        agents = json.loads(printed)["entries"]
        near = next(agent for agent in agents if agent["agent"] == NEAR and agent["pid"] == self.agents.pid)
        sent = next(one for one in near["series"] if one["direction"] == "tx")
        self.assertEqual((sent["bytes"], sent["transfers"]), (BYTES, TRANSFERS))
        self.assertEqual(sum(count for _, count in sent["latency_buckets"]), TRANSFERS)

    def test_watching_prints_again_and_again(self) -> None:
        command = [TOWLINE, "metrics", "--watch", "--json", "--interval", "50ms"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
            for _ in range(3):
                agents = json.loads(watching.stdout.readline())["entries"]
                self.assertIn(self.agents.pid, [agent["pid"] for agent in agents])
            watching.terminate()
            self.assertEqual(watching.wait(TIMEOUT), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
