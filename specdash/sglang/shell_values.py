"""What a word of a launch line is worth: its value, a path, or a secret. Nothing is expanded silently."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Tuple

from specdash.errors import UsageError
from specdash.sglang.commandline import looks_like_option
from specdash.sglang.shell_words import Part, Redirection, Word, split

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_REFERENCE = re.compile(r"(?:env|file|host-file):.", re.S)
_GLOB = re.compile(r"[*?]|\[.+\]|\{[^{}]*(?:,|\.\.)[^{}]*\}")


class Values:
    """Everything that a line has said so far: variables, environment, flags, directory, log, notes."""

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

    # -- words

    def _text(self, word: Word, what: str) -> str:
        """The value of a word. What the shell would expand is refused, or kept as written and said."""
        out: List[str] = []
        for part in word.parts:
            if part.kind == "text":
                out.append(part.text)
            elif part.kind == "variable" and NAME.fullmatch(part.text) and part.text in self.variables:
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
                if secret and NAME.fullmatch(plain) and plain not in self.variables:
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

    # -- environment and directory

    def _assignment(self, word: Word) -> bool:
        first = word.parts[0] if word.parts else Part("", False)
        return first.kind == "text" and not first.quoted and bool(ASSIGNMENT.match(first.text))

    def _assigned(self, word: Word) -> Tuple[str, Word]:
        match = ASSIGNMENT.match(word.parts[0].text)
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

    # -- redirections

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


def base(path: str) -> str:
    return path.rpartition("/")[2]


def is_option(text: str) -> bool:
    """As argparse reads a word: an option unless it is a negative number or has a blank before any `=`."""
    return looks_like_option(text) and bool(re.match(r"--?[A-Za-z0-9_][^\s=]*(?:=|\Z)", text))


def split_joined(word: Word) -> Tuple[str, Any]:
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


def number(text: str) -> Any:
    """A number where it is written exactly as Python writes it back, else the text."""
    if re.match(r"-?(?:0|[1-9][0-9]{0,17})\Z", text) and text != "-0":
        return int(text)
    if re.match(r"-?[0-9]+\.[0-9]+\Z", text) and repr(float(text)) == text:
        return float(text)
    return text
