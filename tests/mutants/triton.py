"""Faults of the kernels of GPUs, which tests see where they are interpreted, and of what is read of programs."""

from tests.mutants.mutant import Mutant

_ATTENTION, _REPORT = "ops/triton/attention.py", "compiled/gpu.py"
_GROUPED = "ops/triton/grouped.py"
_MULTIPLIES = ("tests/ops/triton/test_grouped.py::test_it_is_the_product",)
_ATTENDS = ("tests/ops/triton/test_attention.py::test_it_attends_to_what_xla_attends_to",)

MUTANTS = (
    Mutant(
        "stale values are multiplied by nothing",
        _ATTENTION,
        "values = jnp.where(slot[:, None] < held, values, jnp.zeros((), values.dtype))",
        "values = values + 0",
        _ATTENDS,
    ),
    Mutant(
        "fed tokens are seen by all",
        _ATTENTION,
        "triton.load(seen.at[row, token[:, None], other[None]], mask=there, other=0) > 0)",
        "there)",
        _ATTENDS,
    ),
    Mutant(
        "a window does not bound cached slots",
        _ATTENTION,
        "there = there if first is None else there & (slot[None] >= first)",
        "there = there | (slot[None] < 0)",
        _ATTENDS,
    ),
    Mutant(
        "each split adds the fed tokens",
        _ATTENTION,
        "pieces = jnp.where(split == splits - 1, ",
        "pieces = jnp.where(split >= 0, ",
        _ATTENDS,
    ),
    Mutant(
        "splits are merged as if their maxima were alike",
        _ATTENTION,
        "shrink = jnp.exp(parts - most)",
        "shrink = jnp.where(parts > _LOWEST, 1.0, 0.0)",
        _ATTENDS,
    ),
    Mutant(
        "passes that agree to the bit take the GPU's kernel",
        "nn/cache_pallas.py",
        "if self.by_path or self.positions is not None or self.capacity == 0:",
        "if self.positions is not None or self.capacity == 0:",
        ("tests/ops/triton/test_attention.py::test_what_it_does_not_take_is_attended_to_by_xla",),
        slow=True,
    ),
    Mutant(
        "passes without a cache take the GPU's kernel, which has no gradient",
        "nn/cache_pallas.py",
        "if self.by_path or self.positions is not None or self.capacity == 0:",
        "if self.by_path or self.positions is not None:",
        ("tests/nn/test_gpu_kernels.py::test_a_pass_without_a_cache_is_differentiated",),
        slow=True,
    ),
    Mutant(
        "passes without a cache are multiplied by a kernel, which has no gradient",
        "nn/language_model.py",
        "with kernels_of(self) if cache.capacity else contextlib.nullcontext():",
        "with kernels_of(self):",
        ("tests/nn/test_gpu_kernels.py::test_a_pass_without_a_cache_is_differentiated",),
        slow=True,
    ),
    Mutant(
        "zeros of integers are not taken off",
        _GROUPED,
        "sums = sums - totals[:, None]",
        "sums = sums - 0 * totals[:, None]",
        _MULTIPLIES,
    ),
    Mutant(
        "the last pieces of a weight are left out",
        _GROUPED,
        "left = jnp.maximum(groups * pieces - split + (splits - 1), 0)",
        "left = jnp.maximum(groups * pieces - split, 0)",
        _MULTIPLIES,
    ),
    Mutant(
        "a piece takes the scale of the first group",
        _GROUPED,
        "total + sums * scale[group, own]",
        "total + sums * scale[0, own]",
        _MULTIPLIES,
    ),
    Mutant(
        "keys are rotated the other way",
        "ops/triton/fused.py",
        "_turned(keys[0], keys[1], *turns)",
        "_turned(keys[0], keys[1], turns[0], -turns[1])",
        ("tests/ops/triton/test_fused_rotate.py::test_it_rotates_what_xla_rotates",),
    ),
    Mutant(
        "a norm is that of the sum before it is rounded",
        "ops/triton/fused.py",
        "total = stored.astype(jnp.float32)",
        "total = wide[0] + wide[1]",
        ("tests/ops/triton/test_fused.py::test_the_norm_is_that_of_what_is_stored",),
    ),
    Mutant(
        "products on a mesh are by a kernel that has each device bring the others its part",
        "core/compiler.py",
        'traits.kernels if traits.placement.devices == 1 else "xla"',
        "traits.kernels",
        ("tests/nn/test_gpu_kernels.py::test_who_may_use_them",),
    ),
    Mutant(
        "a kernel reads all layers of a cache",
        _REPORT,
        "return array.size // array.shape[0] if of_cache else array.size",
        "return array.size",
        ("tests/compiled/test_gpu.py::test_a_kernel_reads_one_layer_of_a_cache",),
    ),
    Mutant(
        "a loop's last condition is not read",
        _REPORT,
        "total += times * (count + 1) if known is None else 0",
        "total += times * count if known is None else 0",
        ("tests/compiled/test_gpu.py::test_conditions_of_known_loops_are_not_read",),
    ),
)
