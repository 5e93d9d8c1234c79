// Operations while memory is short: each that begins has an end, on every rank, and each that does not leaves nothing behind.
#include <gtest/gtest.h>

#include "collectives/messages.h"
#include "collectives/test_support.h"
#include "support/failing_allocations.h"

namespace towline::collectives {
namespace {

constexpr int kMostAllocations = 200;

// What a rank would read.
class Written final : public Channel {
 public:
  explicit Written(size_t& bytes) : bytes_(bytes) {}
  size_t write(const void*, size_t bytes) override {
    bytes_ += bytes;
    return bytes;
  }
  size_t read(void*, size_t) override { return 0; }
  bool can_write() override { return true; }
  bool can_read() override { return false; }

 private:
  size_t& bytes_;
};

// False: it threw.
bool without_memory(int after, const std::function<void()>& call) {
  support::fail_allocations(after, 1);
  bool threw = false;
  try {
    call();
  } catch (const std::bad_alloc&) {
    threw = true;
  }
  support::stop_failing();
  return !threw;
}

TEST(MessagesWithoutMemory, OneThatDoesNotStartIsNotSent) {
  bool started = false;
  for (int after = 0; !started; ++after) {
    ASSERT_LT(after, kMostAllocations);
    size_t bytes = 0;
    Breaker breaker;
    MessageEngine engine(
        0, 2, [&](int) { return std::make_unique<Written>(bytes); }, breaker);
    uint8_t data[100] = {};
    Message first{.is_send = true, .peer = 1, .data = data, .bytes = 100};
    Message second{.is_send = true, .peer = 1, .data = data, .bytes = 10};
    started = without_memory(after, [&] { engine.start(first); });
    engine.start(second);
    EXPECT_EQ(engine.test(second), Status::kOk);
    EXPECT_EQ(first.ended, started);
    EXPECT_EQ(bytes >= 100, started) << bytes;
    engine.forget(first);
  }
}

// The outcomes of an operation that both ranks start, the first one while its allocation `after` fails.
std::vector<Status> outcomes(int after, bool& failed, const std::function<towline_collective_t(int)>& call) {
  std::vector<Status> ends(2);
  run_ranks(World{.timeout_ns = 20 * kSecondNs}, [&](Communicator& ranks) {
    const towline_collective_t mine = call(ranks.rank());
    Work* work = nullptr;
    if (ranks.rank() == 0) {
      without_memory(after, [&] {
        work = ranks.start(mine, nullptr);
        failed = support::allocations_left < 0;
      });
    }
    Status& end = ends[static_cast<size_t>(ranks.rank())];
    try {
      if (work == nullptr) work = ranks.start(mine, nullptr);  // or again, as it did not begin
    } catch (const Error& error) {                             // the other rank has broken the communicator
      end = error.code();
      return;
    }
    end = ranks.wait(*work, TOWLINE_FOREVER);
    work->release();
  });
  return ends;
}

TEST(WorksWithoutMemory, EachHasOneEndOnEveryRank) {
  for (const bool message : {true, false}) {
    float values[2] = {};
    const auto call = [&](int rank) {
      towline_collective_t made =
          call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 1, &values[rank], &values[rank]);
      if (!message) return made;
      made.op = rank == 0 ? TOWLINE_COLLECTIVE_SEND : TOWLINE_COLLECTIVE_RECV;
      made.root = 1 - rank;
      return made;
    };
    bool failed = true;
    for (int after = 0; failed; ++after) {
      ASSERT_LT(after, kMostAllocations);
      const auto ends = outcomes(after, failed, call);
      SCOPED_TRACE(testing::Message() << "allocation " << after << (message ? " of a message" : ""));
      for (const Status end : ends)
        EXPECT_TRUE(end == Status::kOk || end == Status::kOutOfMemory) << status_text(end);
      // The memory may have been missing when the message was with the other rank already.
      if (ends[0] == Status::kOk) {
        EXPECT_EQ(ends[1], Status::kOk);
      }
    }
  }
}

// It is multiplied where it is performed, when the other ranks wait for it already.
TEST(WorksWithoutMemory, ASumOfProductsHasOneEndOnEveryRank) {
  bool failed = true;
  for (int after = 0; failed; ++after) {
    ASSERT_LT(after, kMostAllocations);
    std::vector<Status> ends(2);
    std::vector<std::string> texts(2);
    run_ranks(World{.timeout_ns = 5 * kSecondNs}, [&](Communicator& ranks) {
      const auto rank = static_cast<size_t>(ranks.rank());
      float value = 1;
      towline_collective_t call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 1, &value, &value);
      call.reduction = TOWLINE_REDUCE_PREMUL_SUM;
      call.factor = 2;
      const auto run = [&] {
        ends[rank] = ranks.run(call, nullptr, texts[rank]);
        if (rank == 0) failed = support::allocations_left < 0;
      };
      if (rank != 0) return run();
      EXPECT_TRUE(without_memory(after, run)) << "it threw";
    });
    EXPECT_EQ(ends[0], ends[1]) << "allocation " << after << ": " << texts[1];
    EXPECT_TRUE(ends[0] == Status::kOk || ends[0] == Status::kOutOfMemory) << status_text(ends[0]);
  }
}

TEST(HooksWithoutMemory, ComeInPairs) {
  for (const uint32_t op : {TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_COLLECTIVE_SEND}) {
    run_ranks(World{.size = 1, .backend = "fake"}, [&](Communicator& ranks) {
      int calls[2] = {};
      int32_t last = TOWLINE_OK;
      std::vector<std::shared_ptr<Hook>> hooks;
      hooks.push_back(ranks.add_hook(
          TOWLINE_HOOK_PRE, [](void* count, const towline_hook_args_t*) { ++*static_cast<int*>(count); },
          &calls[0]));
      hooks.push_back(ranks.add_hook(
          TOWLINE_HOOK_POST, [](void* count, const towline_hook_args_t*) { ++*static_cast<int*>(count); },
          &calls[1]));
      hooks.push_back(ranks.add_hook(
          TOWLINE_HOOK_POST,
          [](void* status, const towline_hook_args_t* args) {
            *static_cast<int32_t*>(status) = args->status;
          },
          &last));
      float value = 0;
      towline_collective_t call = call_of(op, TOWLINE_FLOAT32, 1, &value, &value);
      bool failed = true;
      for (int after = 0; failed; ++after) {
        ASSERT_LT(after, kMostAllocations);
        Work* work = nullptr;
        const bool begun = without_memory(after, [&] { work = ranks.start(call, nullptr); });
        EXPECT_EQ(calls[0], calls[1]) << "allocation " << after;
        EXPECT_EQ(last, begun ? TOWLINE_IN_PROGRESS : TOWLINE_OUT_OF_MEMORY);
        failed = !begun;
        if (!begun) continue;
        EXPECT_EQ(ranks.wait(*work, TOWLINE_FOREVER), Status::kOk);
        work->release();
      }
      for (const auto& hook : hooks) ranks.remove_hook(hook);
    });
  }
}

}  // namespace
}  // namespace towline::collectives
