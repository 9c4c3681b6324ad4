"""Sources -> kernels ready to launch: by CuPy for the device as it is, else by NVRTC itself."""

from typing import Any

from contract.kernels.call import KernelCall

__all__ = ["load_kernel"]

OPTIONS = ("--std=c++17",)
OWN_OPTIONS = (*OPTIONS, "-ftz=true")  # CuPy adds the second by itself


def load_kernel(cupy: Any, call: KernelCall) -> Any:
    """The kernel of a call on the current device, called as kernel(grid, block, arguments).

    CuPy compiles for the device's compute capability and keeps what it compiled on disk; code for
    one architecture alone ("90a") it cannot be asked for, and that is compiled in every process.
    """
    if call.architecture is not None:
        return _load_for_architecture(cupy, call)
    module = cupy.RawModule(code=call.source, options=OPTIONS, backend="nvrtc")
    kernel = module.get_function(call.entry)
    if call.shared > kernel.max_dynamic_shared_size_bytes:
        kernel.max_dynamic_shared_size_bytes = call.shared
    return kernel


def _load_for_architecture(cupy: Any, call: KernelCall) -> Any:
    module = cupy.cuda.function.Module()
    module.load(_machine_code(cupy, call))
    kernel = module.get_function(call.entry)
    driver = cupy.cuda.driver
    most_shared = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.funcSetAttribute(kernel.ptr, most_shared, call.shared)
    return kernel


def _machine_code(cupy: Any, call: KernelCall) -> bytes:
    nvrtc, compiler = cupy.cuda.nvrtc, cupy.cuda.compiler
    options, name = (*OWN_OPTIONS, f"-arch=sm_{call.architecture}"), f"{call.entry}.cu"
    program = nvrtc.createProgram(call.source, name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        code: bytes = nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise compiler.CompileException(log, call.source, name, options) from error
    finally:
        nvrtc.destroyProgram(program)
    return code
