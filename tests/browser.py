"""A page in headless Chromium: how it lays out, what it asks for, what it looks like."""

from __future__ import annotations

import html
import http.server
import json
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

from tests.harness import wait_for

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--enable-logging=stderr",
)  # fmt: skip
# The page is framed at the width of a screen and measured from outside: it runs no script itself.
FRAME = """<!DOCTYPE html><body style="margin:0"><iframe src="/page"
style="border:0;width:{width}px;height:800px"></iframe><pre id="result"></pre><script>
document.querySelector("iframe").onload = event => {{
  const inside = event.target.contentDocument, root = inside.documentElement;
  const right = [...inside.querySelectorAll("*")].map(
    e => [e.getBoundingClientRect().right, e.tagName + "." + (e.getAttribute("class") || "")]);
  const over = right.filter(([x]) => x > root.clientWidth + 1).map(([, name]) => name);
  document.getElementById("result").textContent = JSON.stringify({{
    width: root.clientWidth, scroll: root.scrollWidth,
    height: Math.ceil(inside.body.getBoundingClientRect().bottom),
    over: over, text: inside.body.innerText, scripts: inside.scripts.length}});
}};</script>"""


class Layout(NamedTuple):
    """How a page lies on a screen of some width; all in CSS pixels."""

    width: int
    scroll: int  # width that it takes
    height: int
    over: list[str]  # elements that stick out on the right
    text: str
    scripts: int
    console: list[str]
    asked: list[str]  # paths that were requested


def browser() -> str:
    """Path of the browser; AssertionError where there is none."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    raise AssertionError("no headless browser: apt-get install chromium-headless-shell")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="stragd-browser-") as profile:
        return subprocess.run(
            [browser(), *OPTIONS, f"--user-data-dir={profile}", *arguments],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip


def layout(page: str, width: int) -> Layout:
    """Lay ``page`` out on a screen of ``width`` pixels."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = {"/page": page, "/": FRAME.format(width=width)}.get(self.path, "")
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Requests are in ``asked``."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/"

        def measured() -> tuple[str, str]:
            """The frame's result and the log; nothing where a busy machine was not done in time."""
            asked.clear()
            done = run("--window-size=1600,900", "--virtual-time-budget=20000", "--dump-dom", url)
            found = re.search(r'<pre id="result">(.+?)</pre>', done.stdout, re.DOTALL)
            return (html.unescape(found.group(1)), done.stderr) if found else ("", "")

        result, log = wait_for("the page's layout", lambda: r if (r := measured())[0] else None)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    console = [line for line in log.splitlines() if "CONSOLE" in line]
    paths = [path for path in asked if path != "/"]
    return Layout(**json.loads(result), console=console, asked=paths)


def screenshot(page: Path, picture: Path, width: int, height: int, scale: float = 1.0) -> None:
    """A PNG of a page in a file."""
    run(
        f"--window-size={width},{height}", f"--force-device-scale-factor={scale}",
        f"--screenshot={picture}", page.resolve().as_uri(),
    )  # fmt: skip
