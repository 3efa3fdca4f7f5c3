"""Faults of kernels that only TPUs run, which tests see because they interpret them."""

from tests.mutants.mutant import Mutant

_ATTENTION, _WRITE, _CACHE = "ops/pallas/attention.py", "ops/pallas/write.py", "nn/cache_pallas.py"
_ATTENDS = ("tests/ops/pallas/test_attention.py::test_it_attends_to_what_xla_attends_to",)
_WRITES = ("tests/ops/pallas/test_write.py::test_it_writes_the_fresh_slots_and_no_others",)

_CHOSEN = "tests/nn/test_chosen_kernels.py"

MUTANTS = (
    Mutant(
        "an int8 cache loses the kernels",
        "nn/convert.py",
        "kernels_like(model, dataclasses.replace(model, cache_type=Int8KVCache))",
        "dataclasses.replace(model, cache_type=Int8KVCache)",
        (f"{_CHOSEN}::test_int8_caches_keep_the_kernels",),
    ),
    Mutant(
        "heads of half a tile have kernels by default",
        "nn/chosen_kernels.py",
        "fits = head_dim % _TILE == 0 if kind",
        "fits = True if kind",
        (f"{_CHOSEN}::test_by_the_device",),
    ),
    Mutant(
        "a draft does not follow its target",
        "text/names.py",
        "native_like(self.target, kernels_like(self.target, network))",
        "native_like(self.target, network)",
        (f"{_CHOSEN}::test_a_draft_follows_its_target",),
    ),
    Mutant(
        "the first stale slot is taken for a cached one",
        "ops/pallas/write.py",
        "return jnp.where(slots < 0, cached, placed.astype(cached.dtype))",
        "return jnp.where(slots <= 0, cached, placed.astype(cached.dtype))",
        _ATTENDS,
    ),
    Mutant(
        "each query's own block counts for all queries",
        _ATTENTION,
        "part[head] = new if rows is None else jnp.where(rows, new, old)",
        "part[head] = new",
        _ATTENDS,
    ),
    Mutant(
        "what a query head finds is given to another",
        _ATTENTION,
        "at = (head * group + each) * width",
        "at = (each * queries.shape[1] + head) * width",
        _ATTENDS,
    ),
    Mutant(
        "a TPU rotates the other way",
        "ops/rope.py",
        "(column - row == width // 2).astype(jnp.float32) - (row - column == width // 2).astype(jnp.float32)",
        "(row - column == width // 2).astype(jnp.float32) - (column - row == width // 2).astype(jnp.float32)",
        ("tests/nn/test_models.py::test_a_tpu_rotates_to_the_same_bits",),
    ),
    Mutant(
        "a window ends one slot too early",
        _CACHE,
        "[positions - (window - 1)]",
        "[positions - (window - 2)]",
        _ATTENDS,
    ),
    Mutant(
        "a softmax is not rescaled when a block has a larger score",
        _ATTENTION,
        "found = weighted * _across(shrink, mixed.shape[1]) + mixed,",
        "found = weighted + mixed,",
        _ATTENDS,
    ),
    Mutant(
        "fresh slots that begin at the end of a tile are cut off",
        _WRITE,
        "tiles = (count + 2 * (TILE - 1)) // TILE",
        "tiles = (count + TILE - 1) // TILE",
        _WRITES,
    ),
    Mutant(
        "slots after the fresh ones are cleared",
        _WRITE,
        "jnp.where(slots < fresh.shape[3], placed, cached)",
        "placed",
        _WRITES,
    ),
    Mutant(
        "a cache forgets how it is split",
        "nn/cache_by_kind.py",
        "dtype=dtype).on(layout)",
        "dtype=dtype)",
        ("tests/nn/test_cache_pallas.py::test_a_cache_knows_how_it_is_split",),
    ),
)
