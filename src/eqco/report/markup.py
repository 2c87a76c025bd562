"""Pieces of HTML. Every text that comes from a record passes through `escape` here."""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from eqco.experiments.coordinates import distinct, in_order
from eqco.experiments.experiment import Comparison
from eqco.report.tables import kind_words
from eqco.report.words import words

__all__ = ["command", "comparison_html", "data_script", "link", "table_html"]


def data_script(data: Mapping[str, Any]) -> str:
    """JSON that may stand inside a script element.

    >>> data_script({"a": "</script>"})
    '{"a":"\\\\u003c/script>"}'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def link(address: str, text: str) -> str:
    """A link to a file beside the page.

    >>> link("results/a b.json", "<b>")
    '<a href="results/a%20b.json">&lt;b&gt;</a>'
    """
    return f'<a href="{escape(quote(address))}">{escape(text)}</a>'


def command(text: str) -> str:
    """A command to copy."""
    return f'<p class="command"><code>{escape(text)}</code></p>'


def table_html(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A plain table; the first column names its rows."""
    head = f'<th scope="col" class="corner">{escape(header[0])}</th>'
    head += "".join(f'<th scope="col">{escape(name)}</th>' for name in header[1:])
    body = "".join(
        f'<tr><th scope="row">{escape(line[0])}</th>'
        + "".join(f"<td>{unbroken(text)}</td>" for text in line[1:])
        + "</tr>"
        for line in lines
    )
    return framed(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>", "plain")


def unbroken(text: str) -> str:
    """Numbers stay with their units where a line must be broken.

    >>> unbroken("4.5 ms, 2 MB").replace("\u00a0", "~")
    '4.5~ms, 2~MB'
    """
    return re.sub(r"(?<=\d) (?=\w)", "\u00a0", escape(text))


def framed(inside: str, kind: str = "") -> str:
    """A table that scrolls by itself where it is too wide."""
    look = f' class="{kind}"' if kind else ""
    return f'<div class="scroll" tabindex="0"><table{look}>{inside}</table></div>'


def comparison_html(cells: Sequence[Comparison], *, caption: str = "") -> str:
    """Our numbers, and in columns of their own the paper's."""
    columns = in_order(cell.column for cell in cells)
    rows = distinct(cell.row for cell in cells)
    found = {(cell.row, cell.column): cell for cell in cells}
    printed = {cell.column for cell in cells if cell.published is not None}
    labelled = any(cell.kind for cell in cells)
    places = max(decimals(cell.published) for cell in cells)
    usual = max(len(cell.values) for cell in cells)
    deep = ' rowspan="2"' if printed else ""
    first = [f'<th{deep} class="corner"></th>'] + [
        f'<th scope="col"{deep} class="word">f̂ is</th>'
    ] * labelled
    second = []
    for column in columns:
        if column in printed:
            first.append(
                f'<th scope="colgroup" colspan="2" class="wide">{escape(words(column))}</th>'
            )
            second.append('<th scope="col">ours</th><th scope="col" class="paper">paper</th>')
        else:
            first.append(f'<th scope="col"{deep}>{escape(words(column))}</th>')
    head = f"<tr>{''.join(first)}</tr>" + (f"<tr>{''.join(second)}</tr>" if printed else "")
    body = ""
    for row in rows:
        here = [found.get((row, column)) for column in columns]
        body += f'<tr><th scope="row">{escape(words(row))}</th>'
        if labelled:
            body += f'<td class="word">{escape(kind_words(here))}</td>'
        for column, cell in zip(columns, here, strict=True):
            body += f"<td>{ours_html(cell, usual)}</td>"
            if column in printed:
                body += f'<td class="paper">{printed_number(cell, places)}</td>'
        body += "</tr>"
    below = f'<p class="hint">{escape(caption)}</p>' if caption else ""
    return framed(f"<thead>{head}</thead><tbody>{body}</tbody>") + below


def printed_number(cell: Comparison | None, places: int) -> str:
    """The paper's number, with as many decimals as its neighbours have."""
    if cell is None or cell.published is None:
        return ""
    return f"{cell.published:.{places}f}"


def decimals(number: float | None) -> int:
    """Decimals a number was printed with.

    >>> decimals(67.5), decimals(6.0), decimals(None)
    (1, 0, 0)
    """
    text = "" if number is None else f"{number:g}"
    return len(text.partition(".")[2])


def ours_html(cell: Comparison | None, usual: int) -> str:
    """Our mean, half the spread over seeds, and their number where it is not the usual one.

    >>> ours_html(Comparison(row="", column="", values=(1.70, 1.72)), usual=3)
    '1.71 <span class="small">±0.01 × 2</span>'
    """
    if cell is None:
        return "–"
    if not cell.values:
        return '<span class="small">not run here</span>'
    text = f"{cell.mean:.2f}" if abs(cell.mean) < 100 else f"{cell.mean:.0f}"
    text = text.replace("-", "−")
    notes = [f"±{cell.spread / 2:.2f}"] if len(cell.values) > 1 else []
    if cell.interval is not None:
        notes.append(f"[{cell.interval[0]:.1f}, {cell.interval[1]:.1f}]")
    notes += [f"× {len(cell.values)}"] if len(cell.values) != usual else []
    return f'{text} <span class="small">{" ".join(notes)}</span>' if notes else text
