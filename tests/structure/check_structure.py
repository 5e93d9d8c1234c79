#!/usr/bin/env python3
"""Checks the rules that neither the compiler nor the linker can.

    check_structure.py [root]

Prints `path:line: rule: what` for each finding and exits 1 if there are any. The rules are the tables below; what they
let pass is listed with its reason in exceptions.toml, in the folder of this file or given with --exceptions.

layer    a folder of src/ includes only the layers below it; a backend includes neither the agent nor another backend
public   include/towline stands on itself; bindings, compat, tools, examples and bench use <towline/...> only, and their tests
         some headers of tests/support
vendor   a vendor's headers stay in the folders of its backends
getenv   the environment is read in src/base/config/
stream   the stacks over TCP read and write connections through src/base/os/stream.h
length   a file stays under 800 lines
sleep    a test waits for what it needs, never for time to pass
snippet  the README's C++ stands in one of the examples, which the tests build and run
"""

import argparse
import pathlib
import re
import sys
import tomllib
from typing import Iterator, NamedTuple

# Each layer with those directly below it; what is below them is allowed as well.
LAYERS = {
    "base": [],
    "telemetry": ["base"],
    "memory": ["telemetry"],
    "gpu": ["memory"],
    "plan": ["memory"],
    "framing": ["plan"],
    "fabric": ["plan", "gpu", "secure"],
    "storing": ["base"],
    "http": ["base"],
    "nixl_plugins": ["base"],
    "secure": ["base"],
    "rendezvous": ["secure"],
    "transports": ["framing", "fabric", "gpu", "nixl_plugins", "secure"],
    "storage": ["framing", "fabric", "storing", "http", "nixl_plugins"],
    "metadata": ["framing", "fabric", "http", "secure"],
    "agent": ["plan", "secure"],
    "directory": ["agent"],
    "collectives": ["agent", "gpu", "rendezvous"],
    "moe": ["agent"],
    "capi": ["agent", "directory", "collectives", "moe", "fabric"],
}
BACKENDS = ("transports", "storage", "metadata")  # one backend per folder below these
SHARED = ("transports/direct", "transports/carrier")  # rooms below these that backends share: no backends themselves
EMBEDDED = {"agent": ["metadata/blob", "metadata/listener"]}  # the default directory: part of the core, behind no ABI
CLIENTS = ("bindings", "compat", "tools", "examples", "bench")  # of the public API
# What tests of clients include as well, below tests/. These headers include nothing of Towline's, only one another.
CLIENTS_SUPPORT = {
    f"support/{name}.h"
    for name in (
        "etcd_servers",
        "failing_allocations",
        "failing_new",
        "fuzz_accepted",
        "loopback",
        "ports",
        "server_process",
        "temporary_folder",
    )
}
VENDORS = {  # the headers, and the folders that may include them
    r"(cuda|nvrtc|cudaTypedefs|cooperative_groups|cub/|thrust/)": ["gpu", "transports/cuda", "collectives", "moe", "storage/gds", "bench/gpu"],
    r"nccl": ["collectives"],
    r"cufile": ["storage/gds"],
    r"(infiniband/|rdma/rdma_|rdma/ib_)": ["fabric/verbs"],
    r"rdma/fi_|rdma/fabric": ["fabric/ofi", "bench/fabric"],
    r"(ucp|uct|ucs)/": ["fabric/ucx", "bench/fabric"],
    r"(aws|Aws)/": ["storage/object"],
    r"curl/": ["http"],
    r"openssl/": ["secure", "storage/object"],
    r"prometheus/": ["telemetry/prometheus"],
    r"(torch|ATen|c10)/": [],
}
# Folders with connections over TCP: keys and encryption are below the stream, in src/secure.
STREAMS = ("src/transports/tcp", "src/metadata/listener", "src/rendezvous", "src/collectives", "src/fabric")
MAX_LINES = 800

CODE = {".h", ".hpp", ".cc", ".c", ".cu", ".cuh"}
SCRIPTS = {".py", ".sh", ".rs"}
SKIPPED_FOLDERS = {"build", "install", "third_party", "target", "__pycache__", "corpus", "node_modules"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOCKET_CALL = re.compile(
    r"(?:(?<!\w)::(?:send|connect|shutdown)|(?<![\w.>:])(?:::)?(?:sendmsg|sendto|recv|recvmsg|recvfrom|readv|writev|setsockopt))\s*\("
)
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")
SLEEP = {  # by suffix; C++ and C otherwise. A declaration or a member called sleep does not count.
    ".py": re.compile(r"(?<!\w)sleep\s*\((?!0\))"),  # sleep(0) only yields
    ".sh": re.compile(r"^\s*sleep\s+\S"),
    ".rs": re.compile(r"\bthread::sleep\b"),
}
CODE_SLEEP = re.compile(
    r"\b(?:sleep_for|sleep_until|usleep|nanosleep|clock_nanosleep)\b|(?<![\w.>] )(?<![\w.>])sleep\s*\("
)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.what}"


def below(layer: str) -> set[str]:
    """The layer and everything it stands on."""
    return {layer}.union(*(below(lower) for lower in LAYERS[layer]))


def project_files(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Every source file, as a path relative to root."""
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or path.name in SKIPPED_FOLDERS or path.is_symlink():
            continue
        if path.is_dir():
            yield from (path.relative_to(root) / inner for inner in project_files(path))
        elif path.suffix in CODE | SCRIPTS:
            yield path.relative_to(root)


def without_comments(text: str) -> str:
    """The text with comments and strings blanked, its lines kept."""

    def blank(match: re.Match) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return COMMENT_OR_STRING.sub(blank, text)


def is_test(path: pathlib.Path) -> bool:
    in_tests = "tests" in path.parts[:-1]
    return in_tests or path.stem.endswith(("_test", "_fuzz", "_bench")) or path.stem.startswith(("test_", "conftest"))


def backend_folder(parts: tuple[str, ...]) -> str:
    return "/".join(parts[:2])


def includes(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, bracket and path of each #include."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1], match[2]


class Checker:
    def __init__(self, root: pathlib.Path):
        self.root = root

    def check(self) -> Iterator[Finding]:
        for path in project_files(self.root):
            text = (self.root / path).read_text(encoding="utf-8", errors="replace")
            yield from self.check_length(path, text)
            if path.suffix in CODE:
                yield from self.check_includes(path, text)
                yield from self.check_getenv(path, text)
                yield from self.check_streams(path, text)
            if is_test(path) and not path.stem.endswith("_bench"):
                yield from self.check_sleep(path, text)
        yield from self.check_snippets()

    def check_snippets(self) -> Iterator[Finding]:
        def lines_of(text: str) -> str:
            return "\n".join(line.strip() for line in text.splitlines() if line.strip())

        readme = self.root / "README.md"
        text = readme.read_text() if readme.exists() else ""
        examples = [lines_of(path.read_text()) for path in (self.root / "examples").glob("*.cc")]
        for block in re.finditer(r"```cpp\n(.*?)```", text, re.DOTALL):
            if not any(lines_of(block[1]) in example for example in examples):
                line = text.count("\n", 0, block.start()) + 1
                yield Finding("README.md", line, "snippet", "stands in no file of examples/")

    def check_length(self, path: pathlib.Path, text: str) -> Iterator[Finding]:
        lines = text.count("\n")
        if lines > MAX_LINES:
            yield Finding(str(path), lines, "length", f"{lines} lines, over {MAX_LINES}")

    def check_getenv(self, path: pathlib.Path, text: str) -> Iterator[Finding]:
        if is_test(path) or path.parts[:3] == ("src", "base", "config"):
            return
        if path.parts[0] in ("src", "include", "bindings", "compat", "tools"):
            for number, line in enumerate(without_comments(text).splitlines(), 1):
                if GETENV.search(line):
                    yield Finding(str(path), number, "getenv", "the environment is read in src/base/config/")

    def check_streams(self, path: pathlib.Path, text: str) -> Iterator[Finding]:
        if is_test(path) or not any(path.is_relative_to(folder) for folder in STREAMS):
            return
        for number, line in enumerate(without_comments(text).splitlines(), 1):
            if SOCKET_CALL.search(line):
                yield Finding(str(path), number, "stream", "a connection is read and written through base/os/stream.h")

    def check_sleep(self, path: pathlib.Path, text: str) -> Iterator[Finding]:
        pattern = SLEEP.get(path.suffix, CODE_SLEEP)
        code = without_comments(text) if path.suffix in CODE else text
        for number, line in enumerate(code.splitlines(), 1):
            if not line.lstrip().startswith("#") and pattern.search(line):
                yield Finding(str(path), number, "sleep", "a test waits for an event with a deadline, not for time")

    def check_includes(self, path: pathlib.Path, text: str) -> Iterator[Finding]:
        top = path.parts[0]
        for number, bracket, include in includes(text):
            if include.startswith("towline/"):
                continue
            problem = self.vendor_problem(path, include)
            if problem:
                yield Finding(str(path), number, "vendor", problem)
            elif bracket == "<":
                continue
            elif top == "src":
                problem = self.layer_problem(path, include)
                if problem:
                    yield Finding(str(path), number, "layer", problem)
            elif top == "include":
                yield Finding(str(path), number, "public", f'a public header includes "{include}": only <towline/...>')
            elif path.as_posix().removeprefix("tests/") in CLIENTS_SUPPORT and include not in CLIENTS_SUPPORT:
                yield Finding(str(path), number, "public", f'tests of clients use it, and it includes "{include}"')
            elif top in CLIENTS and is_test(path) and include in CLIENTS_SUPPORT:
                continue
            elif top in CLIENTS and not self.is_own_file(path, include):
                yield Finding(str(path), number, "public", f'includes "{include}": only <towline/...> and its own files')

    def vendor_problem(self, path: pathlib.Path, include: str) -> str | None:
        for pattern, folders in VENDORS.items():
            if re.match(pattern, include) and path.parts[0] in ("src", "include"):
                folder = "/".join(path.parts[1:])
                if not any(folder.startswith(f"{allowed}/") for allowed in folders):
                    return f"includes {include}, a vendor's header kept to {', '.join(folders) or 'no folder'}"
        return None

    def layer_problem(self, path: pathlib.Path, include: str) -> str | None:
        own = path.parts[1:-1]
        if not own or own[0] not in LAYERS:
            return f"src/{path.parts[1]} is no layer: add it to the order"
        target = pathlib.PurePosixPath(include).parts
        if len(target) == 1 or target[0] not in LAYERS:
            if is_test(path) and (self.root / "tests" / include).exists():
                return None
            return None if self.is_own_file(path, include) else f'"{include}" is not a path below src/'
        if own[0] in BACKENDS and target[0] in BACKENDS:
            same = backend_folder(target) in (backend_folder(own), *SHARED)
            return None if same or is_test(path) else f"a backend includes another, {backend_folder(target)}"
        if target[0] in below(own[0]) or backend_folder(target) in EMBEDDED.get(own[0], []):
            return None
        if own[0] in BACKENDS and target[0] == "agent":
            return "a backend never sees the agent"
        return f"{own[0]} includes {include}, which is not below it"

    def is_own_file(self, path: pathlib.Path, include: str) -> bool:
        """Whether a quoted include is found beside the file, or in a folder above it up to two below the root."""
        for folder in list(path.parents)[:-1]:
            candidate = (self.root / folder / include).resolve()
            if len(folder.parts) >= 1 and candidate.is_file():
                return candidate.is_relative_to((self.root / path.parts[0]).resolve())
        return False


def apply_exceptions(findings: list[Finding], exceptions_file: pathlib.Path) -> Iterator[Finding]:
    exceptions = tomllib.loads(exceptions_file.read_text())["exception"] if exceptions_file.exists() else []
    allowed = {(entry["rule"], entry["path"]) for entry in exceptions if entry["reason"]}
    seen = {(finding.rule, finding.path) for finding in findings}
    yield from (finding for finding in findings if (finding.rule, finding.path) not in allowed)
    for rule, path in sorted(allowed - seen):
        yield Finding(path, 1, rule, f"needs no exception any more: take it out of {exceptions_file.name}")


def main() -> int:
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Checks the structure of the source tree.")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=here.parent.parent)
    parser.add_argument("--exceptions", type=pathlib.Path, default=here / "exceptions.toml")
    arguments = parser.parse_args()
    findings = list(apply_exceptions(list(Checker(arguments.root.resolve()).check()), arguments.exceptions))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
