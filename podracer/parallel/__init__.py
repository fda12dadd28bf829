"""The only room that names a mesh, an axis, a sharding or another process.

cores.py replicates programs, mesh.py says over which cores, arrays.py moves data between
them, agreement.py compares what they share; cpu.py splits a CPU into virtual devices,
hosts.py joins processes, watch.py ends them together.
"""

from podracer.parallel.agreement import check_shared, checked
from podracer.parallel.arrays import (
    as_if_shared,
    by_host,
    everywhere,
    join,
    like,
    of_host,
    of_member,
    of_members,
    on_device,
    on_host,
    split,
    with_fresh,
)
from podracer.parallel.cores import (
    AVERAGE,
    BATCH,
    LOCAL,
    MEMBERS,
    OPTIONAL,
    REPLACEABLE,
    SEQUENCE,
    SHARED,
    Average,
    core_key,
    fold_each,
    over_cores,
    over_members,
    over_shares,
    planned_for,
)
from podracer.parallel.cpu import processors, use_cpu_cores
from podracer.parallel.mesh import CORE, make_mesh, mesh_of, over_hosts

__all__ = [
    "AVERAGE",
    "BATCH",
    "CORE",
    "LOCAL",
    "MEMBERS",
    "OPTIONAL",
    "REPLACEABLE",
    "SEQUENCE",
    "SHARED",
    "Average",
    "as_if_shared",
    "by_host",
    "check_shared",
    "checked",
    "core_key",
    "everywhere",
    "fold_each",
    "join",
    "like",
    "make_mesh",
    "mesh_of",
    "of_host",
    "of_member",
    "of_members",
    "on_device",
    "on_host",
    "over_cores",
    "over_hosts",
    "over_members",
    "over_shares",
    "planned_for",
    "processors",
    "split",
    "use_cpu_cores",
    "with_fresh",
]
