#include "capi/application_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "base/error.h"

namespace towline::capi {
namespace {

// The application's: `inside` is how many calls are in it, `gets` how many have asked for a key.
struct Values {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::atomic<int> inside{0};
  std::atomic<int> gets{0};

  towline_collective_store_t table() {
    towline_collective_store_t made = {};
    made.struct_size = sizeof made;
    made.context = this;
    made.set = [](void* context, const char* key, const void* value, size_t bytes) -> int32_t {
      auto& self = *static_cast<Values*>(context);
      EXPECT_EQ(self.inside.fetch_add(1), 0) << "calls come one at a time";
      {
        const std::lock_guard lock(self.mutex);
        self.values[key].assign(static_cast<const char*>(value), bytes);
      }
      self.changed.notify_all();
      --self.inside;
      return TOWLINE_OK;
    };
    made.get = [](void* context, const char* key, uint64_t timeout_ns, void* value, size_t capacity,
                  size_t* bytes) -> int32_t {
      auto& self = *static_cast<Values*>(context);
      EXPECT_EQ(self.inside.fetch_add(1), 0) << "calls come one at a time";
      ++self.gets;
      std::unique_lock lock(self.mutex);
      const bool found = self.changed.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                               [&] { return self.values.contains(key); });
      if (found) {
        const std::string& there = self.values[key];
        std::memcpy(value, there.data(), std::min(capacity, there.size()));
        *bytes = there.size();
      }
      --self.inside;
      return found ? TOWLINE_OK : TOWLINE_TIMED_OUT;
    };
    return made;
  }
};

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(ApplicationStore, AThreadThatWaitsForAKeyHoldsUpNoOther) {
  Values values;
  ApplicationStore store(values.table());
  const std::string large(10'000, 'x');
  std::string got;
  std::thread waits([&] {
    try {
      const rendezvous::Bytes found = store.get("late", Deadline::after(monotonic_now_ns(), 10 * kSecondNs));
      got.assign(found.begin(), found.end());
    } catch (const Error& error) {
      got = error.what();
    }
  });
  while (values.gets == 0) std::this_thread::yield();
  store.set("late", bytes_of(large));  // by this thread, behind the other's wait
  waits.join();
  EXPECT_TRUE(got == large) << got.substr(0, 100);
}

TEST(ApplicationStore, AKeyThatDoesNotComeIsNamedAtTheDeadline) {
  Values values;
  ApplicationStore store(values.table());
  const uint64_t began_ns = monotonic_now_ns();
  try {
    (void)store.get("never", Deadline::after(began_ns, 120 * kMillisecondNs));
    FAIL() << "it is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kTimedOut);
    EXPECT_NE(std::string(error.what()).find("\"never\""), std::string::npos) << error.what();
  }
  EXPECT_GE(monotonic_now_ns() - began_ns, 120 * kMillisecondNs);
}

TEST(ApplicationStore, AStoreThatWaitsTooLongIsNotAskedAfterTheDeadline) {
  struct Slow {
    uint64_t until_ns = Deadline::after(monotonic_now_ns(), 80 * kMillisecondNs).ns();
    std::vector<uint64_t> limits_ns;
  } slow;
  towline_collective_store_t table = {};
  table.struct_size = sizeof table;
  table.context = &slow;
  table.get = [](void* context, const char*, uint64_t timeout_ns, void*, size_t, size_t*) -> int32_t {
    auto& self = *static_cast<Slow*>(context);
    self.limits_ns.push_back(timeout_ns);
    while (monotonic_now_ns() <= self.until_ns) std::this_thread::yield();
    return TOWLINE_TIMED_OUT;
  };
  ApplicationStore store(table);
  EXPECT_THROW((void)store.get("never", Deadline::at(slow.until_ns)), Error);
  EXPECT_EQ(slow.limits_ns.size(), 1u);
}

}  // namespace
}  // namespace towline::capi
