// Posting from a plan allocates nothing once it is warm. Counts the allocations of the whole program, the library
// included: its calls of operator new come here.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "support/failing_allocations.h"
#include "transport_fixture.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

#include "support/failing_new.h"

#else

namespace {

std::atomic<uint64_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (towline::support::allocation_fails()) throw std::bad_alloc();
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(bytes == 0 ? 1 : bytes)
                           : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace towline::conformance {
namespace {

class PlanAllocations : public TransportTest {};

TEST_P(PlanAllocations, PostsWithNewPicksAllocateNothingOnceWarm) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  constexpr uint32_t kAtOnce = 8;
  constexpr uint32_t kPicked = 100;
  std::array<std::vector<uint32_t>, kAtOnce> here;
  std::array<std::vector<uint32_t>, kAtOnce> there;
  for (uint32_t i = 0; i < kAtOnce; ++i) {
    here[i] = shuffled(kBlocks, i);
    there[i] = shuffled(kBlocks, 50 + i);
  }
  std::array<Post, kAtOnce> posts;
  const auto round = [&](uint32_t number) {
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t first = (number * 37 + i * 11) % (kBlocks - kPicked);
      posts[i] = plan.post({.from = std::span(here[i]).subspan(first, kPicked),
                            .to = std::span(there[i]).subspan(first, kPicked),
                            .notice = i == 0 ? BytesView("told") : BytesView()});
      ASSERT_TRUE(posts[i].accepted()) << last_error();
    }
    for (Post& post : posts) ASSERT_EQ(post.wait(20s), Status::kOk) << post.error();
    Notice notice;
    while (right_->receive(notice) != Status::kOk) (void)right_->wait(100ms);
  };
  // Warm when every place that may hold a notice has held one.
  uint64_t made = 1;
  for (uint32_t warm = 0; warm < 20 && made != 0; ++warm) {
    const uint64_t before = allocations.load();
    for (uint32_t i = 0; i < 50; ++i) round(i);
    made = allocations.load() - before;
  }
  EXPECT_EQ(made, 0u) << "in the last 400 posts";
}

// Backends whose prepared plans follow a post's picks.
INSTANTIATE_TEST_SUITE_P(All, PlanAllocations, ::testing::ValuesIn([] {
                           std::vector<Transport> some;
                           for (const Transport& transport : kTransports) {
                             const std::string name = transport.backends;
                             if (name == "memory" || name == "shm" || name == "tcp")
                               some.push_back(transport);
                           }
                           return some;
                         }()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace towline::conformance

#endif
