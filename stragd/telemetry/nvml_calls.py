"""Asking NVML about one GPU: refusals are remembered, a lost GPU is told from a failed call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stragd.telemetry.nvml_fields import LOST, REFUSED


class GpuLost(Exception):
    """The GPU answers nothing any more; the text says why."""


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

    def get(self, function: str, *arguments: int) -> Any:
        """``ask`` for a function of NVML that takes the handle first."""
        name = f"{function} {arguments[0]}" if arguments else function
        return self.ask(name, lambda: getattr(self.nvml, function)(self.handle, *arguments))


def text(value: str | bytes) -> str:
    """A name as the binding gives it, old or new."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
