"""The command line: finds the verb, imports only that, and turns errors into sentences and exit codes.

    specdash                      the dashboard
    specdash --check [TARGET …]   the probe (the same as `specdash check`)
    specdash VERB …               one module in `specdash.verbs` each

A verb's module has `add_arguments(parser)` and `run(args, context) -> Exit` (plain, or a coroutine); its
docstring is the long help, `EXAMPLES` (optional) the examples below it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from specdash.exits import Exit
from specdash.verbs import failing

if TYPE_CHECKING:
    import argparse

    from specdash.errors import SpecdashError

VERBS: dict[str, tuple[str, str]] = {
    "check": (
        "specdash.verbs.check",
        "probe hosts and servers; exit 0, 1, 2, 3 as monitoring systems expect",
    ),
    "status": ("specdash.verbs.status", "what runs where, now"),
    "launch": ("specdash.verbs.launch", "start a profile, detached from this terminal"),
    "logs": ("specdash.verbs.logs", "the log of a run, from its first byte"),
    "stop": ("specdash.verbs.stop", "stop a run, with proof that nothing is left"),
    "switch": ("specdash.verbs.switch", "replace the running profile; the old one comes back if it fails"),
    "try": ("specdash.verbs.try_verb", "bench several drafters, one after the other"),
    "tune": ("specdash.verbs.tune", "settings that a running server lets be changed"),
    "runs": ("specdash.verbs.runs", "past runs"),
    "show": ("specdash.verbs.show", "one run: settings, phases, numbers, end"),
    "pulse": ("specdash.verbs.pulse", "tok/s and acceptance of a serving run, by a few fixed prompts"),
    "stacks": ("specdash.verbs.stacks", "where each process of a run is stuck"),
    "adopt": ("specdash.verbs.adopt", "servers that others started: list them, take one over by name"),
    "probe": ("specdash.verbs.probe", "ask the installed SGLang for its algorithms and flags"),
    "preflight": ("specdash.verbs.preflight", "whether a profile would start, without starting it"),
    "fit": ("specdash.verbs.fit", "whether a drafter fits a target"),
    "explain": ("specdash.verbs.explain", "why a log ended as it did"),
    "serve": ("specdash.verbs.serve", "show the state over HTTP on this machine"),
    "profile": ("specdash.verbs.profile", "list, show, check, import, diff launch profiles"),
    "config": ("specdash.verbs.config_verb", "make, show and check the config file"),
    "hosts": ("specdash.verbs.hosts", "hosts that specdash knows, without connecting"),
    "demo": ("specdash.demo.verb", "a simulated GPU host to try everything on"),
    "doctor": ("specdash.verbs.doctor", "what works here, and a support bundle without secrets"),
    "completion": ("specdash.verbs.completion", "completion for bash, zsh and fish"),
}
"""Verb → (module, one-line help). A verb is there when its module is: nothing is imported to know that."""

_RAN: list[str] = []
"""The verb that this process ran."""
_JSON: list[bool] = []
"""Not empty: --json was given, so that an error is JSON too."""

GLOBAL_HELP = """\
  --check [TARGET …]  same as `specdash check`
  --read-only         refuse everything that changes a host
  --config FILE       other config file (also SPECDASH_CONFIG)
  --version           print the version
  -h, --help          this text; `specdash VERB --help` for one verb"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code. Never a traceback for an expected error."""
    if argv is None:
        return _own_process()
    return _guarded(list(argv))


def _own_process() -> int:
    """The command line as its own process: collect little, and leave at once where a time was promised."""
    import gc

    # Imports make 200,000 objects that stay: collecting among them is a quarter of a short command's time.
    gc.set_threshold(50_000, 20, 100)
    # We have no plugins for it; looking for them reads the metadata of every package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    code = _guarded(sys.argv[1:])
    if "check" in _RAN:
        # It ends within its timeout. A thread may still wait for a name server: the exit must not wait for it.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                pass
        os._exit(code)
    return code


def _guarded(words: list[str]) -> int:
    from specdash.errors import SpecdashError

    failing.soft_streams()
    _JSON.clear()
    try:
        code = int(_main(words))
        sys.stdout.flush()
        return code
    except SpecdashError as problem:
        return failing.complain(problem, bool(_JSON))
    except KeyboardInterrupt:
        print("specdash: interrupted", file=sys.stderr)
        return int(Exit.INTERRUPTED)
    except SystemExit as done:  # argparse's --help
        return done.code if isinstance(done.code, int) else int(Exit.OK)
    except BrokenPipeError:
        return failing.quiet_pipe()
    except OSError as problem:
        return (
            failing.no_room(problem)
            if problem.errno in failing.NO_ROOM
            else failing.unexpected(problem, bool(_JSON))
        )
    except Exception as problem:
        return failing.unexpected(problem, bool(_JSON))


def available() -> dict[str, tuple[str, str]]:
    """The verbs whose module is there."""
    from importlib.util import find_spec

    found = {}
    for verb, (module, text) in VERBS.items():
        try:
            if find_spec(module) is not None:
                found[verb] = (module, text)
        except ModuleNotFoundError:
            continue
    return found


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """The parser of one verb; imports its module."""
    import argparse
    from importlib import import_module

    module = import_module(VERBS[verb][0])
    parser = _parser_class()(
        prog=f"specdash {verb}",
        description=(module.__doc__ or VERBS[verb][1]).strip(),
        epilog=getattr(module, "EXAMPLES", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    _common(parser)
    return parser


def _main(words: list[str]) -> int:
    verb, rest, options = _split(words)
    if options.get("version"):
        return _version()
    if options.get("help"):
        print(_help())
        return Exit.OK
    if verb is None:
        return _interactive(options)
    _RAN[:] = [verb]
    _JSON[:] = [True] if _asks_for_json(rest) else []
    parser = verb_parser(verb)
    args = parser.parse_args(rest)
    from importlib import import_module

    from specdash.verbs.context import Context

    context = Context(
        config=getattr(args, "config", None) or options.get("config"),
        read_only=bool(options.get("read_only") or getattr(args, "read_only", False)),
        json=bool(getattr(args, "json", False)),
        yes=bool(getattr(args, "yes", False)),
        confirmed=getattr(args, "confirm", "") or "",
    )
    if verb == "check" and "demo" in rest:
        from specdash import check, demo

        check.INJECTED["demo"] = demo.as_check_target
    result = import_module(VERBS[verb][0]).run(args, context)
    if hasattr(result, "__await__"):
        import asyncio

        result = asyncio.run(_awaited(result))
    return Exit.OK if result is None else int(result)


def _asks_for_json(rest: list[str]) -> bool:
    """Before the words are parsed: a usage error is told as JSON, too. `--raw` bytes and shell lines come after `--`."""
    words = rest[: rest.index("--")] if "--" in rest else rest
    return "--json" in words or any(pair == ("--format", "json") for pair in pairwise(words))


async def _awaited(result: Any) -> Any:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    class Impatient(ThreadPoolExecutor):
        """Name servers can hang for minutes: neither the end nor other hosts wait for the threads that ask them."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=True)

    asyncio.get_running_loop().set_default_executor(Impatient(128, "specdash"))
    return await result


def _split(words: list[str]) -> tuple[str | None, list[str], dict[str, Any]]:
    """(verb, its words, global options). Global options come before the verb."""
    options: dict[str, Any] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--check":
            return _known("check"), words[at + 1 :], options
        if word in ("-h", "--help"):
            options["help"] = True
        elif word in ("-V", "--version"):
            options["version"] = True
        elif word == "--read-only":
            options["read_only"] = True
        elif word == "--config" and at + 1 < len(words):
            at += 1
            options["config"] = words[at]
        elif word.startswith("--config=") and word != "--config=":
            options["config"] = word.split("=", 1)[1]
        elif word == "help" and at + 1 < len(words):
            return _known(words[at + 1]), ["--help"], options
        elif word.startswith("-"):
            raise _usage(
                f"unknown option {word}.", word, ["--check", "--config", "--read-only", "--version", "--help"]
            )
        else:
            return _known(word), words[at + 1 :], options
        at += 1
    return None, [], options


def _known(verb: str) -> str:
    if verb in available():
        return verb
    raise _usage(f'no verb "{verb}".', verb, list(available()))


def _usage(sentence: str, word: str, known: list[str]) -> SpecdashError:
    from specdash.config.keys import did_you_mean
    from specdash.errors import UsageError

    return UsageError(sentence, did_you_mean(word, known) or "See specdash --help.")


def _common(parser: argparse.ArgumentParser, *, inner: bool = False) -> None:
    """Options that every verb has, before and after its own action; one that the verb brought itself stays."""
    import argparse

    taken = {option for action in parser._actions for option in action.option_strings}
    default: dict[str, Any] = {"default": argparse.SUPPRESS} if inner else {}
    common: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
        (("--json",), {"action": "store_true", "help": "machine-readable output"}),
        (("-y", "--yes"), {"action": "store_true", "help": "do not ask; needed where nobody can answer"}),
        (("--confirm",), {"metavar": "NAME", "help": "the name that a dangerous action asks to be typed"}),
        (("--read-only",), {"action": "store_true", "help": "refuse everything that changes a host"}),
        (("--config",), {"metavar": "FILE", "help": "other config file"}),
    )
    for flags, kwargs in common:
        free = [flag for flag in flags if flag not in taken]
        if flags[-1] in free:
            parser.add_argument(*free, **kwargs, **default)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                _common(child, inner=True)


def _parser_class() -> type[argparse.ArgumentParser]:
    import argparse

    from specdash.errors import UsageError

    class Parser(argparse.ArgumentParser):
        """Usage errors are ours (exit 3): a monitoring system reads argparse's 2 as CRITICAL."""

        def error(self, message: str) -> Any:
            raise UsageError(f"{message}.", f"See {self.prog} --help.")

        def exit(self, status: int = 0, message: str | None = None) -> Any:
            if message:
                self._print_message(message, sys.stderr)
            raise SystemExit(int(Exit.UNKNOWN) if status else 0)

    return Parser


def _help() -> str:
    verbs = available()
    lines = [f"  {verb:<12}{text}" for verb, (_, text) in verbs.items()]
    return "\n".join(
        [
            "usage: specdash [--read-only] [--config FILE] [VERB …]",
            "",
            "Mission control for speculative decoding on SGLang hosts. Without a verb: the dashboard.",
            "",
            "verbs:",
            *lines,
            "",
            "options:",
            GLOBAL_HELP,
        ]
    )


def _version() -> int:
    from specdash import __version__

    print(f"specdash {__version__}")
    return Exit.OK


def _interactive(options: dict[str, Any]) -> int:
    from specdash.errors import UsageError

    served = "SPECDASH_SERVED" in os.environ  # by `specdash serve`: a browser is the terminal
    need = UsageError("the dashboard needs a terminal.", "Without one, use: specdash --check")
    if not served and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise need
    from importlib import import_module
    from importlib.util import find_spec

    from specdash.verbs.context import Context

    context = Context(config=options.get("config"), read_only=bool(options.get("read_only")))
    context.settings  # noqa: B018  a bad config file is a sentence here, not a broken screen
    if not served and not sys.stderr.isatty():  # Textual draws on stderr
        raise need
    if find_spec("specdash.tui.start") is None:
        raise UsageError("this build has no dashboard.", "Use: specdash --check")
    return int(import_module("specdash.tui.start").run(context) or 0)
