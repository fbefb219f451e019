"""GPUs as bars: memory, utilisation, power, and who holds each, by letter and word, never by colour alone."""

from __future__ import annotations

from specdash.monitor.state import Gpu, HostState
from specdash.tui.cells import clip, cut, fit, heading, thin_bar, width_of, wrap
from specdash.tui.views.link import is_stale, letters, run_name
from specdash.tui.words import DASH, Line, age, gib, one_line, percent

HOLDER_WORD = {"free": "free", "others": "others", "hidden": "hidden", "unknown": "unknown", "ours": "ours"}
HOLDER_MARK = {"free": "·", "others": "o", "hidden": "?", "unknown": "—", "ours": "A"}


def holder(gpu: Gpu, names: dict[str, str]) -> tuple[str, str]:
    """(mark, role): a run's letter, `o` for others, `?` for hidden, `·` for free."""
    if gpu.problem:
        return "!", "bad-strong"
    runs = sorted({names[p.run] for p in gpu.processes or () if p.run in names})
    if runs:
        return ("+" if len(runs) > 1 else runs[0]), (runs[0] if runs[0] in "ABC" else "A")
    if gpu.holder == "ours":
        return "s", "A"
    role = {"free": "dim", "others": "C", "hidden": "warn"}.get(gpu.holder, "dim")
    return HOLDER_MARK.get(gpu.holder, "—"), role


def age_of(host: HostState, now: float) -> float | None:
    board = host.gpus
    return None if board is None or board.at is None else max(0.0, now - board.at)


def cell(gpu: Gpu, names: dict[str, str], width: int, stale: bool) -> Line:
    """One GPU in `width` cells: index, holder, memory bar, GiB, utilisation, watts (and more when wide)."""
    mark, role = holder(gpu, names)
    dull = "stale" if stale else ""
    line: Line = [(f"{gpu.index:>2} ", "dim"), (f"{mark} ", "stale" if stale else role)]
    if gpu.problem:
        return [*line, (cut(one_line(gpu.problem), width - 5), "bad-strong")]
    total = gpu.memory_total_mib
    used = None if gpu.memory_used_mib is None or not total else gpu.memory_used_mib / total
    busy = None if gpu.utilisation_pct is None else gpu.utilisation_pct / 100
    power = DASH if gpu.power_w is None else f"{gpu.power_w:.0f}"
    fill = dull or ("bar-other" if mark == "o" else "bar")
    if width < 46:
        memory = "" if gpu.memory_used_mib is None else "G"
        tail: Line = [
            (f" {gib(gpu.memory_used_mib) + memory:>5}", dull),
            (f" {percent(gpu.utilisation_pct):>4}", dull or ("" if gpu.utilisation_pct else "dim")),
            (f" {power:>3}W", dull or "dim"),
        ]
        return [*line, *_bar(used, width - width_of(line) - width_of(tail), fill), *tail]
    memory = f" {gib(gpu.memory_used_mib)}/{gib(total)} GiB"
    middle: Line = [(f"{memory:<15}", dull)]
    limit = "" if gpu.power_limit_w is None or width < 80 else f"/{gpu.power_limit_w:.0f}"
    tail = [
        (f" {percent(gpu.utilisation_pct):>4}", dull or ("" if gpu.utilisation_pct else "dim")),
        (f" {power + limit:>{7 if width >= 80 else 3}} W", dull or "dim"),
    ]
    if width >= 56:
        heat = DASH if gpu.temperature_c is None else f"{gpu.temperature_c:.0f}"
        hot = gpu.temperature_c is not None and gpu.temperature_c >= 85
        tail.append((f" {heat:>3} °C", dull or ("warn" if hot else "dim")))
    if gpu.throttle and width >= 90:
        tail.append((" " + cut("slowed: " + ", ".join(gpu.throttle), 22), "warn"))
    room = width - width_of(line) - width_of(middle) - width_of(tail)
    if width < 66:
        return [*line, *_bar(used, room, fill), *middle, *tail]
    return [
        *line,
        *_bar(used, room - room // 3, fill),
        *middle,
        *_bar(busy, room // 3, dull or "plot"),
        *tail,
    ]


def _bar(value: float | None, width: int, role: str) -> Line:
    filled, rest = thin_bar(value, max(0, width))
    return [(filled, role), (rest, "rule")]


def columns_for(count: int, width: int, height: int) -> int:
    """Columns of GPUs: as few as the height allows."""
    for columns in (1, 2, 4, 8):
        rows = -(-count // columns)
        if rows <= height or width // (columns * 2) < 24:
            return columns
    return 8


def board_rows(
    host: HostState | None, now: float, width: int, height: int, focused: bool = False
) -> list[Line]:
    """The GPU panel in at most `height` rows, heading included."""
    if host is None:
        return [heading([("GPUs", "title")], [], width, focused)]
    board = host.gpus
    stale = is_stale(host, now)
    old = age_of(host, now)
    title: Line = [("GPUs ", "title"), (one_line(host.name), "strong")]
    right: Line = []
    names = letters(host)
    for run, letter in names.items():
        right.append(
            (f"{letter}={cut(run_name(host.servers[run]), 18)} ", letter if letter in "ABC" else "A")
        )
    if board is not None and old is not None and (stale or old > 5):
        right.append((f"{age(old)} old", "stale"))
    rows: list[Line] = []
    if board is None or (not board.gpus and not board.problem):
        sentence = (
            "waiting for the first sample" if host.link.status in ("connecting", "up") else "no data yet"
        )
        if board is not None and board.at is not None:
            sentence = "no GPU on this host"
        return [heading(title, right, width, focused), [(" " + sentence, "dim")]][:height]
    if board.problem:
        said: list[Line] = [
            [(" " + row, "bad")] for row in wrap("⚠ " + one_line(board.problem), width - 2, "  ")
        ]
        rows += clip(said, 2, width)
    if board.expected is not None and len(board.gpus) < board.expected:
        rows.append([(f" ⚠ {len(board.gpus)} of {board.expected} GPUs answer", "bad-strong")])
    gpus = board.gpus
    if gpus:
        kind = one_line(gpus[0].name).replace("NVIDIA ", "")
        title.append((f" {len(gpus)}×{cut(kind, 20)}" if kind else f" {len(gpus)} GPUs", "dim"))
        columns = columns_for(len(gpus), width, height - 1 - len(rows))
        per_column = -(-len(gpus) // columns)
        each = (width - 2 * (columns - 1)) // columns
        for y in range(per_column):
            row: Line = []
            for x in range(columns):
                index = x * per_column + y
                if x:
                    row.append(("  ", ""))
                if index < len(gpus):
                    row += cell(gpus[index], names, each, stale)
            rows.append(row)
        if len(rows) > height - 1:
            hidden = len(rows) - (height - 2)
            rows = [*rows[: height - 2], [(fit(f" … {hidden} more rows (z: enlarge)", width), "dim")]]
    return [heading(title, right, width, focused), *rows][:height]


def wanted_height(host: HostState | None, width: int, screen_height: int) -> int:
    """Rows the panel would like: one GPU a row when there is room, two a row otherwise."""
    board = host.gpus if host else None
    if board is None or not board.gpus:
        return 3
    extra = (
        1
        + (1 if board.problem else 0)
        + (1 if board.expected is not None and len(board.gpus) < board.expected else 0)
    )
    count = len(board.gpus)
    limit = max(4, screen_height // 4 - 1)
    for columns in (1, 2, 4):
        rows = -(-count // columns)
        if rows <= limit:
            return rows + extra
    return limit + extra
