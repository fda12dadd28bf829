"""All that exists only because some machine computes it faster: drop-ins for JAX's operations.

Each has the name, the arguments and, up to rounding, the results of an operation of JAX or
flax, and nothing else in the project knows about caches, kernels or platforms. Importing it
changes nothing: `install` does, which `parallel.use_cpu_cores`, the commands and every
`train` call. `PODRACER_KERNELS=off`, or `off()`, gives plain JAX. A kernel stays while it
makes a workload of `benchmarks/` at least 5 % faster (docs/results/kernels.md).
"""

from podracer.kernels.blocking import grad_of_sum, unroll
from podracer.kernels.collectives import together
from podracer.kernels.convolution import conv_general_dilated, max_pool
from podracer.kernels.foreign import without_effect
from podracer.kernels.installing import install
from podracer.kernels.loops import linear_recurrence, scan
from podracer.kernels.platforms import for_all_platforms
from podracer.kernels.products import concatenate, dot_general, relu
from podracer.kernels.rows import write_rows
from podracer.kernels.shuffling import permutation
from podracer.kernels.switch import is_on, off, without
from podracer.kernels.xla import compiler_options, cpu_flags

__all__ = [
    "compiler_options",
    "concatenate",
    "conv_general_dilated",
    "cpu_flags",
    "dot_general",
    "for_all_platforms",
    "grad_of_sum",
    "install",
    "is_on",
    "linear_recurrence",
    "max_pool",
    "off",
    "permutation",
    "relu",
    "scan",
    "together",
    "unroll",
    "without",
    "without_effect",
    "write_rows",
]
