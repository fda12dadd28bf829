"""A compiled program as lines of text: memory, work, communication."""

from collections import Counter
from collections.abc import Iterator

from podracer.plan import compiled, hlo, slices


def line(program: compiled.Program) -> str:
    """One line, for a program that runs once or does little."""
    return (
        f"{program.name}: compiled in {program.seconds:.1f} s, takes at most "
        f"{compiled.size(program.memory.peak)}"
    )


def report(
    program: compiled.Program,
    slice: slices.Slice,
    each: str,
    steps: int,
    times: int = 1,
) -> list[str]:
    """The lines on a program.

    Args:
      program: compiled for the cores of `slice`.
      slice: `slices.Slice`, whose clock and memory are known.
      each: the unit of work: "an update".
      steps: environment steps of a unit, over all cores that do it.
      times: units in a call, of a program without a loop over updates of its own.
    """
    module = program.module
    others = program.not_donated
    names = ", ".join(others[:4]) + (", ..." if others[4:] else "")
    sizes = program.memory._asdict()
    peak = sizes.pop("peak")
    rows = {
        "compiled in": [f"{program.seconds:.1f} s"],
        "memory": [
            f"at most {compiled.size(peak)} of a core's {compiled.size(slice.memory)}",
            ", ".join(f"{name} {compiled.size(x)}" for name, x in sizes.items()),
        ],
        "donated": [
            f"{len(module.donated)} of {len(module.parameters)} arguments"
            + (f", not {names}" if names else "")
        ],
        f"work, {each}": [
            f"{program.flops / times / 1e9:.3g} GFLOP of products on each core",
            f"{compiled.size(program.traffic / times)} to and from its memory",
            f"{sum(s.times for s in module.kernels if s.inside) / times:,.0f} kernels",
        ],
        "collectives": [*collectives(module, each, times)] or ["none"],
        "host transfers": [", ".join(module.host_transfers) or "none"],
        "padding": [padding(module)],
        "largest buffers": largest(module),
    }
    if slice.clock and program.cycles:
        took = program.cycles / times / slice.clock
        rows["estimate"] = [
            f"{took * 1e3:.3g} ms {each}, {steps / took:.3g} environment steps/s in all:",
            "the compiler's model of its kernels, not a measurement; it has no waiting,",
            "for other cores or for environments",
        ]
    lines = [program.name]
    for name, (first, *rest) in rows.items():
        lines += [f"  {name:<17} {first}", *(f"  {'':<17} {x}" for x in rest)]
    return lines


def collectives(module: hlo.Module, each: str, times: int) -> Iterator[str]:
    """Collective operations within an update and outside it: how often, how large."""
    for inside, where in ((True, each), (False, "once a call")):
        counts: Counter[str] = Counter()
        for step in module.collectives:
            if step.inside == inside:
                carried = sum(x.logical for x in step.instruction.arrays)
                kind = step.instruction.opcode.removesuffix("-start")
                counts[f"{kind} of {compiled.size(carried)}"] += step.times
        if counts:
            runs = times if inside else 1
            yield f"{where}: {', '.join(f'{n / runs:g} {x}' for x, n in counts.items())}"


def padding(module: hlo.Module) -> str:
    """Memory that the arguments' tiled layouts add."""
    arguments = [x for parameter in module.parameters for x in parameter.arrays]
    logical, padded = (
        sum(x.logical for x in arguments),
        sum(x.padded for x in arguments),
    )
    return f"arguments of {compiled.size(logical)} take {compiled.size(padded)}"


def largest(module: hlo.Module, count: int = 4) -> list[str]:
    """The largest buffers that kernels write to a core's main memory."""
    buffers: dict[str, tuple[int, hlo.Array, str]] = {}
    for step in module.kernels:
        x = step.instruction
        for array in x.arrays:
            if hlo.VMEM not in array.space:
                where = x.attribute(r'op_name="(?:[^"]*/)?([^"/]*)"') or x.opcode
                buffers.setdefault(array.text, (array.padded, array, where))
    rows = sorted(buffers.values(), key=lambda row: -row[0])[:count]
    return [
        f"{compiled.size(padded)} {array.text} {where}"
        + (
            f" ({padded / array.logical:.1f} x its elements)"
            if padded > array.logical
            else ""
        )
        for padded, array, where in rows
    ]
