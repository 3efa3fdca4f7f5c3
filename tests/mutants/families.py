"""Faults of families and of the zoo: values in another layout, and drafters that are named but not there."""

from tests.mutants.mutant import Mutant

_GEMMA, _GPT2, _LLAMA = (f"tests/families/test_{name}.py" for name in ("gemma", "gpt2", "llama"))

_EXPERTS = "tests/families/test_experts.py"

_GPT_OSS, _SINKS = "tests/families/test_gpt_oss.py", "tests/nn/test_sinks.py"
_SMALL = "tests/families/test_small_families.py"

MUTANTS = (
    Mutant(
        "a sink takes no weight in XLA",
        "nn/attention.py",
        "weight = rounded(self.weight * shrink) + jnp.exp(sinks - maximum)",
        "weight = rounded(self.weight * shrink)",
        (f"{_SINKS}::test_a_sink_takes_weight_and_adds_nothing[KVCache]",),
    ),
    Mutant(
        "heads of a group share a sink in the native kernel",
        "ops/native/attention.cpp",
        "sizes.group + number % sizes.group];",
        "sizes.group];",
        (f"{_SINKS}::test_a_sink_takes_weight_and_adds_nothing[NativeKVCache]",),
    ),
    Mutant(
        "gpt-oss's gates and ups change places",
        "families/gpt_oss.py",
        '"gate": half(0), "up": half(1)',
        '"gate": half(1), "up": half(0)',
        (f"{_GPT_OSS}::test_layout",),
    ),
    Mutant(
        "gpt-oss's experts of all layers are held until the model is built",
        "families/gpt_oss.py",
        "functools.lru_cache(1)",
        "functools.lru_cache(None)",
        (f"{_GPT_OSS}::test_one_tensor_of_experts_is_held",),
    ),
    Mutant(
        "OLMo's norms come before the parts of a layer too",
        "families/olmo.py",
        '"pre_norms": False',
        '"pre_norms": True',
        (f"{_SMALL}::test_norms_after_each_part",),
    ),
    Mutant(
        "an OLMo 3 in GGUF has the attention factor of YaRN twice",
        "families/olmo.py",
        'values["rope_scaling"] = scaling | {"attention_factor": attention}',
        "pass",
        (f"{_SMALL}::test_a_gguf_file_equals_the_folder[olmo3]",),
    ),
    Mutant(
        "the layers of an OLMo 3 in GGUF that have a window are always three of four",
        "families/olmo.py",
        'settings.get("attention.sliding_window_pattern", _GLOBAL_EVERY)',
        "_GLOBAL_EVERY",
        (f"{_SMALL}::test_windows_of_a_gguf_file",),
    ),
    Mutant(
        "a multiplier is rounded to bfloat16 before the product",
        "nn/layers.py",
        "rounded((x.astype(jnp.float32) * factor).astype(x.dtype))",
        "rounded(x * jnp.asarray(factor, x.dtype))",
        (f"{_SMALL}::test_multipliers_are_not_rounded_to_bfloat16",),
    ),
    Mutant(
        "Granite's multiplier of embeddings is rounded to bfloat16 before the product",
        "families/granite.py",
        "rounded_embedding_scale=False",
        "rounded_embedding_scale=True",
        (f"{_SMALL}::test_multipliers_are_not_rounded_to_bfloat16",),
    ),
    Mutant(
        "a layer adds all that it computes",
        "nn/layers.py",
        "mixed = scaled(mixed, spec.residual_scale)",
        "pass",
        (f"{_SMALL}::test_scales_of_a_residual_and_of_logits",),
    ),
    Mutant(
        "SmolLM's layers without rotary embedding are those that have one",
        "families/smollm3.py",
        "rope if each else None",
        "None if each else rope",
        (f"{_SMALL}::test_layers_without_rotary_embedding",),
    ),
    Mutant(
        "MXFP4's numbers of a byte change places",
        "checkpoints/quantized/mxfp4.py",
        "np.stack([some & 15, some >> 4], axis=-1)",
        "np.stack([some >> 4, some & 15], axis=-1)",
        (f"{_GPT_OSS}::test_mxfp4_is_read_and_kept_as_stored",),
    ),
    Mutant(
        "a scale that float16 cannot hold is kept",
        "checkpoints/quantized/mxfp4.py",
        "holds = holds and bool(",
        "holds = True or bool(",
        (f"{_GPT_OSS}::test_scales_that_kernels_do_not_have",),
    ),
    Mutant(
        "the chances of the chosen experts do not add up to 1",
        "nn/experts.py",
        "    if normalized:",
        "    if False:",
        ("tests/nn/test_experts.py::test_the_router_chooses_and_normalizes",),
    ),
    Mutant(
        "an expert takes no more tokens than one block holds",
        "ops/experts.py",
        "blocks = -(-sizes // size)",
        "blocks = jnp.minimum(-(-sizes // size), 1)",
        ("tests/ops/test_experts.py::test_rows_meet_their_own_expert[some have none]",),
    ),
    Mutant(
        "a group of blocks is skipped if its last block has no rows",
        "ops/experts.py",
        "each[0] < ends[-1], multiply",
        "each[0] + group <= ends[-1], multiply",
        ("tests/ops/test_experts_by_groups.py::test_rows_meet_their_own_expert[three groups]",),
    ),
    Mutant(
        "an expert's gates and ups change places in the form of all experts",
        "families/experts.py",
        'for part in match[2].split("_")]',
        'for part in reversed(match[2].split("_"))]',
        (f"{_EXPERTS}::test_layout_of_experts_in_both_forms[olmoe]",),
    ),
    Mutant(
        "an epsilon with which nothing is normalized is taken",
        "families/settings.py",
        "EPSILON = number(_SMALLEST, 0.0101,",
        "EPSILON = number(_SMALLEST, 1.0,",
        ("tests/families/test_setting_bounds.py::test_numbers_of_a_configuration",),
    ),
    Mutant(
        "Gemma's scales are taken as they are stored",
        "families/gemma.py",
        "return x.astype(np.float32) + 1",
        "return x.astype(np.float32)",
        (f"{_GEMMA}::test_scales_are_stored_as_distances_from_one",),
    ),
    Mutant(
        "Gemma scales by an old name of the type",
        "families/gemma.py",
        'if not nested and "rope_type" not in scaling and',
        'if False and "rope_type" not in scaling and',
        (f"{_GEMMA}::test_an_old_name_of_the_rotary_type_is_ambiguous",),
    ),
    Mutant(
        "GPT-2's keys are read where its queries are",
        "families/gpt2.py",
        '"key_value": slice(1, 3)',
        '"key_value": slice(0, 2)',
        (f"{_GPT2}::test_layout_of_queries_keys_and_values",),
    ),
    Mutant(
        "llama.cpp's rows of keys are reordered by the number of query heads",
        "families/common.py",
        'heads = config.get("num_key_value_heads") or heads',
        "pass",
        ("tests/checkpoints/test_gguf.py::test_gguf_equals_folder[llama]",),
    ),
    Mutant(
        "a setting that is null is no default of its family",
        "families/base.py",
        "if x is not None or key in self.nulls}",
        "}",
        ("tests/families/test_settings.py::test_null_is_the_default_of_the_family[llama-tie_word_embeddings]",),
    ),
    Mutant(
        "YaRN does not lengthen rotated vectors",
        "ops/rope.py",
        "return table if rope.attention_factor == 1 else",
        "return table if True else",
        (f"{_LLAMA}::test_yarn",),
    ),
    Mutant(
        "a drafter that this installation lacks is no drafter",
        "checkpoints/zoo.py",
        "if folder is None and name in _trained():",
        "if False:",
        ("tests/text/test_names.py::test_a_drafter_that_this_installation_lacks",),
    ),
    Mutant(
        "a name of the root's is said to be elsewhere by its deepest path",
        "io/public_names.py",
        "fewest = min(",
        "fewest = max(",
        ("tests/test_public.py::test_the_shortest_path_is_said",),
    ),
    Mutant(
        "errors of commands name arguments of Python",
        "cli/errors.py",
        "return re.sub(pattern, spell, text)",
        "return text",
        ("tests/cli/test_errors.py::test_a_command_says_it",),
    ),
    Mutant(
        "a file as large as the zoo's is taken for it",
        "checkpoints/zoo.py",
        "same.get(file_digest(path)) if same else None",
        "next(iter(same.values()), None)",
        ("tests/text/test_names.py::test_a_model_by_the_path_of_its_file_has_the_drafters_of_its_name",),
    ),
)
