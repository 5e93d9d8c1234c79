// What help() says of the classes here: the docstrings of the module's stub, which editors and type checkers read. The build
// writes the table (docs_table.py).
#pragma once

#include <string_view>

namespace towline::python {

// Of "Class" or "Class.member"; "" if the stub says nothing.
[[nodiscard]] const char* doc_of(std::string_view name) noexcept;

}  // namespace towline::python
