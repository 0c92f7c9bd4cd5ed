# SPDX-License-Identifier: Apache-2.0
"""What Python knows of characters and utf8proc does not: src/text/jinja_unicode_tables.inc.

usage: make_unicode_tables.py OUT.inc
"""
import sys
import unicodedata

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(holds):
    out = []
    for c in CODES:
        if not holds(chr(c)):
            continue
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def table(name, holds):
    print(f"constexpr Range {name}[] = {{")
    row = ""
    for first, last in ranges(holds):
        item = f"{{0x{first:x}, 0x{last:x}}}, "
        if len(row) + len(item) > 96:
            print("    " + row.rstrip())
            row = ""
        row += item
    print("    " + row.rstrip().rstrip(",") + "};\n")



def special(name, change):
    print(f"constexpr Special {name}[] = {{")
    for c in CODES:
        to = change(chr(c))
        if len(to) == 1:
            continue
        codes = [f"0x{ord(x):x}" for x in to] + ["0"] * (3 - len(to))
        print(f"    {{0x{c:x}, {{{', '.join(codes)}}}}},")
    print("};\n")


def main():
    out, sys.stdout = sys.stdout, open(sys.argv[1], "w", encoding="ascii")
    print("// SPDX-License-Identifier: Apache-2.0")
    print(f"// Made by tests/text/make_unicode_tables.py; Unicode {unicodedata.unidata_version}.\n")
    category = unicodedata.category
    print("// Digits that are no decimals, numbers that are neither.")
    table("kDigits", lambda c: c.isdigit() and not c.isdecimal())
    table("kNumbers", lambda c: c.isnumeric() and not c.isdigit())
    print("// Lower and upper case that the category does not tell.")
    table("kOtherLower", lambda c: c.islower() and category(c) != "Ll")
    table("kOtherUpper", lambda c: c.isupper() and category(c) != "Lu")
    print("// What str.lower() looks past, beside a capital sigma, for a letter.")
    table("kIgnored", lambda c: ("A" + c + "\u03a3").lower().endswith("\u03c2")
          and ("1" + c + "\u03a3").lower().endswith("\u03c3"))
    print("// One character that becomes several.")
    special("kSpecialUpper", str.upper)
    special("kSpecialTitle", str.title)
    special("kSpecialLower", str.lower)
    sys.stdout.close()
    sys.stdout = out


if __name__ == "__main__":
    main()
