#include "agent/worker.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "agent/agent.h"
#include "agent/waiter.h"
#include "base/clock.h"
#include "base/os/topology.h"
#include "base/sync/wake.h"
#include "base/sync/wake_path.h"

namespace towline {
namespace {

std::shared_ptr<Agent> quiet_agent(const VirtualClock* clock = nullptr) {
  AgentOptions options;
  options.clock = clock;
  options.name = "a";
  options.hosted = false;
  options.listen = "none";
  options.backends = {"memory"};
  return Agent::create(std::move(options));
}

// Told, and true of its thread.
TEST(Worker, ItsThreadRunsWhereTheSettingSays) {
  const std::vector<uint32_t> cpus = read_host_topology().allowed_cpus;
  AgentOptions options;
  options.name = "a";
  options.listen = "none";
  options.backends = {"memory"};
  const std::string last = std::to_string(cpus.back());
  options.config.set("tuning.workers.place", "cpus:" + last);
  const auto agent = Agent::create(std::move(options));
  EXPECT_NE(agent->info().find("\"cpus\":[" + last + "]"), std::string::npos) << agent->info();
  EventFd event;
  std::atomic<int> on = -1;
  {
    const Worker::Guard guard(*agent->workers()[0]);
    const auto tell = [](void* told, uint32_t) {
      cpu_set_t set;
      sched_getaffinity(0, sizeof set, &set);
      *static_cast<std::atomic<int>*>(told) = CPU_COUNT(&set);
    };
    ASSERT_EQ(agent->workers()[0]->watch(event.fd(), EPOLLIN, tell, &on, false), TOWLINE_OK);
  }
  event.signal();
  for (const Deadline deadline = Deadline::after(monotonic_now_ns(), 60 * kSecondNs);
       on == -1 && !deadline.passed(monotonic_now_ns());)
    std::this_thread::yield();
  EXPECT_EQ(on, 1);
  const Worker::Guard guard(*agent->workers()[0]);
  agent->workers()[0]->unwatch(event.fd());
}

void count(void* counter, uint32_t) { ++*static_cast<int*>(counter); }

TEST(Worker, AHandlerThatThrowsLosesItsDescriptorAndOthersAreServed) {
  const auto agent = quiet_agent();
  Worker& worker = *agent->workers()[0];
  EventFd bad;
  EventFd good;
  int failed = 0;
  int served = 0;
  {
    const Worker::Guard guard(worker);
    const auto fails = [](void* counter, uint32_t) {
      ++*static_cast<int*>(counter);
      throw std::runtime_error("out of descriptors");
    };
    ASSERT_EQ(worker.watch(bad.fd(), EPOLLIN, fails, &failed, false), TOWLINE_OK);
    ASSERT_EQ(worker.watch(good.fd(), EPOLLIN, count, &served, false), TOWLINE_OK);
  }
  bad.signal();
  good.signal();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (served < 50 && std::chrono::steady_clock::now() < until) worker.drive();
  EXPECT_EQ(served, 50);
  EXPECT_GT(failed, 1);  // what it ran out of may come back
  EXPECT_LT(failed, 20);
  const Worker::Guard guard(worker);
  worker.unwatch(good.fd());
}

// A pass may take long, in an engine that blocks: peers must not be called silent before their messages were read.
TEST(Worker, WhatHasComeIsLookedAtBeforeUpkeep) {
  VirtualClock clock(kSecondNs);
  const auto agent = quiet_agent(&clock);
  Worker& worker = *agent->workers()[0];
  EventFd message;
  int read = 0;
  {
    const Worker::Guard guard(worker);
    const auto reads = [](void* of, uint32_t) {
      auto& [fd, count] = *static_cast<std::pair<EventFd*, int*>*>(of);
      fd->drain();
      ++*count;
    };
    static std::pair<EventFd*, int*> both;
    both = {&message, &read};
    ASSERT_EQ(worker.watch(message.fd(), EPOLLIN, reads, &both, false), TOWLINE_OK);
  }
  message.signal();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (read == 0 && std::chrono::steady_clock::now() < until) worker.drive();
  ASSERT_EQ(read, 1);
  message.signal();
  clock.advance(kSecondNs);
  worker.drive();
  EXPECT_EQ(read, 2);
  const Worker::Guard guard(worker);
  worker.unwatch(message.fd());
}

// As of a crowd of strangers: between two of them the worker serves its peers.
TEST(Worker, EventsThatTakeLongAreHandledInSeveralPasses) {
  static constexpr auto kLong = std::chrono::microseconds(100);
  constexpr int kCrowd = 8;
  const auto agent = quiet_agent();
  Worker& worker = *agent->workers()[0];
  std::array<EventFd, kCrowd> crowd;
  int handled = 0;
  {
    const Worker::Guard guard(worker);
    const auto slow = [](void* counter, uint32_t) {
      ++*static_cast<int*>(counter);
      const auto end = std::chrono::steady_clock::now() + kLong;
      while (std::chrono::steady_clock::now() < end) continue;
    };
    for (EventFd& each : crowd)
      ASSERT_EQ(worker.watch(each.fd(), EPOLLIN, slow, &handled, false), TOWLINE_OK);
  }
  for (EventFd& each : crowd) each.signal();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (handled < 2 * kCrowd && std::chrono::steady_clock::now() < until) {
    const int before = handled;
    worker.drive();
    ASSERT_LE(handled, before + 2);
  }
  EXPECT_GE(handled, 2 * kCrowd);
  const Worker::Guard guard(worker);
  for (EventFd& each : crowd) worker.unwatch(each.fd());
}

TEST(Worker, ADescriptorWhoseWatchFailedIsNotWatchedAnyMore) {
  const auto agent = quiet_agent();
  Worker& worker = *agent->workers()[0];
  EventFd event;
  event.signal();
  int events = 0;
  {
    const Worker::Guard guard(worker);
    ASSERT_EQ(worker.watch(event.fd(), EPOLLIN, count, &events, false), TOWLINE_OK);
    // The system takes this flag when a descriptor is added, and refuses it later.
    ASSERT_EQ(worker.watch(event.fd(), EPOLLIN | EPOLLEXCLUSIVE, count, &events, true), TOWLINE_IO);
  }
  const auto look = [&] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    while (events == 0 && std::chrono::steady_clock::now() < until) worker.drive();
  };
  look();
  EXPECT_EQ(events, 0);
  {
    const Worker::Guard guard(worker);
    ASSERT_EQ(worker.watch(event.fd(), EPOLLIN, count, &events, false), TOWLINE_OK);
  }
  look();
  EXPECT_GT(events, 0);
  const Worker::Guard guard(worker);
  worker.unwatch(event.fd());
}

// What it waits for may never come: the peer's word on a connection that broke.
TEST(Waiter, ASleepThatNothingEndsDoesNotTakeTheWorkersFromTheirThreads) {
  std::atomic<uint32_t> word{0};
  std::atomic<uint32_t> sleepers{0};
  Waiter waiter{word, sleepers, true, 0, kMillisecondNs};
  int taken = 0;   // to drive, and to hand over
  int looked = 0;  // once for each sleep, at least
  const auto never = [&] {
    ++looked;
    return false;
  };
  EXPECT_FALSE(waiter.wait(
      300 * kMillisecondNs, [&](auto&&) { ++taken; }, never));
  EXPECT_GT(looked, 8);
  EXPECT_EQ(taken, 2);
}

// A sleeper asks for the pages of its way to the next message when it wakes. So its code lies together, and
// what its worker is made of is noted.
TEST(Worker, ASleeperKnowsThePagesOfItsWayToTheNextMessage) {
  const auto agent = quiet_agent();
  Worker& worker = *agent->workers()[0];
  wake_pages().clear();
  while (wake_pages().pages().empty()) worker.sleep_driving(monotonic_now_ns() + kMillisecondNs);
  const auto page = [](const void* at) { return reinterpret_cast<uintptr_t>(at) / WakePages::kPageBytes; };
  for (const void* needed : {static_cast<const void*>(&worker), static_cast<const void*>(&agent->own_queue()),
                             static_cast<const void*>(agent->backends().backends().front())}) {
    const auto noted = wake_pages().pages();
    EXPECT_TRUE(std::any_of(noted.begin(), noted.end(),
                            [&](const std::byte* at) { return page(at) == page(needed); }));
  }
  const auto code = wake_path_code();
  EXPECT_GE(code.size(), 8u << 10);    // it is marked,
  EXPECT_LE(code.size(), 512u << 10);  // and it alone: some 30 KiB, and four times that with a sanitizer
}

}  // namespace
}  // namespace towline
