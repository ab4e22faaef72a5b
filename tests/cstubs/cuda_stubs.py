"""Empty stand-ins for the CUDA libraries that a CUDA build of PyTorch links.

    cuda_stubs.py TORCH_LIB_DIRECTORY OUTPUT_DIRECTORY

PyPI's torch for x86-64 cannot be imported without some 3 GB of NVIDIA libraries, although a job
over gloo never calls them. Each stand-in exports the names that torch wants from it, with their
symbol versions; every function returns 100, cudaErrorNoDevice.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)")
CUDA_SYMBOL = re.compile(r"(cu|nv|nccl|CU)")


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(torch: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    needed: set[str] = set()
    defined: set[str] = set()
    unversioned: set[str] = set()
    versioned: dict[str, set[str]] = defaultdict(set)
    libraries = sorted(torch.glob("*.so*"))
    for library in libraries:
        needed.update(re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-dW", library)))
        for line in output_of("nm", "-D", library).splitlines():
            name, _, version = line.split()[-1].replace("@@", "@").partition("@")
            if line.split()[-2] != "U":
                defined.add(name)
            elif version:
                versioned[version].add(name)
            elif CUDA_SYMBOL.match(name):
                unversioned.add(name)
    own = {library.name for library in libraries}
    nccl = {name for name in unversioned - defined if "nccl" in name}
    for library_name in sorted(n for n in needed - own if CUDA_LIBRARY.match(n)):
        # A version is named after its library, but for NVSHMEM's.
        versions = {
            version: names
            for version, names in versioned.items()
            if version == library_name or (version == "NVSHMEM" and "nvshmem" in library_name)
        }
        names = set().union(*versions.values())
        if not versions:
            is_nccl = library_name.startswith("libnccl")
            names = nccl if is_nccl else unversioned - defined - nccl
        source, script = out / "stub.c", out / "stub.map"
        source.write_text("".join(f"int {n}(void) {{ return 100; }}\n" for n in sorted(names)))
        script.write_text(
            "".join(f"{v} {{ global: {'; '.join(sorted(n))}; }};\n" for v, n in versions.items())
        )
        flags = [f"-Wl,--version-script,{script}"] if versions else []
        subprocess.run(
            ["clang", "-w", "-fno-builtin", "-shared", "-fPIC", *flags]
            + [f"-Wl,-soname,{library_name}", "-o", str(out / library_name), str(source)],
            check=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
