"""A child process: it takes cases from its input and says before each what it is about to do.

Lines in: a pickled list of cases or numbers, in hexadecimal. Lines out, one JSON list each:
["begin", position], then ["end", position, verdict, message].
"""

import faulthandler
import json
import os
import pickle
import sys
import traceback
from typing import Any

from tests.fuzz.cases import Case
from tests.fuzz.draw import drawn
from tests.fuzz.perform import Bench, Refused, Wrong

__all__ = ["judged", "main"]


def judged(bench: Bench, case: Case) -> tuple[str, str]:
    """The verdict ("right", "refused", "wrong" or "raw") and what there is to say."""
    try:
        bench.run(case)
    except Refused as error:
        return "refused", str(error)
    except Wrong as error:
        return "wrong", str(error)
    except BaseException as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(at.filename)}:{at.lineno}"
        return "raw", f"{type(error).__name__}: {error} ({where})"
    return "right", ""


def main() -> None:
    """Judge the cases of standard input's first line, one after the other."""
    faulthandler.enable()
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    seed, wishes, work = pickle.loads(bytes.fromhex(sys.stdin.readline()))
    bench = Bench()
    for at, item in enumerate(work):
        _say(lines, "begin", at)
        case = drawn(seed, item, wishes) if isinstance(item, int) else item
        _say(lines, "end", at, *judged(bench, case))
    lines.flush()
    os._exit(0)


def _say(lines: Any, *what: Any) -> None:
    lines.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main()
