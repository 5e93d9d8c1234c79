// Metadata through a TCPStore: against a store of the test's own, which speaks what torch's speaks.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "support.h"

namespace compat {
namespace {

// Serves until it is destroyed. `mute`: takes connections and says nothing.
class Store {
 public:
  explicit Store(bool mute = false)
      : mute_(mute), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    endpoint_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { accept_all(); });
  }
  ~Store() {
    stop_ = true;
    thread_.join();
    for (std::thread& client : clients_) client.join();
    ::close(listener_);
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
  [[nodiscard]] std::vector<std::string> keys() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> keys;
    for (const auto& [key, value] : values_) keys.push_back(key);
    return keys;
  }
  // As if it had ended and been started again.
  void forget() {
    const std::lock_guard lock(mutex_);
    values_.clear();
    ++life_;
  }
  // From now on it breaks the connection over which a key is to be deleted, or no longer.
  void keep_all(bool keeps) { keeps_ = keeps; }

 private:
  bool readable(int fd) const {
    const int life = life_;
    while (!stop_ && (fd == listener_ || life_ == life)) {
      pollfd polled{fd, POLLIN, 0};
      if (::poll(&polled, 1, 20) > 0) return fd == listener_ || life_ == life;
    }
    return false;
  }
  void accept_all() {
    while (readable(listener_)) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      clients_.emplace_back([this, fd] {
        while (readable(fd) && serve(fd)) {
        }
        ::close(fd);
      });
    }
  }
  bool take(int fd, void* into, size_t bytes) const {
    auto* at = static_cast<char*>(into);
    while (bytes != 0) {
      if (!readable(fd)) return false;
      const ssize_t got = ::recv(fd, at, bytes, 0);
      if (got <= 0) return false;
      at += got;
      bytes -= static_cast<size_t>(got);
    }
    return true;
  }
  bool take_text(int fd, std::string& text) const {
    uint64_t length = 0;
    if (!take(fd, &length, sizeof length) || length > (1u << 20)) return false;
    text.resize(length);
    return take(fd, text.data(), length);
  }
  static bool give(int fd, const void* bytes, size_t count) {
    return ::send(fd, bytes, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count);
  }
  bool serve(int fd) {
    uint8_t kind = 0;
    std::string key;
    std::string value;
    uint32_t number = 0;
    uint64_t count = 0;
    if (mute_ || !take(fd, &kind, 1)) return mute_ && ::recv(fd, &kind, 1, 0) == 1;
    if (kind == 0) return take(fd, &number, 4) && number == 0x3C85F7CE;
    if (kind == 13) return take(fd, &number, 4) && give(fd, &number, 4);
    if (kind == 5 && (!take(fd, &count, 8) || count != 1)) return false;
    if (!take_text(fd, key)) return false;
    if (kind == 1 && !take_text(fd, value)) return false;
    const std::lock_guard lock(mutex_);
    if (kind == 1) {
      values_[key] = value;
      return true;
    }
    if (kind == 5) {
      const uint8_t missing = values_.contains(key) ? 0 : 1;
      return give(fd, &missing, 1);
    }
    if (kind == 3) {
      count = values_[key].size();
      return give(fd, &count, 8) && give(fd, values_[key].data(), count);
    }
    if (keeps_) return false;
    const auto removed = static_cast<int64_t>(values_.erase(key));
    return kind == 8 && give(fd, &removed, 8);
  }

  const bool mute_;
  const int listener_;
  std::string endpoint_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> keeps_{false};
  std::atomic<int> life_{0};
  mutable std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::vector<std::thread> clients_;
  std::thread thread_;
};

class TcpStores : public testing::Test {
 protected:
  void use(const std::string& endpoint) {
    ::setenv("NIXL_TCPSTORE_ENDPOINT", endpoint.c_str(), 1);  // NOLINT: no agent lives
    ::setenv("NIXL_TCPSTORE_OP_TIMEOUT_MS", "3000", 1);       // NOLINT
    ::setenv("NIXL_TCPSTORE_TIMEOUT_MS", "3000", 1);          // NOLINT
    ::setenv("TOWLINE_NIXL_METADATA_TIMEOUT", "20s", 1);      // NOLINT
  }
  void TearDown() override {
    for (const char* name :
         {"NIXL_TCPSTORE_ENDPOINT", "NIXL_TCPSTORE_OP_TIMEOUT_MS", "NIXL_TCPSTORE_TIMEOUT_MS",
          "TOWLINE_NIXL_METADATA_TIMEOUT", "NIXL_ETCD_ENDPOINTS"})
      ::unsetenv(name);  // NOLINT
  }
  static bool holds(const Store& store, const std::vector<std::string>& keys) {
    return eventually([&] { return store.keys() == keys; });
  }
  // Why the agent's latest call failed, once it has ended.
  static std::string outcome(const nixlAgent& agent) {
    EXPECT_TRUE(
        eventually([&] { return towline::nixl::metadata_calls(agent).back().status != NIXL_IN_PROG; }));
    const towline::nixl::MetadataCall call = towline::nixl::metadata_calls(agent).back();
    return call.status == NIXL_SUCCESS ? "" : nixlEnumStrings::statusStr(call.status) + " " + call.error;
  }
};

TEST_F(TcpStores, AgentsFindEachOtherByName) {
  const Store store;
  use(store.endpoint());
  std::optional<Side> a;
  a.emplace("store-a");
  Side b("store-b");
  ASSERT_EQ(b.agent->fetchRemoteMD("store-a"), NIXL_SUCCESS);  // waits for it
  ASSERT_EQ(a->agent->sendLocalMD(), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*a->agent), "");
  ASSERT_EQ(outcome(*b.agent), "");
  EXPECT_TRUE(holds(store, {"/nixl/agents/metadata/store-a"}));
  nixlXferReqH* made = request(b, NIXL_WRITE, b.blocks(1, 64), a->blocks(1, 64), "store-a");
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(run(*b.agent, made), NIXL_SUCCESS);
  EXPECT_EQ(b.agent->releaseXferReq(made), NIXL_SUCCESS);
  ASSERT_EQ(a->agent->invalidateLocalMD(), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*a->agent), "");
  EXPECT_TRUE(holds(store, {}));
  // Published again, under a label too, and gone with its agent.
  nixl_opt_args_t args;
  args.metadataLabel = "part";
  ASSERT_EQ(a->agent->sendLocalPartialMD(a->registered(), &args), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*a->agent), "");
  EXPECT_TRUE(holds(store, {"/nixl/agents/part/store-a"}));
  a.reset();
  EXPECT_TRUE(holds(store, {}));
}

TEST_F(TcpStores, WhatCouldNotBeTakenBackIsWhenAskedAgain) {
  Store store;
  use(store.endpoint());
  Side side("store-kept");
  nixl_opt_args_t args;
  args.metadataLabel = "part";
  ASSERT_EQ(side.agent->sendLocalMD(), NIXL_SUCCESS);
  ASSERT_EQ(side.agent->sendLocalPartialMD(side.registered(), &args), NIXL_SUCCESS);
  EXPECT_TRUE(holds(store, {"/nixl/agents/metadata/store-kept", "/nixl/agents/part/store-kept"}));
  store.keep_all(true);
  ASSERT_EQ(side.agent->invalidateLocalMD(), NIXL_SUCCESS);
  EXPECT_NE(outcome(*side.agent).find(store.endpoint()), std::string::npos);
  store.keep_all(false);
  ASSERT_EQ(side.agent->invalidateLocalMD(), NIXL_SUCCESS);
  EXPECT_EQ(outcome(*side.agent), "");
  EXPECT_TRUE(holds(store, {}));
}

TEST_F(TcpStores, AStoreThatWasStartedAgainIsUsedAsBefore) {
  Store store;
  use(store.endpoint());
  Side side("store-again");
  for (int time = 0; time < 3; ++time) {
    ASSERT_EQ(side.agent->sendLocalMD(), NIXL_SUCCESS);
    ASSERT_EQ(outcome(*side.agent), "");
    ASSERT_TRUE(holds(store, {"/nixl/agents/metadata/store-again"})) << time;
    store.forget();
  }
  ASSERT_EQ(side.agent->invalidateLocalMD(), NIXL_SUCCESS);
  EXPECT_EQ(outcome(*side.agent), "");
}

TEST_F(TcpStores, StoresThatAreNotThereOrSayNothingAreNamed) {
  const Store mute(true);
  for (const std::string& endpoint : {std::string{"127.0.0.1:1"}, mute.endpoint()}) {
    use(endpoint);
    ::setenv("NIXL_TCPSTORE_TIMEOUT_MS", "300", 1);  // NOLINT
    const Side side("store-lost");
    ASSERT_EQ(side.agent->sendLocalMD(), NIXL_SUCCESS);  // queued
    EXPECT_NE(outcome(*side.agent).find(endpoint), std::string::npos) << outcome(*side.agent);
  }
  use("nowhere");
  const Side side("store-bad");
  EXPECT_NE(side.agent->sendLocalMD(), NIXL_SUCCESS);
  EXPECT_NE(towline::nixl::last_error().find("host:port"), std::string::npos) << towline::nixl::last_error();
}

TEST_F(TcpStores, OneServerIsEnough) {
  use("127.0.0.1:1");
  ::setenv("NIXL_ETCD_ENDPOINTS", "http://127.0.0.1:1", 1);  // NOLINT
  EXPECT_THROW(nixlAgent("store-both", nixlAgentConfig{}), std::runtime_error);
}

}  // namespace
}  // namespace compat
