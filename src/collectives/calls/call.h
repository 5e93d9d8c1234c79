// An operation in the form that the algorithms use: pointers and bytes of every part, by the group's own
// indices.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/calls/late_deadline.h"
#include "towline/collectives.h"

namespace towline::collectives {

// Every rank must agree on this before a byte is read. Compared as bytes.
struct Header {
  uint64_t number = 0;  // of the operation in its communicator
  uint64_t count = 0;   // elements; 0 if ranks' counts may differ
  uint64_t digest = 0;  // of the counts, which must be the same on all ranks
  uint8_t op = 0;
  uint8_t datatype = 0;
  uint8_t reduction = 0;
  uint8_t step = 0;  // step of an operation that has several
  int32_t root = 0;
  friend bool operator==(const Header&, const Header&) = default;
};
static_assert(sizeof(Header) == 32);

// Operations beyond those of the C API, in headers only.
constexpr uint8_t kOpenWindowOp = 200;
constexpr uint8_t kCloseWindowOp = 201;
constexpr uint8_t kPutOp = 202;
constexpr uint8_t kSignalOp = 203;
constexpr uint8_t kWaitSignalOp = 204;

// The header of a step of opening or closing a window.
inline Header window_header(uint8_t op, uint64_t number, uint8_t step) {
  Header header;
  header.op = op;
  header.number = number;
  header.step = step;
  return header;
}

// The number of the barrier that ends forming.
constexpr uint64_t kFormingNumber = ~uint64_t{0};

// "all_reduce #12 of 1024 float32 (sum)".
std::string describe(const Header& header);
// "rank 0 is at all_reduce #12 of ..., rank 3 at barrier #12".
std::string describe_mismatch(int rank, const Header& header, int other_rank, const Header& other);

// One part a rank, in bytes.
struct Parts {
  std::vector<uint8_t*> at;
  std::vector<uint64_t> bytes;
  void resize(size_t size) {
    at.resize(size);
    bytes.resize(size);
  }
};

// Filled from a call without allocating once the vectors have their size.
struct Call {
  Header header;
  uint32_t op = 0;
  uint32_t datatype = 0;
  uint32_t reduction = 0;
  uint32_t divisor = 1;  // AVG
  int root = 0;
  uint64_t element = 1;            // bytes
  const uint8_t* input = nullptr;  // if all of it is one buffer
  uint8_t* output = nullptr;
  uint64_t bytes = 0;            // of that buffer, or of this rank's part
  Parts in;                      // parts for the ranks: reduce_scatter, scatter (root), all_to_all
  Parts out;                     // parts of the ranks: all_gather, gather (root), all_to_all
  Deadline deadline;             // if `late` is null
  LateDeadline* late = nullptr;  // of a small operation of one host's ranks
  bool streaming = false;        // results are stored past the caches, whatever the size of this part
  bool compared = false;         // a later part of an operation; its headers were compared

  Deadline ends_by() const noexcept { return late == nullptr ? deadline : late->get(); }
};

inline bool has_lists(const towline_collective_t& call) noexcept {
  return call.inputs != nullptr || call.outputs != nullptr || call.input_counts != nullptr ||
         call.output_counts != nullptr || call.input_offsets != nullptr || call.output_offsets != nullptr;
}

// Field by field: a caller has just stored them one by one, and the processor waits before it loads several of them at once.
inline bool same_call(const towline_collective_t& a, const towline_collective_t& b) noexcept {
  return a.count == b.count && a.input == b.input && a.output == b.output && a.op == b.op &&
         a.datatype == b.datatype && a.reduction == b.reduction && a.root == b.root && a.inputs == b.inputs &&
         a.outputs == b.outputs && a.input_counts == b.input_counts && a.output_counts == b.output_counts &&
         a.input_offsets == b.input_offsets && a.output_offsets == b.output_offsets && a.tag == b.tag &&
         std::bit_cast<uint64_t>(a.factor) == std::bit_cast<uint64_t>(b.factor) &&
         a.struct_size == b.struct_size;
}

// Converts a checked call of the C API. Does not read `inputs`/`outputs` that the operation does not use.
void take_apart(const towline_collective_t& call, int rank, int size, uint64_t number, Deadline deadline,
                Call& result);

}  // namespace towline::collectives
