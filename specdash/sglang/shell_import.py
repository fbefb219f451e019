"""An existing launch line, read into a `LaunchSpec`. Nothing is run, and nothing is expanded silently.

What a profile has no place for is either said (`notes`), where specdash does it itself or it makes no
difference to the engine (`nohup`, `&`, `mkdir`), or refused with a sentence, where the launch would be
another one without it (`sudo`, a container, `$(…)`, an unknown command).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, List, Mapping, Tuple

from specdash.errors import UsageError
from specdash.sglang.commandline import LaunchSpec, spoken
from specdash.sglang.shell_launch import DETACHERS, REFUSED, Launch
from specdash.sglang.shell_values import base
from specdash.sglang.shell_words import Command, Part, Word, split

HARMLESS = (
    "echo",
    "printf",
    "true",
    ":",
    "wait",
    "disown",
    "date",
    "jobs",
    "sleep",
    "tail",
    "cat",
    "ls",
    "tee",
    "clear",
)
SAID = (
    "mkdir",
    "touch",
    "rm",
    "mv",
    "cp",
    "chmod",
    "ulimit",
    "umask",
    "set",
    "shopt",
    "kill",
    "pkill",
    "fuser",
    "killall",
)


@dataclass(frozen=True)
class ShellLaunch:
    """What a line says. `literal_*` hold secret values that were in it: move them to a file, then forget."""

    spec: LaunchSpec
    notes: Tuple[str, ...] = ()
    literal_flags: Mapping[str, str] = field(default_factory=dict)
    literal_env: Mapping[str, str] = field(default_factory=dict)


def parse_line(
    line: str,
    *,
    profile: str = "",
    host: str = "",
    is_secret_option: Callable[[str], bool],
    is_secret_env: Callable[[str], bool],
) -> ShellLaunch:
    """The launch that a shell line means. Raises UsageError with a sentence and what to write instead."""
    if "\0" in line:
        raise UsageError("The line has a NUL in it.")
    reader = _Import(is_secret_option, is_secret_env)
    reader.commands(split(line))
    return reader.result(profile, host)


class _Import(Launch):
    """Reads the commands around the launch."""

    def commands(self, commands: List[Command]) -> None:
        at = 0
        while at < len(commands):
            command = commands[at]
            if not command.words:
                raise UsageError(
                    "The line redirects a group of commands.", "Redirect the launch command itself."
                )
            before = bool(self.launcher)
            self._command(command)
            if not before and self.launcher:
                at += self._pipe(command, commands[at + 1 :])
            elif command.after in ("|", "||") and not self.launcher:
                raise UsageError(
                    f'The line has "{command.after}" before the launch.', "Give the launch command alone."
                )
            at += 1

    def _command(self, command: Command) -> None:
        words = command.words
        at = 0
        while at < len(words) and self._assignment(words[at]):
            at += 1
        if at == len(words):
            for word in words:
                name, value = self._assigned(word)
                self.variables[name] = self._text(value, name)
                if name in self.env or name in self.secret_env or name in self.literal_env:
                    self._set_env(name, value)
            return
        name = base(words[at].text)
        if self._engine_within(words, at):
            if self.launcher:
                raise UsageError("The line launches two servers.", "Import them one by one.")
            self._launch(words)
            self._redirections(command.redirections)
            return
        shell = self._shell_c(words, at)
        if shell is not None:
            for word in words[:at]:
                self._set_env(*self._assigned(word))
            self.commands(split(shell))
            if self.launcher:
                self._redirections(command.redirections)
            return
        if name in ("export", "declare", "typeset"):
            self._export(words[at + 1 :])
        elif name in ("cd", "pushd"):
            self._cd(words[at + 1 :])
        elif name in ("source", ".") and len(words) > at + 1:
            self._source(words[at + 1])
        elif name in REFUSED:
            raise UsageError(f"The line uses {name}, which a profile cannot hold.", REFUSED[name])
        elif name in HARMLESS:
            pass
        elif name in SAID or self.launcher:
            self.notes.append(f'left out: "{" ".join(w.source for w in words)}"')
        else:
            raise UsageError(
                f'"{words[at].text}" is no part of a launch that a profile can hold.',
                "Give the line that starts python -m sglang.launch_server or sglang serve.",
            )

    def _pipe(self, command: Command, rest: List[Command]) -> int:
        """Takes `| tee LOG` behind the launch; returns how many commands it took."""
        if command.after != "|":
            return 0
        tee = rest[0] if rest else Command()
        if not tee.words or base(tee.words[0].text) != "tee":
            raise UsageError("The launch is piped into another command.", "Only | tee LOG can be kept.")
        targets = [word for word in tee.words[1:] if not word.text.startswith("-")]
        if len(targets) != 1 or tee.after == "|":
            raise UsageError(
                "The launch is piped on in a way that a profile cannot hold.", "Keep one | tee LOG."
            )
        self.log = self._path(targets[0], "the log")
        self._drop_null_log()
        return 1

    def _shell_c(self, words: List[Word], at: int) -> Any:
        """The inside of `nohup bash -lc '…'`, or None."""
        while at < len(words) and base(words[at].text) in DETACHERS:
            at += 1
        if at + 2 >= len(words) or base(words[at].text) not in ("bash", "sh", "zsh", "dash"):
            return None
        options = words[at + 1].text
        if not re.match(r"-[a-z]*c\Z", options):
            return None
        if len(words) > at + 3:
            raise UsageError("The line gives arguments to the inner shell.", "Give the inner command alone.")
        if "l" in options or "i" in options:
            self.notes.append(
                f"left out: {base(words[at].text)} {options} read its start-up files; specdash does not"
            )
        return self._text(words[at + 2], "the inner command")

    def _export(self, words: List[Word]) -> None:
        for word in words:
            if self._assignment(word):
                name, value = self._assigned(word)
                self._set_env(name, value)
                known = self.env.get(name, self.literal_env.get(name))
                if known is not None:
                    self.variables[name] = known
            elif not word.text.startswith("-"):
                if word.text not in self.variables:
                    raise UsageError(
                        f"The line exports {word.text}, whose value is not in it.", "Write NAME=VALUE."
                    )
                self._set_env(word.text, Word((Part(self.variables[word.text], True),), ""))

    def _source(self, word: Word) -> None:
        path = self._path(word, "the file to source")
        if not path.endswith("/bin/activate"):
            raise UsageError(
                f"The line reads {path} with source, which may set anything.", "Write what it sets as [env]."
            )
        self.venv = path[: -len("/bin/activate")]
        if not self.venv.startswith(("/", "~")) and self.cwd:
            self.venv = self.cwd.rstrip("/") + "/" + self.venv
        self.notes.append(f"{path} only picks the interpreter now: its PATH is not set for the engine")

    def result(self, profile: str, host: str) -> ShellLaunch:
        if not self.launcher:
            raise UsageError(
                "The line launches no SGLang server.",
                "It must run python -m sglang.launch_server or sglang serve.",
            )
        flags = tuple(self.flags.items())
        algorithm, drafter = spoken(flags)
        spec = LaunchSpec(
            profile=profile,
            host=host,
            python=self.python,
            launcher=self.launcher,
            flags=flags,
            env=self.env,
            cwd=self.cwd,
            log=self.log,
            secret_flags=self.secret_flags,
            secret_env=self.secret_env,
            algorithm=algorithm,
            drafter=drafter,
            wrapper=tuple(self.wrapper),
        )
        return ShellLaunch(spec, tuple(self.notes), self.literal_flags, self.literal_env)
