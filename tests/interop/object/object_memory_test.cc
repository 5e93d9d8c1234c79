// Posts for which there is no memory: refused or failed, and the agent goes on and ends.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include "fixture.h"
#include "proxy.h"
#include "support/failing_new.h"

namespace towline::interop {
namespace {

constexpr uint64_t kMib = 1 << 20;
constexpr int kTimes[] = {1, 3, 20};  // so many allocations fail, one after the other

class ObjectsWithoutMemory : public ObjectTest {
 protected:
  // Posts with room for no allocation, for one, for two, until it needs no more: 0 or an error each time.
  static void post_with_less_than_it_takes(const Transfer& transfer) {
    for (int allocations = 0;; ++allocations) {
      ASSERT_LT(allocations, 1000);
      support::fail_allocations(allocations);
      const Status posted = transfer.post();
      const bool enough = !support::stop_failing();
      if (posted == Status::kInProgress) {
        const Status outcome = transfer.wait(60s);
        EXPECT_TRUE(outcome == Status::kOk || outcome == Status::kOutOfMemory) << status_text(outcome);
      } else {
        EXPECT_EQ(posted, Status::kAgain) << status_text(posted);
      }
      if (enough) break;
    }
    const Status posted = transfer.post();
    EXPECT_EQ(posted == Status::kInProgress ? transfer.wait(60s) : posted, Status::kOk);
  }
};

TEST_F(ObjectsWithoutMemory, PostsAreRefusedAndTheAgentEnds) {
  make_object("scarce", 20 * kMib, 1);
  AgentOptions options = options_for(config_for(server_->url()));
  options.progress = Progress::kCaller;  // so that a post does everything on this thread
  auto agent = std::make_unique<Agent>("scarce", options);
  {
    const Region memory = agent->register_memory(dram(memory_.data(), kBytes), {.access = Access::kAll});
    const BlockList mine = agent->block_list(Blocks::at(memory_.data(), 20 * kMib));
    const Region object = agent->register_storage("s3://bucket/scarce", {.access = Access::kAll});
    const BlockList theirs = agent->block_list(object.blocks(0, 20 * kMib));
    post_with_less_than_it_takes(agent->transfer(theirs, mine));
    post_with_less_than_it_takes(agent->transfer(mine, theirs));
  }
  std::future<void> ended = std::async(std::launch::async, [&] { agent.reset(); });
  if (ended.wait_for(30s) == std::future_status::ready) return;
  std::fprintf(stderr, "the agent does not end\n");  // nor would this process
  std::abort();
}

// Also a cancel has to tell the clients: it does so once there is memory.
TEST_F(ObjectsWithoutMemory, ACancelEndsTheTransferAndNotTheProcess) {
  make_object("cancelled", kMib, 1);
  std::promise<void> goes_on;
  const std::shared_future<void> may_go_on = goes_on.get_future().share();
  std::atomic<bool> asked{false};
  Proxy proxy(server_->port());
  AgentOptions options = options_for(config_for(proxy.url()));
  options.progress = Progress::kCaller;  // so that this thread cancels
  const Agent agent("scarce", options);
  const Region memory = agent.register_memory(dram(memory_.data(), kBytes), {.access = Access::kAll});
  const Region object = agent.register_storage("s3://bucket/cancelled", {.access = Access::kAll});
  const Transfer read = agent.transfer(agent.block_list(object.blocks(0, kMib)),
                                       agent.block_list(Blocks::at(memory_.data(), kMib)));
  proxy.judge([&asked, may_go_on](const Request& request) -> Fault {
    if (request.method == "GET") {
      asked = true;
      may_go_on.wait();
    }
    return {};
  });
  EXPECT_EQ(read.post(), Status::kInProgress);
  while (!asked) std::this_thread::yield();
  support::fail_allocations();
  const Status cancelled = read.cancel();
  (void)read.poll();
  (void)support::stop_failing();
  EXPECT_EQ(cancelled, Status::kOk);
  EXPECT_EQ(read.wait(10s), Status::kCancelled);
  EXPECT_EQ(read.wait_fenced(Fence::kBoth, 10s), Status::kOk) << "it was not stopped";
  goes_on.set_value();
}

// Whichever allocation fails, on this thread or a client's: the call ends.
TEST_F(ObjectsWithoutMemory, CallsThatAskTheServerEnd) {
  make_object("asked", 100, 1);
  EXPECT_EQ(agent_->query_storage("s3://bucket/asked").bytes, 100u);  // the clients have begun
  std::future<int> ended = std::async(std::launch::async, [&] {
    int after = 0;
    for (const int times : kTimes) {
      bool failed = true;
      for (after = 0; failed && after < 2000; ++after) {
        support::fail_allocations_anywhere(after, times);
        try {
          (void)agent_->query_storage("s3://bucket/asked");
        } catch (const std::exception&) {  // Error, or the test's own allocation
        }
        failed = support::stop_failing_anywhere();
      }
    }
    return after;
  });
  if (ended.wait_for(120s) != std::future_status::ready) {
    std::fprintf(stderr, "a call does not end\n");  // nor would this process
    std::abort();
  }
  EXPECT_GT(ended.get(), 20);
  EXPECT_EQ(agent_->query_storage("s3://bucket/asked").bytes, 100u);
}

// The same of what the clients do for a READ: its outcome comes long before its deadline.
TEST_F(ObjectsWithoutMemory, ReadsEnd) {
  make_object("read", kMib, 1);
  const Region object = open("read");
  const Transfer read = transfer(Op::read, 0, object, 0, kMib, {.timeout = 30s});
  ASSERT_EQ(run(read), Status::kOk);
  for (const int times : kTimes) {
    bool failed = true;
    int after = 0;
    for (; failed && after < 2000; ++after) {
      support::fail_allocations_anywhere(after, times);
      Status status = read.post();
      if (status == Status::kInProgress) status = read.wait(60s);
      failed = support::stop_failing_anywhere();
      ASSERT_NE(status, Status::kTimedOut) << "allocation " << after << ", " << times << " times";
      EXPECT_EQ(read.wait_fenced(Fence::kBoth, 20s), Status::kOk);
    }
    EXPECT_GT(after, 20);
  }
  ASSERT_EQ(run(read), Status::kOk);
}

// The sentence of a failure needs memory, the failure none.
TEST_F(ObjectsWithoutMemory, ReadsThatFailEnd) {
  make_object("replaced", kMib, 1);
  Proxy proxy(server_->port());
  connect(proxy.url(), "");
  const Region object = open("replaced");
  proxy.judge([](const Request& request) -> Fault {
    return {.answer = request.method == "GET" ? Proxy::http(412, "") : ""};
  });
  const Transfer read = transfer(Op::read, 0, object, 0, kMib, {.timeout = 30s});
  ASSERT_EQ(run(read), Status::kStale);
  for (const int times : kTimes) {
    bool failed = true;
    for (int after = 0; failed && after < 2000; ++after) {
      support::fail_allocations_anywhere(after, times);
      Status status = read.post();
      if (status == Status::kInProgress) status = read.wait(60s);
      failed = support::stop_failing_anywhere();
      ASSERT_NE(status, Status::kTimedOut) << "allocation " << after << ", " << times << " times";
      ASSERT_EQ(read.wait_fenced(Fence::kBoth, 20s), Status::kOk);
    }
  }
}

// A WRITE in one request, and in parts. What it may have done at the server is not always known then.
TEST_F(ObjectsWithoutMemory, WritesEnd) {
  connect(server_->url(), "part = \"5MiB\"\nmultipart = \"6MiB\"\n");
  for (const uint64_t bytes : {kMib, 7 * kMib}) {
    const Region object = open("written " + std::to_string(bytes), {.create = true, .bytes = bytes});
    ASSERT_EQ(move(Op::write, 0, object, 0, bytes), Status::kOk);
    const int step = bytes == kMib ? 1 : 5;
    for (const int times : kTimes) {
      bool failed = true;
      for (int after = 0; failed && after < 5000; after += step) {
        const Transfer write = transfer(Op::write, 0, object, 0, bytes, {.timeout = 30s});
        support::fail_allocations_anywhere(after, times);
        Status status = write.post();
        if (status == Status::kInProgress) status = write.wait(60s);
        failed = support::stop_failing_anywhere();
        ASSERT_NE(status, Status::kTimedOut) << "allocation " << after << ", " << times << " times";
        ASSERT_EQ(write.wait_fenced(Fence::kLocal, 20s), Status::kOk);
      }
    }
    ASSERT_EQ(move(Op::write, 0, object, 0, bytes), Status::kOk);
  }
}

// The agent's end waits for the server's word on such uploads, but not where the word finds no memory.
TEST_F(ObjectsWithoutMemory, AnUploadThatIsNotAbortedForLackOfMemoryDoesNotHoldUpTheEnd) {
  support::spare_this_thread();
  bool failed = true;
  // Each of the first, up to the abort, whose own failures take a pause each.
  for (int after = 0; failed && after < 500; after += after < 8 ? 1 : 7) {
    std::atomic<bool> asked{false};
    std::atomic<bool> may_answer{false};
    std::atomic<bool> answers{false};
    std::atomic<bool> aborts{false};
    Proxy proxy(server_->port(), [&](const Request& request) -> Fault {
      if (request.method == "DELETE") aborts = true;
      if (request.method != "POST") return {};
      asked = true;
      asked.notify_all();
      may_answer.wait(false);
      support::fail_allocations_anywhere(after, 1);
      answers = true;
      return {.answer = Proxy::http(200,
                                    "<InitiateMultipartUploadResult><UploadId>unknown</UploadId>"
                                    "</InitiateMultipartUploadResult>")};
    });
    connect(proxy.url(), "part = \"5MiB\"\nmultipart = \"6MiB\"\n");
    {
      const Region object = open("left", {.create = true, .bytes = 7 * kMib});
      const Transfer write = transfer(Op::write, 0, object, 0, 7 * kMib);
      ASSERT_EQ(write.post(), Status::kInProgress);
      asked.wait(false);
      write.cancel();
      ASSERT_EQ(write.wait(20s), Status::kCancelled);
    }
    may_answer = true;
    may_answer.notify_all();
    while (!answers || (!aborts && support::anywhere_left != 0)) std::this_thread::yield();
    failed = support::stop_failing_anywhere();
    const auto began = std::chrono::steady_clock::now();
    agent_->close();
    ASSERT_LT(std::chrono::steady_clock::now() - began, 5s) << "allocation " << after;
  }
  support::spared = false;
  EXPECT_FALSE(failed);
}

}  // namespace
}  // namespace towline::interop
