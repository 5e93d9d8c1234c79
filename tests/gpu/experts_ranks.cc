// The reference, and ranks as threads.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "gpu/experts_suite.h"
#include "towline/plugin/experts_functions.h"

namespace towline::gpu_test::experts {
namespace {

float wide(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
uint16_t narrow(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The value of an e4m3 code below 0x7f.
float e4m3(uint32_t code) {
  const auto exponent = static_cast<int>(code >> 3);
  const auto mantissa = static_cast<float>(code & 7);
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}
// The nearest code; of two, the even one.
uint8_t nearest_e4m3(float value) {
  const float size = std::fabs(value);
  uint32_t best = 0;
  for (uint32_t code = 1; code < 0x7f; ++code) {
    const float now = std::fabs(e4m3(code) - size);
    const float before = std::fabs(e4m3(best) - size);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

struct Quantised {
  std::vector<uint8_t> x;
  std::vector<float> scales;
};
Quantised quantise(const Shape& shape, const uint16_t* x) {
  Quantised made;
  for (uint32_t group = 0; group < shape.hidden / 128; ++group) {
    float largest = 1e-4f;
    for (uint32_t i = 0; i < 128; ++i) largest = std::max(largest, std::fabs(wide(x[group * 128 + i])));
    float inverse = largest / 448.0f;
    float factor = 448.0f / largest;
    if ((shape.format & TOWLINE_EXPERTS_ROUND_SCALE) != 0) {
      int exponent = 0;
      inverse = std::frexp(inverse, &exponent) == 0.5f ? inverse : std::ldexp(1.0f, exponent);
      factor = 1 / inverse;
    }
    for (uint32_t i = 0; i < 128; ++i) made.x.push_back(nearest_e4m3(wide(x[group * 128 + i]) * factor));
    made.scales.push_back(inverse);
  }
  return made;
}

bool names(const Shape& shape, const Tokens& tokens, uint32_t token, uint32_t expert) {
  const auto begin = tokens.routes.begin() + static_cast<std::ptrdiff_t>(token) * shape.topk;
  return std::find(begin, begin + shape.topk, static_cast<int64_t>(expert)) != begin + shape.topk;
}

void expect_token(const Shape& shape, const Tokens& from, uint32_t token, uint64_t expert, uint64_t at,
                  Received& made) {
  const uint64_t place = expert * shape.places() + at;
  const uint16_t* const x = from.x.data() + uint64_t{token} * shape.hidden;
  made.source[place] = static_cast<int32_t>(token);
  if (!shape.fp8()) {
    std::memcpy(made.x.data() + place * 2 * shape.hidden, x, 2 * shape.hidden);
    return;
  }
  const Quantised quantised = quantise(shape, x);
  std::memcpy(made.x.data() + place * shape.hidden, quantised.x.data(), shape.hidden);
  const uint64_t groups = shape.hidden / 128;
  for (uint64_t group = 0; group < groups; ++group) {
    const float scale = quantised.scales[group];
    if ((shape.format & TOWLINE_EXPERTS_UE8M0) == 0)
      std::memcpy(made.scales.data() + ((expert * groups + group) * shape.places() + at) * 4, &scale, 4);
    else
      made.scales[((expert * (groups / 4) + group / 4) * shape.places() + at) * 4 + group % 4] =
          static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23);
  }
}

uint64_t row_bytes(const Shape& shape) { return uint64_t{shape.hidden} * (shape.fp8() ? 1 : 2); }
uint64_t scale_bytes(const Shape& shape) {
  return shape.fp8() ? shape.local * shape.places() * shape.hidden / 128 * 4 : 4;
}
towline_experts* opened(const Shape& shape, uint32_t rank, bool opens) {
  towline_experts_options options = {};
  options.struct_size = sizeof options;
  options.gpu = found_platform()->device().current_gpu();
  options.rank = rank;
  options.capacity = shape.ranks;
  options.local = shape.local;
  options.bytes = table().bytes_for(shape.ranks, shape.local, shape.max_tokens, shape.hidden);
  options.timeout_ns = shape.timeout_ns;
  const towline_experts_functions_v1 functions = towline_experts_functions();
  std::string host;
  if (ranks_a_host() != 0) {
    host = "host " + std::to_string(rank / ranks_a_host());
    options.functions = &functions;
    options.host = host.c_str();
    options.listen = "127.0.0.1:0";
  }
  towline_experts* member = nullptr;
  EXPECT_EQ(table().open(&options, &member), TOWLINE_OK) << table().error();
  if (opens && ranks_a_host() != 0) {
    EXPECT_EQ(table().open_to_hosts(member), TOWLINE_OK) << table().error();
  }
  return member;
}

template <class Element>
std::vector<uint8_t> as_bytes(const std::vector<Element>& from) {
  std::vector<uint8_t> bytes(from.size() * sizeof(Element));
  if (!bytes.empty()) std::memcpy(bytes.data(), from.data(), bytes.size());
  return bytes;
}

}  // namespace

uint32_t ranks_a_host() {
  const char* const given = std::getenv("EXPERTS_RANKS_A_HOST");
  return given == nullptr ? 0 : static_cast<uint32_t>(std::atoi(given));
}

// ---- The reference

Tokens random_tokens(const Shape& shape, uint32_t rank, uint64_t seed) {
  std::mt19937_64 random(seed * 1000 + rank);
  Tokens made;
  made.count = static_cast<uint32_t>(random() % (shape.max_tokens + 1));
  for (uint64_t i = 0; i < uint64_t{made.count} * shape.hidden; ++i) {
    const auto value = static_cast<float>(static_cast<int>(random() % 4001) - 2000) / 300.0f;
    made.x.push_back(narrow(value));
  }
  std::vector<int64_t> experts(shape.experts());
  for (uint32_t expert = 0; expert < shape.experts(); ++expert) experts[expert] = expert;
  for (uint32_t token = 0; token < made.count; ++token) {
    std::shuffle(experts.begin(), experts.end(), random);
    for (uint32_t k = 0; k < shape.topk; ++k) {
      made.routes.push_back(k < experts.size() && random() % 8 != 0 ? experts[k] : -1);
      made.weights.push_back(static_cast<float>(random() % 1000) / 777.0f);
    }
  }
  return made;
}

std::vector<Tokens> random_all(const Shape& shape, uint64_t seed) {
  std::vector<Tokens> all;
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) all.push_back(random_tokens(shape, rank, seed));
  return all;
}
Received expected_dispatch(const Shape& shape, uint32_t rank, const std::vector<Tokens>& all,
                           const std::vector<bool>& there) {
  Received made;
  made.x.resize(shape.local * shape.places() * row_bytes(shape));
  made.scales.resize(scale_bytes(shape));
  made.source.resize(shape.local * shape.places());
  for (uint32_t expert = 0; expert < shape.local; ++expert) {
    uint64_t at = 0;
    for (uint32_t source = 0; source < shape.ranks; ++source) {
      const uint64_t begin = at;
      for (uint32_t token = 0; there[source] && token < all[source].count; ++token)
        if (names(shape, all[source], token, rank * shape.local + expert))
          expect_token(shape, all[source], token, expert, at++, made);
      made.ranges.push_back(static_cast<int64_t>(begin << 32 | (at - begin)));
    }
    made.counts.push_back(static_cast<int32_t>(at));
  }
  return made;
}

std::vector<uint16_t> result_of(const Shape& shape, uint32_t expert, const uint16_t* x) {
  std::vector<uint16_t> made(shape.hidden);
  for (uint32_t i = 0; i < shape.hidden; ++i)
    made[i] = narrow(wide(x[i]) * (0.37f + static_cast<float>(expert)));
  return made;
}

std::vector<uint16_t> expected_combine(const Shape& shape, const Tokens& mine,
                                       const std::vector<bool>& there) {
  std::vector<uint16_t> made;
  for (uint32_t token = 0; token < mine.count; ++token) {
    std::vector<float> sums(shape.hidden, 0.0f);
    for (uint32_t k = 0; k < shape.topk; ++k) {
      const int64_t expert = mine.routes[uint64_t{token} * shape.topk + k];
      if (expert < 0 || expert >= shape.experts() || !there[static_cast<size_t>(expert) / shape.local])
        continue;
      const std::vector<uint16_t> result =
          result_of(shape, static_cast<uint32_t>(expert), mine.x.data() + uint64_t{token} * shape.hidden);
      const float weight = mine.weights[uint64_t{token} * shape.topk + k];
      for (uint32_t i = 0; i < shape.hidden; ++i) {
        const volatile float product = wide(result[i]) * weight;  // rounded, as the kernel's is
        sums[i] += product;
      }
    }
    for (const float sum : sums) made.push_back(narrow(sum));
  }
  return made;
}

// ---- A rank

Rank::Rank(Platform& platform, const Shape& shape, uint32_t rank, bool opens)
    : platform_(platform),
      shape_(shape),
      rank_(rank),
      member_(opened(shape, rank, opens)),
      stream_(platform.make_stream()),
      x_(platform, uint64_t{2} * shape.max_tokens * shape.hidden),
      routes_(platform, uint64_t{8} * shape.max_tokens * shape.topk),
      weights_(platform, uint64_t{4} * shape.max_tokens * shape.topk),
      packed_(platform, shape.local * shape.places() * row_bytes(shape)),
      scales_(platform, scale_bytes(shape)),
      source_(platform, shape.local * shape.places() * 4),
      ranges_(platform, uint64_t{8} * shape.local * shape.ranks),
      counts_(platform, uint64_t{4} * shape.local),
      stats_(platform, uint64_t{4} * shape.local),
      waits_(platform, uint64_t{8} * shape.ranks),
      results_(platform, shape.local * shape.places() * 2 * shape.hidden),
      combined_(platform, uint64_t{2} * shape.max_tokens * shape.hidden),
      masks_(platform, uint64_t{4} * shape.ranks) {
  stats_.put(std::vector<uint8_t>(uint64_t{4} * shape.local));
  waits_.put(std::vector<uint8_t>(uint64_t{8} * shape.ranks));
}

Rank::~Rank() {
  drain();
  if (member_ != nullptr) table().close(member_);
  platform_.free_stream(stream_);
}

std::vector<uint8_t> Rank::describe() const {
  std::vector<uint8_t> bytes(65536);
  size_t length = bytes.size();
  EXPECT_EQ(table().describe(member_, bytes.data(), &length), TOWLINE_OK) << table().error();
  bytes.resize(length);
  return bytes;
}

int32_t Rank::connect(uint32_t rank, const std::vector<uint8_t>& description) {
  return table().connect(member_, rank, description.data(), description.size(), 10'000'000'000);
}

void Rank::set(const Tokens& tokens) {
  tokens_ = tokens.count;
  x_.put(as_bytes(tokens.x));
  routes_.put(as_bytes(tokens.routes));
  weights_.put(as_bytes(tokens.weights));
}

towline_experts_call Rank::dispatch_call() {
  towline_experts_call call = {};
  call.struct_size = sizeof call;
  call.op = TOWLINE_EXPERTS_DISPATCH;
  call.phases = TOWLINE_EXPERTS_SEND | TOWLINE_EXPERTS_RECEIVE;
  call.format = shape_.format;
  call.ranks = shape_.ranks;
  call.tokens = tokens_;
  call.max_tokens = shape_.max_tokens;
  call.hidden = shape_.hidden;
  call.topk = shape_.topk;
  call.x = x_.at();
  call.topk_idx = static_cast<int64_t*>(routes_.at());
  call.out = packed_.at();
  call.scales = shape_.fp8() ? scales_.at() : nullptr;
  call.src_info = static_cast<int32_t*>(source_.at());
  call.layout_range = static_cast<int64_t*>(ranges_.at());
  call.count = static_cast<int32_t*>(counts_.at());
  call.stats = static_cast<int32_t*>(stats_.at());
  call.wait_ns = static_cast<int64_t*>(waits_.at());
  return call;
}

towline_experts_call Rank::combine_call() {
  towline_experts_call call = dispatch_call();
  call.op = TOWLINE_EXPERTS_COMBINE;
  call.format = TOWLINE_EXPERTS_BFLOAT16;
  call.x = results_.at();
  call.topk_weights = static_cast<float*>(weights_.at());
  call.out = combined_.at();
  call.scales = nullptr;
  return call;
}

int32_t Rank::issue(towline_experts_call& call) { return table().issue(member_, &call, stream_); }

int32_t Rank::command(uint32_t op, uint32_t peer) {
  towline_experts_call call = {};
  call.struct_size = sizeof call;
  call.op = op;
  call.peer = peer;
  call.out = masks_.at();
  return issue(call);
}

template <class Element>
std::vector<Element> Rank::read(const Buffer& buffer) const {
  const std::vector<uint8_t> bytes = buffer.get();
  std::vector<Element> made(bytes.size() / sizeof(Element));
  std::memcpy(made.data(), bytes.data(), made.size() * sizeof(Element));
  return made;
}

Received Rank::received() const {
  return {read<uint8_t>(packed_), read<uint8_t>(scales_), read<int32_t>(source_), read<int64_t>(ranges_),
          read<int32_t>(counts_)};
}
std::vector<int32_t> Rank::stats() const { return read<int32_t>(stats_); }
std::vector<int64_t> Rank::waits() const { return read<int64_t>(waits_); }

std::vector<uint16_t> Rank::combined() const {
  std::vector<uint16_t> made = read<uint16_t>(combined_);
  made.resize(uint64_t{tokens_} * shape_.hidden);
  return made;
}

std::vector<int32_t> Rank::masks() {
  EXPECT_EQ(command(TOWLINE_EXPERTS_QUERY), TOWLINE_OK) << error();
  drain();
  return read<int32_t>(masks_);
}

// Of bfloat16, which an FP8 dispatch does not give: there the results are not compared.
void Rank::compute() {
  const Received got = received();
  std::vector<uint16_t> results(shape_.local * shape_.places() * shape_.hidden);
  for (uint32_t expert = 0; expert < shape_.local; ++expert)
    for (int32_t at = 0; at < got.counts[expert]; ++at) {
      const uint64_t place = expert * shape_.places() + static_cast<uint64_t>(at);
      const std::vector<uint16_t> result =
          result_of(shape_, rank_ * shape_.local + expert,
                    reinterpret_cast<const uint16_t*>(got.x.data()) + place * shape_.hidden);
      std::copy(result.begin(), result.end(),
                results.begin() + static_cast<std::ptrdiff_t>(place * shape_.hidden));
    }
  results_.put(as_bytes(results));
}

void Rank::expect_dispatch_of(const Shape& shape, const std::vector<Tokens>& all,
                              const std::vector<bool>& there) const {
  const Received got = received();
  const Received wanted = expected_dispatch(shape, rank_, all, there);
  ASSERT_EQ(got.ranges, wanted.ranges);
  ASSERT_EQ(got.counts, wanted.counts);
  for (uint32_t expert = 0; expert < shape.local; ++expert)
    for (int32_t at = 0; at < wanted.counts[expert]; ++at) {
      const uint64_t place = expert * shape.places() + static_cast<uint64_t>(at);
      const uint64_t row = row_bytes(shape);
      ASSERT_EQ(got.source[place], wanted.source[place]);
      ASSERT_EQ(0, std::memcmp(got.x.data() + place * row, wanted.x.data() + place * row, row))
          << "rank " << rank_ << ", expert " << expert << ", token " << at;
      if (!shape.fp8()) continue;
      const uint64_t words = shape.hidden / ((shape.format & TOWLINE_EXPERTS_UE8M0) != 0 ? 512 : 128);
      for (uint64_t word = 0; word < words; ++word) {
        const uint64_t offset = ((expert * words + word) * shape.places() + static_cast<uint64_t>(at)) * 4;
        ASSERT_EQ(0, std::memcmp(got.scales.data() + offset, wanted.scales.data() + offset, 4))
            << "rank " << rank_ << ", expert " << expert << ", token " << at << ", scale " << word;
      }
    }
}

void Rank::expect_combine(const Tokens& mine, const std::vector<bool>& there) {
  ASSERT_EQ(combined(), expected_combine(shape_, mine, there)) << "rank " << rank_;
}

void Rank::round(const std::vector<Tokens>& all, const std::vector<bool>& there) {
  set(all[rank_]);
  towline_experts_call dispatch = dispatch_call();
  ASSERT_EQ(issue(dispatch), TOWLINE_OK) << error();
  drain();
  expect_dispatch(all, there);
  if (!shape_.fp8()) compute();
  towline_experts_call combine = combine_call();
  ASSERT_EQ(issue(combine), TOWLINE_OK) << error();
  drain();
  if (!shape_.fp8()) expect_combine(all[rank_], there);
}

void Rank::round_in_step(const std::vector<Tokens>& all, const Group& group) {
  const auto perform = [&](towline_experts_call call) {
    group.meet();
    EXPECT_EQ(issue(call), TOWLINE_OK) << error();
    drain();
    group.meet();
  };
  set(all[rank_]);
  perform(dispatch_call());
  expect_dispatch(all, group.everyone());
  if (!shape_.fp8()) compute();
  perform(combine_call());
  if (!shape_.fp8()) expect_combine(all[rank_], group.everyone());
}

// ---- Ranks as threads

const std::string& why_no_platform() {
  static std::string why_not;
  if (found_platform() == nullptr && why_not.empty()) (void)platform(why_not);
  return why_not;
}

Platform* found_platform() {
  static std::string why_not;
  static Platform* const found = platform(why_not);
  return found;
}

void run_ranks(const Shape& shape, const std::function<void(Rank&, Group&)>& body) {
  Platform* const gpu = found_platform();
  if (gpu == nullptr) GTEST_SKIP() << "no GPU: " << why_no_platform();
  std::barrier<> meeting(shape.ranks);
  std::vector<std::vector<uint8_t>> descriptions(shape.ranks);
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < shape.ranks; ++number)
    threads.emplace_back([&, number] {
      gpu->be(static_cast<int>(number));
      Rank rank(*gpu, shape, number);
      Group group{shape, meeting, descriptions};
      descriptions[number] = rank.describe();
      group.meet();
      for (uint32_t peer = 0; peer < shape.ranks; ++peer)
        if (peer != number) {
          EXPECT_EQ(rank.connect(peer, descriptions[peer]), TOWLINE_OK) << rank.error();
          EXPECT_EQ(rank.command(TOWLINE_EXPERTS_UNMASK, peer), TOWLINE_OK) << rank.error();
        }
      rank.drain();
      group.meet();
      body(rank, group);
      rank.drain();
      group.meet();
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace towline::gpu_test::experts
