"""Asking NVML about one GPU: refusals are remembered, a lost GPU is told from a failed call.

Functions that are asked in every pass and fill in one number are called without the binding, which
makes everything anew for each call and takes several times as long as the call itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from stragd.telemetry.nvml_fields import LOST, REFUSED

NUMBERS: dict[str, type[ctypes.c_uint] | type[ctypes.c_ulonglong]] = {
    "nvmlDeviceGetClockInfo": ctypes.c_uint,
    "nvmlDeviceGetCurrPcieLinkGeneration": ctypes.c_uint,
    "nvmlDeviceGetCurrPcieLinkWidth": ctypes.c_uint,
    "nvmlDeviceGetPowerUsage": ctypes.c_uint,
    "nvmlDeviceGetEnforcedPowerLimit": ctypes.c_uint,
    "nvmlDeviceGetCurrentClocksEventReasons": ctypes.c_ulonglong,
}
"""What the last argument of a function points to; those before are the handle and numbers."""


class GpuLost(Exception):
    """The GPU answers nothing any more; the text says why."""


class Calls:
    """Calls about one GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self._refused: set[object] = set()
        self._bound: dict[tuple[str, tuple[int, ...]], Callable[[], Any]] = {}

    def ask(self, name: object, call: Callable[[], Any]) -> Any:
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

    def refused(self, function: str) -> bool:
        """Whether the driver refuses a function that takes the handle alone."""
        return (function, ()) in self._refused

    def get(self, function: str, *arguments: int) -> Any:
        """``ask`` for a function of NVML that takes the handle first."""
        name = (function, arguments)
        if (call := self._bound.get(name)) is None:
            call = self._bound[name] = self._bind(function, arguments)
        return self.ask(name, call)

    def _bind(self, function: str, arguments: tuple[int, ...]) -> Callable[[], Any]:
        if (kind := NUMBERS.get(function)) is not None:
            return self._bind_number(getattr(self.nvml.nvmlLib, function, None), arguments, kind())
        found = getattr(self.nvml, function, None)
        return partial(found, self.handle, *arguments) if found is not None else _missing

    def _bind_number(
        self, call: Any, arguments: tuple[int, ...], number: ctypes.c_uint | ctypes.c_ulonglong
    ) -> Callable[[], Any]:
        if call is None:  # a library from before or after it
            return _missing
        given = (self.handle, *arguments, ctypes.byref(number))

        def asked() -> int:
            if code := call(*given):
                raise self.nvml.NVMLError(code)
            return number.value

        return asked


def _missing() -> Any:
    raise AttributeError


def text(value: str | bytes) -> str:
    """A name as the binding gives it, old or new."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
