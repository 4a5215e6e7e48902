"""How XLA compiles: quickly, for programs that run for a second, and once, for programs that recur."""

from __future__ import annotations

import os

import jax
from jax.experimental.compilation_cache import compilation_cache

QUICK = ("backend_optimization_level=0", "cpu_use_fusion_emitters=false", "cpu_parallel_codegen_split_count=1")


def compile_quickly() -> None:
    """Compile in less than half the time programs that run slower; before JAX's first computation.

    Does nothing where ``XLA_FLAGS`` is set.
    """
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in QUICK))


def keep_compiled_in(folder: str) -> None:
    """Keep compiled programs in a folder from now on, unless JAX has one for them."""
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
        compilation_cache.reset_cache()
