"""Every action of the screen, once: keys, footer, help and command palette are all made from this table."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding

from specdash.control.plans import Danger


@dataclass(frozen=True)
class Action:
    """`id` is what `[keys]` of the config remaps; `method` is `action_<method>` of the app."""

    id: str
    key: str
    title: str
    help: str
    group: str
    method: str = ""
    danger: Danger = Danger.NONE
    show: bool = False

    @property
    def call(self) -> str:
        return self.method or self.id

    def binding(self) -> Binding:
        return Binding(
            self.key, f"app.{self.call}", self.title, show=self.show, id=self.id, tooltip=self.help
        )


ACTIONS: tuple[Action, ...] = (
    Action("launch", "l", "launch", "Launch the chosen profile: checks and the exact command first", "Servers", danger=Danger.CHANGES, show=True),
    Action("stop", "s", "stop", "Stop the chosen server: the plan and what dies first", "Servers", danger=Danger.DESTROYS, show=True),
    Action("switch", "w", "switch", "Switch the running server to another profile, with a way back", "Servers", danger=Danger.DESTROYS, show=True),
    Action("probe", "p", "probe", "Algorithms of the installed SGLang and the theory table", "Look", show=True),
    Action("runs", "r", "runs", "Runs of this host, past and present", "Look", show=True),
    Action("abort", "x", "take back", "Take the running switch or stop back, as far as it can be", "Servers", danger=Danger.DESTROYS),
    Action("adopt", "A", "adopt", "Take over a server that somebody else started, by name", "Servers", danger=Danger.CHANGES),
    Action("hot", "h", "hot switch", "Other draft weights into the running server, which goes on serving", "Servers", danger=Danger.CHANGES),
    Action("attach", "u", "go on", "Go on with a switch that stands still, or take it back", "Servers", danger=Danger.DESTROYS),
    Action("pulse", "m", "measure", "Pulse: fixed prompts now, for tok/s, accept length and acceptance by position", "Servers"),
    Action("retry", "c", "connect", "Connect to the chosen host now instead of waiting", "Servers"),
    Action("search", "slash", "search", "Search the log by regular expression", "Log", show=True),
    Action("profiles", "P", "profiles", "All profiles: inheritance, command, difference, edit", "Look"),
    Action("info", "i", "sources", "Source, window, age and load of every number", "Look"),
    Action("stacks", "K", "stacks", "Where each process of the server is stuck; for a load that stalls", "Look"),
    Action("fleet", "H", "fleet", "All hosts at a glance", "Look"),
    Action("notices", "exclamation_mark", "messages", "What was reported so far; marks it read", "Look"),
    Action("zoom", "z", "enlarge", "Give the focused panel the whole screen, and back", "Screen"),
    Action("side", "b", "side panel", "Show or hide hosts and profiles", "Screen"),
    Action("theme", "T", "theme", "Next theme: dark, light, high contrast", "Screen"),
    Action("palette", "ctrl+p", "all actions", "Every action by name", "Screen", "command_palette"),
    Action("help", "question_mark,f1", "help", "Keys of what is on the screen", "Screen", show=True),
    Action("suspend", "ctrl+z", "suspend", "Back to the shell; fg returns", "Screen", "suspend_process"),
    Action("quit", "q,ctrl+q", "quit", "Leave; servers go on", "Screen", show=True),
)  # fmt: skip
BY_ID = {action.id: action for action in ACTIONS}
KEY_WORDS = {
    "slash": "/",
    "question_mark": "?",
    "exclamation_mark": "!",
    "ampersand": "&",
    "right_square_bracket": "]",
    "left_square_bracket": "[",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "enter": "Enter",
    "escape": "Esc",
    "space": "Space",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "tab": "Tab",
}


def key_word(keys: str, first_only: bool = False) -> str:
    """`question_mark,f1` → `? F1`."""
    parts = keys.split(",")[: 1 if first_only else None]
    return " ".join(KEY_WORDS.get(part.strip(), _plain(part.strip())) for part in parts)


def _plain(key: str) -> str:
    if key.startswith("ctrl+"):
        return "^" + key[5:]
    if len(key) > 1 and key[0] == "f" and key[1:].isdigit():
        return key.upper()
    return key
