#include "collectives/gpu/marks.h"

#include <fmt/format.h>

#include <bit>

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

uint64_t norm_tag(uint64_t width, float epsilon) {
  return static_cast<uint64_t>(std::bit_cast<uint32_t>(epsilon)) << 32 | static_cast<uint32_t>(width);
}

bool is_collective(const Mark& mark) {
  return mark.op < TOWLINE_COLLECTIVE_BATCH && mark.op != TOWLINE_COLLECTIVE_SEND &&
         mark.op != TOWLINE_COLLECTIVE_RECV;
}

std::string text_of(const Mark& mark) {
  if (mark.op == kUnknownOp) return "another operation";
  const Header header = header_of(mark);
  if (mark.op == TOWLINE_COLLECTIVE_ALL_REDUCE && mark.tag != 0)
    return fmt::format(
        "{} with RMSNorm of rows of {} (epsilon {}{}{})", collectives::describe(header),
        static_cast<uint32_t>(mark.tag), std::bit_cast<float>(static_cast<uint32_t>(mark.tag >> 32)),
        (mark.root & 1) != 0 ? "" : ", no residual", (mark.root & 2) != 0 ? "" : ", no weight");
  if (mark.op != TOWLINE_COLLECTIVE_SEND && mark.op != TOWLINE_COLLECTIVE_RECV)
    return collectives::describe(header);
  return fmt::format("{} of {} {} {} rank {} (tag {})", op_name(mark.op), mark.count,
                     datatype_name(mark.datatype), mark.op == TOWLINE_COLLECTIVE_SEND ? "to" : "from",
                     mark.root, mark.tag);
}

}  // namespace towline::collectives::gpu
