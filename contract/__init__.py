"""Einsum contraction engine in the style of cuTENSOR."""

from contract.api import ContractExpression, contract, contract_expression
from contract.cache import PlanCache
from contract.compute import ComputeType
from contract.config import Settings
from contract.descriptors import Algo, Contraction, Operand, PlanPreference, TensorDescriptor
from contract.errors import (
    ArchMismatchError,
    CacheFileError,
    ContractError,
    ExecutionError,
    InsufficientWorkspaceError,
    InvalidValueError,
    NotSupportedError,
    UnsupportedTypeError,
)
from contract.handle import Handle, default_handle
from contract.numpy_einsum import einsum, einsum_path
from contract.operators import BinaryOperator, Operator
from contract.plan import Plan

__version__ = "0.1.0"

__all__ = [
    "Algo",
    "ArchMismatchError",
    "BinaryOperator",
    "CacheFileError",
    "ComputeType",
    "ContractError",
    "ContractExpression",
    "Contraction",
    "ExecutionError",
    "Handle",
    "InsufficientWorkspaceError",
    "InvalidValueError",
    "NotSupportedError",
    "Operand",
    "Operator",
    "Plan",
    "PlanCache",
    "PlanPreference",
    "Settings",
    "TensorDescriptor",
    "UnsupportedTypeError",
    "contract",
    "contract_expression",
    "default_handle",
    "einsum",
    "einsum_path",
]
