// Operations and messages of a few bytes, which leave out what a call need not do. What they promise is the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collectives/test_support.h"
#include "collectives/work.h"
#include "support/failing_allocations.h"

namespace towline::collectives {
namespace {

nlohmann::json records_of(Communicator& ranks) {
  return nlohmann::json::parse(ranks.recorder().dump(ranks.name(), ranks.rank(), ranks.size()))["entries"];
}

void pass(uint64_t ns) {
  for (const uint64_t until = monotonic_now_ns() + ns; monotonic_now_ns() < until;) {
  }
}

Status refused(Communicator& ranks, const towline_collective_t& call) {
  try {
    std::string text;
    return ranks.run(call, nullptr, text);
  } catch (const Error& error) {
    return error.code();
  }
}

TEST(Small, ACallLikeTheLastOneIsCheckedWhereItDiffers) {
  run_ranks(World{}, [](Communicator& ranks) {
    float in = 1;
    float out = 0;
    const auto good = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_FLOAT32, 1, &in, &out);
    const auto expect_refused = [&](const auto& change, Status status) {
      for (int time = 0; time < 2; ++time) {
        out = 0;
        do_run(ranks, good);
        EXPECT_EQ(out, 2);
      }
      towline_collective_t bad = good;
      change(bad);
      EXPECT_EQ(refused(ranks, bad), status);
      EXPECT_EQ(refused(ranks, bad), status);
    };
    expect_refused([](auto& call) { call.output = nullptr; }, Status::kInvalidArgument);
    expect_refused([](auto& call) { call.input = nullptr; }, Status::kInvalidArgument);
    expect_refused([](auto& call) { call.datatype = 99; }, Status::kInvalidArgument);
    expect_refused([](auto& call) { call.op = 77; }, Status::kInvalidArgument);
    expect_refused([](auto& call) { call.reduction = 99; }, Status::kUnsupported);
    expect_refused([](auto& call) { call.count = ~uint64_t{0}; }, Status::kOutOfRange);
    const auto as_broadcast = [](auto& call) {
      call.op = TOWLINE_COLLECTIVE_BROADCAST;
      call.root = 2;
    };
    expect_refused(as_broadcast, Status::kOutOfRange);
    do_run(ranks, good);
  });
}

TEST(Small, ACallLikeTheLastOneReadsItsDataAnew) {
  run_ranks(World{}, [](Communicator& ranks) {
    uint32_t in = 0;
    uint32_t out = 0;
    const auto call = call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_UINT32, 1, &in, &out);
    for (uint32_t round = 0; round < 1000; ++round) {
      in = round * (static_cast<uint32_t>(ranks.rank()) + 1);
      do_run(ranks, call);
      ASSERT_EQ(out, 3 * round);
      if (round % 100 == 0) do_barrier(ranks);
    }
  });
}

// Several at once, of which a receiver reads ahead, and one by one.
TEST(Small, MessagesOfAllLengthsArriveInOrder) {
  run_ranks(World{}, [](Communicator& ranks) {
    std::vector<uint8_t> data(600);
    const auto message = [&](uint64_t bytes) {
      auto call = call_of(ranks.rank() == 0 ? TOWLINE_COLLECTIVE_SEND : TOWLINE_COLLECTIVE_RECV,
                          TOWLINE_UINT8, bytes, data.data(), data.data());
      call.root = 1 - ranks.rank();
      for (uint64_t i = 0; i < bytes; ++i)
        data[i] = ranks.rank() == 0 ? static_cast<uint8_t>(bytes + i) : uint8_t{0};
      do_run(ranks, call);
      for (uint64_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], static_cast<uint8_t>(bytes + i)) << bytes;
    };
    for (const uint64_t together : {1u, 3u, 40u}) {
      for (uint64_t bytes = 0; bytes < data.size(); ++bytes) {
        message(bytes);
        if (bytes % together == 0) do_barrier(ranks);
      }
    }
  });
}

// Whichever allocation fails: the rest of a message that was half sent or taken would be taken for another one.
TEST(Small, AMessageForWhichMemoryIsShortBreaksTheCommunicator) {
  bool failed = true;
  for (int after = 0; failed; ++after) {
    SCOPED_TRACE(after);
    ASSERT_LT(after, 100);
    std::atomic<bool> over{false};
    run_ranks(World{}, [&](Communicator& ranks) {
      std::vector<uint8_t> data(100);
      auto call = call_of(ranks.rank() == 0 ? TOWLINE_COLLECTIVE_SEND : TOWLINE_COLLECTIVE_RECV,
                          TOWLINE_UINT8, data.size(), data.data(), data.data());
      call.root = 1 - ranks.rank();
      std::string text;
      if (ranks.rank() == 0) {
        for (const uint64_t tag : {2, 1}) {
          call.tag = tag;
          do_run(ranks, call);
        }
      }
      do_barrier(ranks);
      if (ranks.rank() == 1) {
        call.tag = 1;  // behind one that is kept
        support::fail_allocations(after, 1);
        const Status status = ranks.run(call, nullptr, text);
        support::stop_failing();
        failed = status != Status::kOk;
        EXPECT_TRUE(!failed || status == Status::kOutOfMemory) << text;
        over = true;
      }
      eventually([&] { return over.load(); });
      if (failed) eventually([&] { return ranks.error(&text) == Status::kOutOfMemory; });
    });
  }
}

// What other ranks do wakes a sleeping thread. This message comes from none of them.
TEST(Small, AMessageToTheRankItselfWakesTheThreadThatSleepsForIt) {
  run_ranks(World{}, [](Communicator& ranks) {
    uint64_t least_ns = kSecondNs;  // without the waking each takes some 40 ms
    for (int round = 0; round < 11 && ranks.rank() == 0; ++round) {
      uint8_t value = 0;
      uint64_t came = 0;
      std::thread receiver([&] {
        do_run(ranks, call_of(TOWLINE_COLLECTIVE_RECV, TOWLINE_UINT8, 1, nullptr, &value));
        came = monotonic_now_ns();
      });
      pass(10 * kMillisecondNs);  // it sleeps
      const uint64_t sent = monotonic_now_ns();
      do_run(ranks, call_of(TOWLINE_COLLECTIVE_SEND, TOWLINE_UINT8, 1, &value));
      receiver.join();
      least_ns = std::min(least_ns, came - sent);
    }
    EXPECT_LT(ranks.rank() == 0 ? least_ns : 0, 20 * kMillisecondNs);
    do_barrier(ranks);
  });
}

TEST(Small, EveryNumberOfBytesThatFitsALineArrives) {
  run_ranks(World{}, [](Communicator& ranks) {
    for (uint64_t bytes = 0; bytes <= 40; ++bytes) {
      std::array<uint8_t, 42> in{};
      std::array<uint8_t, 42> out{};
      for (uint64_t i = 0; i < bytes; ++i)
        in[i] = static_cast<uint8_t>(i + 1 + 100 * static_cast<uint64_t>(ranks.rank()));
      do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_UINT8, bytes, in.data(), out.data()));
      for (uint64_t i = 0; i < in.size(); ++i)
        ASSERT_EQ(out[i], i < bytes ? static_cast<uint8_t>(2 * i + 102) : 0) << bytes << " bytes, at " << i;
    }
  });
}

// Where a rank's own part lies in the output already, and a part of the output is written before it is read.
TEST(Small, WhatARankGivesMayBeWhereItsResultGoes) {
  World world;
  world.size = 3;
  run_ranks(world, [](Communicator& ranks) {
    const auto me = static_cast<size_t>(ranks.rank());
    const auto give = [](size_t from, size_t to) { return static_cast<uint16_t>(10 * from + to + 1); };
    for (const uint64_t count : {uint64_t{1}, uint64_t{4}}) {
      std::vector<uint16_t> data(3 * count);
      const auto fill = [&] {
        for (size_t i = 0; i < data.size(); ++i) data[i] = give(me, i / count);
      };
      fill();
      do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_TO_ALL, TOWLINE_UINT16, count, data.data(), data.data()));
      for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], give(i / count, me));
      fill();
      uint16_t* const mine = data.data() + me * count;
      do_run(ranks, call_of(TOWLINE_COLLECTIVE_REDUCE_SCATTER, TOWLINE_UINT16, count, data.data(), mine));
      for (size_t i = 0; i < data.size(); ++i)
        ASSERT_EQ(data[i], i / count == me ? 33 + 3 * me : give(me, i / count));
      fill();
      do_run(ranks, call_of(TOWLINE_COLLECTIVE_ALL_GATHER, TOWLINE_UINT16, count, mine, data.data()));
      for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], give(i / count, i / count));
      fill();
      auto gather = call_of(TOWLINE_COLLECTIVE_GATHER, TOWLINE_UINT16, count, mine, data.data());
      gather.root = 1;
      do_run(ranks, gather);
      for (size_t i = 0; i < data.size() && me == 1; ++i) ASSERT_EQ(data[i], give(i / count, i / count));
      fill();
      auto reduce = call_of(TOWLINE_COLLECTIVE_REDUCE, TOWLINE_UINT16, 3 * count, data.data(), data.data());
      reduce.root = 2;
      do_run(ranks, reduce);
      for (size_t i = 0; i < data.size(); ++i)
        ASSERT_EQ(data[i], me == 2 ? 33 + 3 * (i / count) : give(me, i / count));
    }
  });
}

TEST(Small, RecordsHaveTheirNumbersAndTimes) {
  std::atomic<Communicator*> first = nullptr;
  std::atomic<bool> looked = false;  // rank 1 does so no more
  run_ranks(World{}, [&](Communicator& ranks) {
    if (ranks.rank() == 0) first = &ranks;
    constexpr uint64_t kLateNs = 3 * kMillisecondNs;
    uint64_t value = 1;
    const auto broadcast = call_of(TOWLINE_COLLECTIVE_BROADCAST, TOWLINE_UINT64, 1, &value, &value);
    for (int round = 0; round < 100; ++round) {
      do_barrier(ranks);
      do_run(ranks, broadcast);
    }
    do_barrier(ranks);
    if (ranks.rank() == 1) {
      eventually([&] { return records_of(*first).size() == 202; });
      looked = true;
      pass(kLateNs);
    }
    do_barrier(ranks);
    const auto records = records_of(ranks);
    ASSERT_EQ(records.size(), 202u);
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i]["state"], "completed");
      EXPECT_EQ(records[i]["collective_seq_id"], i + 1);
      EXPECT_GE(records[i]["duration_ms"], 0);
      EXPECT_GE(records[i]["time_discovered_completed_ns"], records[i]["time_created_ns"]);
      if (i != 0) {
        EXPECT_GT(records[i]["op_id"], records[i - 1]["op_id"]);
      }
    }
    // Rank 0 waited for rank 1, and both ended together.
    const auto& last = records.back();
    if (ranks.rank() == 0) {
      EXPECT_GE(last["duration_ms"], 0.9 * static_cast<double>(kLateNs) / 1e6);
    }
    const int64_t since = static_cast<int64_t>(last["time_discovered_completed_ns"]) -
                          static_cast<int64_t>(records[200]["time_discovered_completed_ns"]);
    EXPECT_GE(since, static_cast<int64_t>(kLateNs) * 9 / 10);
    eventually([&] { return looked.load(); });
  });
}

TEST(Small, ARecordStandsWhileARankWaits) {
  std::atomic<Communicator*> waiting = nullptr;
  std::atomic<bool> looked = false;
  run_ranks(World{}, [&](Communicator& ranks) {
    if (ranks.rank() == 0) {
      waiting = &ranks;
      do_barrier(ranks);
      do_barrier(ranks);
      return eventually([&] { return looked.load(); });
    }
    eventually([&] { return waiting != nullptr && records_of(*waiting).size() == 1; });
    EXPECT_NE(records_of(*waiting)[0]["state"], "completed");
    looked = true;
    do_barrier(ranks);
    do_barrier(ranks);
  });
}

TEST(Messages, SmallOnesThatFillTheRingArriveWhole) {
  run_ranks(World{}, [](Communicator& ranks) {
    constexpr uint64_t kMessages = 400;  // of up to 300 bytes, in a ring of 16 KiB
    std::vector<std::vector<uint8_t>> data(kMessages);
    std::vector<Work*> works;
    for (uint64_t i = 0; i < kMessages; ++i) {
      data[i].assign(i * 7 % 301, static_cast<uint8_t>(ranks.rank() == 0 ? i : 0));
      auto call = call_of(ranks.rank() == 0 ? TOWLINE_COLLECTIVE_SEND : TOWLINE_COLLECTIVE_RECV,
                          TOWLINE_UINT8, data[i].size(), data[i].data(), data[i].data());
      call.root = 1 - ranks.rank();
      if (ranks.rank() == 0)
        works.push_back(ranks.start(call, nullptr));
      else
        do_run(ranks, call);
      const auto sent = static_cast<uint8_t>(i);
      for (const uint8_t byte : data[i]) ASSERT_EQ(byte, sent) << "message " << i;
    }
    for (Work* work : works) {
      EXPECT_EQ(ranks.wait(*work, TOWLINE_FOREVER), Status::kOk);
      work->release();
    }
  });
}

TEST(Work, WakesAThreadThatSleeps) {
  for (uint64_t round = 0; round < 200; ++round) {
    auto* work = new Work(nullptr, TOWLINE_COLLECTIVE_BARRIER, kSecondNs, Deadline::never());
    std::thread sleeper([&] { work->sleep(Deadline::never()); });
    pass(round * kMicrosecondNs);
    work->finish(Status::kOk, {});
    sleeper.join();
    work->release();
  }
}

}  // namespace
}  // namespace towline::collectives
