"""What must be set before jax starts, so before any test imports it."""

import os
from pathlib import Path

from hypothesis import settings

# Eight devices on any machine. The thread pool must be larger than that, or collectives deadlock
# where there are fewer cores.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    # The programs of the tests take longer to optimise than to run.
    + " --xla_backend_optimization_level=0"
).strip()
os.environ["NPROC"] = "32"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"

# A program is compiled once, also for the processes that tests start and for the next session.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parent.parent / ".pytest_cache/jax")
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(200 << 20)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"

# The first example of a jax test pays for compilation.
settings.register_profile("orqa", deadline=None)
settings.load_profile("orqa")
