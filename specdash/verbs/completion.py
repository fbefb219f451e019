"""Completion for bash, zsh and fish, made from the command line itself: put the output where your shell looks."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash completion bash > ~/.local/share/bash-completion/completions/specdash
  specdash completion zsh > ~/.zfunc/_specdash        with ~/.zfunc in $fpath, before compinit
  specdash completion fish > ~/.config/fish/completions/specdash.fish"""
DYNAMIC = {"PROFILE": "profiles", "HOST": "hosts", "TARGET": "targets", "RUN": "runs", "FLAG": "flags"}
"""Placeholder of an argument → what `specdash completion names` lists for it."""
GLOBAL = ("--check", "--config", "--help", "--read-only", "--version")


@dataclass
class Shape:
    """What may follow one command: `("profile", "show")`, or `("hosts",)`."""

    path: tuple[str, ...]
    options: list[tuple[str, str]] = field(default_factory=list)
    words: list[tuple[str, str]] = field(default_factory=list)
    """Actions and choices, with their help."""
    names: set[str] = field(default_factory=set)
    files: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", choices=("bash", "zsh", "fish", "names"), help="the shell; names is for the scripts"
    )
    parser.add_argument("what", nargs="?", choices=sorted(DYNAMIC.values()), help=argparse.SUPPRESS)


def run(args: argparse.Namespace, context: Context) -> Exit:
    if args.shell == "names":
        found = names(args.what or "targets", context)
        if context.json:
            context.print_json({"schema": "specdash.completion/1", "names": found})
        else:
            context.print(*found)
        return Exit.OK
    script = {"bash": bash, "zsh": zsh, "fish": fish}[args.shell](shapes())
    if context.json:
        context.print_json({"schema": "specdash.completion/1", "shell": args.shell, "script": script})
    else:
        context.print(script)
    return Exit.OK


def names(what: str, context: Context) -> list[str]:
    """Names for completion. No host is asked; a broken config gives what can be had without it."""
    from specdash.config import inherit
    from specdash.errors import SpecdashError

    if what == "flags":  # of the SGLang that was read last
        from specdash.control.probe import remembered

        reading = remembered()
        return sorted(reading.flags.by_string) if reading is not None else []
    found: list[str] = list(inherit.names()) if what in ("profiles", "targets") else []
    if what in ("hosts", "targets"):
        try:
            found += [*context.settings.host_names(), *context.settings.groups]
        except SpecdashError:
            found.append("local")
    return [name for name in dict.fromkeys(found) if name.isprintable() and " " not in name]


def shapes() -> list[Shape]:
    """Every command of the command line, the bare `specdash` first."""
    from importlib import import_module

    cli = import_module("specdash.cli")
    verbs = cli.available()
    out = [
        Shape((), [(option, "") for option in GLOBAL], [(verb, text) for verb, (_, text) in verbs.items()])
    ]
    for verb in verbs:
        out.extend(_shapes((verb,), cli.verb_parser(verb)))
    return out


def _shapes(path: tuple[str, ...], parser: argparse.ArgumentParser) -> list[Shape]:
    shape = Shape(path)
    out = [shape]
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        shape.options += [(option, _first(action.help)) for option in action.option_strings]
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest: choice.help for choice in action._choices_actions}
            for name, child in action.choices.items():
                shape.words.append((name, _first(told.get(name))))
                out.extend(_shapes((*path, name), child))
        elif not action.option_strings:
            shape.words += [(str(choice), "") for choice in action.choices or ()]
            placeholder = str(action.metavar or "")
            if placeholder in DYNAMIC:
                shape.names.add(DYNAMIC[placeholder])
            elif not action.choices:
                shape.files = True
    return out


def _first(text: str | None) -> str:
    return (text or "").replace("%%", "%").splitlines()[0] if text else ""


def bash(commands: list[Shape]) -> str:
    """A bash script that needs no bash-completion package."""
    cases = []
    for shape in commands:
        words = " ".join([*(w for w, _ in shape.words), *(o for o, _ in shape.options)])
        dynamic = "".join(
            f' words+=" $(specdash completion names {what} 2>/dev/null)"' for what in sorted(shape.names)
        )
        cases.append(f'    "{" ".join(shape.path)}") words="{words}"{";" + dynamic if dynamic else ""} ;;')
    paths = " ".join(f'"{" ".join(s.path)}"' for s in commands if s.path)
    return "\n".join(
        [
            "# bash completion for specdash; made by `specdash completion bash`",
            "_specdash() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" path="" words="" word known',
            "  COMPREPLY=()",
            '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            '    [ "$word" = --check ] && word=check',
            f"    for known in {paths}; do",
            '      if [ "$known" = "${path:+$path }$word" ]; then path="$known"; break; fi',
            "    done",
            "  done",
            '  case "$path" in',
            *cases,
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$cur"))',
            "}",
            "complete -o default -F _specdash specdash",
        ]
    )


def zsh(commands: list[Shape]) -> str:
    """A zsh function file (`#compdef`)."""
    cases = []
    for shape in commands:
        items = " ".join(
            _single(f"{w.replace(':', chr(92) + ':')}:{h}" if h else w)
            for w, h in (*shape.words, *shape.options)
        )
        cases.append(f'    "{" ".join(shape.path)}") items=({items}) ;;')
        if shape.names:
            lists = " ".join(
                f'${{(f)"$(specdash completion names {what} 2>/dev/null)"}}' for what in sorted(shape.names)
            )
            cases[-1] = cases[-1].replace(" ;;", f" names=({lists}) ;;")
    paths = " ".join(f'"{" ".join(s.path)}"' for s in commands if s.path)
    return "\n".join(
        [
            "#compdef specdash",
            "# made by `specdash completion zsh`",
            "_specdash() {",
            '  local at="" word',
            "  local -a items names known",
            f"  known=({paths})",
            '  for word in "${words[@]:1:$((CURRENT - 2))}"; do',
            '    [[ "$word" == --check ]] && word=check',
            '    if (( ${known[(Ie)${at:+$at }$word]} )); then at="${at:+$at }$word"; fi',
            "  done",
            '  case "$at" in',
            *cases,
            "  esac",
            "  (( ${#items} )) && _describe 'command' items",
            "  (( ${#names} )) && compadd -a names",
            '  [[ "$PREFIX" != -* ]] && (( ! ${#names} )) && [[ -n "$at" ]] && _files',
            "  return 0",
            "}",
            'if [ "$funcstack[1]" = "_specdash" ]; then _specdash "$@"; else compdef _specdash specdash; fi',
        ]
    )


def fish(commands: list[Shape]) -> str:
    """A fish completion file."""
    lines = [
        "# fish completion for specdash; made by `specdash completion fish`",
        "function __specdash_at",
        '    set -l at ""',
        "    set -l known " + " ".join(_single(" ".join(s.path)) for s in commands if s.path),
        "    for word in (commandline -opc)[2..-1]",
        '        test "$word" = --check; and set word check',
        '        set -l next (string trim -- "$at $word")',
        '        contains -- "$next" $known; and set at "$next"',
        "    end",
        '    test "$at" = "$argv[1]"',
        "end",
    ]
    for shape in commands:
        here = f"complete -c specdash -n {_single('__specdash_at ' + _double(' '.join(shape.path)))}"
        if not shape.files:
            lines.append(f"{here} -f")
        for word, text in shape.words:
            lines.append(f"{here} -f -a {_single(word)}" + (f" -d {_single(text)}" if text else ""))
        for option, text in shape.options:
            kind = f"-l {_single(option[2:])}" if option.startswith("--") else f"-s {_single(option[1:])}"
            lines.append(f"{here} {kind}" + (f" -d {_single(text)}" if text else ""))
        for what in sorted(shape.names):
            lines.append(f"{here} -f -a '(specdash completion names {what} 2>/dev/null)'")
    return "\n".join(lines)


def _single(text: str) -> str:
    """One word for zsh and fish: apostrophes become typographic ones, which need no quoting."""
    return "'" + text.replace("'", "’").replace("\\", "") + "'"


def _double(text: str) -> str:
    return '"' + text + '"'
