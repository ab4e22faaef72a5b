"""Real conditions in real jobs: does the running daemon name the right rank with the right cause?

Method. For each condition of tests/injections.py and each healthy twin (STRAGD_CONDITIONS: some,
with commas), TIMES times (STRAGD_TIMES): a daemon, a gloo job of four ranks that computes a little
and sleeps most of its step, eight windows to learn, then the condition in one rank drawn at random,
for at most LIMIT seconds. Printed: how often that rank was the most expensive confirmed finding,
how often with the expected cause, and the median time from the injection to that; and the causes
that were named instead at the end of LIMIT. A rank that is slow by itself is watched for all of
LIMIT, a healthy twin for half of it: one cause named at any moment is one too many. The machine's
other load is part of the experiment, and is printed (one minute's average at the end of each run).

Networks: a namespace for each rank, 50 Mbit/s by the kernel's token bucket, one all-reduce of
263 kB a step, sixty windows of ten steps to learn. Job and cable have real-time priority: with
twenty others for two cores a healthy job's transfers took 90 to 450 ms, and 54 to 55 with it.
Everybody waits for a bad cable, so the finding names no rank; right is a first line of evidence
that begins with the cable's.
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
LEARN = 600.0
LOADS: list[float] = []
"""Of the runs of the present row."""


def one(name: str, rank: int) -> tuple[bool, str, float]:
    """Whether the rank (or its network) was blamed, the cause named, seconds until it was right."""
    condition = injections.CONDITIONS[name]
    network = any(condition.cable)
    with injections.scene(condition, rank) as at:
        pids = injections.learnt(at.watcher, at.training, condition.windows, LEARN)
        begin = time.monotonic()
        blamed, cause = False, "nobody blamed"
        with at.injected(condition, pids[rank]):
            while time.monotonic() - begin < LIMIT:
                time.sleep(0.5)
                finding = injections.blamed(at.watcher, at.training, network)
                if finding is None or finding["subject"].get("rank", rank) != rank:
                    continue
                blamed, cause = True, finding["cause"]["name"]
                first = "".join(finding["cause"]["evidence"][:1])
                if network and cause != "unknown" and not first.startswith(f"rank {rank} on "):
                    cause += " of another rank"
                right = cause == condition.cause and finding["where"] == condition.where
                if right if network else right == (cause != "unknown"):
                    break  # right, or a cause where there is none
        LOADS.append(os.getloadavg()[0])
        return blamed, cause, time.monotonic() - begin


def healthy(name: str, rank: int) -> tuple[list[str], list[str]]:
    """Kinds of findings that were confirmed of a healthy twin's job, and causes named of them."""
    condition = injections.TWINS[name]
    kinds, causes = set(), set()
    with injections.scene(condition, rank) as at:
        pids = injections.learnt(at.watcher, at.training, condition.windows, LEARN)
        jobs = {rank["job"] for rank in at.watcher.ranks(at.training)}
        # What the machine's other load has already done to the job is not the twin's.
        before = {finding["id"] for finding in at.watcher.ask("findings")["findings"]}
        begin = time.monotonic()
        with at.injected(condition, pids[rank]):
            while time.monotonic() - begin < LIMIT / 2:
                time.sleep(0.5)
                for finding in at.watcher.ask("findings")["findings"]:
                    new = finding["job"]["key"] in jobs and finding["id"] not in before
                    if new and finding["state"] == "confirmed":
                        kinds.add(finding["kind"])
                        causes.add(finding["cause"]["name"])
    LOADS.append(os.getloadavg()[0])
    return sorted(kinds), sorted(causes - {"unknown"})


def main() -> None:
    wanted = os.environ.get("STRAGD_CONDITIONS", "")
    names = wanted.split(",") if wanted else [*injections.CONDITIONS, *injections.TWINS]
    print(f"{TIMES} runs each, at most {LIMIT:.0f} s\n")
    print("| injected | expected | rank named | cause named | seconds | instead | load |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    draw = random.Random(1)
    for name in names:
        LOADS.clear()
        if name in injections.CONDITIONS:
            row = injected(name, draw)
        else:
            runs = [healthy(name, draw.randrange(injections.RANKS)) for _ in range(TIMES)]
            found = Counter(kind for kinds, _ in runs for kind in kinds)
            wrong = Counter(cause for _, causes in runs for cause in causes)
            named = sum(bool(causes) for _, causes in runs)
            row = f"| none | – | {named} of {TIMES} | – | {_listed(found + wrong)} |"
        print(f"| {name} {row} {min(LOADS):.0f} to {max(LOADS):.0f} |", flush=True)


def injected(name: str, draw: random.Random) -> str:
    """The row of a condition without its name."""
    expected = injections.CONDITIONS[name].cause
    runs = [one(name, draw.randrange(injections.RANKS)) for _ in range(TIMES)]
    right = [seconds for _, cause, seconds in runs if cause == expected]
    took = f"{statistics.median(right):.0f}" if right else "–"
    named = sum(named for named, _, _ in runs)
    instead = _listed(Counter(cause for _, cause, _ in runs if cause != expected))
    return f"| {expected} | {named} of {TIMES} | {len(right)} of {TIMES} | {took} | {instead} |"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{what} ({count})" for what, count in counts.items()) or "–"
