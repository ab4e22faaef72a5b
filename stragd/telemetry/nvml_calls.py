"""Asking NVML about one GPU: refusals are remembered, a lost GPU is told from a failed call."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stragd.telemetry.nvml_fields import LOST, REFUSED

# nvmlFieldValue_t: number, scope, timestamp, latency, type, return code, value.
FIELD_VALUE = struct.Struct("=IIqqIIQ")
# nvmlValueType_t: bits and whether signed; 0 is a double.
INTEGERS = {
    1: (32, False),
    2: (64, False),
    3: (64, False),
    4: (64, True),
    5: (32, True),
    6: (16, False),
}


class GpuLost(Exception):
    """The GPU answers nothing any more; the text says why."""


class FieldValue(NamedTuple):
    """A field value that was given; ``number`` and ``scope`` as asked."""

    number: int
    scope: int
    value: float


class Calls:
    """Calls about one GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self._refused: set[str] = set()

    def ask(self, name: str, call: Callable[[], Any]) -> Any:
        """Result of ``call``; None where refused (then never asked again) or failed; GpuLost."""
        if name in self._refused:
            return None
        try:
            return call()
        except self.nvml.NVMLError as error:
            code = int(error.value)
            if code in LOST:
                raise GpuLost(f"NVML: {LOST[code]}") from None
            if code in REFUSED:
                self._refused.add(name)
        except AttributeError:  # an nvidia-ml-py that does not know the call
            self._refused.add(name)
        return None

    def get(self, function: str, *arguments: Any) -> Any:
        """``ask`` for a function of NVML that takes the handle first."""
        first = arguments[0] if arguments else ""
        name = f"{function} {first}" if isinstance(first, int) else function
        return self.ask(name, lambda: getattr(self.nvml, function)(self.handle, *arguments))

    def fields(
        self, wanted: Sequence[tuple[int, int]]
    ) -> tuple[list[FieldValue], list[tuple[int, int]]]:
        """Values that were given, and (number, scope) of the fields that this GPU does not have.

        Each element has a return code of its own: what came with an error is no value. GpuLost.
        """
        batch = self.get("nvmlDeviceGetFieldValues", wanted)
        if batch is None:
            return [], []
        found, refused = [], []
        for number, scope, _, _, kind, code, raw in FIELD_VALUE.iter_unpack(bytes(batch)):
            if code == 0:
                if (value := number_of(kind, raw)) is not None:
                    found.append(FieldValue(number, scope, value))
            elif code in LOST:
                raise GpuLost(f"NVML: {LOST[code]}")
            elif code in REFUSED:
                refused.append((number, scope))
        return found, refused


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


def text(value: str | bytes) -> str:
    """A name as the binding gives it, old or new."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
