#include "storing/calls/pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>

#include "support/failing_allocations.h"
#include "towline/towline.h"

namespace towline::calls {
namespace {

class IdleCaller final : public Caller {
 public:
  void move(bool, std::span<Piece>) noexcept override {}
};

class IdleLibrary final : public Library {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "idle"; }
  [[nodiscard]] uint32_t kinds() const noexcept override { return 1u << TOWLINE_MEMORY_DRAM; }
  [[nodiscard]] std::unique_ptr<Caller> make_caller() override { return std::make_unique<IdleCaller>(); }
  void* attach(const PlainFile&) override { return nullptr; }
  void detach(const PlainFile&, void*) noexcept override {}
};

class Connection final : public storing::OwnConnection {
 public:
  using OwnConnection::OwnConnection;
};

// Jobs of no bytes.
class CallersPool : public ::testing::Test {
 protected:
  CallersPool() {
    list_.struct_size = sizeof list_;
    plan_.struct_size = sizeof plan_;
    plan_.local = plan_.remote = &list_;
    args_.struct_size = sizeof args_;
  }

  towline_host_v1_t make_table() noexcept {
    towline_host_v1_t table = {};
    table.struct_size = sizeof table;
    table.context = this;
    table.wake = [](void*, uint32_t) {};
    table.complete = [](void* self, uint64_t, const towline_part_result*) {
      ++static_cast<CallersPool*>(self)->ended_;
    };
    return table;
  }
  // False: there was no memory for it.
  bool run_one(Pool& pool) {
    JobQueue queue(host_, 0, pool);
    Prepared prepared;
    prepared.plan = &plan_;
    prepared.queue = &queue;
    if (queue.submit(prepared, args_, &connection_) != TOWLINE_IN_PROGRESS) return false;
    queue.close(&connection_);  // waits for the thread that has it
    return true;
  }

  const towline_host_v1_t table_ = make_table();
  const plugin::Host host_{&table_};
  const storing::Names names_ = {"idle", "files"};
  Connection connection_{host_, names_, 0, this};
  towline_list list_ = {};
  towline_plan plan_ = {};
  towline_submit_args args_ = {};
  IdleLibrary library_;
  int ended_ = 0;
};

TEST_F(CallersPool, begins_or_fails_whichever_allocation_fails) {
  constexpr int kMostAllocations = 1000;
  int after = 0;
  for (bool failed = true; failed && after < kMostAllocations; ++after) {
    ended_ = 0;
    Pool pool(library_, {2, 4, 4096});
    support::fail_allocations_anywhere(after, 1);
    try {
      pool.start();
    } catch (const std::bad_alloc&) {
      pool.start();
    }
    while (!run_one(pool)) continue;
    failed = support::stop_failing_anywhere();
    EXPECT_EQ(ended_, 1) << "allocation " << after;
  }
  EXPECT_LT(after, kMostAllocations);
}

}  // namespace
}  // namespace towline::calls
