"""Forty prompts, as chats of one turn, padded for batching."""

import pathlib

import numpy as np

PROMPTS = (pathlib.Path(__file__).parents[1] / "system" / "prompts.txt").read_text().splitlines()
BATCH = 8


def encode(tokenizer, texts):
    """Returns token ids `[n, t]`, padded on the right, and their lengths."""
    rows = [tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in texts]
    lengths = np.asarray([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), max(96, lengths.max())), np.int32)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    return tokens, lengths
