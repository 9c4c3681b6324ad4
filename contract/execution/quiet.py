"""Work in which NaN and infinity are results, which NumPy does not warn of.

NumPy's own numpy.errstate is left in place when a handler of signals raises as it ends. A context
is left by one call into C, whatever happens, and is quicker.
"""

from collections.abc import Callable
from contextvars import copy_context
from typing import ParamSpec, TypeVar

import numpy as np

__all__ = ["QUIET", "quietly"]

Given = ParamSpec("Given")
Result = TypeVar("Result")

QUIET = copy_context()  # what such work sees; a test may lead NumPy's memory here, too
QUIET.run(np.seterr, all="ignore")


def quietly(
    function: Callable[Given, Result], *arguments: Given.args, **named: Given.kwargs
) -> Result:
    """What the function returns; it does not see the context variables of its caller."""
    return QUIET.copy().run(function, *arguments, **named)
