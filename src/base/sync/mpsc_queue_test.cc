#include "base/sync/mpsc_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

namespace towline {
namespace {

TEST(BoundedQueueTest, IsFifoAndBounded) {
  MpscQueue<int> queue(3);
  EXPECT_EQ(queue.capacity(), 4u);
  EXPECT_TRUE(queue.looks_empty());
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(queue.try_push(i));
    EXPECT_FALSE(queue.try_push(4));
    EXPECT_FALSE(queue.looks_empty());
    for (int i = 0; i < 4; ++i) EXPECT_EQ(queue.try_pop(), i);
    EXPECT_EQ(queue.try_pop(), std::nullopt);
  }
}

TEST(BoundedQueueTest, ARefusedValueStaysWithItsOwner) {
  MpmcQueue<std::unique_ptr<int>> queue(2);
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(1)));
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(queue.try_push(std::move(third)));
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(**queue.try_pop(), 1);
  EXPECT_TRUE(queue.try_push(std::move(third)));
}  // what is left is freed with the queue: LeakSanitizer looks

// A value whose consumer is stopped while it takes it, until it is let go.
class Stopping {
 public:
  explicit Stopping(int value, std::binary_semaphore* taken = nullptr, std::binary_semaphore* go = nullptr)
      : value_(value), taken_(taken), go_(go) {}
  Stopping(Stopping&& other) noexcept : value_(other.value_), taken_(other.taken_), go_(other.go_) {
    if (stops_) {
      taken_->release();
      go_->acquire();
    }
    stops_ = false;
  }
  Stopping& operator=(const Stopping&) = delete;
  ~Stopping() = default;
  [[nodiscard]] int value() const noexcept { return value_; }

  static inline thread_local bool stops_ = false;  // the thread's next move

 private:
  int value_;
  std::binary_semaphore* taken_;
  std::binary_semaphore* go_;
};

TEST(BoundedQueueTest, WhoKnowsOfRoomWaitsForAConsumerThatIsStoppedWhileItTakes) {
  std::binary_semaphore taken{0};
  std::binary_semaphore go{0};
  MpmcQueue<Stopping> queue(2);
  queue.push(Stopping(1, &taken, &go));
  queue.push(Stopping(2));
  std::thread stopped([&] {
    Stopping::stops_ = true;
    EXPECT_EQ(queue.try_pop()->value(), 1);
  });
  taken.acquire();
  EXPECT_EQ(queue.try_pop()->value(), 2);
  EXPECT_FALSE(queue.try_push(Stopping(3))) << "nothing is in it, but the first cell is still in use";
  std::thread pushing([&] { queue.push(Stopping(3)); });
  go.release();
  stopped.join();
  pushing.join();
  EXPECT_EQ(queue.try_pop()->value(), 3);
}

constexpr uint32_t kProducers = 4;
constexpr uint32_t kPerProducer = 6000;

template <class Queue>
void push_all(Queue& queue, uint32_t producer) {
  for (uint32_t i = 0; i < kPerProducer; ++i) {
    while (!queue.try_push(uint64_t{producer} << 32 | i)) std::this_thread::yield();
  }
}

TEST(BoundedQueueTest, ManyProducersOneConsumerKeepEachProducersOrder) {
  MpscQueue<uint64_t> queue(1024);
  std::vector<std::thread> producers;
  for (uint32_t p = 0; p < kProducers; ++p) producers.emplace_back([&, p] { push_all(queue, p); });
  std::vector<uint32_t> next(kProducers, 0);
  for (uint32_t got = 0; got < kProducers * kPerProducer;) {
    const std::optional<uint64_t> value = queue.try_pop();
    if (!value) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_EQ(static_cast<uint32_t>(*value), next[*value >> 32]++);
    ++got;
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_TRUE(queue.looks_empty());
}

TEST(BoundedQueueTest, ManyProducersManyConsumersGetEachValueOnce) {
  MpmcQueue<uint64_t> queue(1024);
  std::vector<std::atomic<uint8_t>> seen(kProducers * kPerProducer);
  std::atomic<uint32_t> total{0};
  std::vector<std::thread> threads;
  for (uint32_t p = 0; p < kProducers; ++p) threads.emplace_back([&, p] { push_all(queue, p); });
  for (int c = 0; c < 3; ++c) {
    threads.emplace_back([&] {
      while (total.load() < kProducers * kPerProducer) {
        if (const auto value = queue.try_pop()) {
          seen[(*value >> 32) * kPerProducer + static_cast<uint32_t>(*value)].fetch_add(1);
          total.fetch_add(1);
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : seen) ASSERT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace towline
