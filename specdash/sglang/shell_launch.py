"""The launch command itself: what stands before the interpreter, the program, and its flags."""

from __future__ import annotations

import re
from typing import List

from specdash.errors import UsageError
from specdash.sglang.commandline import SERVE_LAUNCHER
from specdash.sglang.shell_values import Values, base, is_option, number, split_joined
from specdash.sglang.shell_words import Part, Word

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*\Z")

DETACHERS = ("nohup", "setsid", "time", "exec", "command", "builtin")
"""The supervisor starts the engine in its own session with stdin from /dev/null; these add nothing."""
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


class Launch(Values):
    """Reads the one command that starts the engine."""

    def _engine_at(self, words: List[Word], at: int) -> int:
        """Where the flags begin when the engine's program is at `at`; else 0."""
        name = base(words[at].text)
        rest = [word.text for word in words[at + 1 :]]
        if name == "sglang" and rest[:1] == ["serve"]:
            return at + 2
        if _PYTHON.match(name) and len(rest) > 1 and base(rest[0]) == "sglang" and rest[1] == "serve":
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
            name = base(word.text)
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
        if base(first) == "sglang" and texts == ["serve"]:
            folder = first.rpartition("/")[0] or (self.venv + "/bin" if self.venv else "")
            self.python = (folder + "/" if folder else "") + "python3"
            self.launcher = SERVE_LAUNCHER
            if not folder:
                self.notes.append("set python to the interpreter that owns this sglang: python3 is a guess")
            return
        if "/" not in first and self.venv and _PYTHON.match(first):
            first = self.venv + "/bin/" + first
        self.python = first
        if len(texts) == 2 and base(texts[0]) == "sglang":
            same = "/" in first and texts[0] == first.rpartition("/")[0] + "/sglang"
            self.launcher = SERVE_LAUNCHER if same else (first, texts[0], texts[1])
            return
        self.launcher = tuple(texts)

    def _flags(self, words: List[Word]) -> None:
        at = 0
        repeated: List[str] = []
        while at < len(words):
            text = words[at].text
            if not is_option(text) or (words[at].parts and words[at].parts[0].kind != "text"):
                raise UsageError(f'"{words[at].source}" belongs to no option.', "Write it as --option VALUE.")
            option, joined = split_joined(words[at])
            at += 1
            values: List[Word] = []
            while at < len(words) and not is_option(words[at].text):
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
                self.flags[option] = number(literal)
        elif secret:
            raise UsageError(f"{option} needs one value.", "A secret is one word.")
        elif values:
            self.flags[option] = [number(self._text(word, option)) for word in values]
        else:
            self.flags[option] = True
