"""Nodes of a cluster as network namespaces: veth pairs on a bridge, a host name and a daemon each.

The bridge lies in a namespace of its own, where NATS servers run too; nothing reaches the machine's
own network. Needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stragd.cli.client import ControlClient
from tests.harness import Daemon, Job
from tests.nats_server import Server
from tests.trainer.launch import TRAINERS, torchrun

HUB = "10.77.0.1"
PORT, NATS_PORT = 29511, 4222
ETHERTYPE_IPV4 = 0x0800
RANDOM = 0xFFFFF038  # SKF_AD_OFF + SKF_AD_RANDOM: a load from there is a random number
_numbers = itertools.count()


def ip(*arguments: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Node:
    """One namespace with an address and a host name."""

    def __init__(self, prefix: str, number: int) -> None:
        self.namespace = f"{prefix}n{number}"
        self.name = f"node{number}"
        self.address = f"10.77.0.{11 + number}"
        self.link = f"{prefix}v{number}"  # its end on the bridge
        self.prepare = ":"
        """A shell command that runs in the mount namespace of each program before it."""

    def command(self, *arguments: str | Path) -> list[str]:
        """A command line that runs in the namespace, under its own host name."""
        script = f'hostname "$0" && {self.prepare} && exec "$@"'
        inside = ["unshare", "--uts", "sh", "-c", script, self.name]
        return ["ip", "netns", "exec", self.namespace, *inside, *map(str, arguments)]

    def lose(self, share: float) -> None:
        """Lose this share of the packets between here and the hub, from now on."""
        # Classic BPF; 2 shoots a packet, 0 lets it through.
        hub, least = int(ipaddress.IPv4Address(HUB)), min(round(share * 2**32), 2**32 - 1)
        program = (
            f"10,40 0 0 12,21 0 7 {ETHERTYPE_IPV4},32 0 0 26,21 2 0 {hub},32 0 0 30,21 0 3 {hub},"
            f"32 0 0 {RANDOM},53 1 0 {least},6 0 0 2,6 0 0 0"
        )
        self._tc("qdisc", "add", "dev", "eth0", "clsact")
        for side in ("ingress", "egress"):
            self._tc("filter", "add", "dev", "eth0", side, "bpf", "da", "bytecode", program)

    def lose_nothing(self) -> None:
        """As before."""
        self._tc("qdisc", "delete", "dev", "eth0", "clsact")

    def _tc(self, *arguments: str) -> None:
        subprocess.run(["tc", "-n", self.namespace, *arguments], check=True)


class NodeDaemon(Daemon):
    """A stragd in the namespace of a node, which sees the processes of that node only."""

    def __init__(self, node: Node, directory: Path, config: str) -> None:
        own = "\n[discovery]\nown_network_only = true\n"
        super().__init__(directory, own + config)
        self.node = node

    def command(self) -> list[str | Path]:
        return [*self.node.command(*super().command())]

    def ask(self, *arguments: str) -> dict[str, Any]:
        """The same without a stragctl for each question: many nodes are asked on few cores."""
        verb, *options = arguments
        with ControlClient(str(self.socket)) as client:
            return client.request(verb, **({"cleared": True} if "--cleared" in options else {}))


class Net:
    """The bridge and the nodes on it."""

    def __init__(self, count: int) -> None:
        prefix = f"sx{os.getpid() % 100000}{next(_numbers)}"
        self.hub = f"{prefix}hub"
        self.nodes = [Node(prefix, number) for number in range(count)]
        self.server: Server | None = None

    def __enter__(self) -> Net:
        try:
            ip("netns", "add", self.hub)
            ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
            ip("-n", self.hub, "address", "add", f"{HUB}/24", "dev", "br0")
            for name in ("br0", "lo"):
                ip("-n", self.hub, "link", "set", name, "up")
            for node in self.nodes:
                self._add(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _add(self, node: Node) -> None:
        ip("netns", "add", node.namespace)
        pair = ["type", "veth", "peer", "name", "eth0", "netns", node.namespace]
        ip("-n", self.hub, "link", "add", node.link, *pair)
        ip("-n", self.hub, "link", "set", node.link, "master", "br0", "up")
        ip("-n", node.namespace, "address", "add", f"{node.address}/24", "dev", "eth0")
        for name in ("eth0", "lo"):
            ip("-n", node.namespace, "link", "set", name, "up")

    def __exit__(self, *_: object) -> None:
        for name in [self.hub, *(node.namespace for node in self.nodes)]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


class SpanningJob(Job):
    """A real torchrun job over several nodes; `process` is the first node's launcher."""

    def __init__(
        self, nodes: Sequence[Node], directory: Path, script: str, each: int, *arguments: str
    ) -> None:
        self.record, self.log = directory / "record.jsonl", directory / "job.log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("VIRTUAL_ENV")}
        environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        self.processes = []
        for number, node in enumerate(nodes):
            more = ("--nnodes", str(len(nodes)), "--node_rank", str(number))
            command = torchrun(
                TRAINERS / script,
                each,
                PORT,
                directory / f"ranks{number}",
                *arguments,
                "--record",
                str(self.record),
                more=(*more, "--master_addr", nodes[0].address),
            )
            with self.log.open("ab") as log:
                self.processes.append(
                    subprocess.Popen(
                        node.command(*command),
                        stdout=log,
                        stderr=log,
                        env=environment,
                        start_new_session=True,
                    )
                )
        self.process = self.processes[0]

    def kill(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@contextlib.contextmanager
def spanning_job(
    nodes: Sequence[Node], script: str, each: int, *arguments: str
) -> Iterator[SpanningJob]:
    """A running job with ``each`` ranks on every node, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="stragd-job-") as directory:
        one = SpanningJob(nodes, Path(directory), script, each, *arguments)
        try:
            yield one
        finally:
            one.kill()


@contextlib.contextmanager
def cluster(
    count: int,
    kind: str,
    config: str = "",
    lease_seconds: float = 2.0,
    prepare: Sequence[str] = (),
    limits: str = "",
) -> Iterator[tuple[Net, list[NodeDaemon]]]:
    """So many nodes with a daemon each, and a nats-server where the exchange is one over it.

    ``prepare``: ``Node.prepare`` of the first nodes; ``limits``: more of the server's own settings.
    """
    with (
        tempfile.TemporaryDirectory(prefix="stragd-cluster-") as text,
        Net(count) as net,
        contextlib.ExitStack() as ending,
    ):
        directory = Path(text)
        if kind == "nats":
            wrapper = ("ip", "netns", "exec", net.hub)
            net.server = Server(directory, limits, f"{HUB}:{NATS_PORT}", wrapper)
            ending.callback(net.server.stop)
            net.server.start()
        exchange = f'[exchange]\nkind = "{kind}"\nservers = "nats://{HUB}:{NATS_PORT}"\n'
        exchange += f"lease_seconds = {lease_seconds}\nretry_seconds = 0.5\n"
        for node, command in zip(net.nodes, prepare, strict=False):
            node.prepare = command
        daemons = []
        for node in net.nodes:
            own = directory / node.name
            own.mkdir()
            daemons.append(NodeDaemon(node, own, exchange + config))
        for one in daemons:
            ending.callback(one.stop)
        with ThreadPoolExecutor(count) as starting:
            list(starting.map(NodeDaemon.start, daemons))
        yield net, daemons


def whole(one: Daemon, training: Job) -> dict[str, Any]:
    """The job as its scorer sees it, by the daemon of one node; {} while it does not say."""
    keys = {rank["job"] for rank in one.ranks(training)}
    jobs = [job for job in one.ask("jobs")["jobs"] if job["key"] in keys]
    return dict(jobs[0].get("whole", {})) if jobs else {}
