"""Faults of code that only accelerators run, and of readers of programs compiled for them."""

from tests.mutants.mutant import Mutant

_ATTENTION, _CACHE, _HLO = "tests/nn/test_attention.py", "tests/nn/test_cache.py", "tests/compiled/test_hlo.py"
_WRITE = f"{_CACHE}::test_every_platforms_write_is_the_same"

MUTANTS = (
    Mutant(
        "the last visit of the cache counts slots twice",
        "nn/attention.py",
        "((slots[None] >= index * block) & (slots[None] < cache.length[:, None]))",
        "(slots[None] < cache.length[:, None])",
        (f"{_ATTENTION}::test_it_is_a_softmax_over_what_is_seen",),
    ),
    Mutant(
        "the last visit of the cache reads slots of the one before",
        "nn/attention.py",
        "slots = start + jnp.arange(block, dtype=jnp.int32)",
        "slots = index * block + jnp.arange(block, dtype=jnp.int32)",
        (f"{_ATTENTION}::test_it_is_a_softmax_over_what_is_seen",),
    ),
    Mutant(
        "tiles of the cache are written where they begin and not where they were read",
        "nn/cache.py",
        "fresh, start - first), first)",
        "fresh, start - first), start)",
        (_WRITE,),
    ),
    Mutant(
        "fresh slots fall out of the tiles that hold them",
        "nn/cache.py",
        "-(-(count + _TILE - 1) // _TILE) * _TILE",
        "-(-count // _TILE) * _TILE",
        (_WRITE,),
    ),
    Mutant(
        "one slot is written after its place",
        "nn/cache.py",
        "== (start - first)[:, None]",
        "== (start - first)[:, None] + 1",
        (_WRITE,),
    ),
    Mutant(
        "each operation alongside a collective counts it once more",
        "compiled/hlo.py",
        "if kind in COLLECTIVES and not (_ALONG in one.text and one.name not in self._begun):",
        "if kind in COLLECTIVES:",
        (f"{_HLO}::test_a_collective_beside_several_operations_is_one",),
    ),
    Mutant(
        "a CPU writes the cache with one copy a row of the program's text",
        "nn/cache.py",
        "unroll=min(_UNROLLED, buffer.shape[1])",
        "unroll=buffer.shape[1]",
        (f"{_CACHE}::test_the_text_of_a_write_does_not_grow_with_the_rows",),
    ),
    Mutant(
        "a TPU's product of one row gives the row that was added",
        "ops/matmul.py",
        "kernel)[:, :1]",
        "kernel)[:, 1:]",
        ("tests/ops/test_matmul.py::test_it_contracts_the_last_axis",),
    ),
    Mutant(
        "a token that is looked up alone is the one that was added",
        "nn/transformer.py",
        "((0, 0), (0, 1)))][:, :1]",
        "((0, 0), (0, 1)))][:, 1:]",
        ("tests/nn/test_models.py::test_a_token_alone_is_looked_up_as_among_others",),
    ),
    Mutant(
        "a loop's instructions are counted once",
        "compiled/hlo.py",
        "trips, times * count)",
        "trips, times)",
        (f"{_HLO}::test_a_loop_runs_as_often_as_the_compiler_or_the_caller_says",),
    ),
    Mutant(
        "what lies on the chip counts as read",
        "compiled/hlo.py",
        "return 0 if self.local else self.size",
        "return self.size",
        (f"{_HLO}::test_bytes_are_those_that_reach_the_main_memory",),
    ),
    Mutant(
        "heads' queries are split over the axes that split the heads",
        "sharding/rules.py",
        "_dividing(mesh, rest, config.queries_per_kv_head)",
        "_dividing(mesh, axes, config.queries_per_kv_head)",
        ("tests/sharding/test_rules.py::test_tensor_parallel_uses_what_divides",),
    ),
    Mutant(
        "a mesh axis that nothing is split over goes unsaid",
        "sharding/rules.py",
        "if mesh.shape[name] > 1 and name not in rules.mesh_axes]",
        "if mesh.shape[name] < 1]",
        ("tests/sharding/test_rules.py::test_the_default_rules_use_every_axis_or_say_so",),
    ),
    Mutant(
        "of branches the least is counted",
        "compiled/hlo.py",
        "return max(one.branches, key=size)",
        "return min(one.branches, key=size)",
        (f"{_HLO}::test_of_branches_the_one_counts_that_moves_the_most",),
    ),
    Mutant(
        "rows are split though the target's rules leave them whole",
        "decoding/options.py",
        "if options.mesh is not None and isinstance(placement, Unsharded):",
        "if options.mesh is not None:",
        ("tests/sharding/test_meshes.py::test_rows_follow_the_targets_own_rules",),
    ),
    Mutant(
        "an adapter's model has its rows and results where they were",
        "decoding/options.py",
        "if options.mesh is not None and isinstance(placement, Unsharded):",
        "if options.mesh is not None and False:",
        ("tests/sharding/test_meshes.py::test_an_adapters_model_on_a_mesh",),
        slow=True,
    ),
)
