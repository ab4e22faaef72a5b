"""All that can be wrong with a GPU or a NIC as its driver shows it.

As `tests/conditions.py`, but what is changed is what a driver says (NVML's field values, AMD's
``gpu_metrics``, counters of RDMA drivers) and not what a reader makes of it.
"""

from __future__ import annotations

from tests.amd_conditions import AMD
from tests.device_condition import Condition
from tests.nic_conditions import NICS
from tests.nvidia_conditions import NVIDIA

CONDITIONS: tuple[Condition, ...] = (*NVIDIA, *NICS, *AMD)
