"""What runs where, now: the same state as the screen shows, once or again and again.

Each number carries its source and window; a dash is *not available*, never 0. Exit codes: 0, or 5 when a host
could not be reached. For thresholds and monitoring systems there is `specdash --check`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.monitor.state import FleetState, HostState, Reading, ServerState
    from specdash.verbs.context import Context

EXAMPLES = """examples:
  specdash status                     every configured host
  specdash status gpu1 --json         the typed snapshot, for scripts
  specdash status gpu1 --watch 2      again every 2 seconds"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hosts", nargs="*", metavar="HOST", help="host or group; default: all configured")
    parser.add_argument("--all", action="store_true", help="every configured host (as without HOST)")
    parser.add_argument(
        "--watch", nargs="?", const=2.0, type=float, metavar="S", help="again every S seconds (2)"
    )
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="S", help="longest wait for a whole picture"
    )
    parser.add_argument("-a", "--all-runs", action="store_true", help="ended runs too")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import ranks_state
    from specdash.monitor import snapshot
    from specdash.verbs.watching import make_hub, settled, unreached

    async with make_hub(context, [] if args.all else args.hosts) as hub:
        await hub.until(settled, args.timeout)
        hub.settle()
        while True:
            state = hub.state
            if context.json:
                data = snapshot.of_fleet(state)
                over = [group.as_json() for group in ranks_state.groups(state)]
                if over:
                    data = {**data, "together": over}
                if args.watch:  # one document a line
                    import json

                    context.print(json.dumps(data, default=str))
                else:
                    context.print_json(data)
            else:
                context.print(*lines(state, args.all_runs))
            context.out.flush()
            if not args.watch:
                return Exit.UNREACHABLE if unreached(state) else Exit.OK
            await asyncio.sleep(max(0.5, args.watch))


def lines(state: FleetState, ended: bool = False) -> Iterator[str]:
    """The state as text, a few lines for a host."""
    from specdash.control import ranks_state

    for host in state.hosts.values():
        yield from host_lines(host, state.now, ended)
    for group in ranks_state.groups(state):
        if ended or not all(view.stop_asked for view in group.views):
            yield clean(group.sentence)


def host_lines(host: HostState, now: float, ended: bool) -> Iterator[str]:
    label = f" [{host.label}]" if host.label else ""
    link = host.link
    if link.status != "up":
        age = f", last seen {now - link.last_up:.0f} s ago" if link.last_up is not None else ""
        yield clean(f"{host.name}{label}: {link.status}{age}. {link.sentence}")
        return
    yield clean(f"{host.name}{label}: {_facts(host)}")
    board = host.gpus
    for gpu in board.gpus if board else ():
        used, total = value(gpu.memory_used_mib, "{:.0f}"), value(gpu.memory_total_mib, "{:.0f}")
        yield clean(
            f"  gpu {gpu.index}  {used}/{total} MiB  {value(gpu.utilisation_pct, '{:.0f}')} %  "
            f"{value(gpu.power_w, '{:.0f}')} W  {value(gpu.temperature_c, '{:.0f}')} °C  {gpu.holder}  {gpu.problem}"
        )
    if board and board.problem and not board.gpus:
        yield clean(f"  gpus: {board.problem}")
    shown = 0
    for server in host.servers.values():
        over = server.verdict.kind in ("dead", "stopped")
        if over and not ended and shown:
            continue
        shown += 1
        yield from server_lines(server, now)
    for alarm in host.alarms:
        yield clean(f"  ! {alarm.sentence} {alarm.step}")


def _facts(host: HostState) -> str:
    free, total = host.sample.get("mem_available_kb"), host.sample.get("mem_total_kb")
    memory = f", memory {(total - free) / 1048576:.0f}/{total / 1048576:.0f} GiB" if free and total else ""
    rtt = f", rtt {host.link.rtt_ms:.0f} ms" if host.link.rtt_ms is not None else ""
    return f"up as {host.facts.get('user', '?')}@{host.facts.get('hostname', '?')}{rtt}{memory}"


def server_lines(server: ServerState, now: float) -> Iterator[str]:
    """One run: what it is, how it is, and its numbers while it lives."""
    run, n = server.run, server.numbers
    drafter = server.drafter.algorithm or "base"
    if server.drafter.how == "hot switch":  # the command line does not tell any longer
        drafter += f" with {server.drafter.path} (hot-switched by {server.drafter.by or '?'})"
    yield clean(f"  {run.id}  {run.target or run.profile}  {drafter}  port {run.http_port or '-'}")
    state = server.health.state if server.verdict.kind == "ready" else server.verdict.kind
    said = server.verdict.sentence or server.health.sentence
    yield clean(f"    {state} ({server.story.phase}): {said}")
    if server.verdict.kind in ("dead", "stopped"):
        return
    if server.numbers.source or server.numbers.running.value is not None:
        idle = " (idle)" if n.idle else ""
        yield clean(
            f"    {reading(n.decode_tok_s, now)} tok/s{idle}  accept length {reading(n.accept_length, now)}  "
            f"running {value(n.running.value)}/{value(n.running_cap.value)}  queued {value(n.queued.value)}  "
            f"kv {value(None if n.kv_used.value is None else n.kv_used.value * 100, '{:.0f}')} %  [{n.source or '-'}]"
        )
    if server.breakeven.sentence and server.breakeven.verdict != "not_speculating":
        yield clean(f"    {server.breakeven.sentence}")
    for alarm in server.alarms:
        yield clean(f"    ! {alarm.sentence} {alarm.step}")


def value(number: Any, form: str = "{}") -> str:
    """A number, or a dash where it is not available."""
    return "-" if number is None else form.format(number)


def reading(one: Reading[float], now: float) -> str:
    age = one.age(now)
    old = f" ({age:.0f} s old)" if age is not None and age > 10 and one.value is not None else ""
    return value(one.value, "{:.2f}") + old


def clean(text: str) -> str:
    """Nothing that a host sent can act on the terminal."""
    return "".join(c if c.isprintable() else " " for c in text).rstrip()
