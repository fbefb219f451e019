"""The man page, made from the parsers themselves: `python -m specdash.verbs.manpage > docs/man/specdash.1`.

The same on every Python and at every width: nothing goes through argparse's own formatter.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

SECTIONS_BEFORE = """\
.TH SPECDASH 1 "" "specdash" "User Commands"
.SH NAME
specdash \\- mission control for speculative decoding on SGLang hosts
.SH SYNOPSIS
.B specdash
[\\fB\\-\\-read\\-only\\fR] [\\fB\\-\\-config\\fR \\fIFILE\\fR] [\\fIVERB\\fR ...]
.br
.B specdash \\-\\-check
[\\fITARGET\\fR ...]
.SH DESCRIPTION
Launch, watch, compare and switch drafters on multi-GPU hosts over SSH.
Without a verb it opens the dashboard, which needs a terminal; everything else works without one.
Data goes to standard output, narration and questions to standard error.
Nothing is installed on a host: a program of standard Python goes over the link, and runs live in folders there.
"""
GLOBAL = (
    ("--check [TARGET ...]", "The same as the verb check."),
    ("--read-only", "Refuse everything that changes a host."),
    ("--config FILE", "Other config file (also SPECDASH_CONFIG)."),
    ("-V, --version", "Print the version."),
    ("-h, --help", "Print help; with a verb before it, that verb's."),
)
FILES = (
    ("~/.config/specdash/config.toml", "Hosts, groups, thresholds, keys. It need not exist."),
    ("./profiles, ~/.config/specdash/profiles", "Launch profiles by name; the first found wins."),
    ("~/.config/specdash/secrets", "Secret values that a profile refers to; 0600 each."),
    ("~/.local/state/specdash", "Traces of unexpected errors, interrupted queues, caches."),
    ("~/.specdash/hosts/MACHINE-ID/runs/RUN", "On a host: a run's record, exact log, events and samples."),
)
ENVIRONMENT = (
    ("SPECDASH_CONFIG", "The config file; profiles and secrets are then beside it."),
    (
        "XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_DATA_HOME",
        "In place of ~/.config, ~/.local/state, ~/.local/share.",
    ),
    ("NO_COLOR", "No colours."),
    ("SSH_AUTH_SOCK", "The ssh agent whose keys are offered."),
)
COMMON = ("--help", "--json", "--yes", "--confirm", "--read-only", "--config")


def page() -> str:
    """The whole page, roff with man macros."""
    cli = import_module("specdash.cli")
    lines = [SECTIONS_BEFORE.rstrip(), ".SH OPTIONS", *_terms(GLOBAL)]
    lines += [".SS Options of every verb", *_terms(_common(cli.verb_parser("hosts")))]
    lines += [".SH VERBS"]
    for verb, (module, text) in cli.available().items():
        parser = cli.verb_parser(verb)
        lines += [f".SS specdash {_text(verb)}", *_verb(parser, import_module(module).__doc__ or text)]
        examples = getattr(import_module(module), "EXAMPLES", "")
        if examples:
            body = "\n".join(examples.rstrip().splitlines()[1:])
            lines += [".PP", "Examples:", ".PP", ".nf", _verbatim(body), ".fi"]
    lines += [".SH EXIT STATUS", *_terms(exits())]
    lines += [".SH FILES", *_terms(FILES), ".SH ENVIRONMENT", *_terms(ENVIRONMENT)]
    lines += [".SH SEE ALSO", ".BR ssh (1),", ".BR ssh_config (5)"]
    return "\n".join(lines) + "\n"


def exits() -> list[tuple[str, str]]:
    """(code and name, what it means), as `specdash.exits` documents it."""
    from specdash import exits as room

    tree = ast.parse(Path(str(room.__file__)).read_text("utf-8"))
    (kind,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    found = []
    for node, after in zip(kind.body, kind.body[1:], strict=False):
        if (
            isinstance(node, ast.Assign)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            (name,) = (target.id for target in node.targets if isinstance(target, ast.Name))
            found.append((f"{int(room.Exit[name])} ({name})", str(after.value.value)))
    return found


def _verb(parser: argparse.ArgumentParser, text: str, path: str = "") -> Iterator[str]:
    yield _synopsis(parser, path or parser.prog)
    yield from _paragraphs(text)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest: choice.help for choice in action._choices_actions}
            for name, child in action.choices.items():
                yield ".PP"
                yield from _verb(child, (told.get(name) or "") + ".", f"{parser.prog} {name}")
        elif action.help != argparse.SUPPRESS and not _is_common(action):
            yield from _terms([(_names(action), _help(action))])


def _synopsis(parser: argparse.ArgumentParser, prog: str) -> str:
    words = [f"\\fB{_text(prog)}\\fR"]
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or _is_common(action):
            continue
        if isinstance(action, argparse._SubParsersAction):
            words.append(f"\\fI{_text(str(action.metavar or 'ACTION'))}\\fR")
        elif action.option_strings:
            name = f"\\fB{_text(action.option_strings[-1])}\\fR"
            inner = f"{name} {_values(action)}".rstrip()
            words.append(inner if action.required else f"[{inner}]")
        else:
            words.append(_values(action))
    return ".PP\n" + " ".join(words) + "\n.PP"


def _values(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    names = action.metavar if isinstance(action.metavar, tuple) else (_metavar(action),)
    shown = " ".join(f"\\fI{_text(name)}\\fR" for name in names)
    if action.nargs == "?":
        return f"[{shown}]"
    if action.nargs in ("*", argparse.REMAINDER):
        return f"[{shown} ...]"
    return f"{shown} [{shown} ...]" if action.nargs == "+" else shown


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices:
        return "|".join(str(choice) for choice in action.choices)
    return action.dest.upper().replace("_", "-")


def _names(action: argparse.Action) -> str:
    if not action.option_strings:
        return _metavar(action)
    values = ""
    if action.nargs != 0:
        names = action.metavar if isinstance(action.metavar, tuple) else (_metavar(action),)
        values = " " + " ".join(names)
    return ", ".join(action.option_strings) + values


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%")
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", ")")) or not text else text + "."


def _is_common(action: argparse.Action) -> bool:
    return bool(action.option_strings) and action.option_strings[-1] in COMMON


def _common(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    return [(_names(action), _help(action)) for action in parser._actions if _is_common(action)]


def _terms(pairs: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> Iterator[str]:
    for term, text in pairs:
        yield f".TP\n.B {_text(term)}\n{_text(text)}"


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs flow; lines that are set in (tables, commands) stay as they are."""
    for part in text.strip().split("\n\n"):
        if any(line.startswith("  ") for line in part.splitlines()):
            yield f".PP\n.nf\n{_verbatim(part)}\n.fi"
        else:
            yield f".PP\n{_text(' '.join(part.split()))}"


def _verbatim(text: str) -> str:
    return "\n".join(_text(line) if line else "" for line in text.splitlines())


def _text(text: str) -> str:
    """One line of text as roff reads it: no escapes, no requests, hyphens that can be copied."""
    text = " ".join(text.splitlines())
    for char, word in (("\\", "\\e"), ("-", "\\-"), ("…", "..."), ("→", "\\(->"), ("•", "\\(bu")):
        text = text.replace(char, word)
    return "\\&" + text if text.startswith((".", "'")) else text


if __name__ == "__main__":
    print(page(), end="")
