"""`jaxspec bench`: speculative against plain decoding on questions, by Spec-Bench's method.

setting.py    what is measured                 summary.py    figures from the lines of a run
cases.py      the drafters, each at each k     verdict.py    whether speculation paid, and what to change
groups.py     questions that are one batch     tables.py     the figures as rows of text
dialogue.py   turns, and who answers them      plots.py      the figures as pictures
measure.py    the clock
rounds.py     a round's draft and verification
meters.py     memory and energy
results.py    the file of lines, which an interrupted run goes on from
"""
