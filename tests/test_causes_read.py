"""What a driver says of a sick GPU or NIC is named, through the readers, and its twin is not.

The drivers are made up; the readers, their processes, `Collector`, `Causes` and the diagnosis are
the daemon's. ``python -m bench causes_read`` does the same many times, with other noise.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest

from stragd.diagnosis.causes_gpu import GPU_CAUSES
from stragd.diagnosis.causes_nic import NIC_CAUSES
from tests.device_condition import Condition
from tests.driver_conditions import CONDITIONS
from tests.made_up_node import Node, Passes, made_up_node
from tests.needs import module
from tests.sick_and_twin import observed


class Nodes:
    """One node for all conditions of a kind of hardware, and one for each that spoils it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._made: dict[str, tuple[Node, Passes]] = {}

    def of(self, condition: Condition) -> tuple[Node, Passes]:
        key = condition.name if condition.spoils else condition.hardware
        if key not in self._made:
            self._made[key] = self._stack.enter_context(made_up_node(condition.hardware))
        return self._made[key]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    module("pynvml")
    with contextlib.ExitStack() as stack:
        yield Nodes(stack)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_a_sick_device_is_named_and_its_twin_is_not(nodes: Nodes, condition: Condition) -> None:
    seen = observed(*nodes.of(condition), condition, random.Random(condition.name))
    assert seen.verdict(condition) == condition.cause, seen.sick
    assert seen.of_twin == ()


def test_every_cause_of_a_gpu_and_a_nic_is_read() -> None:
    """But for a long way, which shows on TCP connections only (`tests/injections.py`)."""
    causes = {cause.name for cause in (*GPU_CAUSES, *NIC_CAUSES)}
    assert {condition.cause for condition in CONDITIONS} == causes - {"network-delay"}
