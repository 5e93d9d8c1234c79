// Requests between two agents of a process, and within one.
#include "support.h"

namespace compat {
namespace {

struct Pair {
  Side a{"transfers-a"};
  Side b{"transfers-b"};
  Pair() {
    a.fill('a');
    b.fill('A');
    a.load(b);
    b.load(a);
  }
};

TEST(Transfers, WriteAndReadMoveEveryBlock) {
  Pair pair;
  const std::vector<char> before = pair.a.memory;
  nixlXferReqH* write =
      request(pair.a, NIXL_WRITE, pair.a.blocks(64, 100, 200), pair.b.blocks(64, 100, 300), "transfers-b");
  ASSERT_NE(write, nullptr);
  EXPECT_EQ(pair.a.agent->getXferStatus(write), NIXL_ERR_NOT_POSTED);
  ASSERT_EQ(run(*pair.a.agent, write), NIXL_SUCCESS);
  for (size_t i = 0; i < 64; ++i) {
    ASSERT_EQ(std::memcmp(&pair.b.memory[i * 300], &before[i * 200], 100), 0) << "block " << i;
    ASSERT_EQ(pair.b.memory[i * 300 + 100], static_cast<char>('A' + static_cast<char>((i * 300 + 100) / 64)));
  }
  EXPECT_EQ(pair.a.agent->releaseXferReq(write), NIXL_SUCCESS);

  std::fill(pair.a.memory.begin(), pair.a.memory.end(), '\0');
  nixlXferReqH* read =
      request(pair.a, NIXL_READ, pair.a.blocks(64, 100, 200), pair.b.blocks(64, 100, 300), "transfers-b");
  ASSERT_EQ(run(*pair.a.agent, read), NIXL_SUCCESS);
  for (size_t i = 0; i < 64; ++i) {
    ASSERT_EQ(std::memcmp(&pair.a.memory[i * 200], &before[i * 200], 100), 0) << "block " << i;
    ASSERT_EQ(pair.a.memory[i * 200 + 100], '\0');
  }
  EXPECT_EQ(pair.a.agent->releaseXferReq(read), NIXL_SUCCESS);
}

TEST(Transfers, PreparedListsArePickedByIndex) {
  Pair pair;
  const std::vector<char> before = pair.a.memory;
  nixlDlistH* here = nullptr;
  nixlDlistH* there = nullptr;
  ASSERT_EQ(pair.a.agent->prepXferDlist(pair.a.blocks(16, 64), here), NIXL_SUCCESS);
  ASSERT_EQ(pair.a.agent->prepXferDlist("transfers-b", pair.b.blocks(16, 64), there), NIXL_SUCCESS);
  nixlXferReqH* made = nullptr;
  ASSERT_EQ(pair.a.agent->makeXferReq(NIXL_WRITE, here, {3, 4, 5, 15}, there, {0, 1, 2, 9}, made),
            NIXL_SUCCESS);
  // The request lives on without the lists.
  EXPECT_EQ(pair.a.agent->releasedDlistH(here), NIXL_SUCCESS);
  EXPECT_EQ(pair.a.agent->releasedDlistH(there), NIXL_SUCCESS);
  ASSERT_EQ(run(*pair.a.agent, made), NIXL_SUCCESS);
  EXPECT_EQ(std::memcmp(&pair.b.memory[0], &before[3 * 64], 3 * 64), 0);
  EXPECT_EQ(std::memcmp(&pair.b.memory[9 * 64], &before[15 * 64], 64), 0);
  EXPECT_EQ(pair.b.memory[3 * 64], static_cast<char>('A' + 3));
  EXPECT_EQ(pair.a.agent->releaseXferReq(made), NIXL_SUCCESS);
}

TEST(Transfers, BadArgumentsAreRefusedAndLeaveNoHandle) {
  Pair pair;
  const nixlAgent& agent = *pair.a.agent;
  nixlDlistH* here = nullptr;
  nixlDlistH* there = nullptr;
  ASSERT_EQ(agent.prepXferDlist(pair.a.blocks(4, 64), here), NIXL_SUCCESS);
  ASSERT_EQ(agent.prepXferDlist("transfers-b", pair.b.blocks(4, 64), there), NIXL_SUCCESS);
  auto* made = reinterpret_cast<nixlXferReqH*>(1);
  EXPECT_EQ(agent.makeXferReq(NIXL_WRITE, nullptr, {0}, there, {0}, made), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(agent.makeXferReq(NIXL_WRITE, there, {0}, here, {0}, made), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(agent.makeXferReq(NIXL_WRITE, here, {0, 1}, there, {0}, made), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(agent.makeXferReq(NIXL_WRITE, here, {}, there, {}, made), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(agent.makeXferReq(NIXL_WRITE, here, {4}, there, {0}, made), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(agent.makeXferReq(NIXL_WRITE, here, {-1}, there, {0}, made), NIXL_ERR_INVALID_PARAM);
  EXPECT_NE(towline::nixl::last_error(), "");
  EXPECT_EQ(agent.createXferReq(NIXL_WRITE, pair.a.blocks(2, 64), pair.b.blocks(3, 64), "transfers-b", made),
            NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(agent.createXferReq(NIXL_WRITE, pair.a.blocks(2, 64), pair.b.blocks(2, 32), "transfers-b", made),
            NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(agent.createXferReq(NIXL_WRITE, pair.a.blocks(1, 64), pair.b.blocks(1, 64), "nobody", made),
            NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(made, nullptr);
  // Not registered: one byte too many.
  nixl_xfer_dlist_t beyond(DRAM_SEG);
  beyond.emplace(pair.b.address(), pair.b.memory.size() + 1, uint64_t{0});
  nixlDlistH* list = nullptr;
  EXPECT_EQ(agent.prepXferDlist("transfers-b", beyond, list), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(agent.prepXferDlist(beyond, list), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(agent.prepXferDlist("nobody", pair.b.blocks(1, 64), list), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(list, nullptr);
  EXPECT_EQ(agent.postXferReq(nullptr), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(agent.releaseXferReq(nullptr), NIXL_ERR_INVALID_PARAM);
}

TEST(Transfers, WithinAnAgentGoByItsOwnName) {
  Side side("transfers-alone");
  side.fill('a');
  nixl_xfer_dlist_t there(DRAM_SEG);
  there.emplace(side.address() + 4096, size_t{512}, uint64_t{0});
  const nixl_opt_args_t args = with_notif("to myself");
  nixlXferReqH* made = request(side, NIXL_WRITE, side.blocks(1, 512), there, side.name, &args);
  ASSERT_NE(made, nullptr);
  ASSERT_EQ(run(*side.agent, made), NIXL_SUCCESS);
  EXPECT_EQ(std::memcmp(&side.memory[0], &side.memory[4096], 512), 0);
  std::vector<std::string> texts;
  ASSERT_TRUE(receives(*side.agent, side.name, 1, texts));
  EXPECT_EQ(texts[0], "to myself");
  ASSERT_EQ(side.agent->genNotif(side.name, "again"), NIXL_SUCCESS);
  ASSERT_TRUE(receives(*side.agent, side.name, 1, texts));
  EXPECT_EQ(texts[0], "again");
}

TEST(Transfers, ARepostCarriesTheNotificationItIsGiven) {
  Pair pair;
  nixlXferReqH* made = request(pair.a, NIXL_WRITE, pair.a.blocks(1, 64), pair.b.blocks(1, 64), "transfers-b");
  ASSERT_EQ(run(*pair.a.agent, made), NIXL_SUCCESS);  // none
  const nixl_opt_args_t first = with_notif("first");
  ASSERT_EQ(run(*pair.a.agent, made, &first), NIXL_SUCCESS);
  ASSERT_EQ(run(*pair.a.agent, made), NIXL_SUCCESS);  // the same again
  nixl_opt_args_t legacy;
  legacy.hasNotif = true;
  legacy.notifMsg = "legacy";
  ASSERT_EQ(run(*pair.a.agent, made, &legacy), NIXL_SUCCESS);
  const nixl_opt_args_t without;
  ASSERT_EQ(run(*pair.a.agent, made, &without), NIXL_SUCCESS);  // taken away
  ASSERT_EQ(run(*pair.a.agent, made), NIXL_SUCCESS);
  const nixl_opt_args_t empty = with_notif("");
  ASSERT_EQ(run(*pair.a.agent, made, &empty), NIXL_SUCCESS);  // an empty one is one
  const nixl_opt_args_t last = with_notif("last");
  ASSERT_EQ(run(*pair.a.agent, made, &last), NIXL_SUCCESS);
  std::vector<std::string> texts;
  ASSERT_TRUE(receives(*pair.b.agent, "transfers-a", 5, texts));
  EXPECT_EQ(texts, (std::vector<std::string>{"first", "first", "legacy", "", "last"}));
}

TEST(Transfers, NotificationsOfAnyLengthArriveWhole) {
  Pair pair;
  std::vector<std::string> sent;
  for (const size_t bytes : {size_t{65536}, size_t{65537}, size_t{60'000 * 3}, size_t{500'001}}) {
    sent.emplace_back(bytes, 'x');
    for (size_t i = 0; i < bytes; i += 1000) sent.back()[i] = static_cast<char>('a' + i / 1000 % 26);
    ASSERT_EQ(pair.a.agent->genNotif("transfers-b", sent.back()), NIXL_SUCCESS);
  }
  std::vector<std::string> texts;
  ASSERT_TRUE(receives(*pair.b.agent, "transfers-a", sent.size(), texts));
  EXPECT_TRUE(texts == sent);
}

TEST(Transfers, ThreadsThatShareOneMapGetEveryNotification) {
  constexpr size_t kThreads = 4;
  constexpr size_t kTimes = 40;
  constexpr size_t kAtOnce = 1000;  // so that filling the map takes a while
  Side side("one-map");
  const std::string text(100, 't');
  nixl_notifs_t shared;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (size_t time = 0; time < kTimes; ++time) {
        for (size_t number = 0; number < kAtOnce; ++number)
          EXPECT_EQ(side.agent->genNotif("one-map", text), NIXL_SUCCESS);
        EXPECT_EQ(side.agent->getNotifs(shared), NIXL_SUCCESS);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared["one-map"].size(), kThreads * kTimes * kAtOnce);
}

TEST(Transfers, LongNotificationsFollowEveryRunOfTheirTransfer) {
  Pair pair;
  const std::string first(200'000, 'f');
  const std::string second(70'000, 's');
  const nixl_opt_args_t args = with_notif(first);
  nixlXferReqH* made =
      request(pair.a, NIXL_WRITE, pair.a.blocks(1, 64), pair.b.blocks(1, 64), "transfers-b", &args);
  ASSERT_NE(made, nullptr);
  ASSERT_EQ(run(*pair.a.agent, made), NIXL_SUCCESS);
  ASSERT_EQ(run(*pair.a.agent, made), NIXL_SUCCESS);  // the same again
  const nixl_opt_args_t other = with_notif(second);
  ASSERT_EQ(run(*pair.a.agent, made, &other), NIXL_SUCCESS);
  const nixl_opt_args_t small = with_notif("short");
  ASSERT_EQ(run(*pair.a.agent, made, &small), NIXL_SUCCESS);
  const nixl_opt_args_t without;
  ASSERT_EQ(run(*pair.a.agent, made, &without), NIXL_SUCCESS);
  std::vector<std::string> texts;
  ASSERT_TRUE(receives(*pair.b.agent, "transfers-a", 4, texts));
  EXPECT_TRUE(texts == (std::vector<std::string>{first, first, second, "short"}));
}

TEST(Transfers, APostWhoseLongNotificationFailsHasFailed) {
  Pair pair;
  const nixl_opt_args_t args = with_notif(std::string(200'000, 'l'));
  nixlXferReqH* made =
      request(pair.a, NIXL_WRITE, pair.a.blocks(1, 64), pair.b.blocks(1, 64), "transfers-b", &args);
  ASSERT_NE(made, nullptr);
  ASSERT_EQ(run(*pair.a.agent, made), NIXL_SUCCESS);
  pair.b.agent.reset();
  const nixl_status_t posted = pair.a.agent->postXferReq(made);
  EXPECT_LT(posted, 0);
  EXPECT_EQ(pair.a.agent->getXferStatus(made), posted) << "not what the run before ended with";
  EXPECT_EQ(pair.a.agent->releaseXferReq(made), NIXL_SUCCESS);
}

TEST(Transfers, LongNotificationsReachTheAgentItself) {
  Side side("transfers-alone");
  const std::string text(150'000, 't');
  const nixl_opt_args_t args = with_notif(text);
  nixl_xfer_dlist_t there(DRAM_SEG);
  there.emplace(side.address() + 4096, size_t{512}, uint64_t{0});
  nixlXferReqH* made = request(side, NIXL_WRITE, side.blocks(1, 512), there, side.name, &args);
  ASSERT_NE(made, nullptr);
  ASSERT_EQ(run(*side.agent, made), NIXL_SUCCESS);
  std::vector<std::string> texts;
  ASSERT_TRUE(receives(*side.agent, side.name, 1, texts));
  EXPECT_TRUE(texts[0] == text);
}

TEST(Transfers, WithoutCreditForTheNotificationWaitAndThenGo) {
  Pair pair;
  const nixl_opt_args_t args = with_notif(std::string(65536, 'y'));
  nixlXferReqH* made =
      request(pair.a, NIXL_WRITE, pair.a.blocks(1, 64), pair.b.blocks(1, 64), "transfers-b", &args);
  // 1 MiB may be unread: the sixteenth or so has to wait.
  size_t posted = 0;
  nixl_status_t status = NIXL_SUCCESS;
  for (; posted < 64; ++posted) {
    status = pair.a.agent->postXferReq(made);
    if (status == NIXL_IN_PROG &&
        !eventually([&] { return pair.a.agent->getXferStatus(made) != NIXL_IN_PROG; }, 200ms))
      break;
    ASSERT_EQ(pair.a.agent->getXferStatus(made), NIXL_SUCCESS);
  }
  ASSERT_LT(posted, 64U);
  EXPECT_EQ(pair.a.agent->postXferReq(made), NIXL_ERR_REPOST_ACTIVE);
  std::vector<std::string> texts;
  ASSERT_TRUE(receives(*pair.b.agent, "transfers-a", posted, texts));
  ASSERT_TRUE(eventually([&] { return pair.a.agent->getXferStatus(made) == NIXL_SUCCESS; }));
  // On a busy machine it may have waited for something else, and come with the others.
  std::vector<std::string> last;
  EXPECT_TRUE(texts.size() > posted || receives(*pair.b.agent, "transfers-a", 1, last));
  EXPECT_EQ(texts.size() + last.size(), posted + 1);
}

TEST(Transfers, TellTheirTelemetryWhenItIsOn) {
  nixlAgentConfig config;
  config.captureTelemetry = true;
  Side a("telemetry-a", 1 << 20, config);
  Side b("telemetry-b");
  a.load(b);
  nixlXferReqH* made = request(a, NIXL_WRITE, a.blocks(8, 128), b.blocks(8, 128), "telemetry-b");
  nixl_xfer_telem_t telemetry = {};
  EXPECT_EQ(a.agent->getXferTelemetry(made, telemetry), NIXL_ERR_NOT_POSTED);
  const auto before = std::chrono::steady_clock::now();
  ASSERT_EQ(run(*a.agent, made), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->getXferTelemetry(made, telemetry), NIXL_SUCCESS);
  EXPECT_GE(telemetry.startTime, before);
  EXPECT_GT(telemetry.postDuration.count(), 0);
  EXPECT_GE(telemetry.xferDuration, telemetry.postDuration);
  EXPECT_EQ(telemetry.totalBytes, 1024U);
  EXPECT_EQ(telemetry.descCount, 8U);
  b.load(a);
  nixlXferReqH* untimed = request(b, NIXL_WRITE, b.blocks(1, 8), a.blocks(1, 8), "telemetry-a");
  EXPECT_EQ(b.agent->getXferTelemetry(untimed, telemetry), NIXL_ERR_NO_TELEMETRY);
}

TEST(Transfers, ExplainThemselves) {
  Pair pair;
  nixlXferReqH* made =
      request(pair.a, NIXL_WRITE, pair.a.blocks(1, 4096), pair.b.blocks(1, 4096), "transfers-b");
  nixlBackendH* backend = nullptr;
  EXPECT_EQ(pair.a.agent->queryXferBackend(made, backend), NIXL_SUCCESS);
  EXPECT_EQ(backend, pair.a.backend);
  std::chrono::microseconds duration{};
  std::chrono::microseconds margin{};
  nixl_cost_t method{};
  EXPECT_EQ(pair.a.agent->estimateXferCost(made, duration, margin, method), NIXL_SUCCESS);
  EXPECT_GT(duration.count(), 0);
  EXPECT_EQ(method, nixl_cost_t::ANALYTICAL_BACKEND);
  std::string route;
  ASSERT_EQ(towline::nixl::xfer_route(made, route), NIXL_SUCCESS);
  EXPECT_NE(route.find("\"backend\":\"memory\""), std::string::npos) << route;
}

// The price of what runs there: transfers of that size were measured by then.
TEST(Transfers, EstimatesComeFromMeasuredTransfers) {
  Pair pair;
  nixlXferReqH* made =
      request(pair.a, NIXL_WRITE, pair.a.blocks(1, 2048), pair.b.blocks(1, 2048), "transfers-b");
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(run(*pair.a.agent, made), NIXL_SUCCESS);
  const auto all = std::chrono::steady_clock::now() - began;
  // Another request has not run, and has a measured price.
  nixlXferReqH* other =
      request(pair.a, NIXL_WRITE, pair.a.blocks(1, 1024), pair.b.blocks(1, 1024), "transfers-b");
  std::string route;
  ASSERT_EQ(towline::nixl::xfer_route(other, route), NIXL_SUCCESS);
  EXPECT_NE(route.find("\"from\":\"measured\""), std::string::npos) << route;
  std::chrono::microseconds duration{};
  std::chrono::microseconds margin{};
  nixl_cost_t method{};
  EXPECT_EQ(pair.a.agent->estimateXferCost(other, duration, margin, method), NIXL_SUCCESS);
  const std::string price = route.substr(route.find("\"price\":"));
  const std::string ns = price.substr(price.find("\"ns\":") + 5);
  EXPECT_EQ(static_cast<uint64_t>(duration.count()), (std::stoull(ns) + 999) / 1000) << route;
  EXPECT_GT(duration.count(), 0);
  EXPECT_LE(duration, all) << route;  // no transfer took longer
  EXPECT_EQ(method, nixl_cost_t::ANALYTICAL_BACKEND);
}

TEST(Transfers, ArraysAreTakenWithoutLists) {
  Pair pair;
  const std::vector<char> before = pair.a.memory;
  std::vector<uint64_t> here;   // rows
  std::vector<uint64_t> there;  // addresses
  for (uint64_t i = 0; i < 8; ++i) {
    here.insert(here.end(), {pair.a.address() + i * 64, 64, 0});
    there.push_back(pair.b.address() + (7 - i) * 64);
  }
  const uint64_t length = 64;
  const uint64_t device = 0;
  const towline::nixl::Rows there_columns = {there.data(), &length, &device, 8};
  nixlDlistH* local = nullptr;
  nixlDlistH* remote = nullptr;
  ASSERT_EQ(towline::nixl::prep_xfer_dlist(*pair.a.agent, "", DRAM_SEG,
                                           towline::nixl::Rows::of(here.data(), 8), local),
            NIXL_SUCCESS);
  ASSERT_EQ(towline::nixl::prep_xfer_dlist(*pair.a.agent, "transfers-b", DRAM_SEG, there_columns, remote),
            NIXL_SUCCESS);
  const std::vector<int64_t> picks = {0, 2, 4};
  nixlXferReqH* made = nullptr;
  ASSERT_EQ(towline::nixl::make_xfer_req(*pair.a.agent, NIXL_WRITE, local, {picks.data(), 8, 3}, remote,
                                         {.data = nullptr, .count = 3, .start = 1, .step = 2}, made),
            NIXL_SUCCESS);
  ASSERT_EQ(pair.a.agent->postXferReq(made) < 0, false);
  EXPECT_EQ(towline::nixl::wait_xfer(*pair.a.agent, made, 10'000'000'000), NIXL_SUCCESS);
  EXPECT_EQ(std::memcmp(&pair.b.memory[6 * 64], &before[0], 64), 0);
  EXPECT_EQ(std::memcmp(&pair.b.memory[4 * 64], &before[2 * 64], 64), 0);
  EXPECT_EQ(std::memcmp(&pair.b.memory[2 * 64], &before[4 * 64], 64), 0);
}

TEST(Transfers, ManyThreadsMayUseOneAgent) {
  Pair pair;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        nixl_xfer_dlist_t here(DRAM_SEG);
        nixl_xfer_dlist_t there(DRAM_SEG);
        here.emplace(pair.a.address() + static_cast<size_t>(t) * 4096, size_t{256}, uint64_t{0});
        there.emplace(pair.b.address() + static_cast<size_t>(t) * 4096, size_t{256}, uint64_t{0});
        const nixl_opt_args_t args = with_notif("n");
        nixlXferReqH* made = nullptr;
        if (pair.a.agent->createXferReq(NIXL_WRITE, here, there, "transfers-b", made, &args) !=
                NIXL_SUCCESS ||
            run(*pair.a.agent, made) != NIXL_SUCCESS || pair.a.agent->releaseXferReq(made) != NIXL_SUCCESS) {
          ++failures;
        }
      }
    });
  }
  std::vector<std::string> texts;
  EXPECT_TRUE(receives(*pair.b.agent, "transfers-a", 200, texts));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

// Host memory that was registered on a device is found on that device alone.
TEST(Transfers, HostMemoryHasTheDeviceItWasRegisteredOn) {
  Side side("devices");
  std::vector<char> other(4096);
  const auto address = reinterpret_cast<uintptr_t>(other.data());
  nixl_reg_dlist_t registered(DRAM_SEG);
  registered.addDesc(nixlBlobDesc(address, other.size(), 3, ""));
  registered.addDesc(nixlBlobDesc(address + 1024, 256, 3, ""));  // within the other
  ASSERT_EQ(side.agent->registerMem(registered), NIXL_SUCCESS);
  const auto prepare = [&](uintptr_t where, uint64_t device) {
    nixl_xfer_dlist_t list(DRAM_SEG);
    list.emplace(where, size_t{64}, device);
    nixlDlistH* made = nullptr;
    const nixl_status_t status = side.agent->prepXferDlist(NIXL_INIT_AGENT, list, made);
    if (made != nullptr) {
      EXPECT_EQ(side.agent->releasedDlistH(made), NIXL_SUCCESS);
    }
    return status;
  };
  EXPECT_EQ(prepare(address, 3), NIXL_SUCCESS);
  EXPECT_EQ(prepare(address + 128, 3), NIXL_SUCCESS);
  EXPECT_EQ(prepare(address + 1216, 3), NIXL_SUCCESS);
  EXPECT_EQ(prepare(address + 1248, 3), NIXL_SUCCESS);
  EXPECT_EQ(prepare(address + 4032, 3), NIXL_SUCCESS);
  EXPECT_EQ(prepare(address + 4064, 3), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(prepare(address - 1, 3), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(prepare(address, 0), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(prepare(side.address(), 0), NIXL_SUCCESS);
  EXPECT_EQ(prepare(side.address(), 3), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(side.agent->deregisterMem(registered), NIXL_SUCCESS);
}

}  // namespace
}  // namespace compat
