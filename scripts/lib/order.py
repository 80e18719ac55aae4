"""Linker scripts by which functions that run together lie together."""

import re

import bench

SCRIPT = """\
/* WHY */
SECTIONS
{
  .text.NAME :
  {
PATTERNS  }
}
INSERT BEFORE .text;
"""


def write(path, name, why, patterns):
    """Writes the script for functions whose sections match the patterns, in their order."""
    lines = "".join(f"    *(.text*.{pattern})\n" for pattern in patterns)
    text = SCRIPT.replace("WHY", why).replace("NAME", name).replace("PATTERNS", lines)
    path.write_text(text)


def sizes(binary):
    """The size of each function in bytes, by its symbol."""
    fields = [line.split() for line in bench.run(["nm", "--print-size", str(binary)]).splitlines()]
    return {f[3]: int(f[1], 16) for f in fields if len(f) == 4 and f[2] in "tTwW"}


def without_hash(symbol):
    """A symbol without what differs from build to build: the hash that rustc adds at the end, or,
    in the library that comes with the compiler, for each crate; and the number of LLVM's copies."""
    symbol = re.sub(r"17h[0-9a-f]{16}E.*|\.\d+$", "", symbol)
    return re.sub(r"Cs[0-9A-Za-z]{8,13}_", "Cs*_", symbol)


def of_function(name):
    """A pattern for a function, by its symbol without what differs from build to build."""
    return f"{name}17h*" if name.startswith("_ZN") else f"{name}*"
