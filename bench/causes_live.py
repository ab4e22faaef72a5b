"""Real conditions in real jobs: does the running daemon name the right rank with the right cause?

Method. For each condition of tests/injections.py, TIMES times: a daemon, a gloo job of four ranks
that computes a little and sleeps most of its step, eight windows to learn, then the condition in
one rank drawn at random, for at most LIMIT seconds. Printed: how often that rank was the most
expensive confirmed finding, how often with the expected cause, and the median time from the
injection to that; and the causes that were named instead at the end of LIMIT. A rank that is slow
by itself is watched for all of LIMIT: one cause named at any moment is one too many. The machine's
other load is part of the experiment, and is printed.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import Counter

from tests import injections
from tests.harness import daemon, job

TIMES = 3
LIMIT = 90.0


def one(name: str, rank: int) -> tuple[bool, str, float]:
    """Whether the rank was blamed, the cause that it was given, seconds until it was right."""
    condition = injections.CONDITIONS[name]
    arguments = injections.arguments(*condition.options(rank))
    with daemon(injections.WATCH) as watcher, job("ddp.py", injections.RANKS, *arguments) as run:
        pids = injections.learnt(watcher, run)
        begin = time.monotonic()
        rank_named, cause = False, "nobody blamed"
        with condition.inject(pids[rank]):
            while time.monotonic() - begin < LIMIT:
                time.sleep(0.5)
                finding = injections.blamed(watcher, run)
                if finding is None or finding["subject"]["rank"] != rank:
                    continue
                rank_named, cause = True, finding["cause"]["name"]
                if (cause == condition.cause) == (cause != "unknown"):
                    break  # right, or a cause where there is none
        return rank_named, cause, time.monotonic() - begin


def main() -> None:
    load = os.getloadavg()[0]
    print(f"{TIMES} runs each, at most {LIMIT:.0f} s; load of the machine before: {load:.1f}\n")
    print("| injected | expected | rank named | cause named | seconds | instead |")
    print("| --- | --- | --- | --- | --- | --- |")
    draw = random.Random(1)
    for name, condition in injections.CONDITIONS.items():
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
