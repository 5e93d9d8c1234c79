// Ranks that exchange experts' tokens, over a real GPU or over a model: the same tests. Ranks are threads of this process, each
// with a stream of its own, and results are compared with a plain reference, bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/collectives_suite.h"
#include "towline/plugin/experts.h"
#include "towline/status.h"

namespace towline::gpu_test::experts {

// 0: all ranks are on one host. Else the ranks count as on hosts of so many each (EXPERTS_RANKS_A_HOST).
uint32_t ranks_a_host();
inline constexpr const char* kOtherHosts = "runs with hosts of another size (EXPERTS_RANKS_A_HOST)";
// Of libtowline_experts.so, or over the model.
const towline_experts_table_v1& table();

struct Shape {
  uint32_t ranks = 2;
  uint32_t local = 2;
  uint32_t max_tokens = 8;
  uint32_t hidden = 128;
  uint32_t topk = 2;
  uint32_t format = TOWLINE_EXPERTS_BFLOAT16;
  uint64_t timeout_ns = 60'000'000'000;
  [[nodiscard]] uint32_t experts() const { return ranks * local; }
  [[nodiscard]] uint64_t places() const { return uint64_t{ranks} * max_tokens; }
  [[nodiscard]] bool fp8() const { return (format & TOWLINE_EXPERTS_FP8) != 0; }
};

// A rank's part of an exchange.
struct Tokens {
  uint32_t count = 0;
  std::vector<uint16_t> x;      // [count][hidden]
  std::vector<int64_t> routes;  // [count][topk]
  std::vector<float> weights;
};

// What a rank gets, or should: only places that hold tokens are filled.
struct Received {
  std::vector<uint8_t> x;  // [local][places][row]
  std::vector<uint8_t> scales;
  std::vector<int32_t> source;
  std::vector<int64_t> ranges;
  std::vector<int32_t> counts;
};

Tokens random_tokens(const Shape& shape, uint32_t rank, uint64_t seed);
std::vector<Tokens> random_all(const Shape& shape, uint64_t seed);  // of all ranks
// As the ranks in `there` see it.
Received expected_dispatch(const Shape& shape, uint32_t rank, const std::vector<Tokens>& all,
                           const std::vector<bool>& there);
// An expert's result for a token, and the sums.
std::vector<uint16_t> result_of(const Shape& shape, uint32_t expert, const uint16_t* x);
std::vector<uint16_t> expected_combine(const Shape& shape, const Tokens& mine,
                                       const std::vector<bool>& there);

struct Group;

// A member with its buffers and a stream.
class Rank {
 public:
  // opens: to other hosts, at once.
  Rank(Platform& platform, const Shape& shape, uint32_t rank, bool opens = true);
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank();

  [[nodiscard]] uint32_t number() const { return rank_; }
  [[nodiscard]] std::vector<uint8_t> describe() const;
  int32_t connect(uint32_t rank, const std::vector<uint8_t>& description);
  int32_t disconnect(uint32_t rank) { return table().disconnect(member_, rank); }
  void set(const Tokens& tokens);  // what the next dispatch and combine take
  towline_experts_call dispatch_call();
  towline_experts_call combine_call();
  int32_t issue(towline_experts_call& call);
  int32_t command(uint32_t op, uint32_t peer = 0);
  void drain() { platform_.drain(stream_); }
  // After a dispatch: the experts' results of what came.
  void compute();
  [[nodiscard]] Received received() const;
  [[nodiscard]] std::vector<uint16_t> combined() const;
  [[nodiscard]] std::vector<int32_t> masks();
  [[nodiscard]] std::vector<int32_t> stats() const;
  [[nodiscard]] std::vector<int64_t> waits() const;
  [[nodiscard]] void* stream() const { return stream_; }
  [[nodiscard]] towline_experts* member() const { return member_; }
  [[nodiscard]] std::string error() const { return table().error(); }
  // Dispatch, results, combine: all of it, and both compared with what is expected of these ranks.
  void round(const std::vector<Tokens>& all, const std::vector<bool>& there);
  // The same of all ranks, none of which copies while another's kernel waits: under compute-sanitizer a copy waits for it.
  void round_in_step(const std::vector<Tokens>& all, const Group& group);
  void expect_dispatch(const std::vector<Tokens>& all, const std::vector<bool>& there) const {
    expect_dispatch_of(shape_, all, there);
  }
  // Of an exchange that is smaller than the rank's own shape.
  void expect_dispatch_of(const Shape& shape, const std::vector<Tokens>& all,
                          const std::vector<bool>& there) const;
  void expect_combine(const Tokens& mine, const std::vector<bool>& there);

 private:
  template <class Element>
  [[nodiscard]] std::vector<Element> read(const Buffer& buffer) const;

  Platform& platform_;
  const Shape shape_;
  const uint32_t rank_;
  towline_experts* member_ = nullptr;
  void* stream_ = nullptr;
  uint32_t tokens_ = 0;
  Buffer x_, routes_, weights_, packed_, scales_, source_, ranges_, counts_, stats_, waits_, results_,
      combined_, masks_;
};

// All ranks at once, each in a thread, connected with one another and unmasked.
struct Group {
  Shape shape;
  std::barrier<>& meeting;
  std::vector<std::vector<uint8_t>>& descriptions;
  [[nodiscard]] std::vector<bool> everyone() const { return std::vector<bool>(shape.ranks, true); }
  void meet() const { meeting.arrive_and_wait(); }
};
void run_ranks(const Shape& shape, const std::function<void(Rank&, Group&)>& body);
// Null where there is no GPU.
Platform* found_platform();
const std::string& why_no_platform();

}  // namespace towline::gpu_test::experts
