"""`specdash --check`: one look at hosts and servers, and an exit code that monitoring systems understand.

    results = await check(targets, options)   # all targets at once, each within its timeout
    print(render.line(results)); exit(worst(results))

It folds what it sees with the monitor's own reducer, so that screen and check cannot disagree.
Never imports textual. Never a traceback: what goes wrong is a finding. Modules are imported when first needed: while
a host starts its agent there is time for the rest.
"""

from specdash.check.run import INJECTED, Options, Result, check
from specdash.check.states import Finding, State, worst
from specdash.check.targets import Target, parse

__all__ = ["INJECTED", "Finding", "Options", "Result", "State", "Target", "check", "parse", "worst"]
