"""Sources -> kernels ready to launch: compiled by NVRTC, loaded as modules of our own.

CuPy's RawModule keeps what it loaded for the life of the process; a module of our own is unloaded
with the last of its kernels.
"""

from typing import Any

from contract.device.kernel_files import kept
from contract.errors import NotSupportedError
from contract.planner.device.launch import KernelCall
from contract.storage.files import hashed

__all__ = ["load_kernel"]

OPTIONS = ("--std=c++17", "-ftz=true")


def load_kernel(cupy: Any, call: KernelCall) -> Any:
    """The kernel of a call on the current device, called as kernel(grid, block, arguments)."""
    module = cupy.cuda.function.Module()
    module.load(_machine_code(cupy, call))
    kernel = module.get_function(call.entry)
    if call.shared:
        driver = cupy.cuda.driver
        most_shared = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.funcSetAttribute(kernel.ptr, most_shared, call.shared)
    return kernel


def _machine_code(cupy: Any, call: KernelCall) -> bytes:
    """Of the whole source, from the disk where an earlier process left it."""
    options = (*OPTIONS, f"-arch={_target(cupy, call.architecture)}")
    made_by = f"{cupy.cuda.nvrtc.getVersion()} of CuPy {cupy.__version__}"
    key = hashed("\0".join((made_by, *options, call.source)))
    return kept(f"contract-{key}.cubin", lambda: _compiled(cupy, call, options))


def _target(cupy: Any, architecture: str | None) -> str:
    """The architecture asked for, else the device's; PTX of an older one where NVRTC lacks that."""
    if architecture is not None:
        return f"sm_{architecture}"
    capability = int(cupy.cuda.Device().compute_capability)
    older = [each for each in cupy.cuda.nvrtc.getSupportedArchs() if each <= capability]
    if not older:
        raise NotSupportedError(
            f"This NVRTC compiles for no GPU of {capability // 10}.{capability % 10}."
        )
    return f"{'sm' if max(older) == capability else 'compute'}_{max(older)}"


def _compiled(cupy: Any, call: KernelCall, options: tuple[str, ...]) -> bytes:
    nvrtc, compiler, name = cupy.cuda.nvrtc, cupy.cuda.compiler, f"{call.entry}.cu"
    program = nvrtc.createProgram(call.source, name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        is_real = options[-1].startswith("-arch=sm_")
        code: bytes = (nvrtc.getCUBIN if is_real else nvrtc.getPTX)(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise compiler.CompileException(log, call.source, name, options) from error
    finally:
        nvrtc.destroyProgram(program)
    return code
