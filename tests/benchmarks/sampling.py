"""Times sampled tokens and sampled rounds over greedy ones."""

import functools

import jax

import jaxspec
from jaxspec.bench.timing import Spread, interleave
from jaxspec.checkpoints.load import load
from jaxspec.text.names import load_drafter
from tests.benchmarks.workload import chat_prompt, show, show_machine, show_ratio

NEW_TOKENS, K = 128, 4
POLICIES = {
    "greedy": jaxspec.Greedy(),
    "temperature 0.7, top-p 0.9": jaxspec.Sampling(0.7, top_p=0.9),
    "temperature 1": jaxspec.Sampling(1.0),
}


def run(model_name: str, repeats: int) -> None:
    """Prints the time of a plain token and of a round of EAGLE with each policy, and over greedy."""
    show_machine()
    target = load(model_name)
    prompt = chat_prompt(target)
    drafters = {
        "token": None,
        f"round of EAGLE, k={K}": load_drafter(f"{model_name}/eagle", target, k=jaxspec.draft_length.Fixed(K)),
    }
    for name, drafter in drafters.items():

        def case(policy, drafter=drafter):
            options = {"key": jax.random.key(0), "sampling": POLICIES[policy], "max_new_tokens": NEW_TOKENS}
            return jaxspec.generate(target, drafter, prompt, **options)

        samples = interleave({policy: functools.partial(case, policy) for policy in POLICIES}, repeats=repeats)
        rounds = {policy: int(found.stats.rounds[0]) for policy, found in samples.results.items()}
        each = {policy: [seconds / rounds[policy] for seconds in samples.seconds[policy]] for policy in POLICIES}
        for policy, times in each.items():
            show(f"{name}, {policy}, ms", f"{Spread.of(times).median * 1e3:.2f}")
            show_ratio(f"{name}, {policy}: over greedy", Spread.of_ratios(times, each["greedy"]))
