"""Whether speculation wrote what plain decoding would: the same tokens, or as good a text.

partings.py   where two answers part, and whether the target nearly had a tie there
bleu.py       the likeness of texts to their references
compared.py   a difference of two sides over questions, and whether it is noise
quality.py    all of it from the records of a run
report.py     tables and sentences
"""
