"""Compiles empty stand-ins for the shared libraries that this interpreter's torch needs and that are not there. Each has
the symbols that torch's libraries ask of it, under the symbol versions they ask for; calling any gives an error code.
Needs gcc and readelf. Run by torch-cpu."""

import collections
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

NOT_AVAILABLE = 100  # what CUDA answers when there is no device
GPU_SYMBOLS = re.compile(r"(cu|cupti|nv|nccl|cudss|nvshmem)")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed_symbols(folder):
    """By missing library and symbol version the symbols that are asked for, and those asked for without a version."""
    known = output("ldconfig", "-p")
    libraries = sorted(folder.glob("*.so*"))
    present = {library.name for library in libraries}
    missing = collections.defaultdict(lambda: collections.defaultdict(set))
    unversioned = set()
    for library in libraries:
        for name in re.findall(r"NEEDED.*\[(.*?)\]", output("readelf", "-dW", library)):
            if name not in present and f"\t{name} " not in known:
                missing[name]  # notes it, also without symbols
        owner = None
        owners = {}
        for line in output("readelf", "-VW", library).splitlines():
            if found := re.search(r"File: (\S+)", line):
                owner = found[1]
            elif (found := re.search(r"Name: (\S+)", line)) and owner in missing:
                owners[found[1]] = owner
                missing[owner][found[1]]  # a version without symbols has to be there as well
        for name, version in re.findall(r"\sUND\s+(\w+)(?:@+(\S+))?", output("readelf", "--dyn-syms", "-W", library)):
            if version in owners:
                missing[owners[version]][version].add(name)
            elif not version and GPU_SYMBOLS.match(name):
                unversioned.add(name)
    return missing, unversioned


def compile_stub(library, symbols, versions, work):
    source, script = work / "stub.c", work / "stub.map"
    source.write_text("".join(f"int {name}(void) {{ return {NOT_AVAILABLE}; }}\n" for name in sorted(symbols)) or "int none_;")
    command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", source, "-o", library, f"-Wl,-soname,{library.name}"]
    if versions:
        script.write_text("".join(f"{v} {{ global: {' '.join(f'{n};' for n in sorted(ns))} }};\n" for v, ns in versions.items()))
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True)


def main():
    folder = pathlib.Path(sysconfig.get_paths()["purelib"]) / "torch" / "lib"
    missing, unversioned = needed_symbols(folder)
    with tempfile.TemporaryDirectory() as work:
        for number, (name, versions) in enumerate(sorted(missing.items())):
            symbols = set().union(*versions.values())
            if number == 0:  # any of them will do
                symbols |= unversioned
            compile_stub(folder / name, symbols, versions, pathlib.Path(work))
    check = "import torch; assert not torch.cuda.is_available(); assert (torch.ones(3) + 1).sum() == 6; print('torch', torch.__version__)"
    subprocess.run([sys.executable, "-c", check], check=True)


if __name__ == "__main__":
    main()
