"""Translates the configuration of the `speculators` library's container into the flat settings that heads are read by.

Its `config.json` has the kind of head in `speculators_model_type`, and the whole configuration of the draft's decoder,
of any family, in `transformer_layer_config`:

    in the container                                 flat
    transformer_layer_config.*                       the settings of a decoder
    aux_hidden_state_layer_ids: `i` enters layer i   target_layer_ids: `i - 1` leaves it
    sample_from_anchor                               first_predicts
    sliding_window_non_causal                        not causal_windows
    eagle_aux_hidden_state_layer_ids, block_size, mask_token_id, markov_*, conv_*, ...    same names

Missing settings have the library's own defaults, not those of the engines that read these files. Tensors have the names
of the other public layouts.
"""

from collections.abc import Mapping
from typing import Any

from jaxspec.families.settings import FLAG, TEXT, SettingError, check_settings, table_of
from jaxspec.heads.settings import STATES, need_setting

KIND = "speculators_model_type"
_LAYER, _STATES = "transformer_layer_config", "aux_hidden_state_layer_ids"
_ANCHOR, _NON_CAUSAL = "sample_from_anchor", "sliding_window_non_causal"
_EAGLE: dict[str, Any] = {}
_DFLASH = {"block_size": 8, _ANCHOR: False, _NON_CAUSAL: False}
_DSPARK = _DFLASH | {_ANCHOR: True, "markov_rank": 256, "markov_head_type": "vanilla"}
# The kinds of heads, with the library's defaults.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "eagle3": _EAGLE,
    "peagle": _EAGLE,
    "mtp": {},
    "dflash": _DFLASH,
    "dflash2": _DFLASH
    | {_NON_CAUSAL: True, "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16},
    "xpress": _DFLASH | {"xpress_rank": 256, "xpress_mlp_ratio": 2, "num_jacobi_passes": 6},
    "dspark": _DSPARK | {"enable_confidence_head": True, "confidence_head_with_markov": True},
}
_SETTINGS = {
    KIND: TEXT,
    _LAYER: table_of({}),
    _STATES: STATES.or_null(),
    **dict.fromkeys((_ANCHOR, _NON_CAUSAL), FLAG.or_null()),
}


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flat settings of a container's `config.json`.

    Args:
      config: the contents of `config.json`, with `speculators_model_type`.

    Raises:
      SettingError: the kind of head is not supported, or a setting is missing or has another type.
    """
    check_settings(config, _SETTINGS)
    kind = config[KIND]
    if kind not in KINDS:
        problem = f"heads of the kind {kind!r} are not supported; supported: {', '.join(KINDS)}"
        raise SettingError(KIND, problem)
    own = {name: value for name, value in config.items() if name != _LAYER}
    own = dict(KINDS[kind]) | {name: value for name, value in own.items() if value is not None}
    flat = dict(need_setting(config, _LAYER, f"head of the kind {kind}")) | own | {"tie_word_embeddings": False}
    if _ANCHOR not in own:
        return flat
    states = need_setting(config, _STATES, f"head of the kind {kind}")
    for name in (_STATES, _ANCHOR, _NON_CAUSAL):
        del flat[name]
    # Its layers are Qwen 3's for decoders of any family.
    return flat | {
        "model_type": "qwen3",
        "target_layer_ids": [state - 1 for state in states],
        "first_predicts": own[_ANCHOR],
        "causal_windows": not own[_NON_CAUSAL],
        "windows_from_anchor": True,
    }
