"""`jaxspec plan`: whether speculation pays on this device and these questions, with which drafter and how many drafts.

roofline.py        the device's bandwidth and peak, and what a decoding step asks of them
acceptance.py      how many drafts are kept, question by question
costs.py           what drafting, verification and a round take
prediction.py      the speed-up that follows, by arithmetic alone
check.py           the same speed-up, measured
recommendation.py  what to use at each batch, and from which batch on nothing pays
plan.py            all of these in order
report.py          the figures as rows of text, and for JSON
"""
