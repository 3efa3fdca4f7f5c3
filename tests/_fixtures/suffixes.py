"""Guesses from suffixes by the definition."""

import numpy as np

ONE = np.float32(1)


def common(text, end):
    """Returns how many tokens at the ends of two texts are equal."""
    count = 0
    while count < min(len(text), len(end)) and text[-1 - count] == end[-1 - count]:
        count += 1
    return count


def walk(occurrences, drafter, match):
    """The most frequent continuation of all `occurrences`, with its `cum_accept_prob`."""
    most = min(drafter.max_drafts, int(np.floor(drafter.factor * match + drafter.offset)))
    alive, total, cum_accept_prob, found = occurrences, len(occurrences), ONE, []
    for step in range(most):
        following = [after[step] for after in alive if step < len(after)]
        if not following:
            break
        token = max(following, key=following.count)  # the first of equal ones
        cum_accept_prob = cum_accept_prob * np.float32(following.count(token)) / np.float32(total)
        if cum_accept_prob < drafter.min_probability:
            break
        found.append((token, cum_accept_prob))
        alive, total = [after for after in alive if after[step : step + 1] == [token]], following.count(token)
    return found


def suffix_guess(text, drafter, earlier=()):
    """The drafts after `text`, with their `cum_accept_prob`; `earlier` are texts, the oldest first."""
    end, best = text[-drafter.max_match :], []
    continue_ = [
        (text[: i + 1], (text[i + 1 :] * drafter.max_drafts)[: drafter.max_drafts]) for i in range(len(text) - 1)
    ]
    stored = [(other[: i + 1], other[i + 1 :]) for other in earlier for i in range(len(other) - 1)]
    for source in (continue_, stored):
        matches = [(common(before, end), after) for before, after in reversed(source)]
        matches = sorted(matches, key=lambda match: -match[0])[: drafter.candidates]
        for size in sorted({size for size, _ in matches if size > 0}, reverse=True):
            found = walk([after for other, after in matches if other >= size], drafter, size)
            if sum(cum_accept_prob for _, cum_accept_prob in found) > sum(
                cum_accept_prob for _, cum_accept_prob in best
            ):
                best = found
    return best
