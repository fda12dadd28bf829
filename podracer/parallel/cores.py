"""Programs replicated over cores (arXiv:2104.06272, Fig 2).

`over_cores` replicates a program written for one core. One of five words says how an
argument or a result is laid out over the cores:

* SHARED: the same on every core, bit for bit;
* BATCH: a batch, split over the cores along its first axis;
* SEQUENCE: time first, split over the cores along its second axis, the batch;
* LOCAL: a core's own; outside of the program it has a leading axis, one entry per core;
* OPTIONAL: not part of programs; a state may lack it.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from podracer import kernels
from podracer.parallel.mesh import CORE

MEMBER = "member"
SHARED = "shared"  # the same on every core
BATCH = "batch"  # split over the cores along the first axis
SEQUENCE = "sequence"  # split along the second axis
LOCAL = "local"  # a core's own
OPTIONAL = "optional"  # not part of programs
REPLACEABLE = LOCAL, OPTIONAL  # a fresh one may take its place in a resumed run
SPECS = {
    SHARED: PartitionSpec(),
    BATCH: PartitionSpec(CORE),
    SEQUENCE: PartitionSpec(None, CORE),
    LOCAL: PartitionSpec(CORE),
    OPTIONAL: PartitionSpec(),  # always empty inside programs
}
AXES = {BATCH: 0, SEQUENCE: 1}
_planned: ContextVar[int | None] = ContextVar("_planned", default=None)


class Average(NamedTuple):
    """The mean over the cores that run a program; the identity on a single core.

    It tells agents *how* to average, never over *what*. `Average(None)` never averages: for
    learners that must stay independent of one another, as in a population.
    """

    axis: str | None = CORE

    @property
    def cores(self) -> int:
        """The number of cores that the mean is over."""
        if self.axis is None:
            return 1
        try:
            size = jax.lax.axis_size(self.axis)
        except NameError:  # not inside a replicated program
            return 1
        return _planned.get() or size

    def __call__(self, tree: Any) -> Any:
        """The mean of every leaf."""
        return self._together(jax.lax.pmean, tree)

    def total(self, tree: Any) -> Any:
        """The sum of every leaf over the cores."""
        return self._together(jax.lax.psum, tree)

    def all(self, flags: jax.Array) -> jax.Array:
        """Whether flags are true on every core, bool as `flags`."""
        # As a sum of floats, which XLA can combine with others; the mean of ones is not 1 on
        # every number of cores.
        return self.total((~flags).astype(jnp.float32)) == 0

    def _together(self, collective: Callable, tree: Any) -> Any:
        if self.cores == 1:
            return tree
        return kernels.together(collective, tree, self.axis)

    def gather(self, tree: Any) -> Any:
        """Every leaf [N, ...] of all cores, [N * cores, ...]."""
        if self.cores == 1:
            return tree
        return jax.tree.map(
            lambda x: jax.lax.all_gather(x, self.axis, tiled=True), tree
        )

    def share(self, tree: Any) -> Any:
        """This core's part [N, ...] of every leaf [N * cores, ...]: undoes `gather`."""
        if self.cores == 1:
            return tree
        parts, number = self.cores, jax.lax.axis_index(self.axis)
        return jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:])[number], tree)

    def first(self, tree: Any) -> Any:
        """The least of every leaf over the cores: a uint32 from 1, or 0 for none."""
        if self.cores == 1:
            return tree
        flat, unravel = ravel_pytree(tree)
        most = np.uint32(2**32 - 1)
        late = jax.lax.pmax(jnp.where(flat > 0, most - flat, 0), self.axis)
        return unravel(jnp.where(late > 0, most - late, 0))


AVERAGE = Average()  # over all cores
MEMBERS = Average(MEMBER)  # over the cores of a population, see `over_shares`


@contextlib.contextmanager
def planned_for(cores: int) -> Iterator[None]:
    """Programs traced within have the shares of `cores` cores, whatever the mesh has.

    For plans, where a compiler accepts no mesh of that size: what an agent divides by
    `Average.cores`, such as the capacity of its replay, is as large as in the run.
    """
    token = _planned.set(cores)
    try:
        yield
    finally:
        _planned.reset(token)


def core_key(key: jax.Array) -> jax.Array:
    """A core's own key from a shared one, for shuffling on each core."""
    try:
        return jax.random.fold_in(key, jax.lax.axis_index(CORE))
    except NameError:  # not inside a replicated program
        return jax.random.fold_in(key, 0)


def fold_each(key: jax.Array, numbers: jax.Array) -> jax.Array:
    """A key for each number [N], for example an environment's, whichever core it is on."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, numbers)


def over_cores(
    function: Callable, mesh: Mesh, inputs: tuple, outputs: Any, donate: tuple = ()
) -> Callable:
    """`function`, compiled and replicated over the mesh's cores.

    Args:
      function: what one core computes from its share of the arguments.
      mesh: the cores.
      inputs: for each argument a word, or a tree of words that is its prefix.
      outputs: likewise for the result.
      donate: positions of the arguments whose memory the result may reuse.
    """

    on_core = _on_core(function, inputs, outputs)
    return _replicated(on_core, mesh, CORE, inputs, outputs, donate)


def over_members(
    function: Callable,
    mesh: Mesh,
    inputs: tuple,
    outputs: Any,
    own: tuple[bool, ...],
    donate: tuple = (),
    before: Callable = lambda *arguments: arguments,
) -> Callable:
    """`function`, as on one core, for each of S members of a population.

    The members are divided equally over the cores and are independent: there is no axis to
    average over, and each computes what a run on one core computes.

    Args:
      function, inputs, outputs, donate: as for `over_cores`.
      mesh: the cores; S is a multiple of their number.
      own: for each argument, whether every member has its own: [S, ...].
      before: (arguments) -> arguments, of a core's members together, [S / cores, ...]; it may
        ask `MEMBERS` for those of the other cores.
    """
    each = jax.vmap(
        _on_core(function, inputs, outputs), in_axes=[0 if x else None for x in own]
    )

    def members(*arguments):
        return each(*before(*arguments))

    words = tuple(BATCH if x else SHARED for x in own)
    return _replicated(members, mesh, MEMBER, words, BATCH, donate)


def over_shares(
    function: Callable, mesh: Mesh, inputs: tuple, outputs: Any, donate: tuple = ()
) -> Callable:
    """`function` of a core's share of a population, on every core.

    As `over_members`, for a program that computes something of all members together:
    BATCH is [S / cores, ...] of the S members. Only `MEMBERS` averages over the cores;
    each member still computes what a run on one core computes.

    Args: as for `over_cores`.
    """
    on_core = _on_core(function, inputs, outputs)
    return _replicated(on_core, mesh, MEMBER, inputs, outputs, donate)


def _replicated(
    function: Callable,
    mesh: Mesh,
    axis: str,
    inputs: tuple,
    outputs: Any,
    donate: tuple,
) -> Callable:
    """`function`, compiled for each core of the mesh, whose only axis is called `axis`."""

    mesh = Mesh(mesh.devices, (axis,))

    def specs(words: Any) -> Any:
        return jax.tree.map(
            lambda word: PartitionSpec(*(x and axis for x in SPECS[word])), words
        )

    # check_vma=False: with JAX's default, gradients of shared parameters arrive already
    # summed over the cores, and averaging them makes them N times too large.
    mapped = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=specs(inputs),
        out_specs=specs(outputs),
        check_vma=False,
    )
    return jax.jit(
        mapped,
        donate_argnums=donate,
        # XLA would choose the same. Stated, it is known before the program has run, so that
        # the next one can be traced.
        out_shardings=jax.tree.map(lambda x: NamedSharding(mesh, x), specs(outputs)),
        compiler_options=kernels.compiler_options(
            SingleDeviceSharding(mesh.local_devices[0])
        ),
    )


def _on_core(function: Callable, inputs: tuple, outputs: Any) -> Callable:
    """`function` of a core's share, whose LOCAL leaves have a leading axis of 1."""

    def on_core(*arguments):
        return _map_local(
            lambda x: x[None],
            outputs,
            function(*_map_local(lambda x: x[0], inputs, arguments)),
        )

    return on_core


def _map_local(change: Callable, layout: Any, tree: Any) -> Any:
    """Applies `change` to the LOCAL leaves of `tree`."""
    return jax.tree.map(
        lambda word, part: jax.tree.map(change, part) if word == LOCAL else part,
        layout,
        tree,
    )
