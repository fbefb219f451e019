"""Process lists: orphans of a launch, who holds the GPUs, servers that somebody else manages."""

from __future__ import annotations

from specdash.sglang import servers
from tests.cases.adapter import Answer, Case, answers


@answers("ps")
def processes(case: Case) -> Answer | None:
    texts = {case.part(i): case.data(i).decode("utf-8", "replace") for i in range(len(case.inputs))}
    user = case.context.get("user", "root")
    rows = servers.parse_ps(texts["ps.txt"])
    launch = case.context.get("recorded_launch")
    orphans = servers.orphans(rows, user, [launch] if launch else [])
    answer: Answer = {"orphans": orphans, "do_not_touch": [r["pid"] for r in rows if r["pid"] not in orphans]}
    if "compute_apps.csv" in texts:
        lines = [line.split(",") for line in texts["compute_apps.csv"].splitlines() if line]
        held = [dict(zip(("index", "pid", "mib"), map(int, line), strict=True)) for line in lines]
        table = servers.gpu_holders(held, rows, orphans, user)
        answer["launch_on_gpu"] = {k: v["launch"] for k, v in table.items()}
        answer["gpu_held_mib"] = {k: v["ours_mib"] for k, v in table.items() if v["ours_mib"]}
    found = servers.find(rows, user, servers.parse_docker_ps(texts.get("docker_ps.txt", "")))
    if len(found) == 1:
        one = found[0]
        answer |= {k: one[k] for k in ("managed_by", "stop_with", "restart_policy_check")}
        answer["do_not_kill_pids"] = [one["pid"], *one["workers"]]
    return answer
