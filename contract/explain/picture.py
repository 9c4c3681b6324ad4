"""The contraction tree of a plan as a picture: what each product costs, how large results are."""

from math import log10
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from contract.errors import InvalidValueError, NotSupportedError
from contract.explain.tree import Node, contraction_tree
from contract.plan.steps import Plan
from contract.support.text import count, seconds

__all__ = ["draw"]

FORMATS = (".svg", ".png", ".pdf")
LEGIBLE = 48  # nodes; beyond, their texts would cover each other
COLUMN, ROW = 1.25, 1.0  # inches between nodes
LARGEST = 60.0  # inches


def draw(plan: Plan, path: str | PathLike[str]) -> None:
    """Write a picture of the plan's tree; its format is that of the name's end.

    A disk is as large as its tensor has digits, and as dark as its operation has FLOPs. Needs
    matplotlib (NotSupportedError without).
    """
    target = Path(fspath(path))
    if target.suffix.lower() not in FORMATS:
        raise InvalidValueError(
            f"A picture's name ends in one of {', '.join(FORMATS)}: it is {fspath(path)!r}."
        )
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotSupportedError("Pictures need matplotlib: pip install matplotlib.") from error
    nodes = contraction_tree(plan)
    width = min(max(6.0, COLUMN * (1 + max(node.x for node in nodes))), LARGEST)
    height = min(max(4.0, ROW * (2 + max(node.y for node in nodes))), LARGEST)
    with rc_context({"svg.hashsalt": "contract"}):  # the same plan gives the same file
        figure = Figure(figsize=(width, height), layout="constrained")
        _draw_tree(figure, plan, nodes)
        metadata = {"Date": None} if target.suffix.lower() == ".svg" else None
        figure.savefig(target, metadata=metadata, dpi=120)


def _draw_tree(figure: Any, plan: Plan, nodes: tuple[Node, ...]) -> None:
    axes = figure.add_subplot()
    for node in nodes:
        for part in node.parts:
            below = nodes[part]
            axes.plot((node.x, below.x), (node.y, below.y), color="0.6", linewidth=1, zorder=1)
    disks = axes.scatter(
        [node.x for node in nodes],
        [node.y for node in nodes],
        s=[40 + 60 * log10(max(node.elements, 1)) for node in nodes],
        c=[log10(max(node.flops, 1)) for node in nodes],
        cmap="Blues",
        edgecolors="0.3",
        zorder=2,
    )
    if len(nodes) <= LEGIBLE:
        for node in nodes:
            _label(axes, node)
    figure.colorbar(disks, ax=axes, label="log10 FLOPs of the operation", shrink=0.7)
    axes.set_title(
        f"{count(plan.flops)}FLOP, {count(plan.moved_bytes)}B moved, at most "
        f"{count(plan.peak_bytes)}B of temporaries, predicted {seconds(plan.seconds)}",
        fontsize=9,
    )
    axes.margins(0.12, 0.12)
    axes.axis("off")


def _label(axes: Any, node: Node) -> None:
    lines = [f"{node.name}[{node.modes}]"]
    if node.parts:
        lines += [node.algorithm, f"{count(node.flops)}FLOP, {seconds(node.seconds)}"]
    axes.annotate(
        "\n".join(lines),
        (node.x, node.y),
        xytext=(0, -12),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=7,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        zorder=3,
    )
