"""The table of drafters."""

from jaxspec.bench.drafters import markdown


def test_the_table_counts_rounds_and_not_tasks_over_all():
    qa = {"rounds": 10, "emitted": 20, "drafted": 40, "accepted": 10}
    rag = {"rounds": 30, "emitted": 30, "drafted": 60, "accepted": 0}
    found = {"eagle, tree, temperature 0": {"qa": qa, "rag": rag}, "n-gram, temperature 1": {"rag": rag}}
    assert markdown(found).splitlines() == [
        "| drafter | qa | rag | all | kept |",
        "|---|---|---|---|---|",
        "| eagle, tree, T = 0 | 2.00 | 1.00 | **1.25** | 10% |",
        "| n-gram, T = 1 |  | 1.00 | **1.00** | 0% |",
    ]
