#include "fabric/watchers.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "fabric/transfer_engine_fixture.h"
#include "gpu/fake/fake_device.h"

namespace towline::fabric::watchers_test {
namespace {

using testing::eventually;

void store(uint64_t address, uint64_t value) {
  std::atomic_ref<uint64_t>{*reinterpret_cast<uint64_t*>(address)}.store(value, std::memory_order_release);
}

TEST(FabricWatchers, AWordThatAGpuWritesIsToldWithItsOldAndNewValue) {
  cuda::Device& device = cuda::fake::fake_device();
  device.start();
  Watchers watchers{{.device = &device}};
  std::atomic<uint64_t> told{0};
  const auto word = watchers.watch([&](uint64_t before, uint64_t now) {
    told = before * 1000 + now;
    return now != 9;
  });
  EXPECT_NE(device.find_pinned(reinterpret_cast<uint64_t>(word.host), 8), nullptr);
  store(word.gpu, 5);
  EXPECT_TRUE(eventually([&] { return told == 5; }));
  store(word.gpu, 9);
  EXPECT_TRUE(eventually([&] { return told == 5009; }));
  store(word.gpu, 10);  // it asked not to hear any more
  std::atomic<uint64_t> other{0};
  const auto second = watchers.watch([&](uint64_t, uint64_t now) {
    other = now;
    return true;
  });
  EXPECT_NE(second.index, word.index);
  store(second.gpu, 3);
  EXPECT_TRUE(eventually([&] { return other == 3; }));
  EXPECT_EQ(told, 5009u);
}

TEST(FabricWatchers, AWordIsFreeAgainAndBeginsAtZero) {
  Watchers watchers{{}};
  std::vector<Watchers::Word> words;
  std::atomic<uint64_t> calls{0};
  const auto count = [&](uint64_t, uint64_t) { return ++calls, true; };
  for (uint32_t i = 0; i < Watchers::kWords; ++i) words.push_back(watchers.watch(count));
  EXPECT_THROW((void)watchers.watch(count), core::Error);
  store(words[100].gpu, 7);
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
  watchers.unwatch(words[100].index);
  EXPECT_THROW(watchers.unwatch(words[100].index), core::Error);
  const auto again = watchers.watch(count);
  EXPECT_EQ(again.index, words[100].index);
  EXPECT_EQ(*again.host, 0u);
}

TEST(FabricWatchers, ACallbackMayWatchAndUnwatchWords) {
  Watchers watchers{{}};
  std::atomic<uint64_t> told{0};
  std::atomic<uint64_t> second{0};
  std::atomic<bool> over{false};
  Watchers::Word word;
  word = watchers.watch([&, text = std::string(100, 'x')](uint64_t, uint64_t now) {
    told = now;
    watchers.unwatch(word.index);
    second = watchers.watch([&](uint64_t, uint64_t) { return over = true, false; }).gpu;
    return text.size() != 100;  // of a word that is another's by now
  });
  store(word.gpu, 5);
  ASSERT_TRUE(eventually([&] { return second != 0; }));
  EXPECT_EQ(second, word.gpu) << "the word was free";
  store(second, 6);
  EXPECT_TRUE(eventually([&] { return over.load(); }));
  EXPECT_EQ(told, 5u);
}

TEST(FabricWatchers, MemoryThatCanNotBePinnedIsSaid) {
  cuda::Device& device = cuda::fake::fake_device();
  device.start();
  cuda::fake::faults().refuse_pins(true);
  EXPECT_THROW((Watchers{{.device = &device}}), core::Error);
  cuda::fake::faults().reset();
  EXPECT_THROW((Watchers{{.cpu = 1 << 20}}), core::Error);
}

}  // namespace
}  // namespace towline::fabric::watchers_test
