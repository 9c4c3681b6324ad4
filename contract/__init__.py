"""Einsum contraction engine in the style of cuTENSOR."""

from contract.api.contraction import (
    ContractExpression,
    contract,
    contract_expression,
    contract_trinary,
)
from contract.api.einsum import einsum, einsum_path
from contract.api.elementwise import elementwise_binary, elementwise_trinary, permute, reduce
from contract.api.interop import prepare_libraries
from contract.api.layouts import convert_layout
from contract.api.numpy_functions import tensordot, transpose
from contract.descriptors import layout
from contract.descriptors.compute_types import ComputeType
from contract.descriptors.operations import (
    Algo,
    AutotuneMode,
    CacheMode,
    Contraction,
    ElementwiseOperation,
    JitMode,
    Operand,
    Padding,
    PlanPreference,
    Reduction,
    TensorDescriptor,
    WorkspacePreference,
)
from contract.descriptors.operators import BinaryOperator, Operator
from contract.errors import (
    ArchMismatchError,
    CacheFileError,
    ContractError,
    ExecutionError,
    InsufficientWorkspaceError,
    InvalidPathError,
    InvalidValueError,
    NotSupportedError,
    UnsupportedTypeError,
)
from contract.execution.recording import CapturedContraction
from contract.plan.steps import Plan
from contract.session.handle import Handle, default_handle
from contract.session.plan_cache import PlanCache
from contract.support.config import Settings
from contract.support.version import VERSION

__version__ = VERSION

prepare_libraries()
__all__ = [
    "Algo",
    "ArchMismatchError",
    "AutotuneMode",
    "BinaryOperator",
    "CacheFileError",
    "CacheMode",
    "CapturedContraction",
    "ComputeType",
    "ContractError",
    "ContractExpression",
    "Contraction",
    "ElementwiseOperation",
    "ExecutionError",
    "Handle",
    "InsufficientWorkspaceError",
    "InvalidPathError",
    "InvalidValueError",
    "JitMode",
    "NotSupportedError",
    "Operand",
    "Operator",
    "Padding",
    "Plan",
    "PlanCache",
    "PlanPreference",
    "Reduction",
    "Settings",
    "TensorDescriptor",
    "UnsupportedTypeError",
    "WorkspacePreference",
    "contract",
    "contract_expression",
    "contract_trinary",
    "convert_layout",
    "default_handle",
    "einsum",
    "einsum_path",
    "elementwise_binary",
    "elementwise_trinary",
    "layout",
    "permute",
    "reduce",
    "tensordot",
    "transpose",
]
