"""A request <-> a text: what the graphs of other libraries keep of a call beside its arrays.

The text is a JSON object of the expression and of those options that are not the defaults.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from contract.api.request import Combination, Options, Reducing, Written
from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operations import PlanPreference
from contract.descriptors.operators import Operator, unary
from contract.errors import InvalidValueError, NotSupportedError
from contract.storage.codec import decoded, encoded

__all__ = ["request_of", "text_of"]

DEFAULTS = Options()
KINDS: Mapping[str, Any] = {
    "order": str,
    "compute_type": ComputeType,
    "operators": tuple[Operator, ...],
    "optimize": bool | str | tuple[tuple[int, ...], ...],
    "memory_limit": int | str,
    "preference": PlanPreference,
    "dtype": str,
    "casting": str,
    "form": Reducing | Combination,
    "slices": tuple[tuple[str | int | None, ...], ...],
}


def text_of(written: Written, options: Options) -> str:
    """The text of a request whose labels are letters or integers.

    NotSupportedError for options that only this process knows.
    """
    return json.dumps({"expression": written, **_stored(options)})


@lru_cache(maxsize=1024)
def request_of(text: str) -> tuple[Written, Options]:
    """What ``text_of`` was given."""
    stored = json.loads(text)
    written = stored.pop("expression")
    if not isinstance(written, str):
        inputs, output = written
        written = tuple(map(tuple, inputs)), tuple(output)
    values = {name: decoded(value, KINDS[name]) for name, value in stored.items()}
    if "dtype" in values:
        values["dtype"] = np.dtype(values["dtype"])
    return written, Options(**values)


def _stored(options: Options) -> dict[str, Any]:
    """What differs from the defaults."""
    operators = None if options.operators is None else tuple(map(unary, options.operators))
    plain = replace(options, compute_type=options.compute, operators=operators)
    stored = {}
    for name, kind in KINDS.items():
        value = getattr(plain, name)
        if value == getattr(DEFAULTS, name):
            continue
        value = value.name if isinstance(value, np.dtype) else value
        try:
            stored[name] = encoded(value, kind)
        except InvalidValueError:
            raise NotSupportedError(f"A graph cannot hold the {name} {value!r}.") from None
    return stored
