"""Every error the library raises: one tree, each with the status cuTENSOR would return."""

from typing import ClassVar

__all__ = [
    "ArchMismatchError",
    "CacheFileError",
    "ContractError",
    "ExecutionError",
    "InsufficientWorkspaceError",
    "InvalidPathError",
    "InvalidValueError",
    "NotSupportedError",
    "UnsupportedTypeError",
]


class ContractError(Exception):
    """Root of the tree; ``status`` names the cuTENSOR status with the same meaning."""

    status: ClassVar[str] = "INTERNAL_ERROR"


class InvalidValueError(ContractError, ValueError):
    """An expression, extent, stride, scalar or option breaks a rule."""

    status = "INVALID_VALUE"


class InvalidPathError(InvalidValueError, RuntimeError, IndexError):
    """A path leaves several operands, or takes some that are not there."""


class UnsupportedTypeError(ContractError, TypeError):
    """A data type, or a combination of data and compute types, is not supported."""

    status = "NOT_SUPPORTED"


class NotSupportedError(ContractError, NotImplementedError):
    """The request is well formed, and no implementation of it exists."""

    status = "NOT_SUPPORTED"


class InsufficientWorkspaceError(ContractError, MemoryError):
    """The call needs more memory than the limit or the machine allows.

    ``needed`` are the bytes of the plan that needs least, where plans were compared; ``sliced``
    those in the smallest slices found, where slices were sought.
    """

    status = "INSUFFICIENT_WORKSPACE"

    def __init__(self, message: str, needed: int | None = None, sliced: int | None = None) -> None:
        super().__init__(message)
        self.needed = needed
        self.sliced = sliced


class ArchMismatchError(ContractError, RuntimeError):
    """The device cannot run what was planned for another architecture."""

    status = "ARCH_MISMATCH"


class CacheFileError(ContractError, OSError):
    """A plan-cache file is foreign, damaged or not accessible."""

    status = "IO_ERROR"


class ExecutionError(ContractError, RuntimeError):
    """A plan failed while running."""

    status = "EXECUTION_FAILED"
