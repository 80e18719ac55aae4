"""Draws figures of a few named things as panels of bars, in the colours of docs/img/accuracy.svg, which
follow the reader's light or dark page. Each panel has a scale of its own, and each bar its figure."""

from html import escape

WIDTH, LEFT, GAP = 860, 158, 26  # of the page, of the names before the first panel, between panels
ACROSS = 3
BAR, STEP = 15, 24  # height of a bar; distance of two
HEAD, ABOVE, BELOW = 72, 44, 14  # of the page; of a panel, for its title, and below it

STYLE = """
  text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328 }
  .title { font-size: 17px; font-weight: 600 }
  .head { font-weight: 600 }
  .quiet { fill: #59636e }
  .page { fill: #ffffff }
  .bar { fill: #8c959f }
  .ours { fill: #0072b2 }
  .bound { stroke: #d55e00; stroke-width: 1.5; stroke-dasharray: 4 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .page { fill: #0d1117 }
    .bar { fill: #6e7681 }
    .ours { fill: #56b4e9 }
    .bound { stroke: #f0883e }
  }
"""


def svg(title, subtitle, ours, panels):
    """`panels` are (title, note, {name: figure}, form, bound): the form writes a figure, and a bound that
    is not None is drawn as a line. The bars of `ours` have another colour."""
    names = list(panels[0][2])
    rows = -(-len(panels) // ACROSS)
    tall = ABOVE + STEP * len(names) + BELOW
    height = HEAD + rows * tall
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
           f'height="{height}" role="img" aria-labelledby="title">',
           f'<title id="title">{escape(title)}</title>', f"<style>{STYLE}</style>",
           f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
           text(20, 32, title, "title"), text(20, 54, subtitle, "quiet")]
    wide = (WIDTH - LEFT - GAP * ACROSS) / ACROSS
    for at, panel in enumerate(panels):
        x, y = LEFT + at % ACROSS * (wide + GAP), HEAD + at // ACROSS * tall
        if at % ACROSS == 0:
            out += [text(LEFT - 12, y + ABOVE + STEP * row + 12, name, "", "end")
                    for row, name in enumerate(names)]
        out += drawn(panel, ours, x, y, wide)
    return "\n".join(out) + "\n</svg>\n"


def drawn(panel, ours, x, y, wide):
    title, note, figures, form, bound = panel
    out = [text(x, y + 16, title, "head"), text(x, y + 33, note, "quiet")]
    room = wide - 58  # what is left of a panel beside its longest figure
    most = max([*figures.values(), bound or 0]) or 1
    for row, (name, figure) in enumerate(figures.items()):
        top, length = y + ABOVE + STEP * row, max(figure / most * room, 1)
        kind = "bar ours" if name == ours else "bar"
        out.append(f'<rect class="{kind}" x="{x:.1f}" y="{top}" width="{length:.1f}" height="{BAR}"/>')
        out.append(text(x + length + 6, top + 12, form.format(figure)))
    if bound is not None:
        at, low = x + bound / most * room, y + ABOVE + STEP * len(figures) - 6
        out.append(f'<line class="bound" x1="{at:.1f}" y1="{y + ABOVE - 4}" x2="{at:.1f}" y2="{low}"/>')
    return out


def text(x, y, says, kind="", anchor="start"):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(says)}</text>'
