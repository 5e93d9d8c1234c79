// The express lane: urgent parts pass bulk that lies in the streams already, bulk goes on, and peers that do not know
// of it are sent nothing of it.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <numeric>

#include "framing/test_support.h"

namespace towline::framing {
namespace {

using testing::FakePlan;
using testing::FdLane;
using testing::LanePair;
using testing::RingPair;
using testing::Side;

constexpr uint64_t kStreamBytes = 32 << 20;
constexpr uint64_t kExpressPage = 4096;
constexpr uint64_t kStream = 1;  // its cookie

struct ExpressCase {
  const char* name;
  uint32_t op;
  bool rings;
  uint64_t most_bytes_before;  // of bulk, that a page waits for, on both sides together
};

void PrintTo(const ExpressCase& one, std::ostream* out) { *out << one.name; }

class ExpressTest : public ::testing::TestWithParam<ExpressCase> {
 protected:
  void SetUp() override {
    local_.resize(kStreamBytes);
    remote_.resize(kStreamBytes);
    std::iota(local_.begin(), local_.end(), uint8_t{1});
    std::iota(remote_.begin(), remote_.end(), uint8_t{5});
    add_lanes(false);
    add_lanes(true);
    const uint64_t key = b_.host.add(remote_.data(), remote_.size());
    plan_ = std::make_unique<FakePlan>(key);
    plan_->add(local_.data(), remote_.data(), kStreamBytes);
    prepared_ = a_.prepare(plan_->plan(), GetParam().op);
  }
  void add_lanes(bool express) {
    LanePair lanes;
    if (GetParam().rings) {
      rings_.push_back(std::make_unique<RingPair>(express ? 64 << 10 : 1 << 20));
      lanes = rings_.back()->lanes();
    } else {
      lanes = testing::deep_socket_lanes();
    }
    const auto add = [express](Side& side, std::unique_ptr<Lane> lane) {
      express ? side.connection.add_express_lane(std::move(lane)) : side.connection.add_lane(std::move(lane));
    };
    add(a_, std::move(lanes.first));
    add(b_, std::move(lanes.second));
  }
  // A ring's pass moves as much as lies there: shorter passes show what comes first.
  static ConnectionOptions options() {
    ConnectionOptions options;
    if (GetParam().rings) options.pass_bytes = options.max_frame_bytes = 64 << 10;
    return options;
  }
  void turn() {
    a_.progress();
    b_.progress();
  }
  Status submit_page(uint64_t cookie, uint64_t page, std::string_view message = {}) {
    return a_.submit(prepared_, cookie, page * kExpressPage, (page + 1) * kExpressPage, message,
                     TOWLINE_SUBMIT_URGENT);
  }
  // Read by the receiver of the bulk.
  uint64_t arrived() {
    return (GetParam().op == TOWLINE_WRITE ? b_ : a_).connection.statistics().bytes_received;
  }

  std::vector<std::unique_ptr<RingPair>> rings_;
  Side a_{options()};
  Side b_{options()};
  std::vector<uint8_t> local_;
  std::vector<uint8_t> remote_;
  std::unique_ptr<FakePlan> plan_;
  towline_prepared* prepared_ = nullptr;
};

TEST_P(ExpressTest, AnUrgentPagePassesBulkThatLiesInTheStream) {
  ASSERT_EQ(submit_page(2, 0), Status::kInProgress);  // both sides know of urgent parts from now on
  while (!a_.host.ended(2)) turn();
  ASSERT_EQ(a_.submit(prepared_, kStream, 0, kStreamBytes), Status::kInProgress);
  for (int i = 0; i < 8; ++i) turn();
  // Only the sender goes on: the stream fills.
  for (int i = 0; i < 64; ++i) (GetParam().op == TOWLINE_WRITE ? a_ : b_).progress();
  const uint64_t before = arrived();
  ASSERT_EQ(submit_page(3, 7), Status::kInProgress);
  while (!a_.host.ended(3)) turn();
  EXPECT_FALSE(a_.host.ended(kStream));
  EXPECT_LE(arrived() - before, GetParam().most_bytes_before);
  while (!a_.host.ended(kStream)) turn();
  EXPECT_EQ(a_.host.status(3), Status::kOk);
  EXPECT_EQ(a_.host.status(kStream), Status::kOk);
  EXPECT_EQ(local_, remote_);
}

TEST_P(ExpressTest, BulkGoesOnUnderEndlessUrgentPages) {
  a_.host.keep_results = false;
  bool over = false;
  uint64_t ended = 0;
  a_.host.on_complete = [&](uint64_t cookie, const towline_part_result&) {
    if (cookie == kStream)
      over = true;
    else
      ++ended;
  };
  ASSERT_EQ(a_.submit(prepared_, kStream, 0, kStreamBytes), Status::kInProgress);
  uint64_t next = 0;
  while (!over && next < 200'000) {
    while (next - ended < 64 && submit_page(1000 + next, next % 512) == Status::kInProgress) ++next;
    turn();
  }
  EXPECT_TRUE(over) << "after " << next << " pages";
  EXPECT_LE(next * kExpressPage, 8 * kStreamBytes) << "bulk gets an eighth at least";
  while (ended < next) turn();
}

TEST_P(ExpressTest, AMessageOfAnUrgentPageComesAfterIt) {
  std::string heard;
  b_.host.on_message = [&](std::string_view text) {
    heard = text;
    if (GetParam().op == TOWLINE_WRITE) {
      EXPECT_EQ(remote_[5 * kExpressPage], local_[5 * kExpressPage]);
    }
  };
  ASSERT_EQ(submit_page(2, 5, "page 5"), Status::kInProgress);
  while (heard.empty() || !a_.host.ended(2)) turn();
  EXPECT_EQ(heard, "page 5");
}

TEST_P(ExpressTest, TheEndOfTheConnectionDoesNotOvertakeLastWords) {
  std::string heard;
  a_.host.on_message = [&](std::string_view text) { heard = text; };
  ASSERT_EQ(b_.connection.send("last words", 10), 0);
  b_.connection.close();
  for (int i = 0; i < 8 && !a_.connection.down(); ++i) a_.progress();
  EXPECT_TRUE(a_.connection.down());
  EXPECT_EQ(heard, "last words");
}

INSTANTIATE_TEST_SUITE_P(All, ExpressTest,
                         ::testing::Values(ExpressCase{"write_sockets", TOWLINE_WRITE, false, 1 << 20},
                                           ExpressCase{"read_sockets", TOWLINE_READ, false, 1 << 20},
                                           ExpressCase{"write_rings", TOWLINE_WRITE, true, 512 << 10},
                                           ExpressCase{"read_rings", TOWLINE_READ, true, 512 << 10}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(ExpressLane, IfItAloneIsLostTheConnectionEndsSoon) {
  RingPair first(64 << 10);
  RingPair express(64 << 10);
  Side a;
  LanePair lanes = first.lanes();
  LanePair express_lanes = express.lanes();
  a.connection.add_lane(std::move(lanes.first));
  a.connection.add_express_lane(std::move(express_lanes.first));
  express_lanes.second->close();
  a.progress();
  EXPECT_FALSE(a.connection.down());
  EXPECT_NE(a.connection.frame_deadline_ns(), kNoDeadline) << "a worker that sleeps comes back for it";
  a.host.clock.advance(2 * kSecondNs);
  a.progress();
  EXPECT_TRUE(a.connection.down());
}

TEST(ExpressLane, ACopyIntoARingStopsWhenThePostsOfTheWorkerWait) {
  RingPair bulk(1 << 20);
  Side a;
  Side b;
  LanePair lanes = bulk.lanes();
  a.connection.add_lane(std::move(lanes.first));
  b.connection.add_lane(std::move(lanes.second));
  std::vector<uint8_t> local(8 << 20);
  std::vector<uint8_t> remote(local.size());
  FakePlan plan(b.host.add(remote.data(), remote.size()));
  plan.add(local.data(), remote.data(), static_cast<uint32_t>(local.size()));
  towline_prepared* const prepared = a.prepare(plan.plan(), TOWLINE_WRITE);
  ASSERT_EQ(a.submit(prepared, 1, 0, local.size()), Status::kInProgress);
  a.host.urgent_waits = true;
  const auto sent = [&] { return a.connection.statistics().bytes_sent; };
  for (int i = 0; i < 8; ++i) {
    const uint64_t before = sent();
    a.progress();
    EXPECT_GT(sent() - before, 0u) << "bulk goes on";
    EXPECT_LE(sent() - before, 32u << 10);
  }
  a.host.urgent_waits = false;
  const uint64_t before = sent();
  a.progress();
  EXPECT_GT(sent() - before, 256u << 10);
  while (!a.host.ended(1)) {
    a.progress();
    b.progress();
  }
  EXPECT_EQ(a.host.status(1), Status::kOk);
}

// The flags of the first frame that a side sends for an urgent part of one page, to a peer with these features.
uint16_t flags_sent(uint32_t op, uint32_t features) {
  ConnectionOptions options;
  options.features = features;
  Side a(options);
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
  a.connection.add_lane(std::make_unique<FdLane>(fds[0]));
  std::vector<uint8_t> local(kExpressPage);
  FakePlan plan(1);
  plan.add(local.data(), local.data(), kExpressPage);
  towline_prepared* const prepared = a.prepare(plan.plan(), op);
  EXPECT_EQ(a.submit(prepared, 1, 0, kExpressPage, {}, TOWLINE_SUBMIT_URGENT), Status::kInProgress);
  a.progress();
  std::array<uint8_t, kHeaderBytes> bytes{};
  EXPECT_EQ(::recv(fds[1], bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  FrameHeader header;
  EXPECT_EQ(decode_header(bytes.data(), header), nullptr);
  ::close(fds[1]);
  return header.flags;
}

TEST(ExpressLane, APeerIsSentNoFlagThatItDidNotName) {
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    EXPECT_EQ(flags_sent(op, 0), 0);
    EXPECT_EQ(flags_sent(op, kFeatureUrgent), kFlagUrgent);
  }
}

}  // namespace
}  // namespace towline::framing
