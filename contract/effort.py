"""How much looking for a better plan is worth: no more than what there is to be gained.

A plan is made once for its shapes, and looking for a good one takes milliseconds. Every plan has
as many products, so what a better one saves is arithmetic and copies. Where all of a product's
arithmetic takes no longer than calling it, that is next to nothing, and the first plan will do.
"""

__all__ = ["is_slight"]

CALL_WORK = 1 << 13  # multiply-adds that take as long as calling a step: some microseconds


def is_slight(work: int, products: int = 1) -> bool:
    """Whether ``products`` of so many multiply-adds together take less time than their calls."""
    return work <= products * CALL_WORK
