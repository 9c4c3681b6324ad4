"""What calls on the host say, and that they say nothing unasked."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contract as ct
from contract import logging
from contract.logging import LOGGER

A, B = np.ones((4, 5, 6), "f4"), np.asfortranarray(np.ones((7, 5)))
S = np.ones((3, 3))
Record = tuple[int, str, str]


@pytest.fixture
def heard() -> Iterator[list[Record]]:
    """Every record of the calls of a test: level, function, message."""
    found: list[Record] = []
    logging.to_python(logging.logging.getLogger("nobody"))
    logging.set_level(5)
    logging.set_callback(lambda level, function, message: found.append((level, function, message)))
    yield found
    logging.set_callback(None)
    logging.set_file(None)
    logging.disable()


def loaded(operation: Any) -> Any:
    return ct.default_handle().plan(operation)


def described(text: str, kind: Any = ct.Contraction, **options: Any) -> Any:
    """An operation on square matrices."""
    (*inputs, output) = text.replace("->", ",").split(",")
    tensor = ct.TensorDescriptor((3, 3))
    operands = tuple(ct.Operand(tensor, modes) for modes in inputs)
    return kind(operands, ct.Operand(ct.TensorDescriptor((3,) * len(output)), output), **options)


PRODUCT, TRINARY = described("ab,bc->ac"), described("ab,bc,cd->ad")
ODD = replace(PRODUCT, output=replace(PRODUCT.output, tensor=ct.TensorDescriptor((3, 4))))
ADD = ct.BinaryOperator.ADD
PERMUTED = described("ab->ba", ct.ElementwiseOperation)
BINARY = described("ab,ba->ab", ct.ElementwiseOperation, operators=(ADD,))
ELEMENTWISE3 = described("ab,ba,ab->ab", ct.ElementwiseOperation, operators=(ADD, ADD))
F = np.asfortranarray(S)

# A call of each verb, the arguments that its line has, and the same with something wrong.
VERBS: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "contract": (
        lambda **o: ct.contract("abc,kb->ac", A, B, **o),
        "expr=abc,kb->ac operands=[f32[4,5,6]:[30,6,1],f64[7,5]:[1,7]] alpha=1 order=F",
        {"order": "X"},
    ),
    "contract_trinary": (
        lambda **o: ct.contract_trinary("ab,bc,cd->ad", S, S, S, **o),
        "expr=ab,bc,cd->ad operands=[f64[3,3]:[3,1],",
        {"c": S},
    ),
    "contract_expression": (
        lambda **o: ct.contract_expression("ab,bc->ac", (3, 3), (3, 3), **o),
        "expr=ab,bc->ac operands=[[3,3],[3,3]] dtype=float64",
        {"dtype": "no"},
    ),
    "ContractExpression": (
        lambda **o: EXPRESSION(S, S, **o),
        "expr=ab,bc->ac operands=[f64[3,3]:[3,1],f64[3,3]:[3,1]] alpha=1",
        {"beta": 2},
    ),
    "einsum": (
        lambda **o: ct.einsum("ab,bc", S, S, **o),
        "expr=ab,bc operands=[f64[3,3]:[3,1],f64[3,3]:[3,1]] optimize=False order=K",
        {"order": "X"},
    ),
    "einsum_path": (
        lambda **o: ct.einsum_path("ab,bc", S, S, **o),
        "expr=ab,bc operands=[f64[3,3]:[3,1],f64[3,3]:[3,1]] optimize=greedy",
        {"optimize": [3]},
    ),
    "permute": (
        lambda **o: ct.permute("ab->ba", S, **o),
        "expr=ab->ba operands=[f64[3,3]:[3,1]] alpha=1",
        {"operator": "no"},
    ),
    "reduce": (
        lambda **o: ct.reduce("ab->b", S, **o),
        "expr=ab->b operands=[f64[3,3]:[3,1]] op=add alpha=1",
        {"op": "no"},
    ),
    "elementwise_binary": (
        lambda **o: ct.elementwise_binary("ab,ba->ab", S, S, **o),
        "expr=ab,ba->ab operands=[f64[3,3]:[3,1],f64[3,3]:[3,1]] op=add",
        {"op": "no"},
    ),
    "elementwise_trinary": (
        lambda **o: ct.elementwise_trinary("ab,ba,a->ab", S, S, S[0], **o),
        "expr=ab,ba,a->ab operands=[f64[3,3]:[3,1],f64[3,3]:[3,1],f64[3]:[1]] op_ab=add",
        {"op_abc": "no"},
    ),
    "convert_layout": (
        lambda target="NHWC": ct.convert_layout(np.ones((1, 2, 3, 4)), "NCHW", target),
        "x=f64[1,2,3,4]:[24,12,4,1] source=NCHW target=N",
        {"target": "NXYZ"},
    ),
    "Handle.plan": (
        lambda operation=PRODUCT: loaded(operation),
        "operation=",
        {"operation": ODD},
    ),
    "Handle.estimate_workspace": (
        lambda operation=PRODUCT: ct.default_handle().estimate_workspace(operation),
        "operation=Contraction ",
        {"operation": ODD},
    ),
}
EXPRESSION = ct.contract_expression("ab,bc->ac", (3, 3), (3, 3))


@pytest.mark.parametrize("verb", VERBS)
def test_a_call_is_logged_before_anything_is_checked(heard: list[Record], verb: str) -> None:
    call, arguments, wrong = VERBS[verb]
    call()
    call()
    assert [record[:2] for record in heard if record[0] == 5] == [(5, verb)] * 2
    assert heard[0][2].startswith(arguments)
    assert not [record for record in heard if record[0] == 1]
    if not wrong:
        return
    heard.clear()
    with pytest.raises(Exception) as refused:  # noqa: PT011  (of many classes)
        call(**wrong)
    assert heard[0][:2] == (5, verb)
    message = " ".join(str(refused.value).splitlines())
    assert heard[-1] == (1, verb, f"{type(refused.value).__name__}: {message}")
    assert [record[0] for record in heard].count(1) == 1


@pytest.mark.parametrize("verb", VERBS)
def test_only_arguments_are_logged(heard: list[Record], verb: str) -> None:
    """No other local name of the verb, whatever it is called."""
    VERBS[verb][0]()
    named = ct.ContractExpression.__call__ if verb == "ContractExpression" else None
    known = signature(named or attrgetter(verb)(ct)).parameters
    logged = re.findall(r"(?:^| )([a-z_]+)=", heard[0][2])
    assert set(logged) <= {*known, "expr", "operands"}


@pytest.mark.parametrize(
    ("verb", "operation", "arguments"),
    [
        ("contract", PRODUCT, (1, F, F, 0, None)),
        ("contract_trinary", TRINARY, (1, F, F, F, 0, None)),
        ("reduce", described("ab->b", ct.Reduction), (1, F, 0, None)),
        ("permute", PERMUTED, (1, F)),
        ("elementwise_binary", BINARY, (1, F, 1, F)),
        ("elementwise_trinary", ELEMENTWISE3, (1, F, 1, F, 1, F)),
    ],
)
def test_calls_of_a_handle_are_logged(
    heard: list[Record], verb: str, operation: Any, arguments: tuple[Any, ...]
) -> None:
    plan = loaded(operation)
    heard.clear()
    run = getattr(ct.default_handle(), verb)
    run(plan, *arguments, np.empty((3,) * len(operation.output.modes), order="F"))
    assert heard[0][:2] == (5, f"Handle.{verb}")
    count = len(operation.inputs)
    assert heard[0][2].startswith(
        f"operands=[{','.join(['f64[3,3]:[1,3]'] * count)}] plan=<plan of"
    )
    assert " output=f64[3" in heard[0][2]
    assert {record[0] for record in heard[1:]} == {2}
    heard.clear()
    with pytest.raises(ct.InvalidValueError, match="A plan is what"):
        run(None, *arguments, F)
    assert [record[0] for record in heard] == [5, 1]


def test_the_interleaved_form_and_bad_arguments(heard: list[Record]) -> None:
    ct.contract(S, ["a", "b"], S, ["b", ("c", 1)], ["a"])
    assert heard[0][2].startswith("operands=[f64[3,3]:[3,1],['a','b'],f64[3,3]:[3,1],['b',['c',1]]")
    for arguments in ((), (3,), ("ab,bc", object(), [[1, "x"]]), (S, [[1], 2], [1]), (None, None)):
        heard.clear()
        with pytest.raises((ct.ContractError, TypeError)):
            ct.contract(*arguments) if arguments else ct.einsum()
        assert [record[0] for record in heard] == [5, 1]


def test_a_failure_while_running_is_logged(
    heard: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(type(loaded(PRODUCT)), "__call__", fail)
    with pytest.raises(MemoryError):
        ct.contract("ab,bc->ca", S, S)
    assert heard[-1] == (1, "contract", "MemoryError: none left")


def traced(heard: list[Record]) -> list[str]:
    return [message for level, _, message in heard if level == 2]


def test_the_trace_is_what_runs(heard: list[Record]) -> None:
    """Steps with their kernels, extents and strides; with alpha = 0 something else."""
    operands = [np.asfortranarray(np.ones((12, 14))), np.asfortranarray(np.ones((14, 9)))]
    step = "T0[a=12:1 b=14:12]  T1[b=14:1 c=9:14] -> D[a=12:1 c=9:12]"
    for alpha, line in ((1, f"Gemm {step} kernels=BLAS"), (0, "Elementwise 0 -> D[a=12:1 c=9:12]")):
        heard.clear()
        ct.contract("ab,bc->ac", *operands, alpha=alpha)
        (found,) = traced(heard)
        assert found.startswith(line)
        assert found.endswith(" workspace=0")
    heard.clear()
    ct.contract("ab,bc->ac", operands[0].astype(">f8"), operands[1])
    assert traced(heard)[0] == "operand 0 copied into column-major order"


@pytest.mark.parametrize("family", ["numba", "numpy"])
def test_the_trace_names_the_kernels(family: str) -> None:
    large = ct.TensorDescriptor((300, 400))
    turned = ct.TensorDescriptor((400, 300))
    operation = ct.ElementwiseOperation((ct.Operand(large, "ab"),), ct.Operand(turned, "ba"))
    with ct.Handle(kernels=family) as handle:
        (line,) = handle.plan(operation).trace((), None, None, (1, 0, 0))
    assert line.startswith("Permute T0[")
    assert f" kernels={family} workspace=" in line


def test_what_was_planned_is_told_once(heard: list[Record]) -> None:
    x = np.asfortranarray(np.ones((17, 18)))
    with ct.Handle(threads=1) as handle:
        for _ in range(2):
            ct.contract("ab,bc->ac", x, x.T, handle=handle)
    told = [message for level, _, message in heard if level == 4]
    assert told[0].startswith("planned Contraction ab,bc->ac f64[17,18]:[1,17],f64[18,17]:[17,1]->")
    assert [message.split()[0] for message in told].count("planned") == 1
    assert sum(": chosen " in message for message in told) == 1
    hints = [message for level, _, message in heard if level == 3]
    assert hints == []
    heard.clear()
    with ct.Handle() as handle:
        for _ in range(2):
            ct.permute("abc->bac", np.ones((160, 100, 3)), handle=handle)
    (hint,) = (message for level, _, message in heard if level == 3)
    assert hint.startswith("fastest mode: T0 is met in runs of 3 elements, 24 of the 64 bytes")


def test_tuning_tells_what_it_tries_and_what_stays(heard: list[Record]) -> None:
    x = np.asfortranarray(np.ones((40, 41)))
    with ct.Handle(preference=ct.PlanPreference(autotune=ct.AutotuneMode.INCREMENTAL)) as handle:
        for _ in range(10):
            ct.contract("ab,cb->ac", x, x, handle=handle)
    measured = [line for line in traced(heard) if " of 3 candidates measured" in line]
    assert measured[0] == "0 of 3 candidates measured"
    assert 3 <= len(measured) < 10
    assert len(traced(heard)) >= 10 + len(measured)
    settled = [message for level, _, message in heard if message.startswith("tuned: ")]
    assert len(settled) == 1
    assert re.match(r"tuned: candidate \d of 3 stays, [\d.]+ \w+, ", settled[0])


def test_tuning_waits_for_a_graph_to_be_recorded(
    heard: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.asfortranarray(np.ones((40, 42)))
    with ct.Handle(preference=ct.PlanPreference(autotune=ct.AutotuneMode.INCREMENTAL)) as handle:
        monkeypatch.setattr(type(handle.arrays), "capturing", lambda self: True)
        ct.contract("ab,cb->ac", x, x, handle=handle)
    (hint,) = (message for level, _, message in heard if level == 3)
    assert hint.startswith("tuning: no call is measured while a graph is recorded")


def test_recorded_calls(heard: list[Record]) -> None:
    with EXPRESSION.capture(S, S) as captured:
        captured.replay()
    functions = [function for level, function, _ in heard if level == 5]
    assert functions == ["ContractExpression.capture", "replay"]
    assert heard[-1][1] == "replay"
    assert heard[-1][2].startswith("Ge")
    with pytest.raises(ct.InvalidValueError):
        EXPRESSION.capture(S)
    assert [record[:2] for record in heard[-2:]] == [
        (5, "ContractExpression.capture"),
        (1, "ContractExpression.capture"),
    ]


def test_nothing_is_formatted_when_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("the log was busy")

    logging.disable()
    for name in ("call", "log", "enter"):
        monkeypatch.setattr(LOGGER, name, refuse)
    for call, _, wrong in VERBS.values():
        call()
        if wrong:
            with pytest.raises(Exception) as refused:  # noqa: PT011
                call(**wrong)
            assert not isinstance(refused.value, AssertionError)


# --- the environment ------------------------------------------------------------------------------

SCRIPT = """
import os, threading
import numpy as np
import contract as ct
A, B = np.ones((4, 8, 12), "f4"), np.ones((7, 8), "f4")
ct.contract("abc,kb->ac", A, B)
with ct.Handle() as handle:
    ct.contract("abc,kb->ac", A, B, handle=handle)
child = os.fork()
if child == 0:
    ct.contract("abc,kb->ac", A, B, alpha=2)
    os._exit(0)
os.waitpid(child, 0)
def work():
    for _ in range(20):
        ct.contract("abc,kb->ac", A, B, alpha=3)
threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print("child", child)
print("cupy" in __import__("sys").modules)
"""
LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\]\[contract\]\[(\d+)\]\[(Error|Trace|Hint|Info|Api)\]"
    r"\[[\w.]+\] \S.*"
)


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CONTRACT_HOST_KERNELS": "numpy"}
    environment |= {f"CUTENSOR_{name}": value for name, value in variables.items()}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_environment_of_a_process(tmp_path: Path) -> None:
    """A file for each process; every line whole; two handles, one beginning."""
    done = run(SCRIPT, LOG_LEVEL="5", LOG_FILE=f"{tmp_path}/log-%i.txt")
    child = re.search(r"child (\d+)", done.stdout)[1]
    files = {path.stem: path.read_text().splitlines() for path in tmp_path.iterdir()}
    assert len(files) == 2
    for name, lines in files.items():
        matches = [LINE.fullmatch(line) for line in lines]
        assert all(matches), lines
        assert {match[1] for match in matches} == {name.removeprefix("log-")}
    parent = next(lines for name, lines in files.items() if name != f"log-{child}")
    assert sum("[Api][contract] expr=abc,kb->ac" in line for line in parent) == 2 + 8 * 20
    assert sum("[Api]" in line and "alpha=2" in line for line in files[f"log-{child}"]) == 1
    operands = "operands=[f32[4,8,12]:[96,12,1],f32[7,8]:[8,1]]"
    assert f"][Api][contract] expr=abc,kb->ac {operands}" in parent[0]


def test_standard_output_and_an_environment_that_is_wrong() -> None:
    calls = "import numpy as np, contract as ct\nct.reduce('a->', np.ones(3))\nct.Handle().close()"
    done = run(calls, LOG_MASK="16")
    assert LINE.fullmatch(done.stdout.strip())
    done = run(calls, LOG_LEVEL="9")
    assert done.stdout == ""
    assert done.stderr.count("Nothing is logged. CUTENSOR_LOG_LEVEL takes an integer") == 1


def test_ranges_without_cupy_are_a_warning() -> None:
    hidden = "import sys\nsys.modules['cupy'] = None\n"
    calls = f"{hidden}import numpy as np, contract as ct\nct.reduce('a->', np.ones(3))\nct.Handle()"
    done = run(calls, NVTX_LEVEL="1")
    assert done.stderr.count("There are no NVTX ranges. Arrays on a GPU need CuPy") == 1
