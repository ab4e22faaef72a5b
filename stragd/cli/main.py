"""Entry point of stragctl: arguments, errors and exit codes.

Exit codes: 0 done, 1 stragd did not or would not do it (one line on stderr), 2 usage.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

from stragd import __version__
from stragd.cli import (
    answers,
    cluster,
    record,
    replay,
    report,
    ring_install,
    simulate,
    top,
    why,
)
from stragd.cli.client import DEFAULT_SOCKET, ControlClient, ControlError
from stragd.cli.ranges import number
from stragd.cli.terminal import speaks_utf8
from stragd.cli.text import clean, to_ascii
from stragd.outputs.snapshot import Cluster, Status

Result = dict[str, Any]

# The way out, where the daemon's own message cannot know what the person typed.
_WAY_OUT = {
    "forbidden": "run it as root: sudo stragctl ...",
    "unknown-verb": "install one version of stragd and stragctl",
    "bad-version": "install one version of stragd and stragctl",
    "busy": "other stragctl sessions hold them",
    "internal": "see: journalctl -u stragd",
}


class _Parser(argparse.ArgumentParser):
    """Usage errors in one line, like all other errors."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"stragctl: {clean(message, 1000)} (see: {self.prog} --help)\n")


def _sample(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1 and 65535")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The argument parser; completions and the man page are made from it."""
    # Both options may stand before and after the command: SUPPRESS keeps the command's parser
    # from resetting what stood before it.
    common = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument(
        "--socket", metavar="PATH", help=f"control socket of stragd (default: {DEFAULT_SOCKET})"
    )
    common.add_argument("--json", action="store_true", help="print the answer as one JSON object")
    main_parser = _Parser(
        prog="stragctl", description="Ask a running stragd which rank is slow, and why.",
        parents=[common],
    )  # fmt: skip
    main_parser.add_argument("--version", action="version", version=f"stragctl {__version__}")
    commands = main_parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[common])

    job_help = "name, key or its beginning"
    live = command("top", "live view of a job; one plain picture when the output is no terminal")
    live.add_argument(
        "--interval",
        type=number(0.1, 3600, of="seconds"),
        default=1.0,
        metavar="S",
        help="seconds between pictures",
    )
    cluster_help = "all jobs of the cluster (needs an exchange between the nodes)"
    live.add_argument("--cluster", action="store_true", help=cluster_help)
    live.add_argument("--once", action="store_true", help="print one plain picture and end")
    live.add_argument("--job", metavar="JOB", help=f"begin with this job: {job_help}")
    live.add_argument("--no-color", action="store_true", help="no colour (also: NO_COLOR=1)")
    command("status", "what stragd sees, what it costs and what does not work")
    jobs = command("jobs", "the training jobs on this node")
    jobs.add_argument("--cluster", action="store_true", help=cluster_help)
    ranks = command("ranks", "the ranks of a job: own, wait, comm, lateness, state")
    ranks.add_argument(
        "job", nargs="?", metavar="JOB", help=f"{job_help}; not needed when there is one job"
    )
    findings = command("findings", "open findings, and ranks about which there is no verdict")
    findings.add_argument("--job", metavar="JOB", help=f"only this job: {job_help}")
    findings.add_argument("--cleared", action="store_true", help="the cleared ones too")
    probes = command("probes", "kill switch: off detaches every probe from every job at once")
    probes.add_argument("set", nargs="?", choices=("on", "off"), help="leave out to ask")
    kept = command("record", "write the windows of a running stragd into a file, for replay")
    record.add_arguments(kept, job_help)
    replayed = command("replay", "score a recording: who was slow in it, from when to when")
    replay.add_arguments(replayed)
    reported = command("report", "one page about an incident, for a browser, a mail or a printer")
    report.add_arguments(reported, job_help)
    ring = command(
        "ring", "the profiler plugin in the jobs: what it records, and how much it shall"
    )
    ring.add_argument(
        "set", nargs="?", default="status", metavar="ACTION",
        choices=("status", "on", "off", "progress", "default", "sample", "install", "uninstall"),
        help="status (without one), on: record all, off, progress: only how far communicators "
        "have come, default: as the plugin thinks best, sample N: one of N blocks, install: later "
        "jobs load the plugin (no daemon is asked), uninstall: they do not",
    )  # fmt: skip
    ring.add_argument("sample", nargs="?", type=_sample, metavar="N", help="with `sample`")
    ring.add_argument(
        "--floor", type=int, default=0, metavar="BYTES",
        help="with `on` and `sample`: leave out smaller messages (a power of two)",
    )  # fmt: skip
    ring.add_argument("--pid", type=int, metavar="PID", help="only this process")
    ring_install.add_arguments(ring)
    command("doctor", "what is missing for full function, and how to get it")
    config = command("config", "the configuration that stragd runs with")
    config.add_argument("action", choices=("show",), help="print every key with its value")
    config.add_argument("--origin", action="store_true", help="also where each value comes from")
    looked = command("why", "look deep at a rank beside a healthy peer: what differs? (root only)")
    why.add_arguments(looked, job_help)
    simulation = command(
        "simulate", "what the scorer would see on a cluster like yours (no daemon)"
    )
    simulate.add_arguments(simulation)
    return main_parser


def _request(arguments: argparse.Namespace) -> tuple[dict[str, Any], Callable[[Result], list[str]]]:
    """The request of a command and the text of its answer."""
    name = arguments.command
    width = max(40, shutil.get_terminal_size((top.PIPE_WIDTH, 24)).columns)
    if name == "ranks":
        extra = {} if arguments.job is None else {"job": arguments.job}
        return extra, lambda r: answers.ranks_lines(r["job"], r["ranks"])
    if name == "findings":
        extra = {} if arguments.job is None else {"job": arguments.job}
        if arguments.cleared:
            extra["cleared"] = True
        return extra, lambda r: answers.findings_lines(r["findings"], r["abstentions"], width)
    if name == "probes":
        extra = {} if arguments.set is None else {"set": arguments.set}
        return extra, lambda r: [f"probes are {clean(r['probes'])}"]
    if name == "ring":
        return _ring_request(arguments), lambda r: answers.ring_lines(r["rings"], width)
    if name == "doctor":
        return {}, lambda r: answers.doctor_lines(r["checks"], r["libraries"])
    if name == "config":
        return {}, lambda r: answers.config_lines(r["files"], r["values"], arguments.origin)
    if name == "jobs" and arguments.cluster:
        return {}, lambda r: cluster.jobs_lines(cast(Cluster, r), width)
    if name == "jobs":
        return {}, lambda r: answers.jobs_lines(r["jobs"])
    return {}, lambda r: answers.status_lines(cast(Status, r))


def _ring_request(arguments: argparse.Namespace) -> dict[str, Any]:
    extra: dict[str, Any] = {} if arguments.pid is None else {"pid": arguments.pid}
    if arguments.set == "status":
        return extra
    extra["set"] = "on" if arguments.set == "sample" else arguments.set
    if arguments.sample is not None:
        extra["sample"] = arguments.sample
    if arguments.floor:
        extra["floor"] = arguments.floor
    return extra


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "top":
        return top.run(arguments)
    if arguments.command == "replay":
        return replay.run(arguments)
    if arguments.command == "record":
        return record.run(arguments)
    if arguments.command == "report":
        return report.run(arguments)
    if arguments.command == "why":
        return why.run(arguments)
    if arguments.command == "simulate":
        return simulate.run(arguments)
    if arguments.command == "ring" and arguments.set in ("install", "uninstall"):
        return ring_install.run(arguments)
    extra, text = _request(arguments)
    with ControlClient(arguments.socket) as client:
        verb = "cluster" if getattr(arguments, "cluster", False) else arguments.command
        result = client.request(verb, **extra)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    try:
        lines = text(result if speaks_utf8(os.environ) else to_ascii(result))
    except top.SHAPE_ERRORS:
        raise ControlError(f"{arguments.socket}: {top.WRONG_SHAPE}") from None
    print("\n".join(lines))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run stragctl with ``argv`` (default: the process's) and return the exit code."""
    made = parser()
    arguments = made.parse_args(argv)
    if arguments.command == "ring" and (arguments.set == "sample") == (arguments.sample is None):
        made.error("ring: N belongs to `sample`, and `sample` needs it: stragctl ring sample 16")
    if arguments.command == "top" and arguments.cluster and arguments.job is not None:
        made.error("top: --job is about jobs of this node, --cluster shows all of the cluster")
    arguments.socket = getattr(arguments, "socket", DEFAULT_SOCKET)
    arguments.json = getattr(arguments, "json", False)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except ControlError as error:
        hint = _WAY_OUT.get(error.code, "")
        message = f"{error} ({hint})" if hint else str(error)
        print(f"stragctl: {clean(message, 2000)}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader went away (`| head`): quiet, and nothing more to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
