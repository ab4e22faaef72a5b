"""Real conditions in real jobs: does the running daemon name the right rank with the right cause?

Method. For each condition of tests/injections.py (STRAGD_CONDITIONS: some, with commas), TIMES
times (STRAGD_TIMES): a daemon, a gloo job of four ranks that computes a little and sleeps most of
its step, eight windows to learn, then the condition in one rank drawn at random, for at most LIMIT
seconds. Of a network that all wait for, the finding may name no rank. Printed: how often that rank
was the most expensive confirmed finding, how often with the expected cause, and the median time
from the injection to that; and the causes that were named instead at the end of LIMIT. A rank that
is slow by itself is watched for all of LIMIT: one cause named at any moment is one too many. The
machine's other load is part of the experiment, and is printed.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import Counter

from tests import injections

TIMES = int(os.environ.get("STRAGD_TIMES", "3"))
LIMIT = 90.0


def one(name: str, rank: int) -> tuple[bool, str, float]:
    """Whether the rank (or its network) was blamed, the cause named, seconds until it was right."""
    condition = injections.CONDITIONS[name]
    network = any(condition.cable)
    with injections.scene(condition, rank) as at:
        pids = injections.learnt(at.watcher, at.training)
        begin = time.monotonic()
        blamed, cause = False, "nobody blamed"
        with at.injected(condition, pids[rank]):
            while time.monotonic() - begin < LIMIT:
                time.sleep(0.5)
                finding = injections.blamed(at.watcher, at.training, network)
                if finding is None or finding["subject"].get("rank", rank) != rank:
                    continue
                blamed, cause = True, finding["cause"]["name"]
                right = cause == condition.cause and finding["where"] == condition.where
                if right if network else right == (cause != "unknown"):
                    break  # right, or a cause where there is none
        return blamed, cause, time.monotonic() - begin


def main() -> None:
    load = os.getloadavg()[0]
    print(f"{TIMES} runs each, at most {LIMIT:.0f} s; load of the machine before: {load:.1f}\n")
    print("| injected | expected | rank named | cause named | seconds | instead |")
    print("| --- | --- | --- | --- | --- | --- |")
    draw = random.Random(1)
    chosen = os.environ.get("STRAGD_CONDITIONS", "")
    for name in chosen.split(",") if chosen else injections.CONDITIONS:
        condition = injections.CONDITIONS[name]
        runs = [one(name, draw.randrange(injections.RANKS)) for _ in range(TIMES)]
        right = [seconds for _, cause, seconds in runs if cause == condition.cause]
        took = f"{statistics.median(right):.0f}" if right else "–"
        instead = Counter(cause for _, cause, _ in runs if cause != condition.cause)
        others = ", ".join(f"{cause} ({count})" for cause, count in instead.items()) or "–"
        print(
            f"| {name} | {condition.cause} | {sum(named for named, _, _ in runs)} of {TIMES} "
            f"| {len(right)} of {TIMES} | {took} | {others} |",
            flush=True,
        )
