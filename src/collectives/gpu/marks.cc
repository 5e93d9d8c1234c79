#include "collectives/gpu/marks.h"

#include <fmt/format.h>

#include "collectives/calls/call.h"
#include "collectives/calls/types.h"

namespace towline::collectives::gpu {
namespace {

Header header_of(const Mark& mark) {
  Header header;
  header.number = mark.number;
  header.count = mark.count;
  header.digest = mark.digest;
  header.op = static_cast<uint8_t>(mark.op);
  header.datatype = static_cast<uint8_t>(mark.datatype);
  header.reduction = static_cast<uint8_t>(mark.reduction);
  header.root = mark.root;
  return header;
}

}  // namespace

uint32_t digest_of(const Mark& mark) {
  const uint64_t words[] = {mark.count,
                            mark.digest,
                            mark.tag,
                            mark.op,
                            mark.datatype,
                            mark.reduction,
                            static_cast<uint64_t>(mark.root)};
  uint64_t digest = 0xcbf29ce484222325;
  for (const uint64_t word : words) {
    digest = (digest ^ word) * 0x100000001b3;
    digest ^= digest >> 29;
  }
  const auto folded = static_cast<uint32_t>(digest ^ digest >> 32);
  return folded == 0 ? 1 : folded;
}

std::string text_of(const Mark& mark) {
  const Header header = header_of(mark);
  if (mark.op != TOWLINE_COLLECTIVE_SEND && mark.op != TOWLINE_COLLECTIVE_RECV)
    return collectives::describe(header);
  return fmt::format("{} of {} {} {} rank {} (tag {})", op_name(mark.op), mark.count,
                     datatype_name(mark.datatype), mark.op == TOWLINE_COLLECTIVE_SEND ? "to" : "from",
                     mark.root, mark.tag);
}

}  // namespace towline::collectives::gpu
