#include "collectives/checks.h"

#include "base/error.h"
#include "collectives/calls/types.h"

namespace towline::collectives {
namespace {

class Checker {
 public:
  Checker(const towline_collective_t& call, int rank, int size)
      : call_(call), rank_(rank), size_(size), element_(datatype_bytes(call.datatype)) {}

  void check() const {
    if (call_.op >= TOWLINE_COLLECTIVE_BATCH)
      fail(Status::kInvalidArgument, "unknown operation {}", call_.op);
    if (element_ == 0) fail(Status::kInvalidArgument, "{}: unknown datatype {}", name(), call_.datatype);
    const bool any = call_.op == TOWLINE_COLLECTIVE_RECV && call_.root == TOWLINE_ANY_RANK;
    if (has_root(call_.op) && !any && (call_.root < 0 || call_.root >= size_))
      fail(Status::kOutOfRange, "{}: no rank {} among {}", name(), call_.root, size_);
    if (reduces(call_.op) && !can_reduce(call_.datatype, call_.reduction))
      fail(Status::kUnsupported, "{}: {} can't be reduced by {}", name(), datatype_name(call_.datatype),
           reduction_name(call_.reduction));
    if (too_many(call_.count)) fail(Status::kOutOfRange, "{}: {} elements are too many", name(), call_.count);
    check_buffers();
  }

 private:
  const char* name() const { return op_name(call_.op); }

  // All ranks' parts of so many elements must have fewer than 2^60 bytes.
  bool too_many(uint64_t elements) const noexcept {
    constexpr uint64_t kMostBytes = uint64_t{1} << 60;
    uint64_t bytes = 0;
    return __builtin_mul_overflow(elements, element_ * static_cast<uint64_t>(size_), &bytes) ||
           bytes > kMostBytes;
  }

  void need(const void* pointer, const char* what, uint64_t elements) const {
    if (pointer == nullptr && elements != 0)
      fail(Status::kInvalidArgument, "{}: {} is null, but {} elements are needed there", name(), what,
           elements);
  }
  void need_parts(const void* base, const void* const* list, const uint64_t* counts, const char* what) const {
    for (int rank = 0; rank < size_; ++rank) {
      const uint64_t elements = counts != nullptr ? counts[rank] : call_.count;
      if (counts != nullptr && too_many(elements))
        fail(Status::kOutOfRange, "{}: {} elements for rank {} are too many", name(), elements, rank);
      if (list == nullptr)
        need(base, what, elements);
      else if (list[rank] == nullptr && elements != 0)
        fail(Status::kInvalidArgument, "{}: {}s[{}] is null, but {} elements are needed there", name(), what,
             rank, elements);
    }
  }
  void need_counts(const uint64_t* counts, const char* what) const {
    if (counts == nullptr)
      fail(Status::kInvalidArgument, "{}: {} is null; it has one entry a rank", name(), what);
  }
  void inputs(const uint64_t* counts) const { need_parts(call_.input, call_.inputs, counts, "input"); }
  void outputs(const uint64_t* counts) const {
    need_parts(call_.output, const_cast<const void* const*>(call_.outputs), counts, "output");
  }

  void check_buffers() const {
    const bool is_root = rank_ == call_.root;
    switch (call_.op) {
      case TOWLINE_COLLECTIVE_ALL_REDUCE:
        need(call_.input, "input", call_.count);
        need(call_.output, "output", call_.count);
        break;
      case TOWLINE_COLLECTIVE_REDUCE:
        need(call_.input, "input", call_.count);
        if (is_root) need(call_.output, "output", call_.count);
        break;
      case TOWLINE_COLLECTIVE_BROADCAST:
        need(is_root && call_.input != nullptr ? call_.input
             : call_.output != nullptr         ? call_.output
                                               : call_.input,
             is_root ? "input" : "output", call_.count);
        break;
      case TOWLINE_COLLECTIVE_ALL_GATHER:
        need(call_.input, "input", call_.count);
        outputs(nullptr);
        break;
      case TOWLINE_COLLECTIVE_ALL_GATHER_V:
        need_counts(call_.output_counts, "output_counts");
        need(call_.input, "input", call_.output_counts[rank_]);
        outputs(call_.output_counts);
        break;
      case TOWLINE_COLLECTIVE_REDUCE_SCATTER:
        inputs(nullptr);
        need(call_.output, "output", call_.count);
        break;
      case TOWLINE_COLLECTIVE_REDUCE_SCATTER_V:
        need_counts(call_.input_counts, "input_counts");
        inputs(call_.input_counts);
        need(call_.output, "output", call_.input_counts[rank_]);
        break;
      case TOWLINE_COLLECTIVE_GATHER:
        need(call_.input, "input", call_.count);
        if (is_root) outputs(nullptr);
        break;
      case TOWLINE_COLLECTIVE_SCATTER:
        if (is_root) inputs(nullptr);
        need(call_.output, "output", call_.count);
        break;
      case TOWLINE_COLLECTIVE_ALL_TO_ALL:
        inputs(nullptr);
        outputs(nullptr);
        break;
      case TOWLINE_COLLECTIVE_ALL_TO_ALL_V:
        need_counts(call_.input_counts, "input_counts");
        need_counts(call_.output_counts, "output_counts");
        inputs(call_.input_counts);
        outputs(call_.output_counts);
        if (call_.input_counts[rank_] != call_.output_counts[rank_])
          fail(Status::kInvalidArgument, "{}: sends {} elements to itself, but expects {}", name(),
               call_.input_counts[rank_], call_.output_counts[rank_]);
        break;
      case TOWLINE_COLLECTIVE_SEND:
        need(call_.input, "input", call_.count);
        break;
      case TOWLINE_COLLECTIVE_RECV:
        need(call_.output, "output", call_.count);
        break;
      default:
        break;
    }
  }

  const towline_collective_t& call_;
  const int rank_;
  const int size_;
  const uint64_t element_;
};

}  // namespace

void check_call(const towline_collective_t& call, int rank, int size) { Checker(call, rank, size).check(); }

}  // namespace towline::collectives
