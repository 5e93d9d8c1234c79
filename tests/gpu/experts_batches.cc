// Batches for prefill, compared with a plain reference bit for bit.
#include <bit>
#include <cstring>
#include <random>

#include "gpu/experts_suite.h"

namespace towline::gpu_test::experts::batches {
namespace {

// Of tests in which ranks are late: the others must be in time.
const uint64_t kShortNs = ranks_a_host() == 0 ? 300'000'000 : 3'000'000'000;

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

float wide(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
uint16_t narrow(float value) {
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

std::vector<uint16_t> random_values(std::mt19937_64& random, uint64_t count) {
  std::vector<uint16_t> made;
  for (uint64_t i = 0; i < count; ++i)
    made.push_back(narrow(static_cast<float>(static_cast<int>(random() % 4001) - 2000) / 300.0f));
  return made;
}

Part random_part(const BatchShape& shape, uint32_t rank, uint64_t seed) {
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
std::vector<Part> random_parts(const BatchShape& shape, uint64_t seed) {
  std::vector<Part> all;
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) all.push_back(random_part(shape, rank, seed));
  return all;
}

// What a rank gets.
struct Gets {
  std::vector<uint16_t> x;
  std::vector<uint32_t> scales;
  std::vector<int64_t> routes;
  std::vector<float> weights;
  std::vector<int32_t> source, prefix, per_expert;
  bool operator==(const Gets&) const = default;
};

void expect_row(const BatchShape& shape, const Part& from, uint32_t token, uint32_t rank, Gets& made) {
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

Gets expected_dispatch(const BatchShape& shape, uint32_t rank, const std::vector<Part>& all) {
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
uint16_t result_of(uint32_t rank, uint16_t x) {
  constexpr float kLarge = 1 << 24;
  const float factor = rank == 0 ? kLarge : rank == 2 ? -kLarge : 0.37f + static_cast<float>(rank);
  return narrow(wide(x) * factor);
}

std::vector<uint16_t> expected_combine(const BatchShape& shape, const Part& mine, bool biased) {
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
std::vector<float> expected_weights(const Part& mine) {
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
    towline_experts_batch call = dispatch_call();
    if (const int32_t status = issue(call); status != TOWLINE_OK) return status;
    received_ = call.received;
    most_ = call.max_tokens;
    call.phases = TOWLINE_EXPERTS_RECEIVE;
    return issue(call);
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
  Buffer x_, in_scales_, routes_, weights_, in_rank_, per_expert_, bias_, prefix_, source_, got_, got_scales_,
      got_routes_, got_weights_, results_, combined_, combined_weights_;
  std::vector<int32_t> counted_;
};

void run_batches(const BatchShape& shape, const std::function<void(Rank&, BatchRank&, Group&)>& body) {
  run_ranks(shape.memory(), [&](Rank& rank, Group& group) {
    BatchRank batch(rank, shape);
    group.meet();
    body(rank, batch, group);
    rank.drain();
    group.meet();
  });
}

class Batches : public testing::TestWithParam<BatchShape> {};

TEST_P(Batches, TokensGoToRanksAndComeBackSummed) {
  run_batches(GetParam(), [](Rank& rank, BatchRank& batch, Group& group) {
    for (uint64_t seed = 1; seed <= 6; ++seed) batch.round_in_step(seed, group);
    EXPECT_EQ(rank.masks(), std::vector<int32_t>(group.shape.ranks, 0));
  });
}

// With memory that makes rounds, too.
TEST(BatchesAhead, RanksThatDoNotWaitForOneAnother) {
  BatchShape shape;
  shape.ranks = 4;
  shape.tokens = 200;
  shape.hidden = 128;
  shape.room = 8;
  run_batches(shape, [](Rank&, BatchRank& batch, Group&) {
    for (uint64_t seed = 1; seed <= 8; ++seed) batch.round(seed);
  });
}

// Longer than three timeouts of the member.
TEST(BatchesAhead, TheHostWaitsForWorkThatTheStreamHadBefore) {
  if (ranks_a_host() == 1) return;  // the other group's ranks can't map one another's memory
  BatchShape shape;
  shape.ranks = 1;
  shape.timeout_ns = kShortNs;
  Shape other = BatchShape{}.memory();
  other.timeout_ns = 5 * kShortNs;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group&) {
    Rank waiting(*found_platform(), other, 0, false);
    const Rank absent(*found_platform(), other, 1, false);
    ASSERT_EQ(waiting.connect(1, absent.describe()), TOWLINE_OK) << waiting.error();
    ASSERT_EQ(waiting.command(TOWLINE_EXPERTS_UNMASK, 1), TOWLINE_OK) << waiting.error();
    waiting.drain();
    batch.set(random_part(shape, 0, 5));
    towline_experts_call barrier = {};
    barrier.struct_size = sizeof barrier;
    barrier.op = TOWLINE_EXPERTS_BARRIER;
    ASSERT_EQ(table().issue(waiting.member(), &barrier, rank.stream()), TOWLINE_OK) << rank.error();
    EXPECT_EQ(batch.dispatch(), TOWLINE_OK) << rank.error();
    rank.drain();
    EXPECT_EQ(waiting.masks(), (std::vector<int32_t>{0, 1}));
  });
}

std::string name_of(const testing::TestParamInfo<BatchShape>& info) {
  const BatchShape& shape = info.param;
  return std::to_string(shape.ranks) + "x" + std::to_string(shape.local) + "_tokens" +
         std::to_string(shape.tokens) + "_hidden" + std::to_string(shape.hidden) + "_top" +
         std::to_string(shape.topk) + "_scales" + std::to_string(shape.scales) + "_room" +
         std::to_string(shape.room) + "_aligned" + std::to_string(shape.alignment);
}

// The last ones have less memory than a batch of theirs, and go in rounds.
INSTANTIATE_TEST_SUITE_P(
    Shapes, Batches,
    testing::Values(BatchShape{}, BatchShape{1, 4, 40, 8, 3}, BatchShape{2, 3, 70, 512, 4, 4},
                    BatchShape{3, 1, 33, 72, 2, 0, 64, 16}, BatchShape{4, 4, 50, 264, 8, 3, 64, 128},
                    BatchShape{8, 2, 20, 64, 6}, BatchShape{2, 2, 300, 512, 2, 4, 8},
                    BatchShape{4, 2, 200, 128, 3, 1, 8}, BatchShape{3, 2, 90, 1024, 2, 0, 9}),
    name_of);

TEST(BatchesRoutes, NoTokenAtAll) {
  run_batches({}, [](Rank& rank, BatchRank& batch, Group&) {
    Part none;
    none.per_expert.assign(4, 0);
    batch.set(none);
    ASSERT_EQ(batch.dispatch(), TOWLINE_OK) << rank.error();
    ASSERT_EQ(batch.combine(true), TOWLINE_OK) << rank.error();
    rank.drain();
    EXPECT_EQ(batch.gets().prefix, (std::vector<int32_t>{0, 0}));
    batch.round(3);
  });
}

// ---- Ranks that are late

TEST(BatchesLate, ADispatchThatCountsNamesTheRankThatDoesNotCome) {
  BatchShape shape;
  shape.ranks = 3;
  shape.timeout_ns = kShortNs;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    batch.round(1);
    group.meet();
    if (rank.number() != 2) {
      batch.set(random_part(shape, rank.number(), 2));
      EXPECT_EQ(batch.dispatch(), TOWLINE_TIMED_OUT);
      EXPECT_NE(rank.error().find("rank 2 is masked, or did not come"), std::string::npos) << rank.error();
      EXPECT_EQ(batch.dispatch(), TOWLINE_TIMED_OUT);  // at once, and again
    }
    rank.drain();
    group.meet();
    // The one that was late begins anew with the others, as they do with it.
    for (uint32_t peer = 0; peer < 3; ++peer) {
      if (rank.number() == peer || (rank.number() != 2 && peer != 2)) continue;
      ASSERT_EQ(rank.disconnect(peer), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
    }
    group.meet();
    ASSERT_EQ(rank.command(TOWLINE_EXPERTS_CLEAN), TOWLINE_OK);
    rank.drain();
    group.meet();
    for (uint64_t seed = 3; seed < 6; ++seed) batch.round(seed);
  });
}

// No host waits in these, so the output tells, and the next call.
TEST(BatchesLate, WithoutAWaitOnTheHostMissingRowsAreNan) {
  BatchShape shape;
  shape.timeout_ns = kShortNs;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    const std::vector<Part> all = random_parts(shape, 5);
    const Part& mine = all[rank.number()];
    batch.round(5);
    group.meet();
    if (rank.number() == 0) {
      ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
      ASSERT_EQ(batch.combine(false), TOWLINE_OK) << rank.error();
      rank.drain();
      const std::vector<uint16_t> wanted = expected_combine(shape, mine, false);
      const std::vector<uint16_t> made = batch.combined();
      const std::vector<uint16_t> rows = batch.got();
      const auto own_rows = static_cast<size_t>(batch.gets().prefix[0]) * shape.hidden;
      EXPECT_EQ(std::vector<uint16_t>(rows.begin() + static_cast<std::ptrdiff_t>(own_rows), rows.end()),
                std::vector<uint16_t>(rows.size() - own_rows, 0xffff));
      for (uint32_t token = 0; token < mine.count; ++token)
        if (mine.in_rank[2 * token + 1] != 0) {
          EXPECT_EQ(made[uint64_t{token} * shape.hidden], 0xffff) << token;
        }
      EXPECT_EQ(batch.combine(false), TOWLINE_TIMED_OUT);
      EXPECT_NE(rank.error().find("rank 1"), std::string::npos) << rank.error();
      EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 1}));
    }
    group.meet();
  });
}

TEST(BatchesLate, AnotherShapeIsNamed) {
  BatchShape shape;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    batch.set(random_part(shape, rank.number(), 2));
    towline_experts_batch call = batch.dispatch_call();
    if (rank.number() == 1) call.token_bytes = 64;
    EXPECT_EQ(batch.issue(call), TOWLINE_MISMATCH);
    const std::string other = std::to_string(1 - rank.number());
    EXPECT_NE(rank.error().find("rank " + other + " came to another batch"), std::string::npos)
        << rank.error();
    group.meet();
  });
}

// Neither waits for the other before it begins: the first exchange of a session waits until both have opened it.
TEST(BatchesMembers, TheSameRankComesBack) {
  BatchShape shape;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    const uint32_t peer = 1 - rank.number();
    for (uint64_t seed = 1; seed < 13; ++seed) {
      batch.round(seed);
      ASSERT_EQ(rank.disconnect(peer), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.connect(peer, group.descriptions[peer]), TOWLINE_OK) << rank.error();
      ASSERT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
    }
    EXPECT_EQ(rank.masks(), (std::vector<int32_t>{0, 0}));
  });
}

// A command that overtook the batch would not find the rank masked yet.
TEST(BatchesLate, ACommandInAnotherStreamComesAfterTheBatch) {
  BatchShape shape;
  shape.timeout_ns = kShortNs;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    Platform& gpu = *found_platform();
    Buffer masks(gpu, uint64_t{4} * shape.ranks);
    void* const other = gpu.make_stream();
    batch.round(5);
    group.meet();
    if (rank.number() == 0) {
      ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
      towline_experts_call call = {};
      call.struct_size = sizeof call;
      call.op = TOWLINE_EXPERTS_QUERY;
      call.out = masks.at();
      ASSERT_EQ(table().issue(rank.member(), &call, other), TOWLINE_OK) << rank.error();
      gpu.drain(other);
      EXPECT_EQ(read<int32_t>(masks, shape.ranks), (std::vector<int32_t>{0, 1}));
    }
    rank.drain();
    group.meet();
    gpu.free_stream(other);
  });
}

TEST(BatchesLate, WithoutTheRankThatWasDisconnectedTheOthersGoOn) {
  BatchShape shape;
  shape.ranks = 3;
  shape.timeout_ns = kShortNs;
  BatchShape fewer;
  fewer.timeout_ns = kShortNs;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    BatchRank without(rank, fewer);
    batch.round(1);
    group.meet();
    if (rank.number() != 2) {
      batch.set(random_part(shape, rank.number(), 2));
      EXPECT_EQ(batch.dispatch(), TOWLINE_TIMED_OUT);
      rank.drain();
      ASSERT_EQ(rank.disconnect(2), TOWLINE_OK) << rank.error();
    }
    group.meet();
    if (rank.number() != 2)
      for (uint64_t seed = 3; seed < 6; ++seed) without.round(seed);
    group.meet();
  });
}

// Rank 1 has them for the expert of rank 0.
TEST(BatchesLate, CountsThatCanNotBeAreNamed) {
  BatchShape shape;
  for (const int32_t count : {-5, 1'000'000}) {
    run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
      Part part = random_part(shape, rank.number(), 5);
      if (rank.number() == 1) part.per_expert[0] = count;
      batch.set(part);
      group.meet();
      if (rank.number() == 0) {
        EXPECT_EQ(batch.dispatch(), TOWLINE_MISMATCH) << count;
        EXPECT_NE(rank.error().find("rank 1 came to another batch"), std::string::npos) << rank.error();
      } else {
        EXPECT_EQ(batch.dispatch(), TOWLINE_OK) << rank.error();
      }
      rank.drain();
      group.meet();
    });
  }
}

// ---- Graphs

TEST(BatchesGraphs, ADispatchWithCountsAndACombineAreReplayed) {
  BatchShape shape;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group& group) {
    Platform& gpu = *found_platform();
    const Part mine = random_part(shape, rank.number(), 5);
    batch.round_in_step(5, group);
    group.meet();
    gpu.record(rank.stream());
    towline_experts_batch counting = batch.dispatch_call();
    EXPECT_EQ(batch.issue(counting), TOWLINE_INVALID_ARGUMENT);
    ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
    ASSERT_EQ(batch.combine(true), TOWLINE_OK) << rank.error();
    void* const graph = gpu.end_record(rank.stream());
    group.meet();
    const std::vector<uint16_t> wanted = batch.got();
    for (int i = 0; i < 3; ++i) {
      batch.clear();
      group.meet();
      gpu.replay(graph, rank.stream());
      rank.drain();
      group.meet();
      EXPECT_EQ(batch.got(), wanted);
      EXPECT_EQ(batch.combined(), expected_combine(shape, mine, true));
    }
    group.meet();
    gpu.free_graph(graph);
  });
}

// ---- What is refused

TEST(BatchesRefusals, CallsThatDoNotFit) {
  BatchShape shape;
  shape.ranks = 1;
  shape.scales = 2;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group&) {
    batch.round(5);
    const auto refused = [&](const std::function<void(towline_experts_batch&)>& change, const char* text,
                             bool combine = false) {
      towline_experts_batch call = combine ? batch.combine_call(true) : batch.dispatch_call();
      change(call);
      EXPECT_EQ(batch.issue(call), TOWLINE_INVALID_ARGUMENT) << text;
      EXPECT_NE(rank.error().find(text), std::string::npos) << rank.error();
    };
    using Call = towline_experts_batch;
    batch.set(random_part(shape, 0, 5));
    refused([](Call& call) { call.op = 7; }, "no batch 7");
    refused([](Call& call) { call.phases = 0; }, "phases 0");
    refused([](Call& call) { call.phases = 1; }, "phases 1", true);
    refused([](Call& call) { call.token_bytes = 24; }, "multiple of 16");
    refused([](Call& call) { call.topk = 129; }, "128 routes");
    refused([](Call& call) { call.experts = 0; }, "1 to 1024 experts");
    refused([](Call& call) { call.ranks = 2; }, "among 2 ranks, of 1");
    refused([](Call& call) { call.tokens = 1 << 20; }, "1048575 tokens");
    refused([](Call& call) { call.in_rank = nullptr; }, "in_rank is null");
    refused([](Call& call) { call.x = static_cast<const uint8_t*>(call.x) + 8; }, "x is not aligned");
    refused([](Call& call) { call.received_per_expert = nullptr; }, "received_per_expert is null");
    refused([](Call& call) { call.scales = 1; }, "1 scales", true);
    refused([](Call& call) { call.max_tokens = 0; }, "more than the 0", true);
    refused([](Call& call) { call.token_bytes = 1 << 18; }, "open it with more");
    refused([](Call& call) { call.struct_size = 8; }, "fewer bytes");
    batch.round(2);
  });
}

TEST(BatchesRefusals, AReceiveBelongsToItsSend) {
  BatchShape shape;
  shape.ranks = 1;
  run_batches(shape, [&](Rank& rank, BatchRank& batch, Group&) {
    batch.set(random_part(shape, 0, 5));
    const auto receive = [&](towline_experts_batch call) {
      call.phases = TOWLINE_EXPERTS_RECEIVE;
      return batch.issue(call);
    };
    towline_experts_batch call = batch.dispatch_call();
    call.max_tokens = shape.tokens;
    EXPECT_EQ(receive(call), TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(rank.error().find("right after the SEND"), std::string::npos) << rank.error();
    ASSERT_EQ(batch.issue(call), TOWLINE_OK) << rank.error();
    towline_experts_batch other = call;
    other.token_bytes = 16;
    EXPECT_EQ(receive(other), TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(rank.error().find("give it the SEND's"), std::string::npos) << rank.error();
    EXPECT_EQ(receive(call), TOWLINE_OK) << rank.error();
    EXPECT_EQ(receive(call), TOWLINE_INVALID_ARGUMENT);
    batch.round(5);
    ASSERT_EQ(batch.issue(call = batch.dispatch_call()), TOWLINE_OK) << rank.error();
    ASSERT_EQ(batch.repeat(), TOWLINE_OK) << rank.error();
    EXPECT_EQ(receive(call), TOWLINE_INVALID_ARGUMENT);
  });
}

TEST(BatchesRefusals, ACallThatWasRefusedDoesNotDecideWhatAMemberIsFor) {
  BatchShape shape;
  shape.ranks = 1;
  run_batches(shape, [](Rank& rank, BatchRank& batch, Group&) {
    towline_experts_call call = rank.dispatch_call();
    call.phases = TOWLINE_EXPERTS_RECEIVE;
    EXPECT_EQ(rank.issue(call), TOWLINE_INVALID_ARGUMENT);
    batch.round(1);
  });
}

TEST(BatchesRefusals, AMemberIsForBatchesOrForExchanges) {
  BatchShape shape;
  shape.ranks = 1;
  run_batches(shape, [](Rank& rank, BatchRank& batch, Group&) {
    batch.round(1);
    towline_experts_call call = rank.dispatch_call();
    EXPECT_EQ(rank.issue(call), TOWLINE_INVALID_ARGUMENT);
    EXPECT_NE(rank.error().find("was opened for batches"), std::string::npos) << rank.error();
  });
}

}  // namespace
}  // namespace towline::gpu_test::experts::batches
