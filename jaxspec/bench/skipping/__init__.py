"""`jaxspec calibrate`: which attention and MLP blocks a target can draft without.

texts.py        what the search looks at: texts, or the target's answers to questions
prediction.py   the speed-up that follows from acceptance and cost, by arithmetic alone
measure.py      how often a draft without some blocks is accepted, in one pass over the texts
search.py       the set that promises most; knows neither models nor texts
calibrate.py    all of these in order
report.py       the figures as rows of text
"""
