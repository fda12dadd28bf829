"""What is read off a compiled program, here a CPU's; of a TPU's see tests/podracer/plan/tpu."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from podracer import parallel
from podracer.errors import UserError
from podracer.plan import compiled, hlo, report

N, LENGTH = 16, 5
SHARED = parallel.SHARED


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


@pytest.fixture(scope="module")
def program():
    """In each update LENGTH products and an average; another average at the end."""

    def call(x, updates):
        def update(_, x):
            product = lambda x, _: (jnp.tanh(x @ x), ())
            return parallel.AVERAGE(jax.lax.scan(product, x, length=LENGTH)[0])

        with jax.named_scope("updates"):
            x = jax.lax.fori_loop(jnp.uint32(0), updates, update, x)
        return x, parallel.AVERAGE(jnp.sum(x))

    jitted = parallel.over_cores(
        call, parallel.make_mesh(4), (SHARED, SHARED), (SHARED, SHARED), donate=(0,)
    )
    return compiled.compile("call", jitted, shape(N, N), shape(dtype=jnp.uint32))


def test_work_is_that_of_an_update(program):
    assert program.flops == LENGTH * 2 * N**3
    matrix = 4 * N**2
    assert LENGTH * 4 * matrix <= program.traffic <= LENGTH * 6 * matrix


GPU_TEXT = """HloModule f, is_scheduled=true

ENTRY %main (x: f32[8,20,20,3], k: f32[16,4,4,3], d: f32[8,9,9,16], a: f32[5,7], b: f32[7,6]) -> f32[5,6] {
  %x = f32[8,20,20,3]{3,2,1,0} parameter(0)
  %k = f32[16,4,4,3]{3,2,1,0} parameter(1)
  %d = f32[8,9,9,16]{3,2,1,0} parameter(2)
  %a = f32[5,7]{1,0} parameter(3)
  %b = f32[7,6]{1,0} parameter(4)
  %y = (f32[8,9,9,16]{3,2,1,0}, u8[512]{0}) custom-call(%x, %k), dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward"
  %dx = (f32[8,20,20,3]{3,2,1,0}, u8[512]{0}) custom-call(%d, %k), dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardInput"
  %dk = (f32[16,4,4,3]{3,2,1,0}, u8[512]{0}) custom-call(%x, %d), dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardFilter"
  ROOT %c = (f32[5,6]{1,0}, s8[512]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
}
"""


def test_a_gpus_libraries_count_as_products():
    module = hlo.Module(GPU_TEXT)
    work = [module.flops(step) for step in module.kernels]
    convolution = 2 * (8 * 9 * 9 * 16) * (4 * 4 * 3)
    assert work == [convolution] * 3 + [2 * 5 * 6 * 7]
    product = module.kernels[-1]
    assert module.traffic(product) == 4 * (
        5 * 7 + 7 * 6 + 5 * 6
    )  # not what it works in


def test_any_other_loop_of_unknown_length_counts_once():
    def doubled(x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 9, lambda x: x @ x, x) @ x

    found = compiled.compile("doubled", jax.jit(doubled), shape(N, N))
    assert found.flops == 2 * (2 * N**3)


def test_collectives_are_told_apart(program):
    inside, outside = report.collectives(program.module, "an update", 1)
    assert inside == "an update: 1 all-reduce of 1 KiB"
    assert outside == "once a call: 1 all-reduce of 4 B"


def test_what_is_donated(program):
    assert program.module.donated == {0}
    assert program.not_donated == ["u32[]"]


def test_results_can_be_lowered_for(program):
    matrix, total = program.results
    assert (matrix.shape, total.shape) == ((N, N), ())
    assert len(matrix.sharding.device_set) == 4


def test_a_report(program):
    slice = SimpleNamespace(memory=2**30, clock=None)
    title, *lines = report.report(program, slice, "an update", 100)
    told = {line[2:19].strip(): line[20:] for line in lines}
    assert title == "call"
    assert told["donated"] == "1 of 2 arguments, not u32[]"
    assert told["host transfers"] == "none"
    assert told["work, an update"] == "4.1e-05 GFLOP of products on each core"
    assert told["memory"].endswith("of a core's 1 GiB")
    assert "estimate" not in told  # a CPU's compiler gives no cycles


def test_a_host_transfer_is_noticed():
    def call(x):
        jax.debug.callback(lambda x: None, x)
        return x + 1

    program = compiled.compile("call", jax.jit(call), shape(3))
    assert program.module.host_transfers


def test_a_program_without_a_loop_is_one_update():
    program = compiled.compile("step", jax.jit(lambda x: x @ x), shape(N, N))
    assert program.flops == 2 * N**3


def test_placed_shapes_lie_on_the_cores():
    cores = jax.devices()[2:4]
    layout = {"x": parallel.BATCH, "key": SHARED}
    key = jax.eval_shape(jax.random.key, 0)
    placed = compiled.placed({"x": shape(3, 5), "key": key}, layout, cores)
    assert placed["x"].shape == (6, 5)
    assert placed["x"].sharding.device_set == {*cores}
    assert jnp.issubdtype(placed["key"].dtype, jax.dtypes.prng_key)


@pytest.mark.parametrize(
    "text, logical, padded",
    [
        ("f32[64,3]{1,0:T(8,128)}", 768, 64 * 128 * 4),
        ("f32[64,3]{0,1:T(4,128)}", 768, 4 * 128 * 4),
        ("bf16[16,32,3]{2,1,0:T(8,128)(2,1)}", 3_072, 16 * 32 * 128 * 2),
        ("pred[128]{0:T(1024)(128)(4,1)}", 128, 1_024),
        ("u32[]{:T(256)}", 4, 1_024),
        ("f32[10,7]{1,0}", 280, 280),
    ],
)
def test_tiles_pad(text, logical, padded):
    (array,) = hlo.arrays(text)
    assert (array.logical, array.padded) == (logical, padded)


LOOP = """HloModule test, input_output_alias={ {0}: (1, {}, may-alias) }

%body (p: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %p = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[8,128]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %near = f32[8,128]{1,0:T(8,128)S(1)} copy(%x), backend_config={"estimated_cycles":"7"}
  %there = f32[8,128]{1,0:T(8,128)S(5)} copy(%near)
  ROOT %t = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%i, %near)
}

%condition (p: (s32[], f32[8,128])) -> pred[] {
  %end = s32[]{:T(128)} constant(6)
  %p = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %end), direction=LT
}

ENTRY %main (a: s32[], b: f32[8,128]) -> (s32[], f32[8,128]) {
  %a = s32[]{:T(128)} parameter(0)
  %b = f32[8,128]{1,0:T(8,128)} parameter(1)
  %one = s32[]{:T(128)} constant(1)
  %t = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%one, %b)
  ROOT %loop = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) while(%t), condition=%condition, body=%body
}
"""


def test_a_loop_without_a_count_is_read_from_its_ends():
    module = hlo.Module(LOOP)
    near, _ = [s for s in module.kernels if s.times == 5]  # 1 to 6
    assert near.instruction.bytes == 0  # not in the core's main memory
    assert module.traffic(near) == 4_096
    assert module.host_transfers == ["there"]
    assert module.donated == {1}


SLICES = """HloModule test

ENTRY %main (a: f32[64,128], x: f32[8,128], i: s32[]) -> f32[64,128] {
  %a = f32[64,128]{1,0:T(8,128)} parameter(0)
  %x = f32[8,128]{1,0:T(8,128)} parameter(1)
  %i = s32[]{:T(128)} parameter(2)
  %row = f32[8,128]{1,0:T(8,128)} dynamic-slice(%a, %i, %i), dynamic_slice_sizes={8,128}
  ROOT %new = f32[64,128]{1,0:T(8,128)} dynamic-update-slice(%a, %x, %i, %i)
}
"""


def test_a_slice_moves_no_more_than_itself():
    module = hlo.Module(SLICES)
    assert [module.traffic(s) for s in module.kernels] == [2 * 4_096] * 2


def fits(limit, sizes):
    def build(size):
        sizes.append(size)
        if size > limit:
            raise compiled.DoesNotFit("call", 1_000 + size, 1_000 + limit)
        return size

    return build


def test_a_batch_that_fits_is_found():
    assert compiled.fitting(fits(100, []), 96, 32) == 96
    sizes = []
    with pytest.raises(UserError, match="choose batch_size 4096, which fits"):
        compiled.fitting(fits(5_000, sizes), 32_000, 32)
    assert len(sizes) <= 1 + compiled.TRIES and sizes[-1] == 4_096
    with pytest.raises(UserError, match="no batch fits"):
        compiled.fitting(fits(10, []), 3_200, 32)


def test_sizes_are_read_at_a_glance():
    numbers = 0, 1_000, 2_048, 1_040_000, 3 * 2**30
    assert [*map(compiled.size, numbers)] == [
        "0 B",
        "1000 B",
        "2 KiB",
        "1016 KiB",
        "3 GiB",
    ]


class Refusing:
    """A program that a compiler says this of."""

    def __init__(self, said):
        self.said = said

    def lower(self):
        return self

    def compile(self):
        raise jax.errors.JaxRuntimeError(self.said)


@pytest.mark.parametrize(
    "said",
    [
        "the memory required for temporaries (32.5G) exceeds available HBM (15.75G).",
        "Ran out of memory in memory space hbm. Used 32.5G of 15.75G hbm.",
    ],
)
def test_numbers_are_read_off_the_refusal(said):
    with pytest.raises(
        compiled.DoesNotFit, match="^call needs 32.5 GiB .* 15.8 GiB$"
    ) as no:
        compiled.compile("call", Refusing(f"RESOURCE_EXHAUSTED: {said}"))
    assert (no.value.needed, no.value.available) == (32.5 * 2**30, 15.75 * 2**30)


def test_another_refusal_is_told():
    with pytest.raises(compiled.Refused, match="^call: .* INTERNAL: no such device$"):
        compiled.compile("call", Refusing("INTERNAL: no such device\nand more"))
