"""Einsum contraction engine in the style of cuTENSOR."""

from contract.api import ContractExpression, contract, contract_expression, contract_trinary
from contract.cache import PlanCache
from contract.compute import ComputeType
from contract.config import Settings
from contract.conversion import convert_layout
from contract.descriptors import (
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
from contract.elementwise import elementwise_binary, elementwise_trinary, permute, reduce
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
from contract.handle import Handle, default_handle
from contract.interop import prepare_libraries
from contract.numpy_einsum import einsum, einsum_path
from contract.numpy_functions import tensordot, transpose
from contract.operators import BinaryOperator, Operator
from contract.plan import Plan
from contract.run.graph import CapturedContraction
from contract.version import VERSION

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
    "permute",
    "reduce",
    "tensordot",
    "transpose",
]
