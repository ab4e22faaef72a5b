"""make pictures: README's pictures of `top`, of a report and of the dashboard, from a real run.

Watches a real 4-rank torchrun training over gloo, gives one rank a CPU quota, waits until stragd
names the rank and the cause, and photographs what a person would see. There is no Grafana to
photograph: ``dashboard_page`` draws ``grafana/stragd.json`` with the answers of the Prometheus that
scraped the run. As root; some three minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ansi2html import Ansi2HTMLConverter
from dashboard_charts import Frame
from dashboard_page import WIDTH, Answers, page

from tests import browser
from tests.harness import ROOT, SCRIPTS, Daemon, daemon, free_port, job, wait_for
from tests.injections import CONDITIONS, LIMIT, RANKS, WATCH, arguments, blamed, learnt
from tests.prometheus_server import Prometheus, Series, filled

FOLDER = ROOT / "docs" / "pictures"
SICK = 2
ALONE = "--alone"
"""Given to itself in a network of its own: other jobs of the machine are not in the pictures."""
ONLY_OURS = WATCH + "[discovery]\nown_network_only = true\n"
COLUMNS, LINES = 108, 30
AFTER_SECONDS = 40
"""After the finding, so that the picture shows more than its first window."""
STEP = 2
"""Seconds between scrapes."""
DASHBOARD = ROOT / "grafana" / "stragd.json"
DASHBOARDS = {"dashboard": ("Fleet", "Job"), "dashboard-node": ("Node", "stragd itself")}
"""Pictures of the dashboard and the rows that they show."""
STYLE = """<meta charset="utf-8"><style>body{margin:0;padding:14px 18px;background:#0d1117}
pre{margin:0;font:15px/1.25 "DejaVu Sans Mono",monospace;color:#d7dde4}
.ansi1{font-weight:bold}.ansi2{opacity:.6}.ansi7,.inv_foreground{background:#d7dde4;color:#0d1117}
.ansi31{color:#ff7b72}.ansi32{color:#7ee787}.ansi33{color:#e3b341}</style>"""


def screen(watcher: Daemon, key: str) -> str:
    """What `stragctl top` shows in a terminal of COLUMNS x LINES, with its colours."""
    server = f"stragd-pictures-{free_port()}"
    top = f"{SCRIPTS / 'stragctl'} --socket {watcher.socket} top --job {key}"
    tmux = ["tmux", "-L", server]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
    size = ["-x", str(COLUMNS), "-y", str(LINES)]
    start = [*tmux, "-f", "/dev/null", "new-session", "-d", *size, top]
    subprocess.run(start, check=True, env=environment)
    try:

        def shown() -> str:
            capture = [*tmux, "capture-pane", "-e", "-p"]
            text = subprocess.run(capture, capture_output=True, text=True, check=True).stdout
            return text if "stragd:" in text else ""

        wait_for("top to draw", shown)
        time.sleep(2)
        return shown()
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def photograph_screen(text: str, picture: Path) -> None:
    """A terminal's text with its colours as PNG."""
    body = Ansi2HTMLConverter(inline=False).convert(text.rstrip("\n"), full=False)
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory) / "top.html"
        page.write_text(f"<!DOCTYPE html>{STYLE}<pre>{body}</pre>", encoding="utf-8")
        seen = browser.layout(page.read_text(), 1040)
        browser.screenshot(page, picture, 1040, seen.height)


def photograph_dashboard(server: Prometheus, key: str, start: float) -> None:
    """DASHBOARDS from ``start`` (UNIX seconds) until now, with the job as the chosen one."""
    dashboard = json.loads(DASHBOARD.read_text())
    (known,) = server.wait(f'stragd_job_info{{key="{key}"}}', 1)
    label = known["metric"]["job"]
    end = time.time()
    frame = Frame(0, 0, start, end, step=STEP)
    pattern = re.escape(label).replace("\\", r"\\")
    variables = {"job": pattern, "__range": f"{end - start:.0f}s"}

    def ask(target: Mapping[str, Any]) -> Series:
        expression = filled(target["expr"], **variables)
        if target.get("instant"):
            return server.query(expression)
        return server.over_time(expression, start, end, frame.step)

    answers: Answers = {
        (panel["id"], target["refId"]): ask(target)
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    (annotation,) = dashboard["annotations"]["list"]
    for name, rows in DASHBOARDS.items():
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "page.html"
            text = page(dashboard, answers, ask(annotation), frame, rows, {"job": label})
            file.write_text(text, encoding="utf-8")
            height = browser.layout(text, WIDTH).height
            browser.screenshot(file, FOLDER / f"{name}.png", WIDTH, height)


def main() -> int:
    if os.geteuid() != 0:
        print("pictures: eBPF probes need root. Run it as: sudo make pictures")
        return 1
    if ALONE not in sys.argv[1:]:
        inside = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        os.execvp("unshare", ["unshare", "--net", *inside, sys.executable, __file__, ALONE])
    FOLDER.mkdir(exist_ok=True)
    condition = CONDITIONS["CPU quota"]
    with (
        tempfile.TemporaryDirectory() as scraped,
        daemon(ONLY_OURS) as watcher,
        Prometheus(Path(scraped), f"127.0.0.1:{watcher.port}", STEP) as server,
        job("ddp.py", RANKS, *arguments()) as training,
    ):
        learnt(watcher, training, 1)
        begin = time.time()
        pids = learnt(watcher, training)
        with condition.inject(pids[SICK]):

            def explained() -> str:
                finding = blamed(watcher, training)
                right = finding is not None and finding["cause"]["name"] == condition.cause
                return finding["job"]["key"] if right and finding else ""

            key = wait_for(f"rank {SICK} and its cause", explained, LIMIT)
            time.sleep(AFTER_SECONDS)
            wait_for("the finding, should the machine have been busy", explained, LIMIT)
            photograph_dashboard(server, key, begin)
            photograph_screen(screen(watcher, key), FOLDER / "top.png")
            with tempfile.TemporaryDirectory() as directory:
                page = Path(directory) / "report.html"
                done = watcher.control("report", key, "-o", str(page))
                assert done.returncode == 0, done.stderr
                seen = browser.layout(page.read_text(), 900)
                browser.screenshot(page, FOLDER / "report.png", 900, seen.height)
    for picture in sorted(FOLDER.glob("*.png")):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size >> 10} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
