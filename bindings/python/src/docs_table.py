"""docs_table.py STUB OUT: writes the docstrings of a stub's classes and their members as a table in C++ (docs.h)."""

import ast
import pathlib
import sys

stub, out = map(pathlib.Path, sys.argv[1:])
rows = {}
for kind in ast.parse(stub.read_text()).body:
    if not isinstance(kind, ast.ClassDef):
        continue
    rows[kind.name] = ast.get_docstring(kind)
    for member in kind.body:
        if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
            rows.setdefault(f"{kind.name}.{member.name}", ast.get_docstring(member))
table = "\n".join(f'    {{"{name}", R"__({text})__"}},' for name, text in sorted(rows.items()) if text)
out.write_text(
    f"""// From {stub.name}.
#include "docs.h"

#include <algorithm>
#include <iterator>

namespace towline::python {{

namespace {{

struct Row {{
  std::string_view name;
  const char* text;
}};
constexpr Row kRows[] = {{
{table}
}};

}}  // namespace

const char* doc_of(std::string_view name) noexcept {{
  const Row* const row = std::ranges::lower_bound(kRows, name, {{}}, &Row::name);
  return row != std::end(kRows) && row->name == name ? row->text : "";
}}

}}  // namespace towline::python
"""
)
