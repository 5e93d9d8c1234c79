// Communicators form where ranks meet, and refuse ranks that do not fit together.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "collectives/backend.h"
#include "collectives/forming.h"
#include "collectives/interrupt.h"
#include "collectives/test_support.h"
#include "rendezvous/tcp_store.h"
#include "support/ports.h"

namespace towline::collectives {
namespace {

Status failure_of(const std::function<void()>& body, const std::string& part = {}) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    return error.code();
  }
  return Status::kOk;
}

// As under torchrun: its agent serves, or rank 0 does, and everybody finds it in the environment.
TEST(Meeting, RanksMeetAtMasterAddrAndTheServingRankMayCloseAtOnce) {
  for (const bool served : {true, false}) {
    const std::string port = std::to_string(support::free_port());
    std::unique_ptr<rendezvous::TcpStoreServer> server;  // else rank 0 takes the port
    if (served) server = std::make_unique<rendezvous::TcpStoreServer>("127.0.0.1:" + port);
    const Config config = Config::from_sources({{"MASTER_ADDR", "127.0.0.1"},
                                                {"MASTER_PORT", port},
                                                {"TORCHELASTIC_USE_AGENT_STORE", served ? "True" : "False"}});
    World world;
    world.size = 4;
    for (int again = 0; again < 5; ++again) {
      run_threads(world.size, [&](int rank) {
        auto store =
            rendezvous::open_store("env", rank, config, Deadline::after(monotonic_now_ns(), 120 * kSecondNs));
        auto ranks = join(world, rank, store, served ? "agent serves" : "rank 0 serves");
        store.reset();
        ranks->close();
      });
    }
  }
}

// In which a look for another rank's failure takes longer than the application is left alone.
class SlowStore final : public rendezvous::Store {
 public:
  void set(const std::string& key, std::span<const uint8_t> value) override { values_.set(key, value); }
  rendezvous::Bytes get(const std::string& key, Deadline deadline) override {
    const bool looks = key == kFailedKey;
    looked = looked || looks;
    const uint64_t least = monotonic_now_ns() + 100 * kMillisecondNs;
    return values_.get(key, looks ? Deadline::at(std::max(deadline.ns(), least)) : deadline);
  }
  std::string describe() const override { return "slow"; }

  bool looked = false;
  bool interrupted = false;

 private:
  rendezvous::MemoryStore values_;
};

TEST(Meeting, AnApplicationThatEndsTheWaitDuringALookForFailuresIsHeard) {
  const auto slow = std::make_shared<SlowStore>();
  FormingStore store(std::make_shared<AskingStore>(slow, 0), 0);
  const auto once = [](void* context) -> int32_t {
    auto& asking = *static_cast<SlowStore*>(context);
    return asking.looked && !std::exchange(asking.interrupted, true) ? 1 : 0;
  };
  const Interrupt interrupt(once, slow.get());
  EXPECT_EQ(failure_of([&] { store.get("never", Deadline::after(monotonic_now_ns(), 20 * kSecondNs)); },
                       "rank 0 was interrupted"),
            Status::kCancelled);
  EXPECT_TRUE(slow->interrupted);
}

// As a directory far away: who gives it less time than an answer takes gets none.
class FarStore final : public rendezvous::Store {
 public:
  void set(const std::string& key, std::span<const uint8_t> value) override { values_.set(key, value); }
  rendezvous::Bytes get(const std::string& key, Deadline deadline) override {
    if (deadline.remaining_ns(monotonic_now_ns()) < 120 * kMillisecondNs)
      fail(Status::kTimedOut, "{} did not come in time", key);
    return values_.get(key, deadline);
  }
  std::string describe() const override { return "far"; }

 private:
  rendezvous::MemoryStore values_;
};

TEST(Meeting, AStoreThatTakesLongToAnswerIsGivenTheTime) {
  const auto far = std::make_shared<FarStore>();
  FormingStore store(std::make_shared<AskingStore>(far, 0), 0);
  const std::vector<uint8_t> value{1, 2, 3};
  store.set("key", value);
  const Deadline soon = Deadline::after(monotonic_now_ns(), 5 * kSecondNs);
  EXPECT_EQ(failure_of([&] { EXPECT_EQ(store.get("key", soon), value); }, ""), Status::kOk);
}

// Which remembers whether the secret of the connections was asked for.
class SecretStore final : public rendezvous::Store {
 public:
  explicit SecretStore(std::shared_ptr<rendezvous::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, std::span<const uint8_t> value) override { store_->set(key, value); }
  rendezvous::Bytes get(const std::string& key, Deadline deadline) override {
    if (key.ends_with("mesh")) asked = true;
    return store_->get(key, deadline);
  }
  std::string describe() const override { return store_->describe(); }

  std::atomic<bool> asked{false};

 private:
  const std::shared_ptr<rendezvous::Store> store_;
};

TEST(Meeting, Rank0KnowsTheSecretBeforeTheOthersConnect) {
  World world;
  world.size = 3;
  world.ranks_per_host = 1;
  const auto common = std::make_shared<rendezvous::MemoryStore>();
  std::vector<std::shared_ptr<SecretStore>> stores;
  for (int rank = 0; rank < world.size; ++rank) stores.push_back(std::make_shared<SecretStore>(common));
  run_threads(world.size,
              [&](int rank) { join(world, rank, stores[static_cast<size_t>(rank)], "secret")->close(); });
  EXPECT_FALSE(stores[0]->asked) << "others may have it sooner, and wait among strangers";
  EXPECT_TRUE(stores[1]->asked);
}

TEST(Meeting, RanksWithOtherSettingsOrSizesAreToldSo) {
  const auto refused = [](const std::string& name, const std::function<void(World&, int)>& differ) {
    auto store = std::make_shared<rendezvous::MemoryStore>();
    std::atomic<int> told{0};
    run_threads(2, [&](int rank) {
      World world;
      differ(world, rank);
      if (failure_of([&] { join(world, rank, store, name); }, "ranks have different settings") ==
          Status::kMismatch)
        ++told;
    });
    return told.load();
  };
  EXPECT_EQ(
      refused("stages", [](World& world, int rank) { world.stage_bytes = rank == 0 ? "64KiB" : "128KiB"; }),
      2);
  EXPECT_EQ(refused("flags",
                    [](World& world, int rank) {
                      world.flags = rank == 0 ? 0 : uint32_t{TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY};
                    }),
            2);
}

TEST(Backends, ALibraryIsLoadedThatASettingNames) {
  EXPECT_EQ(failure_of([] { find_backend("absent"); }, "collectives.library.absent"), Status::kNotFound);
  ::setenv("TOWLINE_COLLECTIVES_LIBRARY_ABSENT", "/nowhere/libabsent.so", 1);
  EXPECT_NE(failure_of([] { find_backend("absent"); }, "/nowhere/libabsent.so"), Status::kOk);
  ::unsetenv("TOWLINE_COLLECTIVES_LIBRARY_ABSENT");
}

}  // namespace
}  // namespace towline::collectives
