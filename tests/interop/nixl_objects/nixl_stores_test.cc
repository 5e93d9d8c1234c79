// The backends OBJ and AZURE_BLOB of the drop-in for NIXL, each at its real server, and on bad days: wrong keys, servers that
// are busy, talk nonsense, stop and come back.
#include <atomic>
#include <csignal>
#include <map>

#include "../object/proxy.h"
#include "support.h"
#include "support/azure_server.h"
#include "support/s3_server.h"

namespace compat {
namespace {

using towline::interop::Fault;
using towline::interop::Proxy;
using towline::interop::Request;
using towline::support::AzureServer;
using towline::support::S3Server;

// One of the two, with its server.
class Store {
 public:
  virtual ~Store() = default;
  [[nodiscard]] virtual uint16_t port() const = 0;
  virtual void stop() = 0;
  virtual void start() = 0;
  // What createBackend takes to reach the server at http://127.0.0.1:`at`.
  [[nodiscard]] virtual nixl_b_params_t parameters(uint16_t at, bool right_key) const = 0;
};

class S3Store final : public Store {
 public:
  [[nodiscard]] uint16_t port() const override { return server_.port(); }
  void stop() override { server_.stop(SIGTERM); }
  void start() override { server_.start(); }
  [[nodiscard]] nixl_b_params_t parameters(uint16_t at, bool right_key) const override {
    return {{"access_key", S3Server::kAccessKey},
            {"secret_key", right_key ? S3Server::kSecretKey : "wrong"},
            {"endpoint_override", "http://127.0.0.1:" + std::to_string(at)},
            {"bucket", "bucket"}};
  }

 private:
  S3Server server_;
};

class AzureStore final : public Store {
 public:
  [[nodiscard]] uint16_t port() const override { return server_.port(); }
  void stop() override { server_.stop(SIGTERM); }
  void start() override { server_.start(); }
  [[nodiscard]] nixl_b_params_t parameters(uint16_t at, bool right_key) const override {
    return {{"connection_string", "AccountName=" + std::string(AzureServer::kAccount) +
                                      ";AccountKey=" + (right_key ? AzureServer::kKey : "d3Jvbmcga2V5") +
                                      ";BlobEndpoint=" + AzureServer::endpoint(at) + ";"},
            {"container_name", "bucket"}};
  }

 private:
  AzureServer server_;
};

struct Kind {
  const char* backend;
  std::string (*program)();
  const char* missing;
  std::unique_ptr<Store> (*make)();
};

template <class Mine>
std::unique_ptr<Store> make() {
  return std::make_unique<Mine>();
}

class Stores : public testing::TestWithParam<Kind> {
 protected:
  static constexpr size_t kBytes = 4096;

  static void TearDownTestSuite() { servers_.clear(); }
  void SetUp() override {
    if (GetParam().program().empty()) GTEST_SKIP() << GetParam().missing;
    std::unique_ptr<Store>& server = servers_[GetParam().backend];
    if (server == nullptr) server = GetParam().make();
    store_ = server.get();
    proxy_ = std::make_unique<Proxy>(store_->port());
  }
  [[nodiscard]] uint16_t proxys_port() const {
    return static_cast<uint16_t>(std::stoi(proxy_->url().substr(proxy_->url().rfind(':') + 1)));
  }
  // An agent that reaches the store through the proxy, with a deadline for requests.
  [[nodiscard]] std::unique_ptr<Side> connect(const nixl_b_params_t& more = {}, bool right_key = true,
                                              const char* deadline = "20s") const {
    EXPECT_EQ(::setenv("TOWLINE_NIXL_TIMEOUT", deadline, 1), 0);  // NOLINT: no agent lives
    auto side = std::make_unique<Side>("stores", 16 * kBytes, nixlAgentConfig{}, false);
    EXPECT_EQ(::unsetenv("TOWLINE_NIXL_TIMEOUT"), 0);  // NOLINT
    nixl_b_params_t parameters = store_->parameters(proxys_port(), right_key);
    for (const auto& [name, value] : more) parameters[name] = value;
    EXPECT_EQ(side->agent->createBackend(GetParam().backend, parameters, side->backend), NIXL_SUCCESS)
        << towline::nixl::last_error();
    EXPECT_EQ(side->agent->registerMem(side->registered()), NIXL_SUCCESS) << towline::nixl::last_error();
    side->fill('s');
    return side;
  }
  static nixl_reg_dlist_t named(size_t count) {
    nixl_reg_dlist_t list(OBJ_SEG);
    for (size_t i = 0; i < count; ++i)
      list.addDesc(nixlBlobDesc(0, kBytes, i + 1, "key/" + std::to_string(i)));
    return list;
  }
  static nixl_xfer_dlist_t whole(size_t count) {
    nixl_xfer_dlist_t list(OBJ_SEG);
    for (size_t i = 0; i < count; ++i) list.emplace(uintptr_t{0}, kBytes, uint64_t{i + 1});
    return list;
  }
  static nixl_status_t move(Side& side, nixl_xfer_op_t op, size_t count) {
    nixlXferReqH* made = request(side, op, side.blocks(count, kBytes), whole(count), side.name);
    if (made == nullptr) return NIXL_ERR_UNKNOWN;
    const nixl_status_t status = run(*side.agent, made);
    EXPECT_EQ(side.agent->releaseXferReq(made), NIXL_SUCCESS);
    return status;
  }
  // Reads what was written, into other memory.
  static void expect_there(Side& side, size_t count) {
    const std::vector<char> written = side.memory;
    std::fill(side.memory.begin(), side.memory.end(), '\0');
    ASSERT_EQ(move(side, NIXL_READ, count), NIXL_SUCCESS) << towline::nixl::last_error();
    EXPECT_TRUE(std::equal(side.memory.begin(), side.memory.begin() + static_cast<ptrdiff_t>(count * kBytes),
                           written.begin()));
    side.memory = written;
  }

  static inline std::map<std::string, std::unique_ptr<Store>>
      servers_;  // for all tests: one takes seconds to start
  Store* store_ = nullptr;
  std::unique_ptr<Proxy> proxy_;
};

INSTANTIATE_TEST_SUITE_P(All, Stores,
                         testing::Values(Kind{"OBJ", S3Server::program, S3Server::kMissing, make<S3Store>},
                                         Kind{"AZURE_BLOB", AzureServer::program, AzureServer::kMissing,
                                              make<AzureStore>}),
                         [](const auto& tested) { return std::string(tested.param.backend); });

TEST_P(Stores, AreWrittenQueriedAndRead) {
  const auto side = connect();
  ASSERT_EQ(side->agent->registerMem(named(5)), NIXL_SUCCESS) << towline::nixl::last_error();
  ASSERT_EQ(move(*side, NIXL_WRITE, 5), NIXL_SUCCESS) << towline::nixl::last_error();
  nixl_opt_args_t with;
  with.backends = {side->backend};
  std::vector<nixl_query_resp_t> found;
  ASSERT_EQ(side->agent->queryMem(named(6), found, &with), NIXL_SUCCESS);
  ASSERT_EQ(found.size(), 6u);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(found[i].value_or(nixl_b_params_t{})["size"], "4096") << i;
  EXPECT_FALSE(found[5].has_value());
  expect_there(*side, 5);
  EXPECT_EQ(side->agent->deregisterMem(named(5)), NIXL_SUCCESS);
}

TEST_P(Stores, HaveAsManyRequestsAtOnceAsTheirThreadsAre) {
  const auto side = connect({{"num_threads", "3"}});
  ASSERT_EQ(side->agent->registerMem(named(12)), NIXL_SUCCESS);
  std::atomic<int> now{0};
  std::atomic<int> most{0};
  proxy_->judge([&](const Request&) -> Fault {
    const int count = ++now;
    for (int seen = most; seen < count && !most.compare_exchange_weak(seen, count);) {
    }
    (void)eventually([&] { return now == 3; }, 50ms);  // others have time to come, if they do
    --now;
    return {};
  });
  EXPECT_EQ(move(*side, NIXL_WRITE, 12), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_LE(most, 3);
  EXPECT_GE(most, 2);
  proxy_->judge({});
  expect_there(*side, 12);
}

TEST_P(Stores, WrongKeysAreAnErrorOfTheFirstRequest) {
  const auto side = connect({}, false);
  ASSERT_EQ(side->agent->registerMem(named(1)), NIXL_SUCCESS);
  EXPECT_LT(move(*side, NIXL_WRITE, 1), 0);
  EXPECT_NE(towline::nixl::last_error().find("403"), std::string::npos) << towline::nixl::last_error();
  nixl_opt_args_t with;
  with.backends = {side->backend};
  std::vector<nixl_query_resp_t> found;
  EXPECT_LT(side->agent->queryMem(named(1), found, &with), 0);
  EXPECT_NE(towline::nixl::last_error().find("403"), std::string::npos) << towline::nixl::last_error();
}

TEST_P(Stores, ThatAreBusyAreAskedAgain) {
  const auto side = connect();
  ASSERT_EQ(side->agent->registerMem(named(2)), NIXL_SUCCESS);
  std::atomic<unsigned> refused{0};
  proxy_->judge([&](const Request&) -> Fault {
    const unsigned number = refused++;
    if (number == 0) return {.answer = Proxy::http(429, "")};
    if (number == 1) return {.answer = Proxy::s3_error(503, "SlowDown")};
    return {};
  });
  EXPECT_EQ(move(*side, NIXL_WRITE, 2), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_GE(refused, 4u);
  proxy_->judge({});
  expect_there(*side, 2);
}

TEST_P(Stores, ThatTalkNonsenseAreAnErrorAndServeAgain) {
  const auto side = connect();
  ASSERT_EQ(side->agent->registerMem(named(2)), NIXL_SUCCESS);
  ASSERT_EQ(move(*side, NIXL_WRITE, 2), NIXL_SUCCESS) << towline::nixl::last_error();
  for (const Fault& fault : {Fault{.answer = Proxy::http(200, std::string(3 * kBytes, 'x'))},
                             Fault{.answer = Proxy::http(418, "<not xml")},
                             Fault{.set_headers = {{"content-range", "nonsense"}}}}) {
    proxy_->judge([&](const Request&) { return fault; });
    EXPECT_LT(move(*side, NIXL_READ, 2), 0);
  }
  proxy_->judge({});
  side->fill('s');
  expect_there(*side, 2);
}

TEST_P(Stores, ThatStallOrStopEndRequestsByTheirDeadlineAndServeAgain) {
  const auto side = connect({}, true, "500ms");
  ASSERT_EQ(side->agent->registerMem(named(2)), NIXL_SUCCESS);
  ASSERT_EQ(move(*side, NIXL_WRITE, 2), NIXL_SUCCESS) << towline::nixl::last_error();
  const auto ends_soon = [&](const char* what) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_LT(move(*side, NIXL_READ, 2), 0) << what;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s) << what;
  };
  proxy_->judge([](const Request&) -> Fault { return {.hold = true}; });
  ends_soon("stalled");
  proxy_->judge({});
  store_->stop();
  ends_soon("stopped");
  store_->start();
  side->fill('s');
  expect_there(*side, 2);
}

TEST_P(Stores, WhoseKeysExpireAreAnErrorAndServeAgain) {
  const auto side = connect();
  ASSERT_EQ(side->agent->registerMem(named(2)), NIXL_SUCCESS);
  ASSERT_EQ(move(*side, NIXL_WRITE, 2), NIXL_SUCCESS) << towline::nixl::last_error();
  proxy_->judge([](const Request&) -> Fault { return {.answer = Proxy::s3_error(403, "ExpiredToken")}; });
  EXPECT_LT(move(*side, NIXL_READ, 2), 0);
  EXPECT_LT(move(*side, NIXL_WRITE, 2), 0);
  proxy_->judge({});
  side->fill('s');
  expect_there(*side, 2);
}

TEST_P(Stores, WithoutSpaceAreAnErrorAndServeAgain) {
  const auto side = connect();
  ASSERT_EQ(side->agent->registerMem(named(2)), NIXL_SUCCESS);
  ASSERT_EQ(move(*side, NIXL_WRITE, 2), NIXL_SUCCESS) << towline::nixl::last_error();
  proxy_->judge([](const Request& request) -> Fault {
    return request.method == "PUT" ? Fault{.answer = Proxy::http(507, "")} : Fault{};
  });
  EXPECT_LT(move(*side, NIXL_WRITE, 2), 0);
  proxy_->judge({});
  side->fill('s');
  expect_there(*side, 2);
}

// The objects end before the bytes that were registered, and answers before the bytes that they announce.
TEST_P(Stores, ThatAreCutShortAreAnErrorAndServeAgain) {
  const auto side = connect();
  ASSERT_EQ(side->agent->registerMem(named(2)), NIXL_SUCCESS);
  ASSERT_EQ(move(*side, NIXL_WRITE, 2), NIXL_SUCCESS) << towline::nixl::last_error();
  proxy_->judge([](const Request& request) -> Fault {
    return request.method == "GET" ? Fault{.shorten_by = 1000} : Fault{};
  });
  EXPECT_LT(move(*side, NIXL_READ, 2), 0);
  proxy_->judge({});
  nixl_reg_dlist_t longer(OBJ_SEG);
  longer.addDesc(nixlBlobDesc(0, 2 * kBytes, 99, "key/0"));
  ASSERT_EQ(side->agent->registerMem(longer), NIXL_SUCCESS) << towline::nixl::last_error();
  nixl_xfer_dlist_t past(OBJ_SEG);
  past.emplace(uintptr_t{0}, 2 * kBytes, uint64_t{99});
  nixlXferReqH* read = request(*side, NIXL_READ, side->blocks(1, 2 * kBytes), past, side->name);
  ASSERT_NE(read, nullptr);
  EXPECT_LT(run(*side->agent, read), 0);
  EXPECT_EQ(side->agent->releaseXferReq(read), NIXL_SUCCESS);
  side->fill('s');
  expect_there(*side, 2);
}

TEST_P(Stores, ParametersThatAreWrongAreRefused) {
  const Side side("stores-wrong", kBytes, nixlAgentConfig{}, false);
  for (const char* number : {"many", "0", "-1", "99999999999999"}) {
    nixl_b_params_t parameters = store_->parameters(store_->port(), true);
    parameters["num_threads"] = number;
    nixlBackendH* made = nullptr;
    EXPECT_EQ(side.agent->createBackend(GetParam().backend, parameters, made), NIXL_ERR_INVALID_PARAM)
        << number;
    EXPECT_NE(towline::nixl::last_error().find("num_threads"), std::string::npos)
        << towline::nixl::last_error();
  }
}

TEST(AzureBlobs, ParametersThatAreWrongAreRefused) {
  const Side side("blobs-wrong", 4096, nixlAgentConfig{}, false);
  nixl_mem_list_t memories;
  nixl_b_params_t known;
  if (side.agent->getPluginParams("AZURE_BLOB", memories, known) != NIXL_SUCCESS)
    GTEST_SKIP() << towline::nixl::last_error();
  for (const auto& [name, value] :
       {std::pair{"connection_string", "nonsense"}, std::pair{"account_url", "ftp://host/account"}}) {
    nixlBackendH* made = nullptr;
    EXPECT_LT(side.agent->createBackend("AZURE_BLOB", {{"container_name", "c"}, {name, value}}, made), 0)
        << name;
    EXPECT_EQ(made, nullptr);
    EXPECT_NE(towline::nixl::last_error().find("azure."), std::string::npos) << towline::nixl::last_error();
  }
}

}  // namespace
}  // namespace compat
