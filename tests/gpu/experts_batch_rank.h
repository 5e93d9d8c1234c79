// A rank that exchanges batches for prefill, and the plain reference that they are compared with bit for bit.
#pragma once

#include <bit>
#include <cstring>
#include <random>

#include "gpu/experts_suite.h"

namespace towline::gpu_test::experts::batches {

struct BatchShape {
  uint32_t ranks = 2;
  uint32_t local = 2;
  uint32_t tokens = 24;  // of a rank, at most
  uint32_t hidden = 64;
  uint32_t topk = 2;
  uint32_t scales = 0;     // of a token: then its payload is not taken for bfloat16
  uint32_t room = 64;      // the memory is that of exchanges of so many tokens
  uint32_t alignment = 1;  // of experts' counts
  uint64_t timeout_ns = 60'000'000'000;
  [[nodiscard]] uint32_t experts() const { return ranks * local; }
  [[nodiscard]] uint64_t token_bytes() const { return uint64_t{2} * hidden; }
  [[nodiscard]] Shape memory() const {
    Shape shape;
    shape.ranks = ranks;
    shape.local = local;
    shape.max_tokens = room;
    shape.hidden = 128;
    shape.timeout_ns = timeout_ns;
    return shape;
  }
  [[nodiscard]] uint64_t most_received() const { return uint64_t{ranks} * tokens; }
};

inline float wide(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
inline uint16_t narrow(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class Element>
std::vector<uint8_t> as_bytes(const std::vector<Element>& from) {
  std::vector<uint8_t> bytes(from.size() * sizeof(Element));
  if (!bytes.empty()) std::memcpy(bytes.data(), from.data(), bytes.size());
  return bytes;
}
template <class Element>
std::vector<Element> read(const Buffer& buffer, uint64_t count) {
  const std::vector<uint8_t> bytes = buffer.get();
  std::vector<Element> made(count);
  if (count != 0) std::memcpy(made.data(), bytes.data(), count * sizeof(Element));
  return made;
}

// A rank's part.
struct Part {
  uint32_t count = 0;
  std::vector<uint16_t> x;       // [count][hidden]
  std::vector<uint32_t> scales;  // [count][scales]
  std::vector<int64_t> routes;   // [count][topk]
  std::vector<float> weights;
  std::vector<uint8_t> in_rank;     // [count][ranks]
  std::vector<int32_t> per_expert;  // [experts]
  std::vector<uint16_t> bias;       // [2][count][hidden]
};

inline std::vector<uint16_t> random_values(std::mt19937_64& random, uint64_t count) {
  std::vector<uint16_t> made;
  for (uint64_t i = 0; i < count; ++i)
    made.push_back(narrow(static_cast<float>(static_cast<int>(random() % 4001) - 2000) / 300.0f));
  return made;
}

inline Part random_part(const BatchShape& shape, uint32_t rank, uint64_t seed) {
  std::mt19937_64 random(seed * 1000 + rank);
  Part made;
  made.count = static_cast<uint32_t>(seed % 5 == 0 ? shape.tokens : random() % (shape.tokens + 1));
  made.x = random_values(random, uint64_t{made.count} * shape.hidden);
  made.bias = random_values(random, uint64_t{2} * made.count * shape.hidden);
  for (uint64_t i = 0; i < uint64_t{made.count} * shape.scales; ++i)
    made.scales.push_back(static_cast<uint32_t>(random()));
  made.in_rank.assign(uint64_t{made.count} * shape.ranks, 0);
  made.per_expert.assign(shape.experts(), 0);
  for (uint32_t token = 0; token < made.count; ++token)
    for (uint32_t k = 0; k < shape.topk; ++k) {
      const auto expert = static_cast<int64_t>(random() % shape.experts());
      const bool none = random() % 6 == 0;
      made.routes.push_back(none ? -1 : expert);
      made.weights.push_back(static_cast<float>(random() % 1000) / 777.0f);
      if (none) continue;
      made.in_rank[uint64_t{token} * shape.ranks + static_cast<uint64_t>(expert) / shape.local] = 1;
      ++made.per_expert[static_cast<size_t>(expert)];
    }
  return made;
}
inline std::vector<Part> random_parts(const BatchShape& shape, uint64_t seed) {
  std::vector<Part> all;
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) all.push_back(random_part(shape, rank, seed));
  return all;
}

// The outputs of a dispatch at one rank.
struct Gets {
  std::vector<uint16_t> x;
  std::vector<uint32_t> scales;
  std::vector<int64_t> routes;
  std::vector<float> weights;
  std::vector<int32_t> source, prefix, per_expert;
  bool operator==(const Gets&) const = default;
};

inline void expect_row(const BatchShape& shape, const Part& from, uint32_t token, uint32_t rank, Gets& made) {
  made.source.push_back(static_cast<int32_t>(token));
  const auto append = [&](auto& to, const auto& values, uint64_t each) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(token * each);
    to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(each));
  };
  append(made.x, from.x, shape.hidden);
  append(made.scales, from.scales, shape.scales);
  for (uint32_t k = 0; k < shape.topk; ++k) {
    const int64_t expert = from.routes[uint64_t{token} * shape.topk + k] - int64_t{rank} * shape.local;
    const bool mine = expert >= 0 && expert < shape.local;
    made.routes.push_back(mine ? expert : -1);
    made.weights.push_back(mine ? from.weights[uint64_t{token} * shape.topk + k] : 0.0f);
  }
}

inline Gets expected_dispatch(const BatchShape& shape, uint32_t rank, const std::vector<Part>& all) {
  Gets made;
  std::vector<int32_t> counts(shape.local, 0);
  for (const Part& from : all) {
    for (uint32_t token = 0; token < from.count; ++token)
      if (from.in_rank[uint64_t{token} * shape.ranks + rank] != 0) expect_row(shape, from, token, rank, made);
    made.prefix.push_back(static_cast<int32_t>(made.source.size()));
    for (uint32_t expert = 0; expert < shape.local; ++expert)
      counts[expert] += from.per_expert[rank * shape.local + expert];
  }
  const auto alignment = static_cast<int32_t>(shape.alignment);
  for (const int32_t count : counts)
    made.per_expert.push_back((count + alignment - 1) / alignment * alignment);
  return made;
}

// What a rank makes of a token. What the first and the third make cancel out, and leave of the second's what the order of the sum leaves.
inline uint16_t result_of(uint32_t rank, uint16_t x) {
  constexpr float kLarge = 1 << 24;
  const float factor = rank == 0 ? kLarge : rank == 2 ? -kLarge : 0.37f + static_cast<float>(rank);
  return narrow(wide(x) * factor);
}

inline std::vector<uint16_t> expected_combine(const BatchShape& shape, const Part& mine, bool biased) {
  std::vector<uint16_t> made;
  for (uint64_t i = 0; i < uint64_t{mine.count} * shape.hidden; ++i) {
    float sum = 0;
    if (biased) sum = wide(mine.bias[i]) + wide(mine.bias[mine.x.size() + i]);
    for (uint32_t rank = 0; rank < shape.ranks; ++rank)
      if (mine.in_rank[i / shape.hidden * shape.ranks + rank] != 0) sum += wide(result_of(rank, mine.x[i]));
    made.push_back(narrow(sum));
  }
  return made;
}
// Each rank gives back the weights that it got, so that each comes back once.
inline std::vector<float> expected_weights(const Part& mine) {
  std::vector<float> made;
  for (size_t i = 0; i < mine.weights.size(); ++i)
    made.push_back(mine.routes[i] < 0 ? 0.0f : mine.weights[i]);
  return made;
}

// ---- A rank's buffers. They are made before exchanges and go after them: both may wait for other ranks' kernels.

class BatchRank {
 public:
  BatchRank(Rank& rank, const BatchShape& shape)
      : rank_(rank),
        shape_(shape),
        gpu_(*found_platform()),
        x_(gpu_, shape.tokens * shape.token_bytes()),
        in_scales_(gpu_, uint64_t{4} * shape.tokens * shape.scales),
        routes_(gpu_, uint64_t{8} * shape.tokens * shape.topk),
        weights_(gpu_, uint64_t{4} * shape.tokens * shape.topk),
        in_rank_(gpu_, uint64_t{shape.tokens} * shape.ranks),
        per_expert_(gpu_, uint64_t{4} * shape.experts()),
        bias_(gpu_, 2 * shape.tokens * shape.token_bytes()),
        prefix_(gpu_, uint64_t{4} * shape.ranks),
        source_(gpu_, 4 * shape.most_received()),
        got_(gpu_, shape.most_received() * shape.token_bytes()),
        got_scales_(gpu_, 4 * shape.most_received() * shape.scales),
        got_routes_(gpu_, 8 * shape.most_received() * shape.topk),
        got_weights_(gpu_, 4 * shape.most_received() * shape.topk),
        results_(gpu_, shape.most_received() * shape.token_bytes()),
        combined_(gpu_, shape.tokens * shape.token_bytes()),
        combined_weights_(gpu_, uint64_t{4} * shape.tokens * shape.topk),
        counted_(shape.local) {}

  void set(const Part& part) {
    count_ = part.count;
    x_.put(as_bytes(part.x));
    // Column by column, as FP8's scales lie.
    std::vector<uint32_t> scales;
    for (uint32_t i = 0; i < shape_.scales; ++i)
      for (uint32_t token = 0; token < part.count; ++token)
        scales.push_back(part.scales[uint64_t{token} * shape_.scales + i]);
    in_scales_.put(as_bytes(scales));
    routes_.put(as_bytes(part.routes));
    weights_.put(as_bytes(part.weights));
    in_rank_.put(part.in_rank);
    per_expert_.put(as_bytes(part.per_expert));
    bias_.put(as_bytes(part.bias));
  }

  [[nodiscard]] towline_experts_batch base_call(uint32_t op) {
    towline_experts_batch call = {};
    call.struct_size = sizeof call;
    call.op = op;
    call.phases = TOWLINE_EXPERTS_SEND | TOWLINE_EXPERTS_RECEIVE;
    call.ranks = shape_.ranks;
    call.blocks = 20;
    call.tokens = count_;
    call.max_tokens = most_;
    call.received = received_;
    call.token_bytes = static_cast<uint32_t>(shape_.token_bytes());
    call.in_rank = static_cast<const uint8_t*>(in_rank_.at());
    call.prefix = static_cast<int32_t*>(prefix_.at());
    call.source_tokens = static_cast<int32_t*>(source_.at());
    return call;
  }
  // With the counts of the dispatch before.
  [[nodiscard]] towline_experts_batch repeat_call() {
    towline_experts_batch call = base_call(TOWLINE_EXPERTS_BATCH_DISPATCH);
    call.x = x_.at();
    call.scales = shape_.scales;
    call.x_scales = in_scales_.at();
    call.scale_token_stride = 1;
    call.scale_stride = count_;
    call.out = got_.at();
    call.out_scales = got_scales_.at();
    return call;
  }
  [[nodiscard]] towline_experts_batch dispatch_call() {
    towline_experts_batch call = repeat_call();
    call.phases = TOWLINE_EXPERTS_SEND;
    call.max_tokens = 0;
    call.received = 0;
    call.topk = shape_.topk;
    call.experts = shape_.local;
    call.alignment = shape_.alignment;
    call.topk_idx = static_cast<int64_t*>(routes_.at());
    call.topk_weights = static_cast<float*>(weights_.at());
    call.tokens_per_expert = static_cast<int32_t*>(per_expert_.at());
    call.out_topk_idx = static_cast<int64_t*>(got_routes_.at());
    call.out_topk_weights = static_cast<float*>(got_weights_.at());
    call.received_per_expert = counted_.data();
    return call;
  }
  [[nodiscard]] towline_experts_batch combine_call(bool biased) {
    towline_experts_batch call = base_call(TOWLINE_EXPERTS_BATCH_COMBINE);
    call.x = results_.at();
    call.topk = shape_.topk;
    call.topk_weights = static_cast<float*>(got_weights_.at());
    if (biased) call.bias[0] = bias_.at();
    if (biased) call.bias[1] = static_cast<uint8_t*>(bias_.at()) + count_ * shape_.token_bytes();
    call.out = combined_.at();
    call.out_topk_weights = static_cast<float*>(combined_weights_.at());
    return call;
  }

  int32_t issue(towline_experts_batch& call) { return table().batch(rank_.member(), &call, rank_.stream()); }
  int32_t dispatch() {
    const int32_t status = send();
    return status != TOWLINE_OK ? status : receive();
  }
  // Its two calls.
  int32_t send() {
    sent_ = dispatch_call();
    if (const int32_t status = issue(sent_); status != TOWLINE_OK) return status;
    received_ = sent_.received;
    most_ = sent_.max_tokens;
    return TOWLINE_OK;
  }
  int32_t receive() {
    sent_.phases = TOWLINE_EXPERTS_RECEIVE;
    return issue(sent_);
  }
  int32_t repeat() {
    towline_experts_batch call = repeat_call();
    return issue(call);
  }
  int32_t combine(bool biased) {
    towline_experts_batch call = combine_call(biased);
    return issue(call);
  }
  void clear() { got_.put(std::vector<uint8_t>(shape_.most_received() * shape_.token_bytes(), 0x11)); }
  void compute() {
    std::vector<uint16_t> results = read<uint16_t>(got_, uint64_t{received_} * shape_.hidden);
    for (uint16_t& value : results) value = result_of(rank_.number(), value);
    results_.put(as_bytes(results));
  }

  [[nodiscard]] std::vector<uint16_t> got() const {
    return read<uint16_t>(got_, uint64_t{received_} * shape_.hidden);
  }
  [[nodiscard]] Gets gets() const {
    return {got(),
            read<uint32_t>(got_scales_, uint64_t{received_} * shape_.scales),
            read<int64_t>(got_routes_, uint64_t{received_} * shape_.topk),
            read<float>(got_weights_, uint64_t{received_} * shape_.topk),
            read<int32_t>(source_, received_),
            read<int32_t>(prefix_, shape_.ranks),
            counted_};
  }
  [[nodiscard]] std::vector<uint16_t> combined() const {
    return read<uint16_t>(combined_, uint64_t{count_} * shape_.hidden);
  }
  [[nodiscard]] std::vector<float> combined_weights() const {
    return read<float>(combined_weights_, uint64_t{count_} * shape_.topk);
  }

  // Everything, compared. `step`: called where all ranks are to meet.
  void round(
      uint64_t seed, const std::function<void()>& step = [] {}) {
    const std::vector<Part> all = random_parts(shape_, seed);
    const Part& mine = all[rank_.number()];
    set(mine);
    step();
    ASSERT_EQ(dispatch(), TOWLINE_OK) << rank_.error();
    rank_.drain();
    step();
    const Gets wanted = expected_dispatch(shape_, rank_.number(), all);
    EXPECT_TRUE(gets() == wanted) << "rank " << rank_.number() << ", seed " << seed;
    clear();
    step();
    ASSERT_EQ(repeat(), TOWLINE_OK) << rank_.error();
    rank_.drain();
    step();
    EXPECT_TRUE(got() == wanted.x) << "rank " << rank_.number() << ", seed " << seed;
    compute();
    const bool biased = seed % 2 == 0;
    step();
    ASSERT_EQ(combine(biased), TOWLINE_OK) << rank_.error();
    rank_.drain();
    step();
    EXPECT_EQ(combined(), expected_combine(shape_, mine, biased));
    EXPECT_EQ(combined_weights(), expected_weights(mine));
  }
  // None copies while another's kernel waits: under compute-sanitizer a copy waits for it.
  void round_in_step(uint64_t seed, const Group& group) {
    round(seed, [&] { group.meet(); });
  }

 private:
  Rank& rank_;
  const BatchShape shape_;
  Platform& gpu_;
  uint32_t count_ = 0;
  uint32_t received_ = 0;
  uint32_t most_ = 0;
  towline_experts_batch sent_ = {};
  Buffer x_, in_scales_, routes_, weights_, in_rank_, per_expert_, bias_, prefix_, source_, got_, got_scales_,
      got_routes_, got_weights_, results_, combined_, combined_weights_;
  std::vector<int32_t> counted_;
};

}  // namespace towline::gpu_test::experts::batches
