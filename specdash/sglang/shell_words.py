"""Reads a POSIX shell line into commands, words and redirections. Nothing is run and nothing is looked up.

Only what a launch line needs: quotes, `$'…'`, line continuations, comments, `&&`, `||`, `;`, `|`, `&`,
newlines, groups, redirections. A word remembers its parts, so that a later reader knows what was quoted and
what the shell would have expanded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Tuple

from specdash.errors import UsageError

BLANK = " \t"
OPERATORS = (
    "&>>",
    "<<<",
    "&&",
    "||",
    ";;",
    ">>",
    "<<",
    ">&",
    "<&",
    ">|",
    "&>",
    "<>",
    ";",
    "|",
    "&",
    "<",
    ">",
    "(",
    ")",
    "\n",
)
REDIRECTIONS = ("&>>", "<<<", ">>", "<<", ">&", "<&", ">|", "&>", "<>", "<", ">")


@dataclass(frozen=True)
class Part:
    """A piece of a word. `kind`: "text", "variable" (`$X`, `${X…}`: text is the inside), "command" (`$(…)`)."""

    text: str
    quoted: bool
    kind: str = "text"


@dataclass(frozen=True)
class Word:
    parts: Tuple[Part, ...]
    source: str
    """As it was written."""

    @property
    def text(self) -> str:
        """The word with quotes gone; expansions as they were written."""
        return "".join(p.text if p.kind == "text" else written(p) for p in self.parts)

    @property
    def plain(self) -> bool:
        """Whether the shell would expand nothing of variables and commands in it."""
        return all(p.kind == "text" for p in self.parts)

    @property
    def bare(self) -> str:
        """The unquoted text in it, where globs, `~` and braces would act."""
        return "".join(p.text if p.kind == "text" and not p.quoted else "\0" for p in self.parts)


@dataclass(frozen=True)
class Redirection:
    fd: int
    """-1: the operator's own (`>`: 1, `<`: 0, `&>`: both)."""
    operator: str
    target: Word


@dataclass
class Command:
    words: List[Word] = field(default_factory=list)
    redirections: List[Redirection] = field(default_factory=list)
    after: str = ""
    """The operator that ends it: "&&", ";", "|", "&", "\\n", "||" or "" at the end."""


def written(part: Part) -> str:
    """An expansion as a shell would read it again."""
    if part.kind == "command":
        return "$(" + part.text + ")"
    return "$" + part.text if part.text.replace("_", "").isalnum() else "${" + part.text + "}"


def split(line: str) -> List[Command]:
    """Commands of a line, groups `( … )` and `{ …; }` taken off. Raises UsageError when it does not parse."""
    reader = _Reader(line)
    commands: List[Command] = []
    current = Command()
    groups: List[int] = []
    while True:
        kind, value = reader.next()
        if kind == "end":
            break
        if kind == "word":
            current.words.append(value)
        elif kind == "redirect":
            current.redirections.append(value)
        elif value == "(":
            if current.words:
                raise UsageError(
                    "The line defines or calls a shell function.", "Give the launch command alone."
                )
            groups.append(len(commands))
        elif value == ")":
            if not groups:
                raise UsageError("The line has a ) without its (.")
            if current.words or current.redirections:
                commands.append(current)
            _close(commands[groups.pop() :], reader)
            current = Command()
        elif value == "\n" and not current.words and not current.redirections:
            continue
        else:
            if (
                not current.words
                and not current.redirections
                and not (commands and commands[-1].after == ")")
            ):
                raise UsageError(f'The line has "{value}" where a command should be.')
            if not current.words and commands and commands[-1].after == ")":
                commands[-1].after = value
            else:
                current.after = value
                commands.append(current)
            current = Command()
    if groups:
        raise UsageError("The line has a ( without its ).")
    if current.words or current.redirections:
        commands.append(current)
    for command in commands:
        command.after = "" if command.after == ")" else command.after
    return [c for c in commands if not _brace(c)]


def _close(group: List[Command], reader: "_Reader") -> None:
    """Ends a group: redirections behind it come before those of each command in it."""
    if not group:
        raise UsageError("The line has an empty group.")
    behind: List[Redirection] = []
    while reader.at_redirection():
        behind.append(reader.next()[1])
    for command in group:
        command.redirections[:0] = behind
    group[-1].after = ")"


def _brace(command: Command) -> bool:
    """Takes `{` and `}` off; whether nothing is left of the command."""
    if command.words and command.words[0].source == "{":
        command.words.pop(0)
    if command.words and command.words[0].source == "}":
        command.words.pop(0)
    return not command.words and not command.redirections


class _Reader:
    def __init__(self, line: str) -> None:
        self.line = line
        self.at = 0

    def next(self) -> Tuple[str, Any]:
        """("word", Word), ("redirect", Redirection), ("operator", str) or ("end", None)."""
        self._skip_blank()
        if self.at >= len(self.line):
            return "end", None
        fd = self._fd()
        operator = self._operator()
        if operator in REDIRECTIONS:
            self.at += len(operator)
            if operator in ("<<", "<<<", "<>"):
                raise UsageError(f'The line has a "{operator}" redirection, which a launch cannot keep.')
            self._skip_blank()
            target = self._word()
            if not target.source:
                raise UsageError(f'The line has "{operator}" without a file behind it.')
            return "redirect", Redirection(fd, operator, target)
        if operator:
            self.at += len(operator)
            return "operator", operator
        return "word", self._word()

    def at_redirection(self) -> bool:
        self._skip_blank()
        back = self.at
        self._fd()
        found = self._operator() in REDIRECTIONS
        self.at = back
        return found

    def _fd(self) -> int:
        """A number right before a redirection, which is not a word."""
        end = self.at
        while end < len(self.line) and self.line[end] in "0123456789":
            end += 1
        if end > self.at and end < len(self.line) and self.line[end] in "<>":
            number = int(self.line[self.at : end])
            self.at = end
            return number
        return -1

    def _operator(self) -> str:
        return next((o for o in OPERATORS if self.line.startswith(o, self.at)), "")

    def _skip_blank(self) -> None:
        line = self.line
        while self.at < len(line):
            if line[self.at] in BLANK or line.startswith("\r\n", self.at):
                self.at += 1
            elif line.startswith(("\\\n", "\\\r\n"), self.at):
                self.at = line.index("\n", self.at) + 1
            elif line[self.at] == "#":
                end = line.find("\n", self.at)
                self.at = len(line) if end < 0 else end
            else:
                return

    def _word(self) -> Word:
        start, parts = self.at, []  # type: Tuple[int, List[Part]]
        line = self.line
        while self.at < len(line):
            char = line[self.at]
            if char in BLANK or self._operator() or line.startswith("\r\n", self.at):
                break
            if char == "\\":
                if line.startswith("\\\n", self.at):
                    self.at += 2
                    continue
                if self.at + 1 >= len(line):
                    raise UsageError(
                        "The line ends in a lone backslash.", "The rest of the command is missing."
                    )
                parts.append(Part(line[self.at + 1], True))
                self.at += 2
            elif char == "'":
                parts.append(Part(self._until("'", self.at + 1), True))
            elif line.startswith("$'", self.at):
                parts.append(Part(self._ansi_c(), True))
            elif char == '"' or line.startswith('$"', self.at):
                self.at += 1 if char == '"' else 2
                self._double(parts)
            elif char in "$`":
                parts.append(self._expansion(quoted=False))
            else:
                parts.append(Part(char, False))
                self.at += 1
        return Word(_joined(parts), line[start : self.at])

    def _until(self, end: str, start: int) -> str:
        stop = self.line.find(end, start)
        if stop < 0:
            raise UsageError(
                f"A {end} of the line is not closed.", "Put the whole command in one pair of quotes."
            )
        self.at = stop + 1
        return self.line[start:stop]

    def _double(self, parts: List[Part]) -> None:
        line = self.line
        parts.append(Part("", True))
        while self.at < len(line):
            char = line[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.at + 1 < len(line) and line[self.at + 1] in '$`"\\\n':
                if line[self.at + 1] != "\n":
                    parts.append(Part(line[self.at + 1], True))
                self.at += 2
            elif char in "$`":
                parts.append(self._expansion(quoted=True))
            else:
                parts.append(Part(char, True))
                self.at += 1
        raise UsageError('A " of the line is not closed.', "Put the whole command in one pair of quotes.")

    def _expansion(self, quoted: bool) -> Part:
        line, at = self.line, self.at
        if line[at] == "`":
            return Part(self._until("`", at + 1), quoted, "command")
        follow = line[at + 1 : at + 2]
        if follow == "(":
            return Part(self._balanced("(", ")", quotes="'\""), quoted, "command")
        if follow == "{":
            return Part(self._balanced("{", "}", quotes="" if quoted else "'\""), quoted, "variable")
        end = at + 1
        if follow and (follow in "?$!#@*-" or follow.isdigit()):
            end += 1
        else:
            while end < len(line) and (line[end] == "_" or (line[end].isascii() and line[end].isalnum())):
                end += 1
        if end == at + 1:
            self.at += 1
            return Part("$", quoted)
        self.at = end
        return Part(line[at + 1 : end], quoted, "variable")

    def _balanced(self, opening: str, closing: str, quotes: str) -> str:
        """The inside of `$(…)` or `${…}`; backslashes and `quotes` within it are respected.

        In a `"${…}"` an apostrophe is a plain character, and only `${` nests, not a lone `{`.
        """
        start = self.at + 2
        depth, at, quote = 1, start, ""
        while at < len(self.line):
            char = self.line[at]
            if char == "\\" and quote != "'":
                at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in quotes:
                quote = char
            elif char == opening and (opening == "(" or self.line[at - 1] == "$"):
                depth += 1
            elif char == closing:
                depth -= 1
                if not depth:
                    self.at = at + 1
                    return self.line[start:at]
            at += 1
        raise UsageError(f"A ${opening} of the line is not closed.")

    def _ansi_c(self) -> str:
        """`$'…'` with its backslash escapes, bytes kept as bytes."""
        simple = {
            "n": "\n",
            "t": "\t",
            "r": "\r",
            "a": "\a",
            "b": "\b",
            "f": "\f",
            "v": "\v",
            "e": "\x1b",
            "E": "\x1b",
        }
        out = b""
        at = self.at + 2
        line = self.line
        while at < len(line) and line[at] != "'":
            char, at = line[at], at + 1
            if char != "\\" or at >= len(line):
                out += char.encode("utf-8", "surrogateescape")
                continue
            char, at = line[at], at + 1
            base, most = {"x": (16, 2), "u": (16, 4), "U": (16, 8)}.get(char, (8, 3))
            if base == 8 and char not in "01234567":
                out += simple.get(char, char if char in "\\'\"?" else "\\" + char).encode(
                    "utf-8", "surrogateescape"
                )
                continue
            start = at - 1 if base == 8 else at
            end = start
            while (
                end < len(line)
                and end - start < most
                and line[end] in "0123456789abcdefABCDEF"[: 8 if base == 8 else 22]
            ):
                end += 1
            at = end
            code = int(line[start:end] or "0", base)
            out += chr(code).encode("utf-8", "replace") if char in "uU" else bytes([code & 0xFF])
        if at >= len(line):
            raise UsageError("A $' of the line is not closed.")
        self.at = at + 1
        return out.decode("utf-8", "surrogateescape")


def _joined(parts: List[Part]) -> Tuple[Part, ...]:
    """Neighbours of one kind put together; an empty quoted part stays, since it makes a word."""
    out: List[Part] = []
    for part in parts:
        if out and out[-1].kind == part.kind == "text" and out[-1].quoted == part.quoted:
            out[-1] = Part(out[-1].text + part.text, part.quoted)
        else:
            out.append(part)
    return tuple(out)
