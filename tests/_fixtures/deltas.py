"""Deltas of answers: a text pushed in pieces, and what its deltas say together."""

from jaxspec.serving.reader import merged


def parts(deltas):
    """Returns the thinking, the content and the calls of deltas."""
    texts, calls = {"reasoning": "", "content": ""}, []
    for one in deltas:
        if one.kind == "name":
            calls.append((one.text, ""))
        elif one.kind == "arguments":
            calls[-1] = (calls[-1][0], calls[-1][1] + one.text)
        else:
            texts[one.kind] += one.text
    return texts["reasoning"], texts["content"], calls


def in_pieces(made, text, cuts):
    """Returns the deltas of a reader to which a text is pushed in pieces that end at some places."""
    ends = [*cuts, len(text)]
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return merged([one for piece in pieces for one in made.push(piece)] + made.push("", last=True))
