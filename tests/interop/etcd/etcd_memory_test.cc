// The etcd directory in a process that for a moment has no memory for what is large.
#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>

#include "support.h"
#include "support/failing_allocations.h"
#include "towline/directory.h"

namespace {

std::atomic<std::size_t> large{0};  // what is as large may fail; 0: nothing does
std::atomic<int> left{-1};          // so many come before the one that fails

bool fails(std::size_t bytes) noexcept {
  const std::size_t least = large.load(std::memory_order_acquire);
  return least != 0 && bytes >= least && left.fetch_sub(1, std::memory_order_acq_rel) == 0;
}

void fail_one(std::size_t at_least, int after) noexcept {
  left.store(after, std::memory_order_relaxed);
  large.store(at_least, std::memory_order_release);
}
bool has_failed() noexcept { return left.load(std::memory_order_acquire) < 0; }
// True: one has failed.
bool stop_failing() noexcept {
  large.store(0, std::memory_order_release);
  return has_failed();
}

}  // namespace

// Not inline: these replace the C++ library's.
void* operator new(std::size_t bytes) {
  const bool none = fails(bytes) || towline::support::allocation_fails();
  void* const memory = none ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// A sanitizer's own would give memory that must not come to this free.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace towline::interop {
namespace {

constexpr std::size_t kLarge = 32 << 10;
constexpr uint64_t kTimeoutNs = 20'000'000'000;

class WithoutMemory : public WithEtcd {
 protected:
  void TearDown() override { (void)stop_failing(); }

  // Calls `step` while one allocation of what is large fails: the first, the second, and so on.
  static void each(const std::function<void()>& step) {
    bool failed = true;
    for (int after = 0; failed && after < 200; ++after) {
      SCOPED_TRACE(after);
      fail_one(kLarge, after);
      step();
      failed = stop_failing();
      if (HasFatalFailure()) return;
    }
    EXPECT_FALSE(failed);
  }

  Etcd etcd_;
  Agent agent_ = make_agent("a", std::string("log.level = \"off\"\n") + kQuick);
  Directory directory_{agent_, "etcd://" + etcd_.address()};
  const std::string value_ = std::string(256 << 10, 'v');
};

TEST_F(WithoutMemory, CallsEnd) {
  directory_.put("a", value_).get();
  const std::function<DirectoryCall()> calls[] = {
      [&] { return directory_.get("a", {.timeout = 500ms}); },
      [&] { return directory_.put("b", value_, {.timeout = 500ms}); },
      [&] { return directory_.put("c", value_, {.leased = true, .timeout = 500ms}); },
      [&] { return directory_.put("d", value_, {.create = true, .timeout = 500ms}); },
  };
  for (const auto& begin : calls) {
    each([&] {
      std::optional<DirectoryCall> call;
      try {
        call.emplace(begin());
      } catch (const std::exception&) {  // the caller's own
        return;
      }
      ASSERT_NE(call->wait(10s), Status::kNotYet);
    });
  }
  EXPECT_EQ(directory_.get("a").wait(20s), Status::kOk);
}

TEST_F(WithoutMemory, ACallThatIsRefusedDoesNothing) {
  bool failed = true;
  for (int after = 0; failed && after < 200; ++after) {
    const std::string key = "refused " + std::to_string(after);
    towline_directory_call_t* call = nullptr;
    support::fail_allocations(after, 1);
    const int32_t status =
        towline_directory_put(directory_.native(), key.c_str(), "v", 1, 0, kTimeoutNs, &call);
    failed = status != TOWLINE_OK;
    (void)support::stop_failing();
    if (failed) {
      EXPECT_EQ(directory_.get(key).wait(20s), Status::kNotFound) << after;
    } else {
      EXPECT_EQ(towline_directory_call_wait(call, kTimeoutNs), TOWLINE_OK);
      towline_directory_call_release(call);
    }
  }
  EXPECT_FALSE(failed);
}

// More than a page of them.
TEST_F(WithoutMemory, AllKeysAreFoundOrTheCallFails) {
  constexpr size_t kKeys = 520;
  for (size_t i = 0; i < kKeys; ++i) directory_.put("many/" + std::to_string(i), "v").get();
  each([&] {
    std::optional<DirectoryCall> call;
    try {
      call.emplace(directory_.get("many/", {.prefix = true, .timeout = 500ms}));
    } catch (const std::exception&) {  // the caller's own
      return;
    }
    const Status status = call->wait(10s);
    (void)stop_failing();
    ASSERT_NE(status, Status::kNotYet);
    if (status == Status::kOk) EXPECT_EQ(call->get_entries().size(), kKeys);
  });
}

// The last value is seen, or it is said that the watch has ended.
TEST_F(WithoutMemory, WatchesMissNothing) {
  const Directory writer(agent_, "etcd://" + etcd_.address());
  bool failed = true;
  for (int after = 0; failed && after < 200; ++after) {
    SCOPED_TRACE(after);
    const std::string value = value_ + std::to_string(after);
    const Watch watch = directory_.watch("w");
    std::string seen;
    while (seen != "synced") {
      seen = next_of(watch, 10s);
      ASSERT_NE(seen, status_name(Status::kNotYet));
    }
    fail_one(kLarge, after);
    Status put = Status::kOutOfMemory;
    try {
      put = writer.put("w", value, {.timeout = 500ms}).wait(10s);
    } catch (const std::exception&) {  // the caller's own
    }
    if (put == Status::kOk) (void)eventually(has_failed, 200ms);  // while the watch is told
    failed = stop_failing();
    if (put != Status::kOk) writer.put("w", value).get();
    while (seen != "put w=" + value) {
      seen = next_of(watch, 10s);
      if (seen == status_name(Status::kOutOfMemory)) break;
      ASSERT_TRUE(seen.starts_with("put w=")) << seen;
    }
  }
  EXPECT_FALSE(failed);
}

TEST_F(WithoutMemory, WhatIsPublishedIsKept) {
  directory_.put("a", "v", {.leased = true}).get();
  for (int i = 0; i < 3; ++i) {
    fail_one(1, 0);  // the first of what keeps it alive
    EXPECT_TRUE(eventually(has_failed));
    (void)stop_failing();
  }
  const auto there = [&] { return directory_.get("a").wait(20s) == Status::kOk; };
  // A lease that ran out meanwhile is followed by another.
  (void)eventually([&] { return !there(); }, 5s);
  EXPECT_TRUE(eventually(there, 10s));
}

}  // namespace
}  // namespace towline::interop
