"""Conversion of arrays between named layouts: a permutation, for each is a split and an order."""

from typing import Any

from contract.api.elementwise import permute
from contract.api.evaluation import arrays_of
from contract.api.whole import whole
from contract.arrays.libraries import library_of
from contract.arrays.protocol import Array
from contract.descriptors.expression import parse_layout
from contract.errors import InvalidValueError
from contract.logging import LOGGER, UNWATCHED
from contract.session.handle import Handle, handle_for

__all__ = ["convert_layout"]


@whole
def convert_layout(
    x: Any, source: str, target: str, *, handle: Handle | None = None, stream: Any = None
) -> Array:
    """y[modes of target] = x[modes of source], packed in the memory order of ``target``.

    Layouts are NCHW, NHWC, CHWN, NCDHW, NDHWC, CDHWN, NC/xHWx and NC/xDHWx with a number for x,
    such as NC/32HW32. An array has one dimension for each mode in the order of the name, slowest
    first; a vectorised one has the channels twice: (N, C/x, H, W, x). ``x`` may have any strides.

    Raises InvalidValueError for unknown names, for shapes that do not fit, and for channels that
    are no multiple of the group. Source: the core concepts of the cuDNN documentation.
    """
    handle = handle_for(handle, (x,))
    with (
        LOGGER.call(
            "convert_layout", {"x": x, "source": source, "target": target, "stream": stream}
        )
        if LOGGER.active
        else UNWATCHED
    ):
        (array,) = arrays_of(handle.arrays, (x,))
        library = library_of(x)
        stream = stream if library is None else library.stream(stream, handle.arrays.device)
        with handle.arrays.on(stream):
            result = _converted(handle, array, source, target)
        return result if library is None else library.wrapped(result)


def _converted(handle: Handle, array: Array, source: str, target: str) -> Array:
    (modes, group), (wanted, wanted_group) = parse_layout(source), parse_layout(target)
    if set(modes) != set(wanted):
        raise InvalidValueError(f"Layouts {source} and {target} have different modes.")
    dimensions = len(modes) + (group > 0)
    if array.ndim != dimensions:
        raise InvalidValueError(
            f"An array of layout {source} has {dimensions} dimensions: it has {array.ndim}."
        )
    if group and array.shape[-1] != group:
        raise InvalidValueError(
            f"The last dimension of layout {source} has extent {group}: it has {array.shape[-1]}."
        )
    small, large = sorted((group or 1, wanted_group or 1))
    if large % small:  # no common split: the channels have to be in one piece between
        plain = _converted(handle, array, source, modes)
        return _converted(handle, plain, modes, target)
    channels = array.shape[modes.index("C")] * (group or 1)
    if channels % large:
        raise InvalidValueError(
            f"Channels are a multiple of the group: {channels} channels, groups of {large}."
        )
    extents = {mode: array.shape[modes.index(mode)] for mode in modes if mode != "C"}
    extents |= {"outer": channels // large, "middle": large // small, "inner": small}
    labels, new = _labels(modes, group, large), _labels(wanted, wanted_group, large)
    split = array.reshape([extents[label] for label in labels])
    result = permute(split, labels, new, order="C", handle=handle)
    return result.reshape(_shape(wanted, wanted_group, extents, channels))


def _labels(modes: str, group: int, large: int) -> tuple[str, ...]:
    """The dimensions with the channels in three pieces, from slowest to fastest."""
    pieces = ("outer", "middle", "inner")
    inside = 0 if group == 0 else 2 if group == large else 1  # pieces of the innermost dimension
    outside = pieces[: 3 - inside]
    labels: list[str] = []
    for mode in modes:
        labels += outside if mode == "C" else [mode]
    return (*labels, *pieces[3 - inside :])


def _shape(modes: str, group: int, extents: dict[str, int], channels: int) -> list[int]:
    sizes = [channels // (group or 1) if mode == "C" else extents[mode] for mode in modes]
    return [*sizes, group] if group else sizes
