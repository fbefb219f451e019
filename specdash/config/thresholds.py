"""`[check]`: what `specdash --check` holds against a server. The names that may be compared are check's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_RULE = re.compile(
    r"\s*([A-Za-z][A-Za-z0-9_./%-]*)\s*(<=|>=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*\Z"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """`accept<1.8` holds when the value of `name` is there and the comparison is true: then it alarms."""

    name: str
    operator: str
    limit: float

    def holds(self, value: float) -> bool:
        return {
            "<": value < self.limit,
            "<=": value <= self.limit,
            ">": value > self.limit,
            ">=": value >= self.limit,
        }[self.operator]


def rule(text: str) -> Rule:
    """Raises ValueError with a sentence when the text is no rule."""
    match = _RULE.match(text)
    if not match:
        raise ValueError(f'"{text}" is no rule: write NAME, one of < <= > >=, and a number, as in accept<1.8')
    return Rule(match.group(1).lower(), match.group(2), float(match.group(3)))


def _is_rule(text: str) -> str:
    rule(text)
    return text


RuleText = Annotated[str, AfterValidator(_is_rule)]


class CheckSettings(BaseModel):
    """Thresholds and manners of `--check`. None: not said here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    warn: tuple[RuleText, ...] = Field(
        default=(), description='Rules that make it WARNING, e.g. ["accept<1.8"].'
    )
    crit: tuple[RuleText, ...] = Field(
        default=(), description='Rules that make it CRITICAL, e.g. ["tok/s<40"].'
    )
    timeout_s: float | None = Field(default=None, gt=0, le=600, description="Time for one target, seconds.")
    window_s: float | None = Field(default=None, ge=0, le=600, description="Sampling window, seconds.")
    generate: bool | None = Field(
        default=None, description="Ask for one real token (costs the engine a generation)."
    )
    expect_running: bool | None = Field(
        default=None, description="Whether a server of this profile must be there; absent is CRITICAL then."
    )

    def over(self, base: CheckSettings) -> CheckSettings:
        """This one where it says something, else `base`."""
        return base.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
