#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a file as a C array: embed.py INPUT OUTPUT NAME HEADER."""
import sys

data = open(sys.argv[1], "rb").read()
name = sys.argv[3]
with open(sys.argv[2], "w") as out:
    out.write(f'#include "{sys.argv[4]}"\n\nconst unsigned char {name}[] = {{\n')
    for i in range(0, len(data), 20):
        out.write("        " + ",".join(str(b) for b in data[i:i + 20]) + ",\n")
    out.write(f"}};\nconst size_t {name}_n = sizeof {name};\n")
