"""Verification functions as engines write them, with uniforms: right ones, and ones with a planted fault."""

import numpy as np

UNIFORMS = 5  # one a draft, one for what follows, and one to spare


def draw(weights, uniform):
    """The token whose share of the weights holds the uniform."""
    total, below = sum(weights), 0.0
    for token, weight in enumerate(weights):
        below += weight / total
        if uniform < below:
            return token
    return max(token for token, weight in enumerate(weights) if weight > 0)


def residual(target, draft, scale=1.0):
    weights = [max(scale * a - b, 0.0) for a, b in zip(target, draft, strict=True)]
    return weights if sum(weights) > 1e-12 else target


def lists(*arrays):
    return [array.tolist() for array in arrays]


def token_rule(target, draft, tokens, uniforms):
    target, draft, tokens, uniforms = lists(target, draft, tokens, uniforms)
    for i, token in enumerate(tokens):
        if uniforms[i] * draft[i][token] >= target[i][token]:
            return i, draw(residual(target[i], draft[i]), uniforms[3])
    return len(tokens), draw(target[-1], uniforms[3])


def block_rule(target, draft, tokens, uniforms, last=None):
    target, draft, tokens, uniforms = lists(target, draft, tokens, uniforms)
    count, ratio, product, accepted, kept = len(tokens), 1.0, 1.0, 0, 1.0
    for i, token in enumerate(tokens):
        ratio = min(1.0, ratio * target[i][token] / draft[i][token])
        product *= target[i][token] / draft[i][token]
        if i + 1 == count:
            threshold = ratio if last is None else last(product)
        else:
            mass = sum(max(ratio * a - b, 0.0) for a, b in zip(target[i + 1], draft[i + 1], strict=True))
            threshold = mass / (mass + 1 - ratio) if mass + 1 - ratio > 0 else 1.0
        if uniforms[i] < threshold:
            accepted, kept = i + 1, ratio
    if accepted == count:
        return accepted, draw(target[-1], uniforms[3])
    return accepted, draw(residual(target[accepted], draft[accepted], kept), uniforms[3])


def hsd_published(target, draft, tokens, uniforms):
    """Accepts the whole draft with its joint ratio, and not with the capped one."""
    return block_rule(target, draft, tokens, uniforms, last=lambda product: min(1.0, product))


def third_draft_unverified(target, draft, tokens, uniforms):
    accepted, token = token_rule(target, draft, tokens, uniforms)
    return (3, draw(target[-1].tolist(), uniforms[3])) if accepted == 2 < len(tokens) else (accepted, token)


def first_failure_of_a_block(target, draft, tokens, uniforms):
    """Stops at the first prefix that fails, as the token rule does, with the thresholds of a block."""
    accepted, token = block_rule(target, draft, tokens, uniforms)
    if len(tokens) == 2 and accepted == 2:
        alone, first = block_rule(target[:2], draft[:1], tokens[:1], uniforms)
        return (accepted, token) if alone == 1 else (0, first)
    return accepted, token


def block_residual_without_the_ratio(target, draft, tokens, uniforms):
    accepted, token = block_rule(target, draft, tokens, uniforms)
    if accepted == len(tokens):
        return accepted, token
    return accepted, draw(residual(*lists(target[accepted], draft[accepted])), uniforms[3])


def draft_at_another_temperature(target, draft, tokens, uniforms):
    warm = np.sqrt(draft)
    return token_rule(target, warm / warm.sum(axis=1, keepdims=True), tokens, uniforms)


def drops_unlikely_drafts(target, draft, tokens, uniforms):
    """Verifies no draft, nor any after it, that the draft model itself thought unlikely."""
    count = next((i for i, token in enumerate(tokens) if draft[i, token] < 0.45), len(tokens))
    return token_rule(target[: count + 1], draft[:count], tokens[:count], uniforms)


def accepts_at_zero(target, draft, tokens, uniforms):
    for i, token in enumerate(tokens):
        if uniforms[i] > target[i, token] / draft[i, token]:
            return i, draw(residual(target[i].tolist(), draft[i].tolist()), uniforms[3])
    return len(tokens), draw(target[-1].tolist(), uniforms[3])


def silently_greedy(target, draft, tokens, uniforms):
    best = target.argmax(axis=1)
    count = next((i for i, token in enumerate(tokens) if token != best[i]), len(tokens))
    return [*tokens[:count], best[count]]


def _or_else(rest, target, draft, tokens, uniforms):
    """The token rule, with something else drawn after a rejection: from `rest(target, draft, position)`."""
    accepted, token = token_rule(target, draft, tokens, uniforms)
    if accepted == len(tokens):
        return accepted, token
    return accepted, draw(rest(*lists(target, draft), accepted), uniforms[3])


def target_after_rejection(*given):
    return _or_else(lambda target, draft, i: target[i], *given)


def residual_of_the_last_position(*given):
    return _or_else(lambda target, draft, i: residual(target[len(draft) - 1], draft[-1]), *given)


def rejected_draft_again(*given):
    """Has no residual where the draft is certain."""
    return _or_else(lambda target, draft, i: target[i] if max(draft[i]) == 1 else residual(target[i], draft[i]), *given)


def residual_not_clamped(target, draft, tokens, uniforms):
    """Draws from the absolute difference."""
    accepted, token = token_rule(target, draft, tokens, uniforms)
    if accepted == len(tokens):
        return accepted, token
    weights = np.abs(target[accepted] - draft[accepted])
    return accepted, draw((weights if weights.any() else target[accepted]).tolist(), uniforms[3])


def residual_without_normalizing(target, draft, tokens, uniforms):
    """Looks the uniform up among differences that do not sum to 1; what lies beyond is the last token."""
    accepted, token = token_rule(target, draft, tokens, uniforms)
    if accepted == len(tokens):
        return accepted, token
    below = np.cumsum(np.maximum(target[accepted] - draft[accepted], 0))
    return accepted, min(int(np.searchsorted(below, uniforms[3], side="right")), below.size - 1)


def bonus_of_the_last_position(target, draft, tokens, uniforms):
    accepted, token = token_rule(target, draft, tokens, uniforms)
    return accepted, draw(target[-2].tolist(), uniforms[3]) if accepted == len(tokens) else token


def bonus_of_the_draft(target, draft, tokens, uniforms):
    accepted, token = token_rule(target, draft, tokens, uniforms)
    return accepted, draw(draft[-1].tolist(), uniforms[3]) if accepted == len(tokens) else token


def ratio_upside_down(target, draft, tokens, uniforms):
    for i, token in enumerate(tokens):
        if uniforms[i] * target[i, token] >= draft[i, token]:
            return i, draw(residual(target[i].tolist(), draft[i].tolist()), uniforms[3])
    return len(tokens), draw(target[-1].tolist(), uniforms[3])


def draft_of_the_next_position(target, draft, tokens, uniforms):
    """Divides by the draft's probability one position on."""
    return token_rule(target, np.roll(draft, -1, axis=0) + 1e-9, tokens, uniforms)


def one_uniform_for_two(target, draft, tokens, uniforms):
    return token_rule(target, draft, tokens, uniforms[[0, 0, 2, 3, 4]])


def uniform_of_acceptance_again(target, draft, tokens, uniforms):
    """Draws what follows with the uniform that accepted."""
    return token_rule(target, draft, tokens, uniforms[[0, 1, 2, 0, 4]])


def argmax_of_the_draft(target, draft, tokens, uniforms):
    """Picks its own greedy drafts, and verifies as if it had drawn them."""
    best = draft.argmax(axis=1)
    accepted, token = token_rule(target, draft, best, uniforms)
    return [*best[:accepted], token]


def least_acceptance_of_the_batch(target, draft, tokens, uniforms):
    """Another row accepts as many as the spare uniform says, and both go on from there with a fresh residual."""
    accepted, token = token_rule(target, draft, tokens, uniforms)
    other = int(uniforms[4] * (len(tokens) + 1))
    if other >= accepted:
        return accepted, token
    return other, draw(residual(*lists(target[other], draft[other])), uniforms[3])


def typical_acceptance(target, draft, tokens, uniforms):
    for i, token in enumerate(tokens):
        if target[i, token] < min(0.3, 0.6 * np.exp((target[i] * np.log(target[i] + 1e-9)).sum())):
            return i, draw(target[i].tolist(), uniforms[3])
    return len(tokens), draw(target[-1].tolist(), uniforms[3])


def emits_after_the_rejection(target, draft, tokens, uniforms):
    """Drops the rejected draft alone, and keeps those after it."""
    accepted, token = token_rule(target, draft, tokens, uniforms)
    return [*tokens[:accepted], token, *tokens[accepted + 1 :]]


def not_a_number(target, draft, tokens, uniforms):
    """Normalizes a residual that may be empty."""
    accepted, token = token_rule(target, draft, tokens, uniforms)
    rest = np.maximum(target[0] - draft[0], 0)
    return accepted, token + 0 * (rest / rest.sum())[0]


def beyond_the_vocabulary(target, draft, tokens, uniforms):
    accepted, token = token_rule(target, draft, tokens, uniforms)
    below = np.cumsum(target[accepted].astype(np.float32) * np.float32(1 - 2e-7))
    return accepted, int(np.searchsorted(below, uniforms[3], side="right")) if accepted == len(tokens) else token


def recursive_rejection(target, draft, tokens, uniforms, *, most=3):
    """Several drafts: each is tried against what those before it have left, which `most` of them reduce."""
    several, count = tokens.shape
    alive, emitted = list(range(several)), []
    for i in range(count):
        left = target[alive[0], i].tolist()
        for j in alive:
            token, probs = int(tokens[j, i]), draft[j, i].tolist()
            if uniforms[j * count + i] * probs[token] < left[token]:
                break
            if alive.index(j) < most:
                left = _normalized(residual(left, probs))
        else:
            return [*emitted, draw(left if most >= len(alive) else residual(left, probs), uniforms[4])]
        emitted.append(token)
        alive = [j for j in alive if tokens[j, i] == token]
    return [*emitted, draw(target[alive[0], count].tolist(), uniforms[4])]


def several_against_one_target(*given):
    return recursive_rejection(*given, most=0)


def reduced_once(*given):
    """Tries the third draft against what the first has left."""
    return recursive_rejection(*given, most=1)


def tree_rejection(target, draft, tokens, parents, uniforms, *, replaced=False):
    """A tree: siblings in turn. `replaced` takes them as drawn with replacement."""
    at, emitted = -1, []
    while True:
        left, children = target[at + 1].tolist(), [i for i, parent in enumerate(parents) if parent == at]
        for i in children:
            token, probs = int(tokens[i]), draft[children[0] if replaced else i].tolist()
            if uniforms[i] * probs[token] < left[token]:
                break
            left = _normalized(residual(left, probs))
        else:
            return [*emitted, draw(left, uniforms[4])]
        emitted.append(token)
        at = i


def siblings_as_with_replacement(*given):
    return tree_rejection(*given, replaced=True)


def _normalized(weights):
    total = sum(weights)
    return [weight / total for weight in weights]


# The first are always run.
PLANTED = (
    accepts_at_zero,
    silently_greedy,
    target_after_rejection,
    residual_of_the_last_position,
    rejected_draft_again,
    residual_not_clamped,
    residual_without_normalizing,
    third_draft_unverified,
    hsd_published,
    first_failure_of_a_block,
    bonus_of_the_last_position,
    bonus_of_the_draft,
    ratio_upside_down,
    draft_of_the_next_position,
    one_uniform_for_two,
    uniform_of_acceptance_again,
    argmax_of_the_draft,
    least_acceptance_of_the_batch,
    typical_acceptance,
    block_residual_without_the_ratio,
    draft_at_another_temperature,
    drops_unlikely_drafts,
    emits_after_the_rejection,
    not_a_number,
    beyond_the_vocabulary,
)
