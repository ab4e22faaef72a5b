"""make demo: watch a real training job with one slow rank, and name it.

Starts a stragd of its own (own socket, own port, nothing of a system-wide one is touched), runs a
real 4-rank torchrun DDP training over gloo in which one rank becomes 20 % slower, shows the live
view, and ends with the finding beside the job's own record of what was injected.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.harness import SCRIPTS, Daemon, Job, daemon, job

RANKS = 4
STEP_MS = 50
SLOW_AFTER = 400
SLOW_FACTOR = 1.2
STEPS = 2000
LIMIT_SECONDS = 150


def say(text: str = "") -> None:
    print(text, flush=True)


def confirmed(watcher: Daemon, training: Job) -> list[dict[str, Any]]:
    """Findings of a slow rank of the job that are certain by now."""
    return [f for f in watcher.findings(training) if f["state"] == "confirmed"]


def watch(watcher: Daemon, training: Job) -> list[dict[str, Any]]:
    """Show the live view until a slow rank is named, the job ends, or the limit is over."""
    top = [str(SCRIPTS / "stragctl"), "--socket", str(watcher.socket), "top"]
    live = subprocess.Popen(top) if sys.stdout.isatty() else None
    deadline = time.monotonic() + LIMIT_SECONDS
    next_picture = time.monotonic() + 15
    found: list[dict[str, Any]] = []
    try:
        while time.monotonic() < deadline and training.process.poll() is None and not found:
            if live is not None and live.poll() is not None:
                break  # the person pressed q
            time.sleep(0.5)
            found = confirmed(watcher, training)
            if live is None and (found or time.monotonic() > next_picture):
                say(subprocess.run(top, capture_output=True, text=True, check=False).stdout)
                next_picture = time.monotonic() + 15
        if live is not None and found:
            time.sleep(6)  # time to see it on the screen
    finally:
        if live is not None and live.poll() is None:
            live.terminate()
            live.wait(10)
    # Left early with q: the finding is still wanted.
    while not found and time.monotonic() < deadline and training.process.poll() is None:
        time.sleep(0.5)
        found = confirmed(watcher, training)
    return found


def report(found: list[dict[str, Any]], injected: dict[str, Any]) -> bool:
    """Print the finding and the truth side by side; whether they agree."""
    say("What stragd found, from outside the job:")
    for finding in found:
        cost = finding["cost_ms_per_step"]
        say(f"  rank {finding['subject']['rank']} is the straggler ({finding['state']})")
        say(f"  slowdown   {finding['slowdown']:.1%} more own work than its peers' median")
        if cost is not None:
            say(
                f"  cost       {cost['value']:.1f} ms per step"
                f" (between {cost['low']:.1f} and {cost['high']:.1f})"
            )
        say(f"  since      {finding['since']['time']} (window {finding['since']['window']})")
        for line in finding["evidence"]:
            say(f"  evidence   {line}")
    if not found:
        say("  nothing")
    say()
    say("What the job itself recorded:")
    slower = f"{injected['factor'] - 1:.0%} slower"
    say(f"  rank {injected['rank']} made {slower} from step {injected['step']}")
    say(f"  since      {injected['time']}")
    say()
    named = [finding["subject"]["rank"] for finding in found]
    right = named == [injected["rank"]]
    verdict = "They agree" if right else "They do NOT agree"
    say(f"{verdict}: named {named}, injected [{injected['rank']}].")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description="watch a real training job with one slow rank")
    parser.add_argument("--slow-rank", type=int, default=2, choices=range(RANKS))
    rank = parser.parse_args().slow_rank
    if os.geteuid() != 0:
        say("demo: eBPF probes need root, and nothing was started. Run it as: sudo make demo")
        return 1
    say(f"A real {RANKS}-rank PyTorch DDP training over gloo, on this machine's CPU.")
    slower = f"{SLOW_FACTOR - 1:.0%} slower"
    say(f"Rank {rank} becomes {slower} after {SLOW_AFTER} steps of {STEP_MS} ms.")
    say("Each rank sleeps for part of its step, as a rank waits for its GPU; model, gradients")
    say("and gloo are real. stragd is told nothing about the job.")
    say()
    with daemon() as watcher:
        arguments = ["--steps", str(STEPS), "--step-ms", str(STEP_MS)]
        arguments += ["--slow-rank", str(rank), "--slow-factor", str(SLOW_FACTOR)]
        arguments += ["--slow-after", str(SLOW_AFTER)]
        with job("ddp.py", RANKS, *arguments) as training:
            found = watch(watcher, training)
            injected = [r for r in training.records() if r["event"] == "injected"]
            if not injected:
                say(f"demo: the job ended before its fault: {training.log.read_text()[-2000:]}")
                return 1
            return 0 if report(found, injected[0]) else 1


if __name__ == "__main__":
    sys.exit(main())
