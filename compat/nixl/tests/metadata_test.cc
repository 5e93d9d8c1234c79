// Metadata: by hand, to and from an address, whole and partial; peers that restart.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <towline/towline.hpp>

#include "support.h"

namespace compat {
namespace {

nixlAgentConfig listening() { return nixlAgentConfig(true, true, 0); }

uint16_t port_of(const nixlAgent& agent) {
  std::string address;
  EXPECT_EQ(towline::nixl::agent_address(agent, address), NIXL_SUCCESS);
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

nixl_opt_args_t at(const Side& side, const std::string& ip = "127.0.0.1") {
  nixl_opt_args_t args;
  args.ipAddr = ip;
  args.port = port_of(*side.agent);
  return args;
}

nixl_reg_dlist_t pieces(const Side& side, size_t first, size_t count) {
  nixl_reg_dlist_t list(DRAM_SEG);
  for (size_t i = first; i < first + count; ++i)
    list.addDesc(nixlBlobDesc(side.address() + i * 4096, 4096, 0, ""));
  return list;
}

// The result of the agent's latest call, once it has ended.
towline::nixl::MetadataCall outcome(const nixlAgent& agent) {
  EXPECT_TRUE(eventually([&] { return towline::nixl::metadata_calls(agent).back().status != NIXL_IN_PROG; }));
  return towline::nixl::metadata_calls(agent).back();
}

// Takes connections at a port, and says nothing.
class SilentPort {
 public:
  explicit SilentPort(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    (void)::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(fd_, 16), 0);
  }
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;
  ~SilentPort() { ::close(fd_); }

  // -1 if nobody has connected.
  [[nodiscard]] int accept() const { return ::accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); }
  [[nodiscard]] static bool is_open(int fd) {
    std::array<char, 4096> said;
    ssize_t got = 0;
    while ((got = ::recv(fd, said.data(), said.size(), 0)) > 0) continue;
    return got < 0 && errno == EAGAIN;
  }

 private:
  int fd_;
};

bool knows(const Side& side, const std::string& name, const nixl_xfer_dlist_t& descs = {DRAM_SEG}) {
  return side.agent->checkRemoteMD(name, descs) == NIXL_SUCCESS;
}

TEST(Metadata, LoadedAndInvalidatedByHand) {
  Side a("hand-a");
  Side b("hand-b");
  EXPECT_EQ(a.agent->checkRemoteMD("hand-b", {DRAM_SEG}), NIXL_ERR_NOT_FOUND);
  a.load(b);
  EXPECT_TRUE(knows(a, "hand-b"));
  EXPECT_TRUE(knows(a, "hand-b", b.blocks(4, 64)));
  nixl_xfer_dlist_t beyond(DRAM_SEG);
  beyond.emplace(b.address(), b.memory.size() + 1, uint64_t{0});
  EXPECT_FALSE(knows(a, "hand-b", beyond));
  EXPECT_EQ(a.agent->makeConnection("hand-b"), NIXL_SUCCESS);
  EXPECT_EQ(a.agent->makeConnection("nobody"), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(a.agent->invalidateRemoteMD("hand-b"), NIXL_SUCCESS);
  EXPECT_FALSE(knows(a, "hand-b"));
  EXPECT_EQ(a.agent->invalidateRemoteMD("hand-b"), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(a.agent->invalidateRemoteMD("hand-a"), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(a.agent->genNotif("hand-b", "x"), NIXL_ERR_NOT_FOUND);
  a.load(b);
  EXPECT_EQ(a.agent->genNotif("hand-b", "x"), NIXL_SUCCESS);
  std::vector<std::string> texts;
  EXPECT_TRUE(receives(*b.agent, "hand-a", 1, texts));
}

TEST(Metadata, OfTheAgentItselfIsKnown) {
  Side a("self-known");
  EXPECT_TRUE(knows(a, "self-known"));
  EXPECT_TRUE(knows(a, "self-known", a.blocks(4, 64)));
  nixl_xfer_dlist_t beyond(DRAM_SEG);
  beyond.emplace(a.address(), a.memory.size() + 1, uint64_t{0});
  EXPECT_FALSE(knows(a, "self-known", beyond));
}

TEST(Metadata, ThatIsNoneOrDamagedOrOnesOwnIsRefused) {
  Side a("bad-a");
  Side b("bad-b");
  std::string loaded = "untouched";
  EXPECT_EQ(a.agent->loadRemoteMD("", loaded), NIXL_ERR_MISMATCH);
  EXPECT_EQ(a.agent->loadRemoteMD("nonsense", loaded), NIXL_ERR_MISMATCH);
  EXPECT_EQ(a.agent->loadRemoteMD(a.metadata(), loaded), NIXL_ERR_INVALID_PARAM);
  const std::string good = b.metadata();
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] + 1);
    EXPECT_LT(a.agent->loadRemoteMD(bad, loaded), 0) << "byte " << i << " of " << good.size();
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(a.agent->loadRemoteMD(good.substr(0, size), loaded), NIXL_ERR_MISMATCH) << size;
  }
  EXPECT_EQ(loaded, "untouched");
  EXPECT_FALSE(knows(a, "bad-b"));
  EXPECT_EQ(a.agent->loadRemoteMD(good, loaded), NIXL_SUCCESS);
}

TEST(Metadata, NeedsABackendInCommon) {
  Side a("common-a", 4096, nixlAgentConfig{}, false);
  Side b("common-b", 4096);
  std::string loaded;
  EXPECT_EQ(a.agent->loadRemoteMD(b.metadata(), loaded), NIXL_ERR_BACKEND);
  ASSERT_EQ(a.agent->createBackend("UCX", {}, a.backend), NIXL_SUCCESS);
  EXPECT_EQ(a.agent->loadRemoteMD(b.metadata(), loaded), NIXL_SUCCESS);
}

TEST(Metadata, PartialTellsOfItsDescriptorsOnly) {
  Side a("partial-a");
  Side b("partial-b", 8 * 4096, nixlAgentConfig{}, false);
  ASSERT_EQ(b.agent->createBackend("UCX", {}, b.backend), NIXL_SUCCESS);
  ASSERT_EQ(b.agent->registerMem(pieces(b, 0, 8)), NIXL_SUCCESS);
  std::string blob;
  std::string loaded;
  // Descriptors of an agent that is not known.
  ASSERT_EQ(b.agent->getLocalPartialMD(pieces(b, 0, 2), blob), NIXL_SUCCESS);
  EXPECT_EQ(a.agent->loadRemoteMD(blob, loaded), NIXL_ERR_NOT_FOUND);
  EXPECT_FALSE(knows(a, "partial-b"));
  // Addresses, then descriptors.
  std::string addresses;
  ASSERT_EQ(b.agent->getLocalPartialMD({DRAM_SEG}, addresses), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->loadRemoteMD(addresses, loaded), NIXL_SUCCESS);
  EXPECT_TRUE(knows(a, "partial-b"));
  EXPECT_FALSE(knows(a, "partial-b", pieces(b, 0, 1).trim()));
  ASSERT_EQ(a.agent->loadRemoteMD(blob, loaded), NIXL_SUCCESS);
  EXPECT_TRUE(knows(a, "partial-b", pieces(b, 0, 2).trim()));
  EXPECT_FALSE(knows(a, "partial-b", pieces(b, 1, 2).trim()));
  nixlDlistH* list = nullptr;
  EXPECT_EQ(a.agent->prepXferDlist("partial-b", pieces(b, 2, 1).trim(), list), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(a.agent->prepXferDlist("partial-b", pieces(b, 1, 1).trim(), list), NIXL_SUCCESS);
  // More of them, with addresses.
  nixl_opt_args_t args;
  args.includeConnInfo = true;
  ASSERT_EQ(b.agent->getLocalPartialMD(pieces(b, 2, 1), blob, &args), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->loadRemoteMD(blob, loaded), NIXL_SUCCESS);
  EXPECT_TRUE(knows(a, "partial-b", pieces(b, 0, 3).trim()));
  // Memory that is not registered has no metadata.
  EXPECT_EQ(b.agent->getLocalPartialMD(pieces(b, 8, 1), blob), NIXL_ERR_NOT_FOUND);
}

TEST(Metadata, GoesToAnAddressAndIsTakenBack) {
  Side a("send-a");
  Side b("send-b", 1 << 20, listening());
  const nixl_opt_args_t to_b = at(b);
  ASSERT_EQ(a.agent->sendLocalMD(&to_b), NIXL_SUCCESS);
  ASSERT_TRUE(eventually([&] { return knows(b, "send-a", a.blocks(2, 64)); }));
  EXPECT_FALSE(knows(a, "send-b"));
  EXPECT_EQ(outcome(*a.agent).status, NIXL_SUCCESS);
  // And it is good for transfers.
  nixlXferReqH* made = request(b, NIXL_WRITE, b.blocks(1, 64), a.blocks(1, 64), "send-a");
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(run(*b.agent, made), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->invalidateLocalMD(&to_b), NIXL_SUCCESS);
  EXPECT_TRUE(eventually([&] { return !knows(b, "send-a"); }));
  EXPECT_EQ(b.agent->postXferReq(made), NIXL_ERR_NOT_FOUND);
  ASSERT_EQ(a.agent->sendLocalMD(&to_b), NIXL_SUCCESS);
  EXPECT_TRUE(eventually([&] { return knows(b, "send-a", a.blocks(2, 64)); }));
}

TEST(Metadata, SentAgainAfterItWasTakenBackIsThere) {
  Side a("again-a");
  Side b("again-b", 1 << 20, listening());
  const nixl_opt_args_t to_b = at(b);
  // All before b looks.
  ASSERT_EQ(a.agent->sendLocalMD(&to_b), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->invalidateLocalMD(&to_b), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->sendLocalMD(&to_b), NIXL_SUCCESS);
  EXPECT_EQ(outcome(*a.agent).status, NIXL_SUCCESS);
  EXPECT_TRUE(eventually([&] { return knows(b, "again-a", a.blocks(2, 64)); }));
}

TEST(Metadata, SentByAnotherAgentOfTheNameDoesNotTakeThePlaceOfOneThatIsThere) {
  Side a("claimed-a", 1 << 20, listening());
  Side b("claimed-b");
  a.load(b);  // and not connected yet
  Side other("claimed-b");
  const nixl_opt_args_t to_a = at(a);
  ASSERT_EQ(other.agent->sendLocalMD(&to_a), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*other.agent).status, NIXL_SUCCESS);
  other.load(a);
  ASSERT_EQ(other.agent->genNotif("claimed-a", "behind it"), NIXL_SUCCESS);
  std::vector<std::string> texts;
  ASSERT_TRUE(receives(*a.agent, "claimed-b", 1, texts));
  EXPECT_FALSE(knows(a, "claimed-b", other.blocks(1, 64)));
  EXPECT_TRUE(knows(a, "claimed-b", b.blocks(1, 64)));
  a.fill('x');
  EXPECT_EQ(run(*a.agent, request(a, NIXL_WRITE, a.blocks(1, 64), b.blocks(1, 64), "claimed-b")),
            NIXL_SUCCESS);
  EXPECT_EQ(std::memcmp(a.memory.data(), b.memory.data(), 64), 0);
}

// An agent may have any name, and send what another one gave it.
TEST(Metadata, SentByAnAgentOfItsNameThatItIsNotOfIsNotLoaded) {
  Side a("relayed-a", 1 << 20, listening());
  const Side b("relayed-b");
  const std::string frame = b.metadata();
  const uint32_t head[2] = {0, 1};  // the first of one piece
  std::string message("\0\x1bTLNX\x01l", 8);
  message.append(reinterpret_cast<const char*>(head), sizeof head).append(frame);
  const towline::Agent liar("relayed-b", {.listen = "none"});
  const towline::Peer to_a = liar.connect("127.0.0.1:" + std::to_string(port_of(*a.agent)));
  ASSERT_EQ(to_a.send(message), towline::Status::kOk);
  ASSERT_EQ(to_a.send("behind it"), towline::Status::kOk);
  std::vector<std::string> texts;
  ASSERT_TRUE(receives(*a.agent, "relayed-b", 1, texts));
  EXPECT_FALSE(knows(a, "relayed-b"));
  const nixl_opt_args_t at_a = at(a);
  ASSERT_EQ(b.agent->sendLocalMD(&at_a), NIXL_SUCCESS);
  EXPECT_TRUE(eventually([&] { return knows(a, "relayed-b", b.blocks(1, 64)); }));
}

TEST(Metadata, SentAgainAfterARestartTakesThePlaceOfTheOld) {
  Side a("resent-a", 1 << 20, listening());
  const nixl_opt_args_t to_a = at(a);
  std::vector<std::unique_ptr<Side>> kept;  // so that no memory has the address of the old
  for (int i = 0; i < 3; ++i) {
    kept.push_back(std::make_unique<Side>("resent-b"));
    const Side& b = *kept.back();
    ASSERT_EQ(b.agent->sendLocalMD(&to_a), NIXL_SUCCESS);
    ASSERT_EQ(outcome(*b.agent).status, NIXL_SUCCESS);
    EXPECT_TRUE(eventually([&] { return knows(a, "resent-b", b.blocks(1, 64)); })) << i;
    kept.back()->agent.reset();
  }
}

TEST(Metadata, SentWhileTheFormerAgentIsThereIsLoadedOnceThatHasLeft) {
  Side a("former-a", 1 << 20, listening());
  Side former("former-b");
  a.load(former);
  ASSERT_EQ(run(*a.agent, request(a, NIXL_WRITE, a.blocks(1, 64), former.blocks(1, 64), "former-b")),
            NIXL_SUCCESS);
  Side b("former-b");
  const nixl_opt_args_t to_a = at(a);
  ASSERT_EQ(b.agent->sendLocalMD(&to_a), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*b.agent).status, NIXL_SUCCESS);
  b.load(a);
  ASSERT_EQ(b.agent->genNotif("former-a", "behind it"), NIXL_SUCCESS);
  std::vector<std::string> texts;
  ASSERT_TRUE(receives(*a.agent, "former-b", 1, texts));
  EXPECT_TRUE(knows(a, "former-b", former.blocks(1, 64)));
  EXPECT_FALSE(knows(a, "former-b", b.blocks(1, 64)));
  former.agent.reset();
  EXPECT_TRUE(eventually([&] { return knows(a, "former-b", b.blocks(1, 64)); }));
  EXPECT_EQ(run(*a.agent, request(a, NIXL_WRITE, a.blocks(1, 64), b.blocks(1, 64), "former-b")),
            NIXL_SUCCESS);
}

// Whether the former agent of a name is there is asked where it listens, for up to half a second.
TEST(Metadata, SentUnderTheNameOfASilentAgentHoldsNoNotificationUp) {
  Side a("silent-a", 1 << 20, listening());
  auto former = std::make_unique<Side>("silent-b", 1 << 20, listening());
  a.load(*former);
  const uint16_t port = port_of(*former->agent);
  former->agent.reset();
  const SilentPort silent(port);
  Side b("silent-b");
  const nixl_opt_args_t to_a = at(a);
  ASSERT_EQ(b.agent->sendLocalMD(&to_a), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*b.agent).status, NIXL_SUCCESS);
  int asking = -1;
  ASSERT_TRUE(eventually([&] {
    nixl_notifs_t none;
    EXPECT_EQ(a.agent->getNotifs(none), NIXL_SUCCESS);
    return (asking = silent.accept()) >= 0;
  }));
  EXPECT_TRUE(SilentPort::is_open(asking)) << "getNotifs waited until it was no longer asked";
  EXPECT_TRUE(eventually([&] { return knows(a, "silent-b", b.blocks(1, 64)); }));
  ::close(asking);
}

TEST(Metadata, SentToAnAgentThatDoesNotListenIsNotLoaded) {
  Side a("deaf-a");
  Side b("deaf-b");
  const nixl_opt_args_t to_a = at(a);
  ASSERT_EQ(b.agent->sendLocalMD(&to_a), NIXL_SUCCESS);
  ASSERT_EQ(outcome(*b.agent).status, NIXL_SUCCESS);
  b.load(a);
  ASSERT_EQ(b.agent->genNotif("deaf-a", "behind it"), NIXL_SUCCESS);
  std::vector<std::string> texts;
  ASSERT_TRUE(receives(*a.agent, "deaf-b", 1, texts));
  EXPECT_FALSE(knows(a, "deaf-b"));
}

TEST(Metadata, GoesPartiallyToAnAddress) {
  constexpr size_t kPieces = 3000;  // more than one message
  Side a("sendpart-a", kPieces * 4096, nixlAgentConfig{}, false);
  ASSERT_EQ(a.agent->createBackend("UCX", {}, a.backend), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->registerMem(pieces(a, 0, kPieces)), NIXL_SUCCESS);
  Side b("sendpart-b", 4096, listening());
  const nixl_opt_args_t to_b = at(b);
  ASSERT_EQ(a.agent->sendLocalPartialMD({DRAM_SEG}, &to_b), NIXL_SUCCESS);
  ASSERT_TRUE(eventually([&] { return knows(b, "sendpart-a"); }));
  EXPECT_FALSE(knows(b, "sendpart-a", pieces(a, 0, 1).trim()));
  ASSERT_EQ(a.agent->sendLocalPartialMD(pieces(a, 0, kPieces - 1), &to_b), NIXL_SUCCESS);
  ASSERT_TRUE(eventually([&] { return knows(b, "sendpart-a", pieces(a, 0, kPieces - 1).trim()); }));
  EXPECT_FALSE(knows(b, "sendpart-a", pieces(a, kPieces - 1, 1).trim()));
}

TEST(Metadata, IsFetchedFromAnAddressAlsoOverIpv6) {
  Side a("fetch-a");
  Side b("fetch-b", 1 << 20, listening());
  for (const char* ip : {"127.0.0.1", "::1", "localhost"}) {
    const nixl_opt_args_t from_b = at(b, ip);
    ASSERT_EQ(a.agent->fetchRemoteMD("fetch-b", &from_b), NIXL_SUCCESS);
    const towline::nixl::MetadataCall call = outcome(*a.agent);
    EXPECT_EQ(call.status, NIXL_SUCCESS) << ip << ": " << call.error;
    ASSERT_TRUE(knows(a, "fetch-b", b.blocks(4, 64))) << ip;
    EXPECT_FALSE(knows(b, "fetch-a"));
    ASSERT_EQ(a.agent->invalidateRemoteMD("fetch-b"), NIXL_SUCCESS);
  }
}

TEST(Metadata, FetchedWithoutABackendIsNotLoaded) {
  Side a("nofetch-a", 4096, nixlAgentConfig{}, false);
  Side b("nofetch-b", 4096, listening());
  const nixl_opt_args_t from_b = at(b);
  ASSERT_EQ(a.agent->fetchRemoteMD("nofetch-b", &from_b), NIXL_SUCCESS);  // begun
  EXPECT_EQ(outcome(*a.agent).status, NIXL_ERR_BACKEND);
  EXPECT_FALSE(knows(a, "nofetch-b"));
}

TEST(Metadata, CallsThatFailSayWhy) {
  Side a("fail-a");
  Side b("fail-b", 4096, listening());
  nixl_opt_args_t to_b = at(b);
  ASSERT_EQ(a.agent->fetchRemoteMD("someone-else", &to_b), NIXL_SUCCESS);
  EXPECT_EQ(outcome(*a.agent).status, NIXL_ERR_NOT_FOUND);
  EXPECT_NE(outcome(*a.agent).error.find("fail-b"), std::string::npos);
  b.agent.reset();
  ASSERT_EQ(a.agent->sendLocalMD(&to_b), NIXL_SUCCESS);
  const towline::nixl::MetadataCall call = outcome(*a.agent);
  EXPECT_LT(call.status, 0);
  EXPECT_NE(call.error.find(std::to_string(to_b.port)), std::string::npos) << call.error;
  EXPECT_EQ(call.what, "sendLocalMD to 127.0.0.1:" + std::to_string(to_b.port));
  // Without address and metadata server.
  EXPECT_EQ(a.agent->sendLocalMD(), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(a.agent->sendLocalPartialMD({DRAM_SEG}), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(a.agent->fetchRemoteMD("fail-b"), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(a.agent->invalidateLocalMD(), NIXL_ERR_INVALID_PARAM);
}

TEST(Metadata, WhatIsUnderWayWhenItIsInvalidatedIsNotFound) {
  constexpr size_t kBytes = 256 << 20;
  setenv("UCX_TLS", "tcp", 1);  // slow enough to be under way
  Side a("underway-a", kBytes);
  Side b("underway-b", kBytes);
  unsetenv("UCX_TLS");
  a.load(b);
  nixlXferReqH* made = request(a, NIXL_WRITE, a.blocks(1, kBytes), b.blocks(1, kBytes), "underway-b");
  ASSERT_NE(made, nullptr);
  ASSERT_EQ(a.agent->postXferReq(made), NIXL_IN_PROG);
  ASSERT_EQ(a.agent->invalidateRemoteMD("underway-b"), NIXL_SUCCESS);
  nixl_status_t status = NIXL_IN_PROG;
  EXPECT_TRUE(eventually([&] { return (status = a.agent->getXferStatus(made)) != NIXL_IN_PROG; }));
  EXPECT_EQ(status, NIXL_ERR_NOT_FOUND);
  EXPECT_NE(towline::nixl::last_error().find("the agent's metadata was invalidated"), std::string::npos)
      << towline::nixl::last_error();
  EXPECT_EQ(a.agent->getXferStatus(made), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(a.agent->postXferReq(made), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(a.agent->releaseXferReq(made), NIXL_SUCCESS);
}

TEST(Metadata, PreparedListsAnswerAfterInvalidationAndReloading) {
  Side a("stale-a");
  Side b("stale-b");
  a.load(b);
  nixlDlistH* here = nullptr;
  nixlDlistH* there = nullptr;
  ASSERT_EQ(a.agent->prepXferDlist(a.blocks(4, 64), here), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->prepXferDlist("stale-b", b.blocks(4, 64), there), NIXL_SUCCESS);
  nixlXferReqH* made = nullptr;
  ASSERT_EQ(a.agent->makeXferReq(NIXL_WRITE, here, {0}, there, {0}, made), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->invalidateRemoteMD("stale-b"), NIXL_SUCCESS);
  nixlXferReqH* second = nullptr;
  EXPECT_EQ(a.agent->makeXferReq(NIXL_WRITE, here, {0}, there, {0}, second), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(a.agent->postXferReq(made), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(a.agent->getXferStatus(made), NIXL_ERR_NOT_FOUND);
  a.load(b);
  // Old handles stay dead, new ones work.
  EXPECT_EQ(a.agent->makeXferReq(NIXL_WRITE, here, {0}, there, {0}, second), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(a.agent->postXferReq(made), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(a.agent->releaseXferReq(made), NIXL_SUCCESS);
  EXPECT_EQ(a.agent->releasedDlistH(there), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->prepXferDlist("stale-b", b.blocks(4, 64), there), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->makeXferReq(NIXL_WRITE, here, {0}, there, {0}, second), NIXL_SUCCESS);
  EXPECT_EQ(run(*a.agent, second), NIXL_SUCCESS);
}

TEST(Metadata, OfAPeerThatDeregisteredAndLeftIsDisconnected) {
  Side a("left-a");
  Side b("left-b");
  a.load(b);
  nixlXferReqH* made = request(a, NIXL_WRITE, a.blocks(1, 64), b.blocks(1, 64), "left-b");
  ASSERT_EQ(run(*a.agent, made), NIXL_SUCCESS);
  const nixl_xfer_dlist_t there = b.blocks(1, 64);
  ASSERT_EQ(b.agent->deregisterMem(b.registered()), NIXL_SUCCESS);
  EXPECT_EQ(run(*a.agent, made), NIXL_ERR_NOT_FOUND);
  b.agent.reset();
  EXPECT_TRUE(eventually([&] { return run(*a.agent, made) == NIXL_ERR_REMOTE_DISCONNECT; }));
  EXPECT_EQ(a.agent->getXferStatus(made), NIXL_ERR_REMOTE_DISCONNECT);
  nixlXferReqH* late = nullptr;
  EXPECT_EQ(a.agent->createXferReq(NIXL_WRITE, a.blocks(1, 64), there, "left-b", late),
            NIXL_ERR_REMOTE_DISCONNECT);
}

TEST(Metadata, IsNoHindranceToAForkedChildThatDropsItsAgent) {
  Side a("forked-a", 1 << 20, listening());
  Side b("forked-b");
  const nixl_opt_args_t to_a = at(a);
  ASSERT_EQ(b.agent->sendLocalMD(&to_a), NIXL_SUCCESS);
  ASSERT_TRUE(eventually([&] { return knows(a, "forked-b"); }));
  for (Side* side : {&a, &b}) {  // the threads that took it and that sent it are not there
    const pid_t child = ::fork();
    if (child == 0) {
      side->agent.reset();
      ::_exit(0);
    }
    int status = -1;
    const bool ended = eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; });
    EXPECT_TRUE(ended) << side->name;
    if (!ended) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
    }
    EXPECT_EQ(status, 0) << side->name;
  }
  EXPECT_TRUE(knows(a, "forked-b", b.blocks(1, 64)));
}

TEST(Metadata, OfARestartedPeerTakesThePlaceOfTheOld) {
  Side a("restart-a");
  auto b = std::make_unique<Side>("restart-b");
  a.load(*b);
  a.load(*b);  // the same again changes nothing
  nixlXferReqH* old = request(a, NIXL_WRITE, a.blocks(1, 64), b->blocks(1, 64), "restart-b");
  ASSERT_EQ(run(*a.agent, old), NIXL_SUCCESS);
  b.reset();
  b = std::make_unique<Side>("restart-b");
  a.load(*b);  // no invalidation needed
  EXPECT_EQ(a.agent->postXferReq(old), NIXL_ERR_REMOTE_DISCONNECT);
  EXPECT_EQ(a.agent->releaseXferReq(old), NIXL_SUCCESS);
  nixlXferReqH* made = request(a, NIXL_WRITE, a.blocks(1, 64), b->blocks(1, 64), "restart-b");
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(run(*a.agent, made), NIXL_SUCCESS);
}

}  // namespace
}  // namespace compat
