"""Man pages, the default configuration and the shell completions, from the parsers and the keys.

``python -m stragd.manual FOLDER`` writes them all for a package; nothing in them depends on time
or machine.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from stragd import __version__, config
from stragd.cli.main import parser as stragctl_parser
from stragd.daemon import parser as stragd_parser
from stragd.docs import toml_value

_FILES = {
    "/etc/stragd/stragd.toml": "The configuration, see stragd.toml(5). It need not exist.",
    "/etc/stragd/stragd.toml.d/*.toml": "Drop-ins, read after it in the order of their names.",
    "/run/stragd/control.sock": "The control socket: root and the group stragd may ask, root may "
    "change.",
    "/var/lib/stragd/baselines": "What is known of every rank, kept over a restart.",
    "/usr/lib/stragd/libnccl-profiler-stragd.so": "The profiler plugin for NCCL and RCCL; "
    "`stragctl ring install` makes them load it.",
    "/usr/share/stragd": "Dashboards and alerts for Grafana and Prometheus.",
}
_SIGNALS = {
    "SIGHUP": "Read the configuration again and apply what can be applied at once.",
    "SIGTERM, SIGINT": "Detach every probe, write the baselines, end.",
}
_STRAGD_EXIT = {
    "0": "Stopped by a signal; with --check-config: the configuration is good.",
    "1": "It cannot start, or the configuration has errors; each is a line on standard error.",
    "2": "Wrong usage.",
}
_STRAGCTL_EXIT = {
    "0": "Done.",
    "1": "Not done; one line on standard error says what, why, and the way out.",
    "2": "Wrong usage.",
}


def stragd_page() -> str:
    """stragd(8)."""
    made = stragd_parser()
    return _page(
        "stragd",
        8,
        "find the slow rank of live distributed training jobs",
        _synopsis(made),
        [
            *_section(
                "DESCRIPTION",
                "stragd is one root daemon per node. It finds distributed training processes by "
                "itself, watches their collective calls (NCCL, RCCL, gloo) from outside by eBPF "
                "probes and, where the profiler plugin is loaded, by rings in shared memory, and "
                "says which rank everybody waits for, what that costs per step, since when, and "
                "why. Jobs are not changed, not restarted, and never wait for stragd.",
                "It runs as a service: `systemctl enable --now stragd`. Findings are in the "
                "journal (`journalctl -x -u stragd`), on its metrics page, and in stragctl(1).",
                "Kernels before 6.6 have no uprobe_multi; there the service also has "
                "CAP_SYS_ADMIN, which a generator of systemd gives by the version of the kernel.",
            ),
            *_options(made),
            *_terms("SIGNALS", _SIGNALS),
            *_environment(),
            *_terms("FILES", _FILES),
            *_terms("EXIT STATUS", _STRAGD_EXIT),
        ],
        "stragctl(1), stragd.toml(5), journalctl(1), systemd.catalog: journalctl -x",
    )


def stragctl_page() -> str:
    """stragctl(1)."""
    made = stragctl_parser()
    body = [
        *_section(
            "DESCRIPTION",
            "stragctl asks the stragd of this node through its control socket. Root and members "
            "of the group stragd may ask; what changes something is for root. `doctor` says what "
            "this machine lacks for full function and how to get it.",
        ),
        *_options(made),
        ".SH COMMANDS",
        "The options above may stand before and after the command.",
    ]
    for name, one in _commands(made):
        body += [f".SS {_text(' '.join(['stragctl', name, *_usage(one)]))}"]
        body += [_text(one.description or "").rstrip(".") + "."]
        for action in one._actions:
            if not {"-h", "--socket", "--json"} & set(action.option_strings):
                body += _option(action)
    body += _terms("FILES", {k: v for k, v in _FILES.items() if k.startswith(("/run", "/usr"))})
    body += _terms("EXIT STATUS", _STRAGCTL_EXIT)
    brief = "ask a running stragd which rank is slow, and why"
    return _page("stragctl", 1, brief, _synopsis(made), body, "stragd(8), stragd.toml(5)")


def toml_page() -> str:
    """stragd.toml(5)."""
    body = [
        *_section(
            "DESCRIPTION",
            "stragd reads /etc/stragd/stragd.toml, then /etc/stragd/stragd.toml.d/*.toml in the "
            "order of their names, then the environment; later wins. The format is TOML. An "
            "unknown key or a bad value is an error that names the place, the reason and what is "
            "allowed. `stragd --check-config` checks; `stragctl config show --origin` tells where "
            "each value of the running daemon comes from.",
            "After `systemctl reload stragd` keys marked (reload) are applied at once, the others "
            "at the next start.",
        )
    ]
    for section, cls in config.SECTIONS.items():
        body += [f".SH SECTION [{_text(section)}]", _text(cls.__doc__ or "")]
        for key in _keys(section):
            meta = config.KEYS[key].metadata
            value = toml_value(config.KEYS[key].default)
            name = key.partition(".")[2]
            applied = " (reload)" if meta["live"] else ""
            body += [".TP", f"\\fB{_text(name)}\\fR = {_text(value)}{applied}"]
            body += [_text(f"{meta['help']} Takes {config.allowed(key)}.")]
    body += _environment()
    paths = ("/etc/stragd/stragd.toml", "/etc/stragd/stragd.toml.d/*.toml")
    body += _terms("FILES", {path: _FILES[path] for path in paths})
    return _page("stragd.toml", 5, "configuration of stragd", [], body, "stragd(8), stragctl(1)")


def default_config() -> str:
    """/etc/stragd/stragd.toml as installed: every key, explained, as a comment."""
    lines = [
        "# Configuration of stragd: every key with its default. Uncomment what you change, or put",
        "# it into a file of its own in /etc/stragd/stragd.toml.d/: no upgrade ever asks about it.",
        "# Check: stragd --check-config. Apply: systemctl reload stragd, or restart where said.",
    ]
    for section, cls in config.SECTIONS.items():
        lines += ["", *_comment(cls.__doc__ or ""), f"[{section}]"]
        for key in _keys(section):
            meta = config.KEYS[key].metadata
            applied = "reload" if meta["live"] else "restart"
            lines += ["", *_comment(f"{meta['help']} Takes {config.allowed(key)}; {applied}.")]
            name = key.partition(".")[2]
            lines.append(f"#{name} = {toml_value(config.KEYS[key].default)}")
    return "\n".join(lines) + "\n"


def completion(shell: str) -> str:
    """Completion of stragctl for "bash", "zsh" or "fish". Needs the package shtab."""
    shtab: Any = importlib.import_module("shtab")
    return str(shtab.complete(stragctl_parser(), shell=shell))


FILES: dict[str, Callable[[], str]] = {
    "stragd.8": stragd_page,
    "stragctl.1": stragctl_page,
    "stragd.toml.5": toml_page,
    "stragd.toml": default_config,
    "stragctl.bash": lambda: completion("bash"),
    "stragctl.zsh": lambda: completion("zsh"),
    "stragctl.fish": lambda: completion("fish"),
}


def _keys(section: str) -> Iterator[str]:
    return (key for key in config.KEYS if key.startswith(section + "."))


def _comment(text: str) -> list[str]:
    return ["# " + line for line in textwrap.wrap(" ".join(text.split()), 96)]


def _text(text: str) -> str:
    """Words for roff: nothing in them is a request, an escape, or a typographic dash."""
    text = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti")
    text = text.replace("'", "\\(aq").replace("^", "\\(ha").replace('"', "\\(dq")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return "\\&" + text if text.startswith(".") else text


def _page(
    name: str, section: int, brief: str, synopsis: list[str], body: Iterable[str], also: str
) -> str:
    lines = [
        f'.TH {name.upper()} {section} "" "stragd {__version__}" "stragd"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(brief)}",
        *synopsis,
        *body,
        ".SH SEE ALSO",
        _text(also),
    ]
    return "\n".join(lines) + "\n"


def _section(title: str, *paragraphs: str) -> Iterator[str]:
    yield f".SH {title}"
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP"
        yield _text(paragraph)


def _terms(title: str, terms: dict[str, str]) -> Iterator[str]:
    yield f".SH {title}"
    for term, meaning in terms.items():
        yield from (".TP", f"\\fI{_text(term)}\\fR", _text(meaning))


def _environment() -> Iterator[str]:
    yield from _section(
        "ENVIRONMENT",
        "Every key of the configuration has a variable STRAGD_SECTION_KEY, as in "
        f"{config.environment_name('prometheus.address')}, which wins over the files.",
    )


def _commands(made: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands of a parser, those below them too, and the parser of each."""
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                below = list(_commands(one))
                if not below:
                    yield name, one
                for rest, last in below:
                    yield f"{name} {rest}", last


def _usage(made: argparse.ArgumentParser) -> Iterator[str]:
    """The arguments that are not options, as a usage line shows them."""
    for action in made._actions:
        if not action.option_strings:
            word = _metavar(action)
            yield f"[{word}]" if action.nargs in ("?", "*") else word


def _metavar(action: argparse.Action) -> str:
    if action.metavar:
        return str(action.metavar)
    if action.choices:
        return "|".join(str(choice) for choice in action.choices)
    return action.dest.upper()


def _synopsis(made: argparse.ArgumentParser) -> list[str]:
    rest = _text(" ".join(["[OPTION]...", *_usage(made)]))
    more = " [ARGUMENT]..." if any(True for _ in _commands(made)) else ""
    return [".SH SYNOPSIS", f".B {_text(made.prog)}", rest + more]


def _options(made: argparse.ArgumentParser) -> Iterator[str]:
    yield ".SH OPTIONS"
    for action in made._actions:
        if action.option_strings:
            yield from _option(action)


def _option(action: argparse.Action) -> Iterator[str]:
    yield ".TP"
    if not action.option_strings:
        yield f"\\fI{_text(_metavar(action))}\\fR"
    else:
        value = "" if action.nargs == 0 else f" \\fI{_text(_metavar(action))}\\fR"
        yield ", ".join(f"\\fB{_text(name)}\\fR" for name in action.option_strings) + value
    yield _text(str(action.help or "").replace("%%", "%"))


def main(arguments: list[str]) -> int:
    """Write every file into the folder that is named."""
    if len(arguments) != 1:
        print("usage: python -m stragd.manual FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in FILES.items():
        (folder / name).write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
