"""An existing launch line, read into a `LaunchSpec`. Nothing is run, and nothing is expanded silently.

What a profile has no place for is either said (`notes`), where specdash does it itself or it makes no
difference to the engine (`nohup`, `&`, `mkdir`), or refused with a sentence, where the launch would be
another one without it (`sudo`, a container, `$(…)`, an unknown command).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Tuple

from specdash.errors import UsageError
from specdash.sglang.commandline import SERVE_LAUNCHER, LaunchSpec, looks_like_option, spoken
from specdash.sglang.shell_words import Command, Part, Redirection, Word, split

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*\Z")
_REFERENCE = re.compile(r"(?:env|file|host-file):.", re.S)
_GLOB = re.compile(r"[*?]|\[.+\]|\{[^{}]*(?:,|\.\.)[^{}]*\}")

DETACHERS = ("nohup", "setsid", "time", "exec", "command", "builtin")
"""The supervisor starts the engine in its own session with stdin from /dev/null; these add nothing."""
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
REFUSED = {
    "sudo": "Launch as the user that specdash logs in as, and name the interpreter's full path.",
    "doas": "Launch as the user that specdash logs in as.",
    "su": "Launch as the user that specdash logs in as.",
    "runuser": "Launch as the user that specdash logs in as.",
    "docker": "Make the container a host of its own (sshd in it), or install SGLang beside it; give the command "
    "that runs inside.",
    "podman": "Make the container a host of its own (sshd in it); give the command that runs inside.",
    "nerdctl": "Make the container a host of its own (sshd in it); give the command that runs inside.",
    "apptainer": "Give the command that runs inside, and the interpreter as it is seen from outside.",
    "singularity": "Give the command that runs inside, and the interpreter as it is seen from outside.",
    "enroot": "Give the command that runs inside, and the interpreter as it is seen from outside.",
    "kubectl": "Give the command that runs inside the pod, and make the pod a host.",
    "ssh": "Give the command that ssh runs there, and the host with --host.",
    "tmux": "Give the command that runs inside: specdash keeps it running by itself.",
    "screen": "Give the command that runs inside: specdash keeps it running by itself.",
    "srun": "Give the command that runs on one node, and that node with --host.",
    "sbatch": "Give the command that runs on one node, and that node with --host.",
    "mpirun": "Give the command of one rank.",
    "torchrun": "SGLang starts its own ranks; give the sglang.launch_server command.",
    "uv": "Give the interpreter that it would run: .venv/bin/python3 of the project.",
    "conda": "Give the environment's interpreter by its path: ENV/bin/python3.",
    "mamba": "Give the environment's interpreter by its path: ENV/bin/python3.",
    "micromamba": "Give the environment's interpreter by its path: ENV/bin/python3.",
    "poetry": "Give the environment's interpreter by its path.",
    "pipenv": "Give the environment's interpreter by its path.",
    "xargs": "Give the command that it would run.",
    "eval": "Give the command that it would run.",
}


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


class _Import:
    def __init__(self, is_secret_option: Callable[[str], bool], is_secret_env: Callable[[str], bool]) -> None:
        self.is_secret_option = is_secret_option
        self.is_secret_env = is_secret_env
        self.variables: Dict[str, str] = {}
        self.env: Dict[str, str] = {}
        self.secret_env: Dict[str, str] = {}
        self.literal_env: Dict[str, str] = {}
        self.flags: Dict[str, Any] = {}
        self.secret_flags: Dict[str, str] = {}
        self.literal_flags: Dict[str, str] = {}
        self.notes: List[str] = []
        self.cwd = ""
        self.log = ""
        self.venv = ""
        self.python = ""
        self.launcher: Tuple[str, ...] = ()
        self.wrapper: List[str] = []

    # -- commands -------------------------------------------------------------------------------------

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
        name = _base(words[at].text)
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
        if not tee.words or _base(tee.words[0].text) != "tee":
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
        while at < len(words) and _base(words[at].text) in DETACHERS:
            at += 1
        if at + 2 >= len(words) or _base(words[at].text) not in ("bash", "sh", "zsh", "dash"):
            return None
        options = words[at + 1].text
        if not re.match(r"-[a-z]*c\Z", options):
            return None
        if len(words) > at + 3:
            raise UsageError("The line gives arguments to the inner shell.", "Give the inner command alone.")
        if "l" in options or "i" in options:
            self.notes.append(
                f"left out: {_base(words[at].text)} {options} read its start-up files; specdash does not"
            )
        return self._text(words[at + 2], "the inner command")

    # -- statements before the launch -----------------------------------------------------------------

    def _assignment(self, word: Word) -> bool:
        first = word.parts[0] if word.parts else Part("", False)
        return first.kind == "text" and not first.quoted and bool(_ASSIGNMENT.match(first.text))

    def _assigned(self, word: Word) -> Tuple[str, Word]:
        match = _ASSIGNMENT.match(word.parts[0].text)
        assert match is not None
        if match.group(2):
            raise UsageError(f"The line appends to {match.group(1)} with +=.", "Write the whole value.")
        first = Part(word.parts[0].text[match.end() :], False)
        rest = ((first,) if first.text else ()) + word.parts[1:]
        return match.group(1), Word(rest, word.source[match.end() :])

    def _set_env(self, name: str, value: Word) -> None:
        for table in (self.env, self.secret_env, self.literal_env):
            table.pop(name, None)
        reference, literal = self._secret(value, name, self.is_secret_env(name))
        if reference:
            self.secret_env[name] = reference
        elif self.is_secret_env(name) and literal:
            self.literal_env[name] = literal
        else:
            self.env[name] = literal

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

    def _cd(self, words: List[Word]) -> None:
        targets = [word for word in words if word.text not in ("--", "-P", "-L")]
        if not targets:
            self.cwd = ""
            return
        path = self._path(targets[0], "the directory")
        if path == "-":
            raise UsageError("The line goes back with cd -.", "Write the directory.")
        if path == "~":
            self.cwd = ""
        elif path.startswith(("/", "~")) or not self.cwd:
            self.cwd = path
        else:
            self.cwd = self.cwd.rstrip("/") + "/" + path

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

    # -- the launch -----------------------------------------------------------------------------------

    def _engine_at(self, words: List[Word], at: int) -> int:
        """Where the flags begin when the engine's program is at `at`; else 0."""
        name = _base(words[at].text)
        rest = [word.text for word in words[at + 1 :]]
        if name == "sglang" and rest[:1] == ["serve"]:
            return at + 2
        if _PYTHON.match(name) and len(rest) > 1 and _base(rest[0]) == "sglang" and rest[1] == "serve":
            return at + 3
        step = 0
        while (
            _PYTHON.match(name)
            and step < len(rest)
            and re.match(r"-[a-zA-Z]", rest[step])
            and rest[step] != "-m"
        ):
            step += 2 if rest[step] in ("-X", "-W") else 1
        if rest[step : step + 1] == ["-m"] and re.match(r"sglang(\.|\Z)", "".join(rest[step + 1 : step + 2])):
            return at + step + 3
        return 0

    def _engine_within(self, words: List[Word], at: int) -> bool:
        return any(self._engine_at(words, i) for i in range(at, len(words)))

    def _launch(self, words: List[Word]) -> None:
        at, assigns, env = 0, True, False
        while True:
            word = words[at]
            name = _base(word.text)
            flags_at = self._engine_at(words, at)
            if flags_at:
                break
            if assigns and self._assignment(word):
                self._set_env(*self._assigned(word))
                at += 1
                continue
            if env and word.text.find("=") > 0:
                # env takes names that a shell would not: 'A.B=1'.
                variable, _, value = self._text(word, "env").partition("=")
                self._set_env(variable, Word((Part(value, True),), value))
                at += 1
                continue
            assigns = env = False
            if name in REFUSED:
                raise UsageError(f"The line uses {name}, which a profile cannot hold.", REFUSED[name])
            at += 1
            if name in DETACHERS:
                while words[at].text.startswith("-"):
                    if name == "exec" and words[at].text == "-a":
                        raise UsageError("The line renames the process with exec -a.", "Leave that out.")
                    at += 1
            elif name == "timeout":
                while words[at].text.startswith("-"):
                    at += 2 if words[at].text in ("-k", "-s", "--signal", "--kill-after") else 1
                self.notes.append(f"left out: timeout {words[at].text}; specdash ends no server by the clock")
                at += 1
            elif name == "env":
                at = self._env_command(words, at)
                assigns = env = True
            else:
                at -= 1
                while not self._engine_at(words, at):
                    self.wrapper.append(self._text(words[at], "the wrapper"))
                    at += 1
                self.notes.append(f'kept in front of the interpreter: "{" ".join(self.wrapper)}"')
        self._program(words[at:flags_at])
        self._flags(words[flags_at:])

    def _env_command(self, words: List[Word], at: int) -> int:
        while words[at].text.startswith("-"):
            text = words[at].text
            at += 1
            if text in ("-u", "--unset"):
                self.wrapper += ["env", "-u", self._text(words[at], "env -u")]
                at += 1
            elif text.startswith("--unset="):
                self.wrapper += ["env", "-u", text[8:]]
            elif text in ("-C", "--chdir"):
                self._cd([words[at]])
                at += 1
            elif text == "--":
                break
            else:
                raise UsageError(
                    f"The line uses env {text}, which a profile cannot hold.", "Write [env] in the profile."
                )
        return at

    def _program(self, words: List[Word]) -> None:
        first = self._path(words[0], "the interpreter")
        texts = [self._text(word, "the launcher") for word in words[1:]]
        if _base(first) == "sglang" and texts == ["serve"]:
            folder = first.rpartition("/")[0] or (self.venv + "/bin" if self.venv else "")
            self.python = (folder + "/" if folder else "") + "python3"
            self.launcher = SERVE_LAUNCHER
            if not folder:
                self.notes.append("set python to the interpreter that owns this sglang: python3 is a guess")
            return
        if "/" not in first and self.venv and _PYTHON.match(first):
            first = self.venv + "/bin/" + first
        self.python = first
        if len(texts) == 2 and _base(texts[0]) == "sglang":
            same = "/" in first and texts[0] == first.rpartition("/")[0] + "/sglang"
            self.launcher = SERVE_LAUNCHER if same else (first, texts[0], texts[1])
            return
        self.launcher = tuple(texts)

    def _flags(self, words: List[Word]) -> None:
        at = 0
        repeated: List[str] = []
        while at < len(words):
            text = words[at].text
            if not _is_option(text) or (words[at].parts and words[at].parts[0].kind != "text"):
                raise UsageError(f'"{words[at].source}" belongs to no option.', "Write it as --option VALUE.")
            option, joined = _split_joined(words[at])
            at += 1
            values: List[Word] = []
            while at < len(words) and not _is_option(words[at].text):
                values.append(words[at])
                at += 1
            if joined is not None:
                if values:
                    raise UsageError(
                        f'"{values[0].source}" belongs to no option.', f"{option}= has its value already."
                    )
                values = [joined]
            if option in self.flags or option in self.secret_flags or option in self.literal_flags:
                repeated.append(option)
            self._flag(option, values)
        for option in dict.fromkeys(repeated):
            self.notes.append(f"{option} is there more than once: the last one counts")

    def _flag(self, option: str, values: List[Word]) -> None:
        for table in (self.flags, self.secret_flags, self.literal_flags):
            table.pop(option, None)
        secret = self.is_secret_option(option)
        if len(values) == 1:
            reference, literal = self._secret(values[0], option, secret)
            if reference:
                self.secret_flags[option] = reference
            elif secret and literal:
                self.literal_flags[option] = literal
            else:
                self.flags[option] = _number(literal)
        elif secret:
            raise UsageError(f"{option} needs one value.", "A secret is one word.")
        elif values:
            self.flags[option] = [_number(self._text(word, option)) for word in values]
        else:
            self.flags[option] = True

    # -- redirections ---------------------------------------------------------------------------------

    def _redirections(self, redirections: List[Redirection]) -> None:
        out = err = ""
        for item in redirections:
            target = item.target.text
            if item.operator in ("<", "<&"):
                if target != "/dev/null" and item.operator == "<":
                    raise UsageError(f"The launch reads {target}.", "A launch gets its input from /dev/null.")
                continue
            if item.operator in (">>", "&>>"):
                self.notes.append(
                    "the log is not appended to: each run has its own, and an old file is never truncated"
                )
            if item.operator in ("&>", "&>>") or (
                item.operator == ">&" and item.fd < 0 and not target.isdigit()
            ):
                out = err = self._path(item.target, "the log")
            elif item.operator == ">&" and target in ("1", "2", "-"):
                if item.fd == 2 and target == "1":
                    err = out or "(the terminal)"
                elif item.fd in (1, -1) and target == "2":
                    out = err
            elif item.fd in (-1, 1):
                out = self._path(item.target, "the log")
            elif item.fd == 2:
                err = self._path(item.target, "the log")
            else:
                raise UsageError(
                    f"The launch redirects file descriptor {item.fd}.", "Only 1 and 2 can be kept."
                )
        self.log = out or ("" if err.startswith("(") else err) or self.log
        if out and err != out:
            self.notes.append("standard error goes to the run's log too, beside standard output")
        self._drop_null_log()

    def _drop_null_log(self) -> None:
        if self.log == "/dev/null":
            self.log = ""
            self.notes.append("the output is kept in the run's log, not thrown away")

    # -- words ----------------------------------------------------------------------------------------

    def _text(self, word: Word, what: str) -> str:
        """The value of a word. What the shell would expand is refused, or kept as written and said."""
        out: List[str] = []
        for part in word.parts:
            if part.kind == "text":
                out.append(part.text)
            elif part.kind == "variable" and _NAME.fullmatch(part.text) and part.text in self.variables:
                value = self.variables[part.text]
                if not part.quoted and re.search(r"[\s*?\[]", value):
                    raise UsageError(
                        f"${part.text} is not quoted and its value has blanks or globs.", "Quote it."
                    )
                note = f"${part.text} was replaced by the value that the line gives it"
                if note not in self.notes:
                    self.notes.append(note)
                out.append(value)
            else:
                shown = "$(…)" if part.kind == "command" else "$" + part.text
                raise UsageError(
                    f"The line uses {shown} in {what}, and its value is not in the line.", "Write the value."
                )
        bare = word.bare
        if _GLOB.search(bare) or bare.startswith("~"):
            note = f'"{word.source}" is kept as written: no shell expands it any more'
            if note not in self.notes:
                self.notes.append(note)
        return "".join(out)

    def _path(self, word: Word, what: str) -> str:
        """A path of ours: an unquoted leading `~/` keeps its meaning, a quoted one loses it."""
        before = len(self.notes)
        text = self._text(word, what)
        if text.startswith("~"):
            if word.bare.startswith("~/") or word.bare == "~":
                del self.notes[before:]
            elif word.bare.startswith("~"):
                raise UsageError(f"{text} is the home of a user by name.", "Write the whole path.")
            else:
                return "./" + text
        return text

    def _secret(self, word: Word, name: str, secret: bool) -> Tuple[str, str]:
        """(reference, "") or ("", value). References that `format_line` writes are read for every name."""
        if len(word.parts) <= 2:
            parts = [part for part in word.parts if part.kind != "text" or part.text]
            only = parts[0] if len(parts) == 1 else Part("", False)
            if only.kind == "variable":
                match = re.match(r"([A-Za-z_][A-Za-z0-9_]*):?\?(.*)\Z", only.text, re.S)
                message = re.sub(r'\\([\\"$`}])', r"\1", match.group(2)) if match else ""
                if match and _REFERENCE.match(message):
                    return message, ""
                plain = match.group(1) if match else only.text
                if secret and _NAME.fullmatch(plain) and plain not in self.variables:
                    return "env:" + plain, ""
            if secret and only.kind == "command":
                path = self._cat(only.text)
                if path:
                    return "host-file:" + path, ""
        text = self._text(word, name)
        if secret and _REFERENCE.match(text):
            return text, ""
        return "", text

    def _cat(self, inside: str) -> str:
        """The path in `$(cat PATH)` or `$(< PATH)`; else empty."""
        commands = split(inside)
        if len(commands) != 1:
            return ""
        words, redirections = commands[0].words, commands[0].redirections
        if len(words) == 2 and words[0].text == "cat" and not redirections:
            return self._path(words[1], "the secret's file")
        if not words and len(redirections) == 1 and redirections[0].operator == "<":
            return self._path(redirections[0].target, "the secret's file")
        return ""

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


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _is_option(text: str) -> bool:
    """As argparse reads a word: an option unless it is a negative number or has a blank before any `=`."""
    return looks_like_option(text) and bool(re.match(r"--?[A-Za-z0-9_][^\s=]*(?:=|\Z)", text))


def _split_joined(word: Word) -> Tuple[str, Any]:
    """`--a=b` → ("--a", the word b); `--a` → ("--a", None)."""
    texts = ""
    for at, part in enumerate(word.parts):
        if part.kind != "text":
            break
        head, equals, tail = part.text.partition("=")
        if equals:
            rest = ((Part(tail, part.quoted),) if tail or part.quoted else ()) + word.parts[at + 1 :]
            return texts + head, Word(rest, word.source.partition("=")[2])
        texts += part.text
    return texts, None


def _number(text: str) -> Any:
    """A number where it is written exactly as Python writes it back, else the text."""
    if re.match(r"-?(?:0|[1-9][0-9]{0,17})\Z", text) and text != "-0":
        return int(text)
    if re.match(r"-?[0-9]+\.[0-9]+\Z", text) and repr(float(text)) == text:
        return float(text)
    return text
