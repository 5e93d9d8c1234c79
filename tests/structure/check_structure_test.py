#!/usr/bin/env python3
"""Plants a violation of each rule in a small tree and expects the checker to find it, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).resolve().with_name("check_structure.py")

CLEAN = {
    "include/towline/towline.h": "#include <stdint.h>\n#include <towline/export.h>\n",
    "src/base/config/config.cc": 'const char* home = getenv("HOME");\n',
    "src/plan/cursor.h": '#include "memory/blocks.h"\n#include <towline/towline.h>\n',
    "src/plan/cursor_test.cc": '#include "plan/cursor.h"\n// sleep_for(1s) would be wrong\n',
    "src/transports/shm/backend.cc": '#include "transports/shm/backend.h"\n#include "framing/lane.h"\n',
    "src/transports/faulty/faulty_test.cc": '#include "transports/memory/backend.h"\n#include "conformance/suite.h"\n',
    "src/agent/builtin_backends.cc": '#include "transports/shm/backend.h"\n',
    "src/agent/peer.h": '#include "metadata/blob/blob.h"\n',
    "tests/conformance/suite.h": '#include "transports/shm/backend.h"\n',
    "tools/towline/main.cc": '#include "info.h"\n#include <towline/towline.hpp>\n',
    "tools/towline/info.h": "\n",
}
EXCEPTION = """[[exception]]
rule = "layer"
path = "src/agent/builtin_backends.cc"
reason = "the table"
"""


class StructureTest(unittest.TestCase):
    def findings(self, planted: dict[str, str], exceptions: str = EXCEPTION) -> list[str]:
        """The checker's reports for the clean tree with some files planted, each as `path rule`."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "tree"
            for name, text in (CLEAN | planted).items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            allowed = pathlib.Path(folder) / "exceptions.toml"
            allowed.write_text(exceptions)
            result = subprocess.run(
                [sys.executable, CHECKER, root, "--exceptions", allowed], capture_output=True, text=True, check=False
            )
        self.assertEqual(result.stderr, "")
        self.assertEqual(result.returncode, 1 if result.stdout else 0)
        return [f"{path} {rule.strip()}" for path, _, rule, *_ in (line.split(":") for line in result.stdout.splitlines())]

    def assert_found(self, path: str, text: str, rule: str):
        self.assertEqual(self.findings({path: text}), [f"{path} {rule}"])

    def test_clean_tree_passes(self):
        self.assertEqual(self.findings({}), [])

    def test_layer_above(self):
        self.assert_found("src/memory/bad.cc", '#include "plan/cursor.h"\n', "layer")

    def test_layer_above_from_a_header(self):
        self.assert_found("src/base/os/bad.h", '#  include "telemetry/trace.h"\n', "layer")

    def test_backend_sees_no_agent(self):
        self.assert_found("src/transports/shm/bad.cc", '#include "agent/agent.h"\n', "layer")

    def test_backend_sees_no_other_backend(self):
        self.assert_found("src/transports/shm/bad.cc", '#include "transports/tcp/wire.h"\n', "layer")

    def test_agent_names_no_backend(self):
        self.assert_found("src/agent/router.cc", '#include "transports/shm/backend.h"\n', "layer")

    def test_agent_names_no_optional_directory(self):
        self.assert_found("src/agent/peers.cc", '#include "metadata/etcd/client.h"\n', "layer")

    def test_include_by_relative_path_upwards(self):
        self.assert_found("src/plan/bad.cc", '#include "../agent/agent.h"\n', "layer")

    def test_unknown_layer(self):
        self.assert_found("src/extra/bad.cc", '#include "base/status.h"\n', "layer")

    def test_tool_uses_public_headers_only(self):
        self.assert_found("tools/towline/bad.cc", '#include "base/status.h"\n', "public")

    def test_tool_cannot_climb_to_private_headers(self):
        self.assert_found("tools/towline/bad.cc", '#include "../../src/plan/cursor.h"\n', "public")

    def test_bench_uses_public_headers_only(self):
        self.assert_found("bench/copy.cc", '#include "plan/cursor.h"\n', "public")

    def test_tests_of_clients_use_some_headers_of_the_tests(self):
        server = '#include "support/etcd_servers.h"\n'
        self.assertEqual(self.findings({"compat/nixl/tests/bad_test.cc": server}), [])
        self.assert_found("compat/nixl/src/bad.cc", server, "public")
        self.assert_found("compat/nixl/tests/bad_test.cc", '#include "support/s3_server.h"\n', "public")
        self.assert_found("tests/support/etcd_servers.h", '#include "base/status.h"\n', "public")

    def test_public_header_stands_alone(self):
        self.assert_found("include/towline/bad.h", '#include "base/status.h"\n', "public")

    def test_vendor_header_stays_in_its_folder(self):
        self.assert_found("src/memory/bad.cc", "#include <cuda_runtime.h>\n", "vendor")

    def test_environment_is_read_in_one_place(self):
        self.assert_found("src/agent/bad.cc", 'auto* value = std::getenv("X");\n', "getenv")

    def test_connections_go_through_the_stream(self):
        for call in ("::send(fd, data, 1, 0)", "recv(fd, data, 1, 0)", "::readv(fd, pieces, 2)", "setsockopt(fd, 1, 2, &on, 4)"):
            self.assert_found("src/transports/tcp/bad.cc", f"auto n = {call};\n", "stream")
        text = "int32_t Connection::send(int) {}\nauto n = lane.send(1);\n"
        self.assertEqual(self.findings({"src/transports/tcp/good.cc": text}), [])

    def test_long_file(self):
        self.assert_found("src/agent/bad.cc", "\n" * 801, "length")

    def test_sleep_in_a_unit_test(self):
        self.assert_found("src/agent/bad_test.cc", "std::this_thread::sleep_for(1s);\n", "sleep")

    def test_sleep_in_a_suite(self):
        self.assert_found("tests/faults/bad.py", "time.sleep(1)\n", "sleep")

    def test_sleep_of_libc(self):
        self.assert_found("src/agent/bad_test.cc", "  ::sleep(1);\n", "sleep")

    def test_member_called_sleep_is_none(self):
        text = "void sleep(int seen) {}\nvoid run() { writer.sleep(2); other->sleep(2); }\n"
        self.assertEqual(self.findings({"src/agent/good_test.cc": text}), [])

    def test_yielding_is_no_sleep(self):
        self.assertEqual(self.findings({"tests/faults/good.py": "await asyncio.sleep(0)\n"}), [])

    def test_exception_with_nothing_to_excuse(self):
        stale = EXCEPTION + EXCEPTION.replace("builtin_backends", "gone")
        self.assertEqual(self.findings({}, stale), ["src/agent/gone.cc layer"])

    def test_the_readme_shows_what_an_example_has(self):
        readme = "# It\n\n```cpp\nauto x = {};\n\nrun(x);\n```\n".format
        example = {"examples/one.cc": "int main() {\n  auto x = 1;\n  run(x);\n}\n"}
        self.assertEqual(self.findings(example | {"README.md": readme("1")}), [])
        self.assertEqual(self.findings(example | {"README.md": readme("2")}), ["README.md snippet"])


if __name__ == "__main__":
    unittest.main()
