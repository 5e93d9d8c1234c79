#include "collectives/calls/call.h"

#include <fmt/format.h>

#include "collectives/calls/types.h"

namespace towline::collectives {
namespace {

uint64_t digest_of(const uint64_t* counts, int size) {
  uint64_t digest = 0xcbf29ce484222325ULL;
  for (int rank = 0; rank < size; ++rank)
    digest = (digest ^ counts[rank]) * 0x100000001b3ULL + static_cast<uint64_t>(rank);
  return digest;
}

// counts null: `count` each. offsets null: contiguous parts.
void lay_out(Parts& parts, int size, uint64_t element, void* base, const void* const* list,
             const uint64_t* counts, uint64_t count, const uint64_t* offsets) {
  if (parts.at.size() != static_cast<size_t>(size)) parts.resize(static_cast<size_t>(size));
  uint8_t** const at = parts.at.data();
  uint64_t* const bytes = parts.bytes.data();
  uint64_t behind = 0;
  for (int rank = 0; rank < size; ++rank) {
    const uint64_t elements = counts != nullptr ? counts[rank] : count;
    bytes[rank] = elements * element;
    if (list != nullptr) {
      at[rank] = static_cast<uint8_t*>(const_cast<void*>(list[rank]));
    } else if (base != nullptr) {
      at[rank] = static_cast<uint8_t*>(base) + (offsets != nullptr ? offsets[rank] * element : behind);
    } else {
      at[rank] = nullptr;
    }
    behind += bytes[rank];
  }
}

}  // namespace

std::string describe(const Header& header) {
  if (header.number == kFormingNumber) return "forming the communicator";
  if (header.op == kOpenWindowOp) return fmt::format("opening a window #{}", header.number);
  if (header.op == kCloseWindowOp) return fmt::format("closing a window #{}", header.number);
  if (header.op == kPutOp) return fmt::format("moving {} bytes in a window", header.count);
  if (header.op == kSignalOp) return fmt::format("signalling rank {}", header.root);
  if (header.op == kWaitSignalOp) return fmt::format("waiting for a signal of rank {}", header.root);
  std::string text = fmt::format("{} #{}", op_name(header.op), header.number);
  if (header.op == TOWLINE_COLLECTIVE_BARRIER) return text;
  if (header.digest != 0) {
    text += fmt::format(" of {} with counts {:016x}", datatype_name(header.datatype), header.digest);
  } else if (header.op == TOWLINE_COLLECTIVE_ALL_TO_ALL_V) {
    text += fmt::format(" of {}", datatype_name(header.datatype));
  } else {
    text += fmt::format(" of {} {}", header.count, datatype_name(header.datatype));
  }
  if (reduces(header.op)) text += fmt::format(" ({})", reduction_name(header.reduction));
  if (has_root(header.op)) text += fmt::format(", root {}", header.root);
  return text;
}

std::string describe_mismatch(int rank, const Header& header, int other_rank, const Header& other) {
  return fmt::format("ranks disagree: rank {} is at {}, rank {} at {}", rank, describe(header), other_rank,
                     describe(other));
}

void take_apart(const towline_collective_t& call, int rank, int size, uint64_t number, Deadline deadline,
                Call& result) {
  const uint64_t element = datatype_bytes(call.datatype);
  result.op = call.op;
  result.datatype = call.datatype;
  result.reduction = call.reduction;
  result.divisor = static_cast<uint32_t>(size);
  result.root = call.root;
  result.element = element;
  result.input = static_cast<const uint8_t*>(call.input);
  result.output = static_cast<uint8_t*>(call.output);
  result.bytes = call.count * element;
  result.deadline = deadline;
  result.compared = false;
  result.header = {};
  result.header.number = number;
  result.header.count = call.count;
  result.header.op = static_cast<uint8_t>(call.op);
  result.header.datatype = static_cast<uint8_t>(call.datatype);
  if (reduces(call.op)) result.header.reduction = static_cast<uint8_t>(call.reduction);
  if (has_root(call.op)) result.header.root = call.root;
  const auto inputs = [&](const uint64_t* counts) {
    lay_out(result.in, size, element, const_cast<void*>(call.input), call.inputs, counts, call.count,
            call.input_offsets);
  };
  const auto outputs = [&](const uint64_t* counts) {
    lay_out(result.out, size, element, call.output, const_cast<const void* const*>(call.outputs), counts,
            call.count, call.output_offsets);
  };
  switch (call.op) {
    case TOWLINE_COLLECTIVE_BARRIER:
      result.header = {};
      result.header.number = number;
      result.bytes = 0;
      break;
    case TOWLINE_COLLECTIVE_BROADCAST:
      if (call.output == nullptr) result.output = static_cast<uint8_t*>(const_cast<void*>(call.input));
      if (call.input == nullptr || rank != call.root) result.input = result.output;
      break;
    case TOWLINE_COLLECTIVE_ALL_GATHER:
      outputs(nullptr);
      break;
    case TOWLINE_COLLECTIVE_ALL_GATHER_V:
      outputs(call.output_counts);
      result.bytes = result.out.bytes[static_cast<size_t>(rank)];
      result.header.count = 0;
      result.header.digest = digest_of(call.output_counts, size);
      break;
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER:
      inputs(nullptr);
      break;
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER_V:
      inputs(call.input_counts);
      result.bytes = result.in.bytes[static_cast<size_t>(rank)];
      result.header.count = 0;
      result.header.digest = digest_of(call.input_counts, size);
      break;
    case TOWLINE_COLLECTIVE_GATHER:
      if (rank == call.root) outputs(nullptr);
      break;
    case TOWLINE_COLLECTIVE_SCATTER:
      if (rank == call.root) inputs(nullptr);
      break;
    case TOWLINE_COLLECTIVE_ALL_TO_ALL:
      inputs(nullptr);
      outputs(nullptr);
      break;
    case TOWLINE_COLLECTIVE_ALL_TO_ALL_V:
      inputs(call.input_counts);
      outputs(call.output_counts);
      result.header.count = 0;
      break;
    default:
      break;
  }
}

}  // namespace towline::collectives
