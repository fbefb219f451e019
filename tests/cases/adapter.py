"""Which product function answers which kind of case, and which of its words are the cases' words. Mapping only:
it never sees `expect`, an id or the group; `shape.words` reads the tables. None: no answer to such an input."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from specdash.host import classify, sshconfig
from specdash.host.remote import gpu_faults, rocm_text, smi_text
from specdash.monitor import comparing
from specdash.monitor.events import HttpSeen
from specdash.monitor.hindsight import Hindsight
from specdash.sglang import algorithms, architectures, envcheck, fit, flagcheck, servers, stall, whole_log
from specdash.sglang.commandline import LaunchSpec
from specdash.sglang.tree import DictTree
from specdash.verbs import evidence
from tests.cases.shape import Answer, Case, at, words
from tests.support.flag_tables import flag_table

# fmt: off
LOG = """phase=found.phase state=found.state exit_code=found.exit_code sub_phase=story.sub_phase crashed
progress=story.last_bar._asdict ready=story.ready_seen ready_seen=story.ready_seen was_serving=story.was_serving
records=story.records errors=story.errors warnings=story.warnings effective=story.server_args numbers ranks ranks_seen
accept_len_includes_bonus=includes_bonus accept_len=story.decodes.*.accept_len tok_s=story.decodes.*.tok_s
running=story.decodes.*.running visible_text=text token_usage=story.decodes.*.token_usage line_chars=longest
drawn_text_equals_input=faithful folded_warning_count=folded loaded_anything=loaded category=found.cause.category
severity=found.cause.severity signal=found.cause.signal flags=found.cause.about advice=found.cause.advice
advice_direction=found.cause.advice_direction"""
NAMED = "value choices hint algorithm suspects port gpu_index kv_usage set_by likely"
SERVER = """state=health.state category=health.category evidence=health.evidence reason=health.sentence gauge_is_stale
tok_s=numbers.decode_tok_s.value max_running_total=numbers.running_cap.value"""
GPU = """mem_used=memory_used_mib mem_total=memory_total_mib util=utilisation_pct power=power_w temp=temperature_c index name"""
JSON = """states acceptable shown comparable differences reason winner best_by_tok_s=winner best speedup category
limit_to retry shown_as accept_len_incl_bonus=accept_length drafts_per_step accept_rate proposed_per_step
reopen_at_t=reopened restart_seen=restarted"""
SSH = "host port user jump=jumps keepalive_s ignored user_message=note line"
EXEC = "result=outcome category gpu_tool=detail.tool shell=detail.shell fix=detail.fix action=detail.action"
FIT = "verdict category numbers aux_layer_ids architecture=draft_architecture flags=worst.flags"


def log(case: Case) -> Answer:
    data, known = b"".join(case.files().values()), case.context.get
    read = whole_log.read(data, known("exit_code"), known("signal"), known("sglang_version"), known("http_port"))
    memory = [stall.Sample(row["t"], gpu_mib=row["used"]) for row in known("gpu0_mem_mib_samples", ())]
    hung = stall.judge(read.story.phase, known("seconds_since_last_byte"), samples=memory)
    return {**words(read, LOG), **words(at(read, "found.cause.numbers"), NAMED), "hang_suspected": hung.suspected,
            "crash": False, "exceptions": 0, "eta_reliable": stall.eta(read.story.phase, "", None, ()) is not None,
            "expected_wait_minutes": [s / 60 for s in hung.expected_s or ()]}


def told(server: Answer) -> Answer:
    off, one = server["metrics_unavailable"], at(server, "numbers.accept_length_start.value")
    return {**words(server, SERVER), "metrics": "unavailable" if off else "available", "auto_restart": False,
            "accept_len_per_dp": at(server, "numbers.per_dp.*.accept_length_start") or [one],
            "hint": [hint.split(" (")[0] for hint in (off or {}).get("hint", ())]}


def pages(case: Case) -> Answer:
    watch, given, bodies = Hindsight(), case.context.get, list(case.files().values())
    status, apart_s, same_s = given("http_status", 200), given("seconds_between", 1), given("unchanged_for_s", 0)
    end = watch.pages(case.kind, bodies, status, apart_s, same_s)
    return {**told(watch.conclude(end)), "http_status": status}


def mixed(case: Case) -> Answer | None:
    watch, logs, probes = Hindsight(), list(case.files(".log").values()), [p for p in case.jsons() if "path" in p]
    shares = [whole_log.cached_share(whole_log.read(data).story) for data in logs]
    for data in logs:
        watch.log(20, data)
    for probe in probes:
        watch.see(21, HttpSeen(probe["path"].strip("/"), probe["status"], took_s=probe.get("took_s", 0.0)))
    alike = words(comparing.compare([{"cached_share": s} for s in shares]), "comparable reason winner")
    alike |= {f"run{n}_cached_share": share for n, share in enumerate(shares, 1)}
    return told(watch.conclude(22)) if probes else alike


def seen(case: Case) -> Answer | None:
    found = evidence.read(case.jsons()[0])
    after = {f"state_after_t{t}": state for t, state in (found or {}).get("after", {}).items()}
    return found and {**words(found, JSON), **(told(found["server"]) if "server" in found else {}), **after}


def sources(case: Case) -> Answer:
    files = {f"{algorithms.SPEC_FOLDER}/{name}": data for name, data in case.files().items()}
    found, heavy = algorithms.read(DictTree(files)), {"torch", "sglang"} & set(sys.modules)
    return {**words(found, "algorithms=names aliases style category"), "must_not_import": not heavy}


def pair(case: Case) -> Answer:
    (target, draft, *lists), given = case.jsons(), case.context.get
    known, flags = architectures.from_names(lists[0]) if lists else None, fit.flags_from_argv(given("args", []))
    context = fit.Context(given("algorithm", ""), given("sglang_version", ""), flags, given("env", {}), known, None,
                          given("gpu_compute_cap", ""), given("gpu_name", ""))
    return words(fit.fit(target, draft, context), FIT)


def profile(case: Case) -> Answer:
    given, table = {"name": "", **case.jsons()[0]}, flag_table(case.context.get("sglang_version", ""))
    argv = [*given.pop("args", []), *shlex.split(given.pop("extra_args", ""))]
    name, env = given.pop("name"), given.pop("env", {})
    pairs = [("--" + key.replace("_", "-"), value) for key, value in given.items()] + flagcheck.from_argv(argv, table)
    spec = LaunchSpec(name, "local", "python3", ("-m", "sglang.launch_server"), tuple(pairs), env)
    found = [*flagcheck.check(pairs, table), *envcheck.check(pairs, env)]
    return {"category": flagcheck.category(found), "problems": [words(one, "flag kind use") for one in found],
            "launch_allowed": all(one.status != "block" for one in found), "argv": spec.argv()}


def gpus(case: Case) -> Answer:
    texts, query = case.texts(), str(case.context.get("query", "")).split(" / ")[0]
    memory = "".join(f"{k.replace('_kB', '')}: {v} kB\n" for k, v in (case.context.get("meminfo") or {}).items())
    board = smi_text.board(texts[0], smi_text.query_fields(query), *texts[1:2], meminfo_text=memory)
    found = rocm_text.rocm(texts[0]) if case.kind == "rocm_smi" else board["gpus"] or []
    return {"gpus": [words(one, GPU) for one in found] or None, "memory_kind": at(found, "0.memory_kind"),
            "host_mem_total_kb": round(board.get("host_memory_total_mib", 0) * 1024) or None,
            **{f"gpu{one['index']}": smi_text.occupancy(one) for one in found}, **words(board, "category versions")}


def processes(case: Case) -> Answer:
    text, given = dict(zip(case.files(), case.texts(), strict=True)).get, case.context.get
    launches = [one for one in [given("recorded_launch")] if one]
    texts = (text(name, "") for name in ("docker_ps.txt", "compute_apps.csv"))
    found = servers.listing(text("ps.txt", ""), given("user", "root"), launches, *texts)
    one, holders = at(found, "servers.0"), found["holders"].items()
    return {**words(found, "orphans do_not_touch=others"), **words(one, "managed_by stop_with restart_policy_check"),
            "launch_on_gpu": {gpu: held["launch"] for gpu, held in holders},
            "gpu_held_mib": {gpu: held["ours_mib"] for gpu, held in holders if held["ours_mib"]},
            "do_not_kill_pids": [pid for one in found["servers"] for pid in (one["pid"], *one["workers"])]}


def command(case: Case) -> Answer:
    given = case.jsons()[0].get
    out, err, kernel = (str(given(name) or "") for name in ("stdout", "stderr", "proc_driver_nvidia_version"))
    result = classify.ExecResult(given("command") or "", out.encode(), err.encode(), given("exit_code"), "", given("error") or "")
    found, gpu = classify.judge(result, given("found_elsewhere") or ()), gpu_faults.diagnose(f"{out}\n{err}", kernel)
    return {**words(found, EXEC), **gpu, "bus_id": at(gpu, "bus_ids.0"), "gpus": None, "alarm": gpu.get("category") == "gpu_lost"}


def ssh(case: Case) -> Answer:
    found = sshconfig.explain(str(case.context.get("alias")), str(case.inputs[0]))
    parse, category = ("error_in_asyncssh_ok_in_openssh", "ssh_config_unsupported") if found.note else ("ok", "")
    return {**words(found, SSH), "parse": parse, "category": category}


ANSWERS: dict[str, Any] = {
    "log": log, "metrics": pages, "server_info": pages, "mixed": mixed, "json": seen, "spec_info_py": sources, "ps": processes,
    "config_pair": pair, "profile": profile, "nvidia_smi_csv": gpus, "rocm_smi": gpus, "exec_result": command, "ssh_config": ssh,
}
