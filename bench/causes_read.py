"""Through the readers: is a sick GPU or NIC named, and its healthy twin not?

Method: a node of eight sleeping processes, each with a GPU and a NIC of its own, whose drivers are
made up: libnvidia-ml.so.1 by tests/fakenvml, amdgpu's ``gpu_metrics`` and the counters of RDMA
drivers as files. Real are the readers with their processes, the collector, the past, the two passes
that a doubtful cause needs, and the diagnosis. The ranks are two jobs of four. After four healthy
windows both have a straggler finding; a condition of tests/driver_conditions.py is injected in one
and its healthy twin in the other, for three windows (sixteen, as long as no cause is named). Each
is drawn TIMES times (STRAGD_TIMES): which rank, which half of the node, and the noise of clocks,
temperature, power, use and traffic. "Named first": at the end, with the right place, and with what
was injected in the first line of evidence. "Twin unnamed": at no moment. Windows take as long as
reading takes, 30 ms at least, and are ten seconds apart by the wall clock that the past goes by.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence

from bench.causes import listed
from tests.device_condition import Condition
from tests.driver_conditions import CONDITIONS
from tests.made_up_node import HARDWARE, made_up_node
from tests.sick_and_twin import observed

TIMES = int(os.environ.get("STRAGD_TIMES", "10"))


class Row:
    """What was named of a condition and of its twin."""

    def __init__(self) -> None:
        self.sick: Counter[str] = Counter()
        self.twin: Counter[str] = Counter()


def draw(conditions: Sequence[Condition], rows: dict[str, Row], time: int) -> None:
    """Each condition once, on one node."""
    with made_up_node(conditions[0].hardware) as (node, collector):
        for condition in conditions:
            seen = observed(node, collector, condition, random.Random(f"{condition.name} {time}"))
            rows[condition.name].sick[seen.verdict(condition)] += 1
            rows[condition.name].twin.update(seen.of_twin or ("unknown",))


def main() -> None:
    rows = {condition.name: Row() for condition in CONDITIONS}
    for time in range(TIMES):
        for hardware in HARDWARE:
            here = [c for c in CONDITIONS if c.hardware == hardware]
            draw([c for c in here if not c.spoils], rows, time)
            for condition in here:
                if condition.spoils:
                    draw([condition], rows, time)
    right = silent = 0
    print("| condition | cause | named first | otherwise | twin unnamed | otherwise |")
    print("| --- | --- | --- | --- | --- | --- |")
    for condition in CONDITIONS:
        row = rows[condition.name]
        hits, quiet = row.sick.pop(condition.cause, 0), row.twin.pop("unknown", 0)
        right, silent = right + hits, silent + quiet
        print(
            f"| {condition.name} | {condition.cause} | {hits}/{TIMES} | {listed(row.sick)} "
            f"| {quiet}/{TIMES} | {listed(row.twin)} |"
        )
    total = TIMES * len(CONDITIONS)
    causes = len({condition.cause for condition in CONDITIONS})
    print(
        f"\n{len(CONDITIONS)} conditions of {causes} causes: {right} of {total} named first, "
        f"{silent} of {total} twins unnamed."
    )


if __name__ == "__main__":
    main()
