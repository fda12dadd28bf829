"""The text of a compiled program (XLA's HLO), parsed.

It comes from `jax.stages.Compiled.as_text()`, for a TPU, a GPU or a CPU. A loop is there once;
`steps` says how often each of its instructions runs.
"""

import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d\w*)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_CALLED = re.compile(r"(?:calls|body|to_apply)=%([\w.-]+)")
_BRANCHES = re.compile(
    r"(?:branch_computations=\{|(?:true|false)_computation=)([^}=]*)"
)
_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all"
    r"|collective-permute|collective-broadcast)(-start)?"
)
_HOST = re.compile(r"(infeed|outfeed|send|recv)(-done)?")
_NO_KERNEL = {  # name data but move none
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast"),
    *("while", "conditional", "call"),
}
_SLICES = "dynamic-slice", "slice", "gather"
_LIBRARY = r'custom_call_target="__(cublas|cudnn\$conv\w+)'
VMEM, HOST = "S(1)", "S(5)"  # memory spaces that are not a core's main memory


class Array(NamedTuple):
    """An array and its layout in memory."""

    text: str  # f32[64,3], without its layout
    shape: tuple[int, ...]
    logical: int  # bytes of its elements
    padded: int  # bytes with the padding of its tiled layout
    space: str  # of its layout: tiles and memory space


class Instruction(NamedTuple):
    """A line of the text."""

    name: str
    arrays: tuple[Array, ...]  # the result
    opcode: str
    rest: str  # operands and attributes
    root: bool

    @property
    def operands(self) -> list[str]:
        """Names of the instructions whose results are its inputs."""
        return re.findall(r"%([\w.-]+)", self.rest[: _closing(self.rest)])

    @property
    def bytes(self) -> int:
        """Bytes of the result in the core's main memory, with padding."""
        # After the result of a GPU's library comes the memory that it works in.
        arrays = self.arrays[:1] if self.attribute(_LIBRARY) else self.arrays
        return sum(x.padded for x in arrays if VMEM not in x.space)

    def attribute(self, pattern: str, default: str = "") -> str:
        """The first group of a pattern in the attributes, else the default."""
        match = re.search(pattern, self.rest)
        return match[1] if match else default


class Step(NamedTuple):
    """An instruction where it runs."""

    instruction: Instruction
    computation: str
    times: int  # in an update, or in a call if it is outside
    inside: bool  # the loop over updates
    fused: bool  # part of a kernel, not one of its own


class Module:
    """A compiled program.

    Args:
      text: of the program.
    """

    def __init__(self, text: str):
        self.header = text.partition("\n")[0]
        self.computations: dict[str, dict[str, Instruction]] = {}
        for line in text.splitlines():
            if match := _COMPUTATION.match(line):
                rows = self.computations[match[2]] = {}
                self.entry = match[2] if match[1] else getattr(self, "entry", "")
            elif match := _INSTRUCTION.match(line):
                root, name, result, opcode, rest = match.groups()
                rows[name] = Instruction(name, arrays(result), opcode, rest, bool(root))

    @cached_property
    def steps(self) -> list[Step]:
        """All instructions that run. A loop of unknown length counts as running once.

        What is inside the loop named `updates` is counted in an update. A program without
        such a loop is one update.
        """
        steps = list(self._walk(self.entry, 1, False, False))
        if any(step.inside for step in steps):
            return steps
        return [step._replace(inside=True) for step in steps]

    def _walk(self, name: str, times: int, inside: bool, fused: bool) -> Iterator[Step]:
        for x in self.computations[name].values():
            yield Step(x, name, times, inside, fused)
            trips = self.trips(x, name) if x.opcode == "while" else 1
            deeper = inside or bool(x.attribute(r'op_name="[^"]*\b(updates\)?/while)"'))
            for called in self._called(x):
                yield from self._walk(
                    called, times * (trips or 1), deeper, fused or x.opcode == "fusion"
                )

    def _called(self, x: Instruction) -> list[str]:
        """The computations whose instructions run when this one does."""
        if x.opcode == "conditional":
            return re.findall(r"%([\w.-]+)", "".join(_BRANCHES.findall(x.rest)))
        if x.opcode in ("while", "call", "fusion") or x.opcode.endswith("-start"):
            return _CALLED.findall(x.rest)[:1]
        return []

    def trips(self, loop: Instruction, computation: str) -> int | None:
        """The number of iterations of a `while` whose counter has constant bounds."""
        if count := loop.attribute(r'"known_trip_count":\{"n":"(\d+)"'):
            return int(count)
        condition = self.computations[loop.attribute(r"condition=%([\w.-]+)")]
        (root,) = [x for x in condition.values() if x.root]
        if root.opcode != "compare" or "direction=LT" not in root.rest:
            return None
        counter, end = [condition[name] for name in root.operands]
        index = counter.attribute(r"index=(\d+)")
        if not index or end.opcode != "constant":
            return None
        rows = self.computations[computation]
        start = rows[rows[loop.operands[0]].operands[int(index)]]
        while start.opcode in ("copy", "bitcast"):
            start = rows[start.operands[0]]
        first = _constant(start) if start.opcode == "constant" else 0
        return _constant(end) - first

    @property
    def kernels(self) -> list[Step]:
        """The steps that run as kernels of their own."""
        return [
            s
            for s in self.steps
            if not s.fused and s.instruction.opcode not in _NO_KERNEL
        ]

    @property
    def collectives(self) -> list[Step]:
        """Collective operations: all cores take part."""
        return [
            s
            for s in self.steps
            if _COLLECTIVE.fullmatch(s.instruction.opcode) is not None
        ]

    @property
    def host_transfers(self) -> list[str]:
        """Names of the transfers to and from the host while it runs."""
        return [
            s.instruction.name
            for s in self.steps
            if _HOST.fullmatch(s.instruction.opcode)
            or "callback" in s.instruction.attribute(r'custom_call_target="([^"]*)"')
            or any(HOST in x.space for x in s.instruction.arrays)
        ]

    @property
    def parameters(self) -> list[Instruction]:
        """The program's parameters, in order."""
        rows = self.computations[self.entry].values()
        parameters = [x for x in rows if x.opcode == "parameter"]
        return sorted(parameters, key=lambda x: int(x.rest.partition(")")[0]))

    @property
    def donated(self) -> set[int]:
        """Indices of the parameters whose memory a result reuses."""
        aliases = self.header.partition("input_output_alias={ ")[2].partition(" }")[0]
        return {int(x) for x in re.findall(r"\((\d+), ", aliases)}

    def flops(self, step: Step) -> int:
        """Operations of a matrix product or convolution, 2 per multiplication; else 0."""
        x, rows = step.instruction, self.computations[step.computation]
        library = x.attribute(_LIBRARY)  # a GPU's
        if x.opcode not in ("dot", "convolution") and not library:
            return 0
        left, right = [rows[name].arrays[0].shape for name in x.operands[:2]]
        result = x.arrays[0].shape
        if x.opcode == "dot" or library == "cublas":
            axes = x.attribute(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
            summed = math.prod(left[int(i)] for i in re.findall(r"\d+", axes))
            return 2 * math.prod(result) * summed
        if library.endswith("BackwardInput"):  # as many as forwards
            result = left
        if library.endswith("BackwardFilter"):
            result, right = right, result
        axes = x.attribute(r"dim_labels=\w+_(\w+)->")
        summed = math.prod(n for n, c in zip(right, axes, strict=True) if c != "o")
        return 2 * math.prod(result) * summed

    def traffic(self, step: Step) -> int:
        """Bytes that a kernel reads from the core's main memory and writes there."""
        rows = self.computations[step.computation]
        x = step.instruction
        if x.opcode in _SLICES:
            return 2 * x.bytes
        if x.opcode == "dynamic-update-slice":
            return 2 * rows[x.operands[1]].bytes
        inner = self.computations[self._called(x)[0]] if x.opcode == "fusion" else {}
        parameters = {
            int(y.rest.partition(")")[0]): y
            for y in inner.values()
            if y.opcode == "parameter"
        }
        read = sum(
            min(rows[name].bytes, _used(parameters.get(i), inner))
            for i, name in enumerate(x.operands)
            if name in rows
        )
        return read + min(x.bytes, _written(inner))


def arrays(text: str) -> tuple[Array, ...]:
    """The arrays of a result's type, in order."""
    return tuple(_array(*parts) for parts in _ARRAY.findall(text))


def _array(kind: str, sizes: str, order: str, space: str) -> Array:
    bits = 8 if kind == "pred" else int(re.search(r"\d+", kind)[0])
    shape = tuple(int(n) for n in sizes.split(",") if n)
    placed = [shape[int(i)] for i in reversed(order.split(","))] if order else [*shape]
    tile = re.match(r"T\(([\d,]+)\)", space)
    tile = [int(n) for n in tile[1].split(",")] if tile else [1]
    placed = [1] * (len(tile) - len(placed)) + placed
    for i, n in enumerate(tile, start=len(placed) - len(tile)):
        placed[i] = -(-placed[i] // n) * n
    logical, padded = (math.prod(x) * bits // 8 for x in (shape, placed))
    return Array(f"{kind}[{sizes}]", shape, logical, padded, space)


def _constant(x: Instruction) -> int:
    return int(x.rest.partition(")")[0])


def _closing(text: str) -> int:
    """Index of the parenthesis that closes one opened before the text."""
    depth = 1
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if not depth:
            return i
    return len(text)


def _used(parameter: Instruction | None, inner: dict[str, Instruction]) -> float:
    """Bytes of an operand that a kernel reads at most: slices, where it uses only these."""
    if parameter is None:
        return math.inf
    users = [x for x in inner.values() if parameter.name in x.operands]
    if all(x.opcode in _SLICES for x in users):
        return sum(x.bytes for x in users)
    in_place = all(
        x.opcode == "dynamic-update-slice" and x.operands[0] == parameter.name
        for x in users
    )
    return 0 if in_place else math.inf


def _written(inner: dict[str, Instruction]) -> float:
    """Bytes of its result that a kernel writes: a slice, where it updates one in place."""
    for x in inner.values():
        if x.root and x.opcode == "dynamic-update-slice":
            return inner[x.operands[1]].bytes
    return math.inf
