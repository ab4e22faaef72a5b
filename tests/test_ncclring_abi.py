"""The plugin's own declarations of NCCL's interface, against the debug information of a real NCCL.

The numbers are also written down here, so that they are checked where that library is not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ncclring.build import ROOT, built, run
from tests.needs import lacking

HEAD = {"type": ("type", 0), "parentObj": ("parent", 8), "rank": ("rank", 16)}
COLL_V4 = {
    "coll.seqNumber": ("coll.{v4}sequence", 24),
    "coll.func": ("coll.{v4}func", 32),
    "coll.count": ("coll.{v4}count", 56),
    "coll.root": ("coll.{v4}root", 64),
    "coll.datatype": ("coll.{v4}datatype", 72),
    "coll.nChannels": ("coll.{v4}channels", 80),
    "coll.algo": ("coll.{v4}algo", 88),
    "coll.proto": ("coll.{v4}proto", 96),
    "p2p.func": ("p2p.{v4}func", 24),
    "p2p.datatype": ("p2p.{v4}datatype", 40),
    "p2p.count": ("p2p.{v4}count", 48),
    "p2p.peer": ("p2p.{v4}peer", 56),
    "p2p.nChannels": ("p2p.{v4}channels", 60),
    "kernelCh.channelId": ("kernel_ch.channel", 24),
    "kernelCh.pTimer": ("kernel_ch.timer", 32),
}
API = {
    "collApi.func": ("coll_api.func", 24),
    "collApi.graphCaptured": ("coll_api.graph_captured", 64),
    "p2pApi.graphCaptured": ("p2p_api.graph_captured", 56),
}
COPIES = {
    "ceColl.seqNumber": ("ce_coll.sequence", 24),
    "ceColl.func": ("ce_coll.func", 32),
    "ceColl.count": ("ce_coll.count", 56),
    "ceColl.root": ("ce_coll.root", 64),
    "ceColl.datatype": ("ce_coll.datatype", 72),
}


def members(version: int) -> tuple[str, int, dict[str, tuple[str, int]]]:
    """Our structure of a version, its size, and NCCL's members with ours and their offsets."""
    if version == 3:
        return (
            "nccl_descriptor_v3",
            120,
            HEAD
            | {
                "coll.name": ("coll.name", 24),
                "coll.commHash": ("coll.comm_hash", 32),
                "coll.seqNumber": ("coll.sequence", 40),
                "coll.func": ("coll.func", 48),
                "coll.count": ("coll.count", 72),
                "coll.root": ("coll.root", 80),
                "coll.datatype": ("coll.datatype", 88),
                "coll.nMaxChannels": ("coll.max_channels", 96),
                "coll.algo": ("coll.algo", 104),
                "coll.proto": ("coll.proto", 112),
                "p2p.name": ("p2p.name", 24),
                "p2p.commHash": ("p2p.comm_hash", 32),
                "p2p.func": ("p2p.func", 40),
                "p2p.datatype": ("p2p.datatype", 56),
                "p2p.count": ("p2p.count", 64),
                "p2p.peer": ("p2p.peer", 72),
                "kernelCh.channelId": ("kernel_ch.channel", 24),
            },
        )
    inner = {4: "", 5: "v4.", 6: "v4.", 7: "v5.v4."}[version]
    table = HEAD | {
        theirs: (ours.format(v4=inner), offset) for theirs, (ours, offset) in COLL_V4.items()
    }
    if version == 4:
        return "nccl_descriptor_v4", 104, table
    table |= API
    if version > 5:
        table |= COPIES
    if version < 7:
        table |= {
            "coll.parentGroup": ("coll.parent_group", 104),
            "p2p.parentGroup": ("p2p.parent_group", 64),
        }
        return "nccl_descriptor_v5", 112, table
    table |= {
        "coll.parentGroup": ("coll.v5.parent_group", 104),
        "p2p.parentGroup": ("p2p.v5.parent_group", 64),
        "coll.kernelVariant": ("coll.kernel_variant", 112),
        "coll.isSymColl": ("coll.symmetric", 120),
        "coll.userTag": ("coll.user_tag", 128),
        "p2p.userTag": ("p2p.user_tag", 72),
    }
    return "nccl_descriptor_v7", 136, table


def real_nccl() -> Path:
    """A real NCCL that knows version 7."""
    for name in os.environ.get("STRAGD_TEST_NCCL", "").split(":"):
        if "2.32" in name:
            return Path(name)
    lacking("STRAGD_TEST_NCCL names no NCCL 2.32: see tests/fetch_libraries.sh")


def ask_gdb(library: Path, expressions: list[str]) -> list[int]:
    """Values of C expressions over a library's debug information."""
    assert shutil.which("gdb"), "this test reads debug information with gdb: install it"
    command = ["gdb", "-batch", "-nx"]
    for expression in expressions:
        command += ["-ex", f"output {expression}", "-ex", r"echo \n"]
    done = subprocess.run([*command, library], capture_output=True, text=True, check=True)
    values = re.findall(r"^(\d+)$", done.stdout, re.MULTILINE)
    assert len(values) == len(expressions), done.stdout + done.stderr
    return [int(value) for value in values]


@pytest.mark.parametrize("version", range(3, 8))
def test_our_offsets_are_the_written_ones(version: int, tmp_path: Path) -> None:
    struct, size, table = members(version)
    places = [ours for ours, _ in table.values()]
    (tmp_path / "offsets.c").write_text(
        f'#include <stdio.h>\n#include "{ROOT}/ncclring/abi.h"\nint main(void)\n{{\n'
        f'printf("%zu\\n", sizeof(struct {struct}));\n'
        + "".join(f'printf("%zu\\n", offsetof(struct {struct}, {place}));\n' for place in places)
        + "return 0;\n}\n"
    )
    run("cc", "-o", tmp_path / "offsets", tmp_path / "offsets.c")
    printed = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True)
    assert [int(word) for word in printed.stdout.split()] == [
        size, *(offset for _, offset in table.values()),
    ]  # fmt: skip


@pytest.mark.parametrize("version", range(3, 8))
def test_the_written_offsets_are_those_of_a_real_library(version: int) -> None:
    _, size, table = members(version)
    theirs = f"ncclProfilerEventDescr_v{version}_t"
    asked = [f"(long)sizeof({theirs})"]
    asked += [f"(long)&(({theirs}*)0)->{member}" for member in table]
    asked += [f"(long)sizeof((({theirs}*)0)->type)", "(long)ncclProfilerKernelChStop"]
    asked += ["(long)ncclProfileCeColl"]
    assert ask_gdb(real_nccl(), asked) == [
        size,
        *(offset for _, offset in table.values()),
        1 if version < 5 else 8,
        22,
        1 << 12,
    ]


@pytest.mark.parametrize("version", range(3, 8))
def test_the_symbol_and_the_arguments_are_those_of_a_real_library(version: int) -> None:
    library = real_nccl()
    names = ("name", "init", "startEvent", "stopEvent", "recordEventState", "finalize")
    struct = f"ncclProfiler_v{version}_t"
    offsets = [f"(long)&(({struct}*)0)->{name}" for name in names]
    assert ask_gdb(library, [f"(long)sizeof({struct})", *offsets]) == [48, *range(0, 48, 8)]
    done = subprocess.run(
        ["gdb", "-batch", "-nx", "-ex", f"ptype (({struct}*)0)->init", library],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (arguments,) = re.findall(r"\(\*\)\((.*)\)", done.stdout)
    assert arguments == {
        3: "void **, int *",
        4: "void **, int *, const char *, uint64_t, int, int, int, ncclDebugLogger_t",
    }.get(version, "void **, uint64_t, int *, const char *, int, int, int, ncclDebugLogger_t")


def test_the_real_loader_takes_the_plugin() -> None:
    # RTLD_NOW, as NCCL opens it; in a process of its own, since it stays loaded.
    code = (
        "import ctypes, os, sys\n"
        "plugin = ctypes.CDLL(sys.argv[1], os.RTLD_NOW | os.RTLD_LOCAL)\n"
        "for version in range(3, 8):\n"
        "    words = (ctypes.c_void_p * 6).in_dll(plugin, f'ncclProfiler_v{version}')\n"
        "    assert all(words) and ctypes.string_at(words[0]) == b'stragd'\n"
    )
    subprocess.run(["/usr/bin/python3", "-c", code, built().plugin], check=True)
