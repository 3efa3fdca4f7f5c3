"""Searches n-grams by the definition."""


def search(text: list[int], max_ngram: int, min_ngram: int) -> int | None:
    """The position of the last token of the longest, then latest, earlier occurrence of the end."""
    for size in range(min(max_ngram, len(text) - 1), min_ngram - 1, -1):
        for last in range(len(text) - 2, size - 2, -1):
            if text[last - size + 1 : last + 1] == text[len(text) - size :]:
                return last
    return None
