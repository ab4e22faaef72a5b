"""Field values of one GPU in one call.

The binding fills its array anew for each call, which costs more than everything else of a pass;
here the request is packed once and used again. Most counters stand still on a healthy GPU: those
are put first and compared at once.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Collection, Mapping

from stragd.telemetry.nvml_calls import Calls, GpuLost
from stragd.telemetry.nvml_fields import LOST, REFUSED, Field, Kind

LIBRARY = "libnvidia-ml.so.1"  # as the binding loads it
# nvmlFieldValue_t: number, scope, timestamp, latency, type, return code, value.
FIELD_VALUE = "IIqqIIQ"
ANSWER = "24xIIQ"  # the last three of them
MEMBERS, KIND, CODE, VALUE = 3, 0, 1, 2
UNSIGNED_LONG_LONG = 3
MAX_DOUBLE = 1e18
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
Row = tuple[Key, Field, float]


class FieldBatch:
    """The fields that a GPU is asked for; those that it refuses leave."""

    def __init__(
        self, calls: Calls, wanted: Mapping[Key, Field], steady: Collection[Kind] = ()
    ) -> None:
        """``steady``: kinds that seldom change. The library must have been loaded."""
        self._calls = calls
        self._call = getattr(ctypes.CDLL(LIBRARY), "nvmlDeviceGetFieldValues", None)
        self._steady = steady
        self.wanted: dict[Key, Field] = {}
        self._pack(wanted)

    def drop(self, keys: set[Key]) -> None:
        """Do not ask for these any more."""
        self._pack({key: field for key, field in self.wanted.items() if key not in keys})

    def forget(self) -> None:
        """Give the steady fields at the next reading, whatever they are."""
        self._last: tuple[int, ...] = ()

    def _pack(self, wanted: Mapping[Key, Field]) -> None:
        first = sorted(wanted.items(), key=lambda item: item[1].kind not in self._steady)
        self.wanted = dict(first)
        self._rows = list(self.wanted.items())
        self._first = sum(field.kind in self._steady for field in self.wanted.values())
        numbers: list[int] = []
        for number, scope in self.wanted:
            numbers += number, scope, 0, 0, 0, 0, 0
        self._buffer = bytearray(struct.pack("=" + FIELD_VALUE * len(self.wanted), *numbers))
        self._array = (ctypes.c_char * len(self._buffer)).from_buffer(self._buffer)
        self._answers = struct.Struct("=" + ANSWER * len(self.wanted))
        self.forget()

    def read(self) -> tuple[list[Row] | None, list[Row]]:
        """What was given of the steady fields, and of the others; NaN among it.

        None for the steady ones where all are as at the last reading. With an error code of its
        own a field has no value; GpuLost where one says so.
        """
        if not self.wanted or not self._calls.ask("fields", self._ask):
            self.forget()
            return [], []
        flat = self._answers.unpack(self._buffer)
        first = flat[: self._first * MEMBERS]
        same = bool(first) and first == self._last
        steady = None if same else self._given(first, 0)
        others = self._given(flat[len(first) :], self._first)
        self._last = first
        if any(codes := flat[CODE::MEMBERS]):
            self._sort_out(codes)
        return steady, others

    def _given(self, flat: tuple[int, ...], begin: int) -> list[Row]:
        kinds, codes, raws = (flat[member::MEMBERS] for member in (KIND, CODE, VALUE))
        return [
            (key, field, raw if kind == UNSIGNED_LONG_LONG else number_of(kind, raw))
            for (key, field), kind, code, raw in zip(
                self._rows[begin : begin + len(raws)], kinds, codes, raws, strict=True
            )
            if code == 0
        ]

    def _sort_out(self, codes: tuple[int, ...]) -> None:
        """Drop what the GPU refuses; GpuLost."""
        for code in codes:
            if code in LOST:
                raise GpuLost(f"NVML: {LOST[code]}")
        refused = {key for key, code in zip(self.wanted, codes, strict=True) if code in REFUSED}
        if refused:
            self.drop(refused)

    def _ask(self) -> bool:
        if self._call is None:  # a library from before field values
            return False
        code = self._call(self._calls.handle, len(self.wanted), self._array)
        if code != 0:
            raise self._calls.nvml.NVMLError(code)
        return True


def number_of(kind: int, raw: int) -> float:
    """Value of a field by its nvmlValueType_t; NaN for a type that is not known."""
    if kind == 0:
        (value,) = struct.unpack("=d", struct.pack("=Q", raw))
        return float(value) if abs(value) < MAX_DOUBLE else math.nan
    if kind not in INTEGERS:
        return math.nan
    bits, signed = INTEGERS[kind]
    number = raw & ((1 << bits) - 1)
    return number - (1 << bits) if signed and number >> (bits - 1) else number
