"""Field values of one GPU in one call.

The binding fills its array anew for each call, which costs more than everything else of a pass;
here the request is packed once and used again.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping

from stragd.telemetry.nvml_calls import Calls, GpuLost
from stragd.telemetry.nvml_fields import LOST, REFUSED, Field

LIBRARY = "libnvidia-ml.so.1"  # as the binding loads it
# nvmlFieldValue_t: number, scope, timestamp, latency, type, return code, value.
FIELD_VALUE = struct.Struct("=IIqqIIQ")
UNSIGNED_LONG_LONG = 3
# nvmlValueType_t: bits and whether signed; 0 is a double.
INTEGERS = {
    1: (32, False),
    2: (64, False),
    3: (64, False),
    4: (64, True),
    5: (32, True),
    6: (16, False),
}
Key = tuple[int, int]
"""A field's number and its scope: a link, else 0."""


class FieldBatch:
    """The fields that a GPU is asked for; those that it refuses leave."""

    def __init__(self, calls: Calls, wanted: Mapping[Key, Field]) -> None:
        """The library must have been loaded."""
        self._calls = calls
        self._call = ctypes.CDLL(LIBRARY).nvmlDeviceGetFieldValues
        self.wanted = dict(wanted)
        self._pack()

    def drop(self, keys: set[Key]) -> None:
        """Do not ask for these any more."""
        self.wanted = {key: field for key, field in self.wanted.items() if key not in keys}
        self._pack()

    def _pack(self) -> None:
        packed = (FIELD_VALUE.pack(number, scope, 0, 0, 0, 0, 0) for number, scope in self.wanted)
        self._buffer = bytearray(b"".join(packed))
        self._array = (ctypes.c_char * len(self._buffer)).from_buffer(self._buffer)

    def read(self) -> list[tuple[Key, Field, float]]:
        """What was given. Each field has a return code of its own: with an error it has no value.

        GpuLost where one says so.
        """
        if not self.wanted or not self._calls.ask("fields", self._ask):
            return []
        found: list[tuple[Key, Field, float]] = []
        refused: set[Key] = set()
        rows = FIELD_VALUE.iter_unpack(self._buffer)
        for (key, field), row in zip(self.wanted.items(), rows, strict=True):
            _, _, _, _, kind, code, raw = row
            if code == 0:
                value = raw if kind == UNSIGNED_LONG_LONG else number_of(kind, raw)
                if value is not None:
                    found.append((key, field, value))
            elif code in LOST:
                raise GpuLost(f"NVML: {LOST[code]}")
            elif code in REFUSED:
                refused.add(key)
        if refused:
            self.drop(refused)
        return found

    def _ask(self) -> bool:
        code = self._call(self._calls.handle, len(self.wanted), self._array)
        if code != 0:
            raise self._calls.nvml.NVMLError(code)
        return True


def number_of(kind: int, raw: int) -> float | None:
    """Value of a field by its nvmlValueType_t; None for a type that is not known."""
    if kind == 0:
        (value,) = struct.unpack("=d", struct.pack("=Q", raw))
        return float(value) if abs(value) < 1e300 else None
    if kind not in INTEGERS:
        return None
    bits, signed = INTEGERS[kind]
    number = raw & ((1 << bits) - 1)
    return number - (1 << bits) if signed and number >> (bits - 1) else number
