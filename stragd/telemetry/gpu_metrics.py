"""The blob that the amdgpu driver gives as ``gpu_metrics``: versions 1.3 to 1.8.

Layouts are those of the kernel's kgd_pp_interface.h, where every member lies on a multiple of its
own size. A value of all ones means "not available".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER = struct.Struct("<HBB")  # size of the structure, format, content
MAX_BLOB = 16384
LINKS, XCC, PARTITIONS = 8, 8, 8

# Runs of members: type and count ("H8": arrays of eight u16), then names; "_" is not used here.
_TEMPERATURES = "H temperature_edge temperature_hotspot temperature_mem _ _ _"
_V1_3 = f"""
    {_TEMPERATURES}
    H average_gfx_activity _ _ average_socket_power
    Q energy_accumulator system_clock_counter
    H _ _ _ _ _ _ _
    H current_gfxclk _ current_uclk _ _ _ _
    I _
    H _ pcie_link_width pcie_link_speed _
    I _ _
    H4 temperature_hbm
    Q firmware_timestamp
    H _ _ _ _
    Q indep_throttle_status
"""
_SOCKET = "H temperature_hotspot temperature_mem _ curr_socket_power average_gfx_activity _"
_CLOCKS = "H8 current_gfxclk H4 _ H4 _ H4 _ H current_uclk"
_PCIE = """
    I gfxclk_lock_status
    H pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed
    I _ _
    Q _ _ pcie_l0_to_recov_count_acc pcie_replay_count_acc _
"""
_NAKS = "I pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc"
_XGMI = "Q8 xgmi_read_data_acc Q8 xgmi_write_data_acc"
_RESIDENCIES = """
    I accumulation_counter prochot_residency_acc ppt_residency_acc
    I socket_thm_residency_acc vr_thm_residency_acc hbm_thm_residency_acc
"""
_V1_4 = f"""
    {_SOCKET} H4 _
    Q energy_accumulator system_clock_counter
    I _ {_PCIE} {_XGMI}
    Q firmware_timestamp {_CLOCKS} H _
"""
_V1_5 = f"""
    {_SOCKET} H4 _ H32 _
    Q energy_accumulator system_clock_counter
    I _ {_PCIE} {_NAKS} {_XGMI}
    Q firmware_timestamp {_CLOCKS} H _
"""
_PARTITION = "I8 gfx_busy_inst H32 _ H4 _ Q8 _"
_PARTITION_1_1 = f"{_PARTITION} Q8 gfx_below_host_limit_total_acc"
_PARTITION_1_2 = """
    I8 gfx_busy_inst H40 _ H4 _ Q8 _
    Q8 gfx_below_host_limit_ppt_acc Q8 gfx_below_host_limit_thm_acc
    Q8 gfx_low_utilization_acc Q8 gfx_below_host_limit_total_acc
"""
_V1_6 = f"""
    {_SOCKET}
    Q energy_accumulator system_clock_counter
    {_RESIDENCIES} {_PCIE} {_NAKS} {_XGMI}
    Q firmware_timestamp {_CLOCKS} H num_partition
"""
_V1_7 = f"""
    {_SOCKET}
    Q _ energy_accumulator system_clock_counter
    {_RESIDENCIES} {_PCIE} {_NAKS} {_XGMI}
    H8 xgmi_link_status H _
    Q firmware_timestamp {_CLOCKS} H num_partition
"""
_SOURCES = {
    (1, 3): (_V1_3, ""),
    (1, 4): (_V1_4, ""),
    (1, 5): (_V1_5, ""),
    (1, 6): (_V1_6, _PARTITION),
    (1, 7): (_V1_7, _PARTITION_1_1),
    (1, 8): (_V1_7, _PARTITION_1_2),
}
SIZES = {"H": 2, "I": 4, "Q": 8}


class Member(NamedTuple):
    """Where a member lies; ``length`` above 1 is an array."""

    name: str
    offset: int
    kind: str
    length: int


class Layout(NamedTuple):
    """One version's members, and those of each partition, counted from its begin."""

    members: tuple[Member, ...]
    size: int
    partition: tuple[Member, ...]
    partition_at: int
    partition_size: int


def _members(source: str, offset: int) -> tuple[tuple[Member, ...], int]:
    members, kind, count = [], "H", 1
    for word in source.split():
        if word[0] in SIZES and (word[1:].isdigit() or len(word) == 1):
            kind, count = word[0], int(word[1:] or 1)
            continue
        offset += -offset % SIZES[kind]
        if word != "_":
            members.append(Member(word, offset, kind, count))
        offset += SIZES[kind] * count
    return tuple(members), offset


def _layout(source: str, partition: str) -> Layout:
    members, end = _members(source, HEADER.size)
    if not partition:
        return Layout(members, end + -end % 8, (), 0, 0)
    parts, part_size = _members(partition, 0)
    begin = end + -end % 8
    last = begin + part_size * PARTITIONS + 4  # a recovery counter of the other end
    return Layout(members, last + -last % 8, parts, begin, part_size)


LAYOUTS = {version: _layout(*sources) for version, sources in _SOURCES.items()}


class Metrics(NamedTuple):
    """What a blob says; what is not available is not there (in arrays: None)."""

    version: tuple[int, int]
    numbers: dict[str, int]
    arrays: dict[str, list[int | None]]
    partitions: list[dict[str, list[int | None]]]


class BadBlob(ValueError):
    """The blob is none that is known; the text says why."""


def parse(blob: bytes) -> Metrics:
    """Numbers of a blob; BadBlob."""
    if len(blob) < HEADER.size:
        raise BadBlob(f"gpu_metrics has {len(blob)} bytes, too few for a header")
    size, *revision = HEADER.unpack_from(blob)
    version = (revision[0], revision[1])
    layout = LAYOUTS.get(version)
    if layout is None:
        known = f"{min(LAYOUTS)[1]} to 1.{max(LAYOUTS)[1]}"
        raise BadBlob(f"gpu_metrics has version {version[0]}.{version[1]}, known are 1.{known}")
    if size != layout.size or len(blob) < size:
        raise BadBlob(
            f"gpu_metrics of version {version[0]}.{version[1]} has {min(size, len(blob))} bytes, "
            f"it should have {layout.size}"
        )
    numbers: dict[str, int] = {}
    arrays: dict[str, list[int | None]] = {}
    for member in layout.members:
        values = _read(blob, member, 0)
        if member.length > 1:
            arrays[member.name] = values
        elif values[0] is not None:
            numbers[member.name] = values[0]
    partitions = [
        {m.name: _read(blob, m, layout.partition_at + i * layout.partition_size) for m in parts}
        for parts in [layout.partition]
        for i in range(PARTITIONS if parts else 0)
    ]
    return Metrics(version, numbers, arrays, partitions)


def _read(blob: bytes, member: Member, base: int) -> list[int | None]:
    missing = (1 << 8 * SIZES[member.kind]) - 1
    values = struct.unpack_from(f"<{member.length}{member.kind}", blob, base + member.offset)
    return [None if value == missing else value for value in values]
