// When memory runs out, the operation that needed it ends or is tried again, and nothing else is affected.
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>

#include "base/os/memfd.h"
#include "fabric/buffer_pool.h"
#include "fabric/rails.h"
#include "fabric/transfer_engine.h"
#include "support/failing_new.h"

namespace towline::fabric::engine_memory_test {
namespace {

// A port that moves nothing, needs no memory, and tells what the test says.
struct Port final : Domain {
  const DomainTraits& traits() const noexcept override { return known; }
  std::vector<uint8_t> address() const override { return {}; }
  Registration register_memory(const MemoryToRegister&) override {
    ++registered;
    return {};
  }
  void deregister_memory(const Registration&) noexcept override { --registered; }
  std::vector<uint8_t> open(uint32_t number, ConnectionEnd) override {
    opened = number;
    return {};
  }
  void connect(uint32_t, std::span<const uint8_t>) override {}
  void stop(uint32_t) noexcept override {}
  void release(uint32_t) noexcept override {}
  std::size_t post(uint32_t, const WorkRequest* requests, std::size_t count) noexcept override {
    posted += count;
    last = requests[count - 1].cookie;
    return count;
  }
  std::size_t post_receives(uint32_t, const ReceiveRequest*, std::size_t count) noexcept override {
    return count;
  }
  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    if (!tells || capacity == 0) return 0;
    tells = false;
    completions[0] = next;
    return 1;
  }
  void tell(CompletionKind kind, Status status) noexcept {
    next = {last, 0, opened, 0, status, kind};
    tells = true;
  }

  DomainTraits known;
  int registered = 0;
  Completion next = {};
  bool tells = false;
  uint32_t opened = 0;
  std::size_t posted = 0;
  uint64_t last = 0;
};

struct Side final : EngineHost {
  Side() {
    auto made = std::make_unique<Port>();
    port = made.get();
    port->known.kind = "stub";
    std::vector<std::unique_ptr<Domain>> domains;
    domains.push_back(std::move(made));
    engine = std::make_unique<Engine>(EngineOptions{}, std::move(domains), *this);
  }
  void complete(uint64_t, const TransferResult& told) noexcept override {
    result = told;
    ++completions;
  }
  void fenced(uint64_t, uint32_t) noexcept override {}
  void counted(Handle, uint32_t, uint32_t) noexcept override {}
  void received(Handle, std::span<const uint8_t>) noexcept override {}
  void lost(Handle, Status, std::string_view) noexcept override { ++losses; }
  void send_control(Handle, std::span<const uint8_t> message) noexcept override {
    if (letters == std::size(held)) return;
    std::copy(message.begin(), message.end(), held[letters].data.begin());
    held[letters++].size = message.size();
  }

  Port* port = nullptr;
  std::unique_ptr<Engine> engine;
  Handle peer;
  std::array<ControlBytes, 16> held;
  std::size_t letters = 0;
  TransferResult result;
  int completions = 0;
  int losses = 0;
};

class FabricMemory : public ::testing::Test {
 protected:
  FabricMemory() {
    one_.peer = one_.engine->add_peer(two_.engine->address());
    two_.peer = two_.engine->add_peer(one_.engine->address());
    memory_ = one_.engine->register_memory({bytes_.data(), bytes_.size(), true, true});
    remote_ = Engine::describe(memory_);
  }
  ~FabricMemory() override { support::stop_failing(); }

  static void deliver(Side& from, Side& to) {
    for (std::size_t i = 0; i < from.letters; ++i) to.engine->on_control(to.peer, from.held[i]);
    from.letters = 0;
  }
  void turn() {
    now_ns_ += kMillisecondNs;
    one_.engine->progress(now_ns_);
    deliver(one_, two_);
    two_.engine->progress(now_ns_);
    deliver(two_, one_);
  }
  // One slice for each piece.
  void submit() {
    given_ = 0;
    TransferRequest request;
    request.peer = one_.peer;
    request.op = TransferOp::kWrite;
    request.segments = {next, this};
    request.local = &local_pointer_;
    request.remote = &remote_pointer_;
    request.bytes = kPieces * kPiece;
    ASSERT_EQ(one_.engine->submit(request), Status::kInProgress);
  }
  static std::size_t next(void* context, towline_segment* out, std::size_t capacity) {
    auto& self = *static_cast<FabricMemory*>(context);
    std::size_t count = 0;
    for (; count < capacity && self.given_ < kPieces; ++count, ++self.given_)
      out[count] = {self.given_ == self.gone_ ? self.gone_at_ : self.memory_.address, self.memory_.address,
                    kPiece, 0, 0};
    return count;
  }
  template <class Done>
  bool until(Done&& done) {
    for (int i = 0; i < 1'000 && !done(); ++i) turn();
    return done();
  }

  static constexpr std::size_t kPieces = 8;
  static constexpr uint64_t kPiece = 64;
  std::array<uint8_t, 64> bytes_ = {};
  Side one_;
  Side two_;
  LocalMemory memory_;
  RemoteMemory remote_;
  const LocalMemory* local_pointer_ = &memory_;
  const RemoteMemory* remote_pointer_ = &remote_;
  std::size_t given_ = 0;
  std::size_t gone_ = kPieces;  // the piece that lies at
  uint64_t gone_at_ = 0;
  uint64_t now_ns_ = kSecondNs;
};

// Over libraries that end a connection for it.
TEST_F(FabricMemory, MemoryThatIsNotMappedAnyMoreIsNamedAmongWhatFailed) {
  {
    const Mapping gone = Mapping::map_private(kPiece);
    gone_at_ = reinterpret_cast<uint64_t>(gone.address());
  }
  one_.port->known.breaks_for_memory = true;
  std::size_t posted = 0;
  int ended = 0;
  for (const std::size_t piece : {std::size_t{0}, std::size_t{3}, kPieces - 1}) {
    SCOPED_TRACE(piece);
    gone_ = piece;
    submit();
    posted += kPieces;
    ASSERT_TRUE(until([&] { return one_.port->posted == posted; }));
    one_.port->tell(CompletionKind::kConnectionDown, Status::kIo);
    ASSERT_TRUE(until([&] { return one_.completions > ended; }));
    ended = one_.completions;
    EXPECT_EQ(one_.result.status, Status::kStale);
    EXPECT_LE(one_.result.failed_begin, piece * kPiece);
    EXPECT_GE(one_.result.failed_end, (piece + 1) * kPiece);
  }
}

TEST_F(FabricMemory, ASliceThatCannotBeKeptForRetryEndsItsTransferAlone) {
  submit();
  ASSERT_TRUE(until([&] { return one_.port->posted == kPieces; }));
  one_.port->tell(CompletionKind::kConnectionDown, Status::kIo);
  support::fail_allocations();
  turn();  // closes both ends, and learns what has to be posted again
  one_.engine->progress(now_ns_);
  EXPECT_TRUE(support::stop_failing());
  ASSERT_EQ(one_.completions, 1);
  EXPECT_EQ(one_.result.status, Status::kOutOfMemory);
  EXPECT_EQ(one_.result.fences, kFencedBoth);
  EXPECT_EQ(one_.result.failed_begin, 0u);
  EXPECT_EQ(one_.result.failed_end, kPieces * kPiece);
  EXPECT_EQ(one_.losses, 0);

  submit();
  ASSERT_TRUE(until([&] { return one_.port->posted == 2 * kPieces; }));
  one_.port->tell(CompletionKind::kRequest, Status::kOk);
  ASSERT_TRUE(until([&] { return one_.completions == 2; }));
  EXPECT_EQ(one_.result.status, Status::kOk);
}

TEST_F(FabricMemory, AConnectionThatFindsNoneIsTriedAgain) {
  submit();
  support::fail_allocations();
  for (int i = 0; i < 100; ++i) turn();
  EXPECT_TRUE(support::stop_failing());
  EXPECT_EQ(one_.port->posted, 0u);
  ASSERT_TRUE(until([&] { return one_.port->posted == kPieces; }));
  EXPECT_EQ(one_.completions + one_.losses, 0);
}

TEST_F(FabricMemory, APeerThatHasNoneRefusesTheConnection) {
  submit();
  one_.engine->progress(now_ns_ += kMillisecondNs);
  support::fail_allocations();
  deliver(one_, two_);
  EXPECT_TRUE(support::stop_failing());
  ASSERT_EQ(two_.letters, 1u);
  const auto refusal = decode_control(two_.held[0]);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->type, ControlType::kRefuse);
  EXPECT_EQ(refusal->status, Status::kOutOfMemory);
  ASSERT_TRUE(until([&] { return one_.port->posted == kPieces; }));
}

// Whichever allocation fails: no outcome is told twice, and all goes well afterwards.
TEST_F(FabricMemory, NoSingleFailureStopsATransfer) {
  for (int after = 0; after < 12; ++after) {
    SCOPED_TRACE(after);
    const int before = one_.completions;
    const std::size_t posted = one_.port->posted;
    submit();
    support::fail_allocations(after, 1);
    turn();
    turn();
    support::stop_failing();
    ASSERT_TRUE(until([&] { return one_.port->posted == posted + kPieces; }));
    one_.port->tell(CompletionKind::kRequest, Status::kOk);
    ASSERT_TRUE(until([&] { return one_.completions == before + 1; }));
    EXPECT_EQ(one_.result.status, Status::kOk);
    // The next one connects anew.
    one_.port->tell(CompletionKind::kConnectionDown, Status::kIo);
    turn();
    two_.port->tell(CompletionKind::kConnectionDown, Status::kIo);
    turn();
  }
}

// --- The TransferEngine --------------------------------------------------------------------------------

constexpr uint64_t kLimitNs = 60 * kSecondNs;
constexpr uint32_t kImmediate = 5;

// Two of one process, each with a thread of its own.
struct Node {
  explicit Node(TransferEngineOptions options = {}) : engine(rails(), std::move(options)), bytes(kBytes) {
    memory = engine.register_memory({bytes.data(), bytes.size(), true, true});
    remote = Engine::describe(*memory);
  }
  static std::vector<std::unique_ptr<Domain>> rails() {
    std::vector<std::unique_ptr<Domain>> made;
    made.push_back(make_rail("loopback:short-of-memory"));
    return made;
  }
  static constexpr std::size_t kBytes = 64 << 10;

  TransferEngine engine;
  std::vector<uint8_t> bytes;
  const LocalMemory* memory = nullptr;
  RemoteMemory remote;
};

class TransferEngineMemory : public ::testing::Test {
 protected:
  // So few slots that some leaks are noticed.
  static TransferEngineOptions few() {
    TransferEngineOptions options;
    options.engine.max_transfers = 2;
    return options;
  }
  void meet() {
    peer_ = one_.engine.connect(two_.engine.address());
    back_ = two_.engine.connect(one_.engine.address());
  }
  ~TransferEngineMemory() override { support::stop_failing(); }

  // Whichever allocation of `call` fails: it says so, and gives back what it took.
  template <class Call>
  void fails_cleanly(Call&& call, Status wanted = Status::kOk) {
    for (int after = 0;; ++after) {
      SCOPED_TRACE(after);
      Handle number;
      Status status = Status::kOutOfMemory;
      support::fail_allocations(after, 1);
      try {
        status = call(&number);
      } catch (const std::bad_alloc&) {
        status = Status::kOutOfMemory;
      }
      support::stop_failing();
      ASSERT_LT(after, 100);
      if (status == Status::kOutOfMemory) continue;
      ASSERT_EQ(status, Status::kInProgress);
      ASSERT_GT(after, 0);
      if (wanted == Status::kCancelled) one_.engine.cancel(number);
      ASSERT_EQ(one_.engine.wait(number, kLimitNs), wanted);
      one_.engine.release(number);
      return;
    }
  }
  // All slots can be taken: nothing has kept one.
  void expect_all_slots() {
    std::vector<Handle> numbers(8);
    for (Handle& number : numbers) {
      Status status = Status::kAgain;  // as long as a callback is due
      for (const uint64_t end = monotonic_now_ns() + kLimitNs; status == Status::kAgain; sched_yield()) {
        ASSERT_LT(monotonic_now_ns(), end);
        status = one_.engine.when_counted(kImmediate + 1, 1, {}, &number);
      }
      ASSERT_EQ(status, Status::kInProgress);
    }
    EXPECT_EQ(one_.engine.when_counted(kImmediate + 1, 1, {}, nullptr), Status::kAgain);
    for (const Handle number : numbers) {
      one_.engine.cancel(number);
      one_.engine.release(number);
    }
  }
  // A callback that does not fit into std::function itself.
  static TransferOptions with_callback() {
    TransferOptions options;
    options.done = [room = std::array<uint64_t, 8>{}](Status) { (void)room; };
    return options;
  }

  Node one_{few()};
  Node two_;
  Handle peer_;
  Handle back_;
};

TEST_F(TransferEngineMemory, AScatterThatFindsNoneGivesItsSlotBack) {
  meet();
  const ScatterPart parts[] = {{peer_, one_.memory, 0, &two_.remote, 0, 4096},
                               {peer_, one_.memory, 8192, &two_.remote, 8192, 4096}};
  fails_cleanly([&](Handle* number) { return one_.engine.scatter(parts, with_callback(), number); });
  expect_all_slots();
}

TEST_F(TransferEngineMemory, AGroupsSignalThatFindsNoneGivesItsSlotBack) {
  meet();
  const uint32_t group = one_.engine.add_group({&peer_, 1});
  const std::vector<uint8_t> text(100, 'x');
  TransferOptions options = with_callback();
  options.has_message = true;
  options.message = text;
  fails_cleanly([&](Handle* number) { return one_.engine.signal_group(group, options, number); });
  expect_all_slots();
}

// Nor does it count as a round: the other member would be one behind for ever.
TEST_F(TransferEngineMemory, ABarrierThatFindsNoneHasNotBegun) {
  meet();
  const uint32_t mine = one_.engine.add_group({&peer_, 1});
  const uint32_t theirs = two_.engine.add_group({&back_, 1});
  Handle other;
  ASSERT_EQ(two_.engine.barrier(theirs, kImmediate, {}, &other), Status::kInProgress);
  fails_cleanly(
      [&](Handle* number) { return one_.engine.barrier(mine, kImmediate, with_callback(), number); });
  EXPECT_EQ(two_.engine.wait(other, kLimitNs), Status::kOk);
  expect_all_slots();
}

TEST_F(TransferEngineMemory, AWaitForACounterThatFindsNoneGivesItsSlotBack) {
  fails_cleanly(
      [&](Handle* number) { return one_.engine.when_counted(kImmediate, 0, with_callback(), number); });
  expect_all_slots();
}

TEST_F(TransferEngineMemory, AReceiveThatFindsNoneGivesItsSlotBack) {
  ReceiveOptions options;
  options.done = [room = std::array<uint64_t, 8>{}](Status, Handle, uint64_t) { (void)room; };
  fails_cleanly([&](Handle* number) { return one_.engine.receive(*one_.memory, 0, 4096, options, number); },
                Status::kCancelled);
  expect_all_slots();
}

// NICs would keep the pages of memory that is gone.
TEST(TransferEngineShortOfMemory, APoolThatFindsNoneLeavesNoMemoryRegistered) {
  auto made = std::make_unique<Port>();
  Port& port = *made;
  port.known.kind = "stub";
  std::vector<std::unique_ptr<Domain>> domains;
  domains.push_back(std::move(made));
  TransferEngine engine{std::move(domains), {}};
  for (int after = 0;; ++after) {
    SCOPED_TRACE(after);
    ASSERT_LT(after, 100);
    support::fail_allocations(after, 1);
    try {
      const BufferPool pool{engine, {.buffer_bytes = 4096, .buffers = 64}};
      support::stop_failing();
      break;
    } catch (const std::bad_alloc&) {
      support::stop_failing();
      EXPECT_EQ(port.registered, 0);
    }
  }
  EXPECT_EQ(port.registered, 0);
}

// On all threads, while messages, counts, sends and writes are under way: everything ends, and so do both engines.
TEST(TransferEngineShortOfMemory, NothingHangsAndNothingEndsTheProcess) {
  for (int after = 0; after < 120; after += 3) {
    SCOPED_TRACE(after);
    std::atomic<int> told{0};
    TransferEngineOptions options;
    options.engine.stall_ns = 100 * kMillisecondNs;
    options.engine.lost_ns = 300 * kMillisecondNs;
    options.on_message = [&](Handle, std::span<const uint8_t>) { ++told; };
    options.on_counted = [&](Handle, uint32_t, uint32_t) { ++told; };
    options.on_lost = [&](Handle, const std::string&) { ++told; };
    Node one{options};
    Node two{options};
    const Handle peer = one.engine.connect(two.engine.address());
    Handle received;
    ASSERT_EQ(two.engine.receive(*two.memory, 0, 8192, {}, &received), Status::kInProgress);
    const std::vector<uint8_t> text(200, 'x');
    TransferOptions limited;
    limited.timeout_ns = 2 * kSecondNs;
    TransferOptions noisy = limited;
    noisy.immediate = kImmediate;
    noisy.count = 1;
    noisy.has_message = true;
    noisy.message = text;
    const ScatterPart part{peer, one.memory, 0, &two.remote, 16384, 4096};
    std::vector<Handle> numbers(4);
    support::fail_allocations_anywhere(after, 3);
    const auto tried = [&](auto&& call) {
      try {
        (void)call();
      } catch (const std::bad_alloc&) {  // this thread's own
      }
    };
    tried([&] { return one.engine.send(peer, *one.memory, 0, 8192, limited, &numbers[0]); });
    tried([&] { return one.engine.signal(peer, noisy, &numbers[1]); });
    tried([&] { return one.engine.scatter({&part, 1}, noisy, &numbers[2]); });
    tried([&] { return one.engine.signal(peer, noisy, &numbers[3]); });
    for (const Handle number : numbers) EXPECT_NE(one.engine.wait(number, kLimitNs), Status::kInProgress);
    support::stop_failing_anywhere();
  }
}

}  // namespace
}  // namespace towline::fabric::engine_memory_test
