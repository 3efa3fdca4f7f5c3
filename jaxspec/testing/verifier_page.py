"""Writes the report about a verifier as a page."""

import html

from jaxspec.testing.verifier_report import VerifierReport

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.lossless { color: #14732e; } .biased { color: #b3261e; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; }
th, td { padding: 0.3rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
.number { text-align: right; padding-left: 1rem; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
@media (prefers-color-scheme: dark) { body { background: #1b1b1f; color: #e4e4e4; }
  .lossless { color: #7bd88f; } .biased { color: #ff8a80; } }
"""


def page(report: VerifierReport, name: str) -> str:
    """Returns the report as self-contained HTML.

    Args:
      report: result of `check_verifier`.
      name: name of the verifier.
    """
    look = "lossless" if report.lossless else "biased"
    how, distance = str(report).splitlines()[:2]
    verdict, _, how = how.partition(": ")
    facts = "".join(f"<p>{html.escape(line)}</p>" for line in (how, distance))
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(name)}: {verdict.lower()}</title><style>{_STYLE}</style>",
        f'<h1><code>{html.escape(name)}</code>: <span class="{look}">{verdict.lower()}</span></h1>{facts}',
    ]
    if report.counterexample is not None:
        parts.append(f"<h2>Counterexample</h2><p>{html.escape(report.counterexample)}</p>")
    if report.findings:
        found = "".join(f"<li>{html.escape(str(finding))}</li>" for finding in report.findings)
        parts.append(f"<h2>Findings</h2><ul>{found}</ul>")
    return "\n".join([*parts, "<h2>Cases</h2>", _table(report), "</html>\n"])


def _table(report: VerifierReport) -> str:
    names = ("total variation", "tokens a round", *(("at best",) if report.best_tokens_per_round is not None else ()))
    head = "".join(f'<th class="number">{name}</th>' for name in names)
    rows = []
    for case in report.cases:
        best = () if case.best_tokens_per_round is None else (f"{case.best_tokens_per_round:.3f}",)
        values = (f"{case.total_variation:.2g}", f"{case.tokens_per_round:.3f}", *best)
        cells = "".join(f'<td class="number">{value}</td>' for value in values)
        rows.append(f"<tr><td>{html.escape(case.description)}</td>{cells}</tr>")
    return f"<table><tr><th>case</th>{head}</tr>{''.join(rows)}</table>"
