// Source-compatible with NIXL's header of this name: enumerators by name in streams.
#pragma once

#include <ostream>

#include <nixl_types.h>

inline std::ostream& operator<<(std::ostream& out, const nixl_mem_t value) {
  return out << nixlEnumStrings::memTypeStr(value);
}
inline std::ostream& operator<<(std::ostream& out, const nixl_xfer_op_t value) {
  return out << nixlEnumStrings::xferOpStr(value);
}
inline std::ostream& operator<<(std::ostream& out, const nixl_status_t value) {
  return out << nixlEnumStrings::statusStr(value);
}
