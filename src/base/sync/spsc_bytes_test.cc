#include "base/sync/spsc_bytes.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/os/futex.h"
#include "base/os/memfd.h"
#include "base/random.h"

namespace towline {
namespace {

struct Ring {
  explicit Ring(std::size_t capacity) : header(std::make_unique<SpscHeader>()), data(capacity) {}

  std::unique_ptr<SpscHeader> header;
  std::vector<uint8_t> data;
  SpscProducer producer{*header, data};
  SpscConsumer consumer{*header, data};
};

std::vector<uint8_t> bytes_from(uint64_t position, std::size_t count) {
  std::vector<uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>((position + i) * 131 >> 3);
  return bytes;
}

TEST(SpscBytesTest, EveryByteComesOnceAndInOrderAtRandomSizes) {
  Ring ring(64);
  Random random(1);
  uint64_t written = 0;
  uint64_t read = 0;
  for (int i = 0; i < 100000; ++i) {
    const std::size_t size = random.below(70);
    ring.producer.expect_write(size);  // changes nothing
    if (random.chance(0.5)) {
      const bool fits = size <= 64 - (written - read);
      ASSERT_EQ(ring.producer.write_all(bytes_from(written, size)), fits);
      if (fits) written += size;
    } else {
      std::vector<uint8_t> got(size);
      const bool there = size <= written - read;
      ASSERT_EQ(ring.consumer.read_all(got), there);
      if (there) {
        ASSERT_EQ(got, bytes_from(read, size));
        read += size;
      }
    }
  }
  EXPECT_GT(read, 64u * 1000);
}

TEST(SpscBytesTest, RegionsWrapAtTheEndAndCommitPublishesOnlyWhatIsSaid) {
  Ring ring(16);
  ASSERT_TRUE(ring.producer.write_all(bytes_from(0, 12)));
  EXPECT_EQ(ring.consumer.read_regions().size(), 12u);
  ring.consumer.consume(10);
  const auto free = ring.producer.write_regions(14);
  EXPECT_EQ(free.first.size(), 4u);
  EXPECT_EQ(free.second.size(), 10u);
  EXPECT_EQ(free.second.data(), ring.data.data());
  ring.producer.commit(5);
  const auto used = ring.consumer.read_regions(7);
  EXPECT_EQ(used.first.size(), 6u);
  EXPECT_EQ(used.second.size(), 1u);
  EXPECT_EQ(ring.producer.position(), 17u);
}

TEST(SpscBytesTest, AFullAndAnEmptyRingGiveNothing) {
  Ring ring(8);
  EXPECT_TRUE(ring.consumer.read_regions().empty());
  ASSERT_TRUE(ring.producer.write_all(bytes_from(0, 8)));
  EXPECT_TRUE(ring.producer.write_regions().empty());
  EXPECT_FALSE(ring.producer.write_all(bytes_from(0, 1)));
  EXPECT_FALSE(ring.producer.corrupt());
  EXPECT_FALSE(ring.consumer.corrupt());
}

TEST(SpscBytesTest, AHostileConsumerPositionIsCorruptForGood) {
  for (const uint64_t hostile : {uint64_t{3}, uint64_t{9}, UINT64_MAX, uint64_t{1} << 63, uint64_t{0}}) {
    Ring ring(8);
    ASSERT_TRUE(ring.producer.write_all(bytes_from(0, 8)));
    ring.header->consumed = 4;
    ASSERT_EQ(ring.producer.write_regions().size(), 4u);
    ring.producer.commit(4 - (hostile == 9 ? 4 : 0));  // written: 8 for hostile 9, else 12
    ring.header->consumed = hostile;                   // went back, or ahead of everything written
    EXPECT_TRUE(ring.producer.write_regions(8).empty()) << hostile;
    EXPECT_TRUE(ring.producer.corrupt()) << hostile;
    ring.header->consumed = ring.header->written.load();  // repenting does not help
    EXPECT_TRUE(ring.producer.write_regions().empty());
    EXPECT_FALSE(ring.producer.write_all(bytes_from(0, 1)));
    EXPECT_FALSE(ring.producer.prepare_sleep());
  }
}

TEST(SpscBytesTest, AHostileProducerPositionIsCorruptForGood) {
  for (const uint64_t hostile : {uint64_t{3}, uint64_t{13}, UINT64_MAX, uint64_t{1} << 63, uint64_t{0}}) {
    Ring ring(8);
    ASSERT_TRUE(ring.producer.write_all(bytes_from(0, 4)));
    std::vector<uint8_t> got(4);
    ASSERT_TRUE(ring.consumer.read_all(got));
    ring.header->written = hostile;  // before what was consumed, or more than a ringful beyond
    EXPECT_TRUE(ring.consumer.read_regions().empty()) << hostile;
    EXPECT_TRUE(ring.consumer.corrupt()) << hostile;
    ring.header->written = 5;
    EXPECT_TRUE(ring.consumer.read_regions().empty());
    EXPECT_FALSE(ring.consumer.read_all(got));
    EXPECT_FALSE(ring.consumer.prepare_sleep());
  }
}

TEST(SpscBytesTest, RandomScribblingNeverLeadsOutsideTheRing) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    Ring ring(32);
    for (int i = 0; i < 200; ++i) {
      if (random.chance(0.3)) ring.header->consumed = random.chance(0.8) ? random.below(200) : random.next();
      if (random.chance(0.3)) ring.header->written = random.chance(0.8) ? random.below(200) : random.next();
      const auto free = ring.producer.write_regions(random.below(40));
      ASSERT_LE(free.size(), 32u);
      std::fill(free.first.begin(), free.first.end(), uint8_t{1});  // ASan checks the bounds
      std::fill(free.second.begin(), free.second.end(), uint8_t{2});
      ring.producer.commit(random.below(free.size() + 1));
      const auto used = ring.consumer.read_regions(random.below(40));
      ASSERT_LE(used.size(), 32u);
      ring.consumer.consume(random.below(used.size() + 1));
      std::vector<uint8_t> out(random.below(40));
      (void)ring.consumer.peek_all(out);
      (void)ring.producer.take_consumer_asleep();
      (void)ring.consumer.take_producer_asleep();
    }
  }
}

void produce(SpscProducer& producer, SpscHeader& header, uint64_t total, uint64_t seed, FutexScope scope) {
  Random random(seed);
  while (producer.position() < total) {
    const auto left = static_cast<std::size_t>(total - producer.position());
    const std::size_t size = std::min<std::size_t>(left, random.between(1, producer.capacity()));
    while (!producer.write_all(bytes_from(producer.position(), size))) {
      if (producer.prepare_sleep(size)) futex_wait(header.producer_asleep, 1, kNoDeadline, scope);
    }
    if (producer.take_consumer_asleep()) futex_wake_all(header.consumer_asleep, scope);
  }
}

bool consume(SpscConsumer& consumer, SpscHeader& header, uint64_t total, uint64_t seed, FutexScope scope) {
  Random random(seed);
  while (consumer.position() < total) {
    const auto regions = consumer.read_regions();
    if (regions.empty()) {
      if (consumer.corrupt()) return false;
      if (consumer.prepare_sleep()) futex_wait(header.consumer_asleep, 1, kNoDeadline, scope);
      continue;
    }
    const std::size_t size = random.between(1, regions.size());
    std::vector<uint8_t> got(size);
    if (!consumer.read_all(got) || got != bytes_from(consumer.position() - size, size)) return false;
    if (consumer.take_producer_asleep()) futex_wake_all(header.producer_asleep, scope);
  }
  return true;
}

TEST(SpscBytesTest, TwoThreadsThatSleepLoseNoByteAndNoWakeUp) {
  Ring ring(256);
  constexpr uint64_t kTotal = 1 << 19;
  std::thread thread([&] { produce(ring.producer, *ring.header, kTotal, 1, FutexScope::kPrivate); });
  EXPECT_TRUE(consume(ring.consumer, *ring.header, kTotal, 2, FutexScope::kPrivate));
  thread.join();
}

TEST(SpscBytesTest, TwoProcessesShareARing) {
  constexpr std::size_t kCapacity = 4096;
  constexpr uint64_t kTotal = 1 << 21;
  const UniqueFd fd = create_memfd("ring", sizeof(SpscHeader) + kCapacity);
  const Mapping mapping =
      Mapping::map_shared(fd.get(), sizeof(SpscHeader) + kCapacity, MapAccess::kReadWrite);
  auto& header = *::new (mapping.address()) SpscHeader;
  const std::span<uint8_t> data = mapping.span().subspan(sizeof(SpscHeader));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    SpscProducer producer(header, data);
    produce(producer, header, kTotal, 3, FutexScope::kShared);
    _exit(0);
  }
  SpscConsumer consumer(header, data);
  EXPECT_TRUE(consume(consumer, header, kTotal, 4, FutexScope::kShared));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SpscBytesDeathTest, ACapacityThatIsNoPowerOfTwoIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  SpscHeader header;
  std::vector<uint8_t> data(12);
  EXPECT_DEATH(SpscProducer(header, data), "not a power of two");
  EXPECT_DEATH(SpscConsumer(header, std::span<const uint8_t>()), "not a power of two");
}

}  // namespace
}  // namespace towline
