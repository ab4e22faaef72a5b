"""Every command in README and docs: parsed by the real parsers, and run where that is harmless."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from stragd import config
from stragd.cli import main as stragctl
from stragd.daemon import parser as stragd_parser
from stragd.outputs.journal import MESSAGE_IDS
from tests.harness import ROOT, Daemon, daemon

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("stragctl", "stragd")
# Placeholders where a parser wants a number; names and files may be any word.
NUMBERS = {"N": "16", "S": "5", "RANK": "2", "BYTES": "65536", "PID": "1"}
READ_ONLY = {"status", "jobs", "findings", "doctor", "config", "ring", "top"}
KNOWN_TOOLS = set(
    "apt cargo curl git journalctl kubectl pip podman python srun systemctl torchrun".split()
)


def blocks(page: Path) -> Iterator[str]:
    """Lines of the fenced sh and console blocks, continuation lines joined."""
    for body in re.findall(r"^```(?:sh|console)\n(.*?)^```", page.read_text(), re.M | re.S):
        for line in body.replace("\\\n", " ").splitlines():
            text = line.removeprefix("$ ").strip()
            if text and not text.startswith("#"):
                yield text


def inline(page: Path) -> Iterator[str]:
    """`stragctl ...` within the text; forms with alternatives or dots are no commands."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for found in re.findall(r"`((?:sudo )?(?:stragctl|stragd -)[^`\n]+)`", text):
        if not re.search(r"\[|\||…|\.\.\.|COMMAND|, `", found):
            yield found


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a shell line, without sudo, variables and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for token in [*lexer, ";"]:
        if token and set(token) <= set("|&;<>"):
            while words and (words[0] == "sudo" or re.match(r"[A-Z_]+=", words[0])):
                words = words[1:]
            if words and set(token) <= set("|&;"):
                yield words
            words = words if "<" in token or ">" in token else []
        else:
            words.append(token)


def ours(page: Path) -> Iterator[list[str]]:
    for line in (*blocks(page), *inline(page)):
        for words in simple_commands(line):
            if words[0].rpartition("/")[2] in PROGRAMS:
                yield [words[0].rpartition("/")[2], *words[1:]]


def parse(words: list[str]) -> str:
    """What the real parser says against a command, "" where nothing."""
    arguments = [NUMBERS.get(word, word) for word in words[1:]]
    parser = stragctl.parser() if words[0] == "stragctl" else stragd_parser()
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
            parser.parse_args(arguments)
    except SystemExit as end:
        return told.getvalue() if end.code else ""
    return ""


def wrong(words: list[str]) -> str:
    """The same, but a bare `stragctl why` in a sentence is a name, without what it requires."""
    said = parse(words)
    return "" if len(words) == 2 and "are required" in said else said


def test_there_are_commands_to_check() -> None:
    assert sum(1 for page in PAGES for _ in ours(page)) > 60
    assert parse(["stragctl", "toop"]), "the check can fail"
    assert parse(["stragctl", "ring", "sample", "many"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_ours_is_one(page: Path) -> None:
    problems = [f"{shlex.join(words)}: {said}" for words in ours(page) if (said := wrong(words))]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_other_command_exists(page: Path) -> None:
    """make's targets, the benches and files of the checkout are there; tools are known ones."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in blocks(page):
        for words in simple_commands(line):
            name = words[0].rpartition("/")[2]
            if name == "make":
                named = [w for w in words[1:] if "=" not in w and not w.startswith("-")]
                assert set(named) <= targets, line
            elif name.startswith("python") and words[1:3] == ["-m", "bench"]:
                assert all((ROOT / "bench" / f"{w}.py").exists() for w in words[3:4]), line
            elif name not in PROGRAMS:
                assert {words[0], name} & KNOWN_TOOLS, line
    for bench in re.findall(r"python -m bench ([a-z_]+)", page.read_text()):
        assert (ROOT / "bench" / f"{bench}.py").exists(), bench
    for target in re.findall(r"`make ([a-z-]+)", page.read_text()):
        assert target in targets, target


@pytest.fixture(scope="module")
def watcher() -> Iterator[Daemon]:
    assert os.geteuid() == 0, "the daemon attaches eBPF probes: run this as root"
    with daemon() as one:
        yield one


def harmless(words: list[str]) -> bool:
    """Whether a command asks and changes nothing, and is about no job or cluster in particular."""
    if words[0] != "stragctl" or len(words) < 2 or words[1] not in READ_ONLY:
        return False
    asks = words[1] != "ring" or len(words) == 2
    return asks and "--cluster" not in words and not any(word.isupper() for word in words)


def test_the_read_only_ones_run(watcher: Daemon) -> None:
    commands = {tuple(words) for page in PAGES for words in ours(page) if harmless(words)}
    assert {words[1] for words in commands} >= {"status", "findings", "doctor", "top", "ring"}
    for words in sorted(commands):
        done = watcher.control(*words[1:])
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_journal_entry_has_its_section() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    catalog = (ROOT / "systemd" / "stragd.catalog").read_text()
    sections = dict(re.findall(r"^## (\S+)\n\n`([0-9a-f]{32})`$", text, re.M))
    assert sections == MESSAGE_IDS
    for name, number in MESSAGE_IDS.items():
        assert f"-- {number}\n" in catalog, name
        section = text.partition(f"`{number}`\n\n")[2].partition("\n## ")[0]
        assert "**Do:** " in section, name


def test_every_key_that_a_page_names_is_one() -> None:
    sections = "|".join(config.SECTIONS)
    for page in PAGES:
        for key in re.findall(rf"`((?:{sections})\.[a-z_]+)`", page.read_text()):
            assert key in config.KEYS, f"{page.name}: {key}"


def test_security_states_the_units_capabilities() -> None:
    unit = (ROOT / "systemd" / "stragd.service").read_text()
    text = (ROOT / "docs" / "security.md").read_text()
    bounding = re.search(r"^CapabilityBoundingSet=(.+)$", unit, re.M)
    assert bounding
    stated = set(re.findall(r"`(CAP_[A-Z_]+)`", text)) - {"CAP_SYS_ADMIN"}
    assert stated == set(bounding.group(1).split())


def test_figures_of_the_overhead_are_those_of_the_benches() -> None:
    measured = (ROOT / "docs" / "performance.md").read_text()
    unit = (ROOT / "systemd" / "stragd.service").read_text()
    rows = [line for line in (ROOT / "docs" / "overhead.md").read_text().splitlines()
            if line.startswith("| ")]  # fmt: skip
    figures = {
        figure
        for row in rows
        if "limits" not in row
        for figure in re.findall(r"\d+(?:\.\d+)? (?:us|%|MB)|\(\d\S* to \d\S*\)", row)
    }
    assert len(figures) > 6
    for figure in figures:
        assert figure.rstrip(")") in measured, figure
    assert "512 MB, one core, nice 5" in "\n".join(rows)
    for line in ("MemoryMax=512M", "CPUQuota=100%", "Nice=5"):
        assert line in unit
