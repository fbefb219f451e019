"""What was reported, kept until read and listed after. Alarms of the state come in by key, once each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specdash.monitor.state import FleetState
from specdash.tui.words import one_line

KEPT = 500
RANK = {"info": 0, "warning": 1, "critical": 2}


@dataclass(frozen=True)
class Notice:
    at: float
    """Local monotonic seconds."""
    severity: str
    sentence: str
    where: str = ""
    step: str = ""
    key: str = ""
    read: bool = False
    times: int = 1


class Notices:
    """Newest last, bounded. An alarm that stays is one notice; one that comes again is counted."""

    def __init__(self) -> None:
        self.all: list[Notice] = []
        self._present: set[str] = set()
        self.rang = False
        """Set when something critical came; the app rings the bell once and clears it."""
        self.came: list[Notice] = []
        """Alarms (warning or critical) that came since the app last took them, for its alert command."""

    def add(
        self, sentence: str, severity: str, at: float, where: str = "", step: str = "", key: str = ""
    ) -> None:
        if key:
            for index in range(len(self.all) - 1, -1, -1):
                old = self.all[index]
                if old.key == key:
                    self.all[index] = replace(
                        old,
                        at=at,
                        sentence=one_line(sentence),
                        read=False,
                        times=old.times + 1,
                        severity=severity,
                    )
                    self.all.append(self.all.pop(index))
                    break
            else:
                self.all.append(Notice(at, severity, one_line(sentence), where, one_line(step), key))
        else:
            self.all.append(
                Notice(at, severity, one_line(sentence), where, one_line(step), key, read=severity == "info")
            )
        if severity == "critical":
            self.rang = True
        del self.all[:-KEPT]

    def take(self, fleet: FleetState) -> None:
        """New alarms of hosts and servers."""
        present: set[str] = set()
        for host in fleet.hosts.values():
            groups = [(host.name, host.alarms)]
            groups += [(f"{host.name}/{s.run.profile or s.run.id}", s.alarms) for s in host.servers.values()]
            for where, alarms in groups:
                for alarm in alarms:
                    key = f"{where}\0{alarm.key}"
                    present.add(key)
                    if key not in self._present:
                        self.add(alarm.sentence, alarm.severity, alarm.at, one_line(where), alarm.step, key)
                        if alarm.severity != "info":
                            self.came.append(self.all[-1])
        self._present = present

    @property
    def unread(self) -> int:
        return sum(not notice.read for notice in self.all)

    @property
    def worst(self) -> str:
        """The worst severity among the unread ones."""
        return max((n.severity for n in self.all if not n.read), key=lambda s: RANK.get(s, 0), default="")

    def mark_read(self) -> None:
        self.all = [replace(notice, read=True) for notice in self.all]
