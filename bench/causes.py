"""How often the right cause is named: a confusion matrix over injected conditions.

Method: `tests/conditions.py` makes jobs of 16 ranks on four nodes from noisy readings and injects
one condition into the slow rank, with what it brings along. Each is drawn 40 times: half of them
without a past; in half of each every tenth reading of GPU, process and NIC is missing at random.
The same is done with the condition's healthy twin, which is right when nothing is named. Only the
matrix' entries that are not 0 are printed. Simulated readings, not measured ones: this tests the
reasoning, not the readers.
"""

from __future__ import annotations

from collections import Counter

from stragd.diagnosis import diagnose
from tests.conditions import CONDITIONS, HARMLESS, Condition, case

DRAWS = 40


def named(condition: Condition, healthy: bool) -> Counter[str]:
    """Causes that were named, with their counts."""
    counts: Counter[str] = Counter()
    for draw in range(DRAWS):
        lost = 0.1 if draw % 4 in (2, 3) else 0.0
        made = case(condition, draw, healthy, with_past=draw % 2 == 0, lost=lost)
        counts[diagnose(*made).name] += 1
    return counts


def main() -> None:
    right = silent = 0
    print("| condition | cause | named first | otherwise | twin unnamed | otherwise |")
    print("| --- | --- | --- | --- | --- | --- |")
    for condition in CONDITIONS:
        sick, well = named(condition, False), named(condition, True)
        hits, quiet = sick.pop(condition.cause, 0), well.pop("unknown", 0)
        right, silent = right + hits, silent + quiet
        print(
            f"| {condition.name} | {condition.cause} | {hits}/{DRAWS} | {listed(sick)} "
            f"| {quiet}/{DRAWS} | {listed(well)} |"
        )
    total = DRAWS * len(CONDITIONS)
    causes = len({condition.cause for condition in CONDITIONS})
    for condition in HARMLESS:
        counts = named(condition, False)
        quiet = counts.pop("unknown", 0)
        print(f"| {condition.name} | none | {quiet}/{DRAWS} | {listed(counts)} | | |")
    print(f"\n{causes} causes: {right} of {total} named first, {silent} of {total} twins unnamed.")


def listed(counts: Counter[str]) -> str:
    """What was named and how often, most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "–"


if __name__ == "__main__":
    main()
