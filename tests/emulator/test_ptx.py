"""The parser: no tools needed."""

import pytest

from .ptx import (
    Address,
    Instruction,
    Label,
    Pair,
    PtxError,
    Register,
    Symbol,
    Vector,
    parse,
    type_bytes,
)

TEXT = """
.version 8.0 // comment
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.const .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6, 7, 8};
.func (.param .b32 result) helper(.param .b32 x) { ret; }
.visible .entry kernel(
  .param .u64 .ptr .align 1 kernel_param_0,
  .param .align 8 .b8 kernel_param_1[24]
)
.maxntid 64, 2, 1
{
  .reg .pred %p<2>;
  .reg .b32 %r<3>;
  .loc 1 7 3
  .shared .align 4 .f32 tile[33];
  ld.shared.v2.u32 {%r1, %r2}, [tile+-4];
$L_1:
  shfl.sync.up.b32 %r1|%p1, %r2, 1, 0, -1;
  { .reg .b32 %r1; add.s32 %r1, %r2, 1;
    L: @!%p1 bra L; }
  { L: bra.uni L; }
  .loc 1 9 1
  @%p1 bra $L_1;
  ret;
}
"""


def test_module_is_read_whole() -> None:
    module = parse(TEXT)
    assert module.target == "sm_90a"
    assert [v.name for v in module.variables] == ["dynamic", "table"]
    assert module.variables[1].initial == tuple("12345678")
    assert [f.name for f in module.functions] == ["helper"]
    (entry,) = module.entries
    assert [(p.size, p.align) for p in entry.parameters] == [(8, 8), (24, 8)]
    assert entry.max_threads == 128
    assert (entry.variables[0].name, entry.variables[0].size) == ("tile", 132)


def test_operands_and_lines() -> None:
    (entry,) = parse(TEXT).entries
    load, label, shuffle = entry.body[:3]
    assert isinstance(load, Instruction)
    r1, r2 = Register("%r1", "b32"), Register("%r2", "b32")
    assert load.operands == (Vector((r1, r2)), Address(Symbol("tile"), -4))
    assert (load.source, load.line) == (7, 18)
    assert label == Label("$L_1")
    assert isinstance(shuffle, Instruction)
    assert shuffle.operands[0] == Pair(r1, Register("%p1", "pred"))


def test_inner_scopes_have_names_of_their_own() -> None:
    (entry,) = parse(TEXT).entries
    labels = [item.name for item in entry.body if isinstance(item, Label)]
    assert len(set(labels)) == len(labels) == 3
    targets = [
        item.operands[0]
        for item in entry.body
        if isinstance(item, Instruction) and item.modifiers[0] == "bra"
    ]
    assert targets == [Symbol(labels[1]), Symbol(labels[2]), Symbol("$L_1")]
    added = next(i for i in entry.body if isinstance(i, Instruction) and i.opcode == "add.s32")
    assert added.operands[0] == Register("%r1__1", "b32")


def test_unknown_register_is_an_error() -> None:
    with pytest.raises(PtxError, match="%r9"):
        parse(TEXT.replace("%r2, 1;", "%r9, 1;"))


@pytest.mark.parametrize(
    ("name", "size"),
    [("f32", 4), ("bf16", 2), ("f16x2", 4), ("bf16x2", 4), ("pred", 1), ("u64", 8)],
)
def test_type_bytes(name: str, size: int) -> None:
    assert type_bytes(name) == size
