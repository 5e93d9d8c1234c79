// Where ranks meet, and what they find out about themselves.
#include "collectives/store.h"

#include <gtest/gtest.h>

#include "collectives/tcp_store.h"
#include "collectives/test_support.h"

namespace towline::collectives {
namespace {

using Environment = Config::Environment;

Config with(Environment environment) { return Config::from_sources(std::move(environment)); }

Status code_of(const std::function<void()>& body, const std::string& part = {}) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    return error.code();
  }
  return Status::kOk;
}

struct Launcher {
  const char* name;
  const char* method;
  Environment environment;
};

class Launchers : public testing::TestWithParam<Launcher> {};

TEST_P(Launchers, SayWhichRankThisIs) {
  const Config config = with(GetParam().environment);
  for (const char* method : {"auto", GetParam().method}) {
    const RankAndSize found = rank_from_environment(config, method);
    EXPECT_EQ(found.rank, 2) << method;
    EXPECT_EQ(found.size, 5) << method;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Launchers,
    testing::Values(Launcher{"towline", "", {{"TOWLINE_RANK", "2"}, {"TOWLINE_SIZE", "5"}}},
                    Launcher{"torchrun", "torchrun", {{"RANK", "2"}, {"WORLD_SIZE", "5"}}},
                    Launcher{"torchcomm", "", {{"TORCHCOMM_RANK", "2"}, {"TORCHCOMM_SIZE", "5"}}},
                    Launcher{
                        "openmpi", "mpi", {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "5"}}},
                    Launcher{"pmi", "mpi", {{"PMI_RANK", "2"}, {"PMI_SIZE", "5"}}},
                    Launcher{"pals", "pals", {{"PALS_RANKID", "2"}, {"PALS_SIZE", "5"}}},
                    Launcher{"slurm", "slurm", {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "5"}}}),
    [](const auto& launcher) { return std::string(launcher.param.name); });

TEST(RankFromEnvironment, TakesOursBeforeLaunchersAndOneMethodWhereAskedFor) {
  const Config config = with({{"RANK", "1"},
                              {"WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"TOWLINE_RANK", "5"},
                              {"TOWLINE_SIZE", "6"}});
  EXPECT_EQ(rank_from_environment(config, "").rank, 5);
  EXPECT_EQ(rank_from_environment(config, "mpi").rank, 3);
  EXPECT_EQ(rank_from_environment(config, "torchrun").rank, 1);
  const Config asked = with({{"RANK", "1"},
                             {"WORLD_SIZE", "2"},
                             {"TOWLINE_RANK", "0"},
                             {"TOWLINE_SIZE", "1"},
                             {"TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD", "torchrun"}});
  EXPECT_EQ(rank_from_environment(asked, "").rank, 1);
}

TEST(RankFromEnvironment, SaysWhatIsWrong) {
  const auto fails = [](Environment environment, const char* method, const char* part) {
    return code_of([&] { rank_from_environment(with(std::move(environment)), method); }, part);
  };
  EXPECT_EQ(fails({}, "", "RANK/WORLD_SIZE"), Status::kNotFound);
  EXPECT_EQ(fails({{"RANK", "1"}}, "", "no rank and size"), Status::kNotFound);
  EXPECT_EQ(fails({{"RANK", "one"}, {"WORLD_SIZE", "2"}}, "", "RANK=one"), Status::kInvalidArgument);
  EXPECT_EQ(fails({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "", "RANK=2"), Status::kInvalidArgument);
  EXPECT_EQ(fails({}, "telepathy", "telepathy"), Status::kInvalidArgument);
}

TEST(OpenStore, SaysWhereRanksCanMeet) {
  const Deadline deadline = Deadline::after(monotonic_now_ns(), 60 * kSecondNs);
  EXPECT_EQ(code_of([&] { open_store("", 0, with({}), deadline); }, "MASTER_ADDR"), Status::kNotFound);
  EXPECT_EQ(code_of([&] { open_store("the old oak", 0, with({}), deadline); }, "the old oak"),
            Status::kInvalidArgument);
}

TEST(TcpStores, GiveWhatOthersPutAndWaitForWhatIsNotThereYet) {
  TcpStoreServer server("127.0.0.1:0");
  const std::string endpoint = "127.0.0.1:" + std::to_string(server.port());
  const Deadline deadline = Deadline::after(monotonic_now_ns(), 120 * kSecondNs);
  const auto first = open_tcp_store(endpoint, false, deadline);
  const auto second = open_tcp_store(endpoint, false, deadline);
  const Bytes large(3 << 20, 7);
  std::thread putting([&] {
    EXPECT_EQ(second->get("empty", deadline), Bytes());
    second->set("large", large);
  });
  first->set("empty", {});
  EXPECT_EQ(first->get("large", deadline), large);
  putting.join();
  EXPECT_EQ(
      code_of([&] { first->get("never", Deadline::after(monotonic_now_ns(), kMillisecondNs)); }, "never"),
      Status::kTimedOut);
  // A timed out connection is in the middle of an answer: the next request takes another.
  EXPECT_EQ(first->get("large", deadline), large);
  EXPECT_EQ(first->local_host(), "127.0.0.1");
}

// As under torchrun: its agent serves, or rank 0 does, and everybody finds it in the environment.
TEST(TcpStores, RanksMeetAtMasterAddrAndTheServingRankMayCloseAtOnce) {
  for (const bool served : {true, false}) {
    auto server = std::make_unique<TcpStoreServer>("127.0.0.1:0");
    const std::string port = std::to_string(server->port());
    if (!served) server.reset();  // rank 0 takes the port
    const Config config = with({{"MASTER_ADDR", "127.0.0.1"},
                                {"MASTER_PORT", port},
                                {"TORCHELASTIC_USE_AGENT_STORE", served ? "True" : "False"}});
    World world;
    world.size = 4;
    for (int again = 0; again < 5; ++again) {
      run_threads(world.size, [&](int rank) {
        auto store = open_store("env", rank, config, Deadline::after(monotonic_now_ns(), 120 * kSecondNs));
        auto ranks = join(world, rank, store, served ? "agent serves" : "rank 0 serves");
        store.reset();
        ranks->close();
      });
    }
  }
}

TEST(Meeting, RanksWithOtherSettingsOrSizesAreToldSo) {
  const auto refused = [](const std::string& name, const std::function<void(World&, int)>& differ) {
    auto store = std::make_shared<MemoryStore>();
    std::atomic<int> told{0};
    run_threads(2, [&](int rank) {
      World world;
      differ(world, rank);
      if (code_of([&] { join(world, rank, store, name); }, "ranks have different settings") ==
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

}  // namespace
}  // namespace towline::collectives
