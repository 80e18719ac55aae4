"""Tables for people."""


def show(heads, rows):
    """Prints rows of texts in columns, below their heads."""
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    for row in [heads, *rows]:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
