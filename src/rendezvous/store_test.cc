// Tests of stores, in which ranks meet, and of what ranks find out about themselves.
#include "rendezvous/store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/os/stream.h"
#include "rendezvous/exchange.h"
#include "rendezvous/meeting.h"
#include "rendezvous/ranks.h"
#include "rendezvous/store_requests.h"
#include "rendezvous/tcp_store.h"
#include "rendezvous/test_support.h"
#include "secure/test_support.h"
#include "support/ports.h"

namespace towline::rendezvous {
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
  for (const int rank : {0, 1})
    EXPECT_EQ(code_of([&] { open_store("tcp://127.0.0.1:0", rank, with({}), deadline); }, "port 0"),
              Status::kInvalidArgument);
}

TEST(FileStores, LeaveNothingOfAValueForWhichThereIsNoRoom) {
  std::string folder = (std::filesystem::temp_directory_path() / "towline-store-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  FileStore store(folder);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handled = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = code_of([&] { store.set("key", Bytes(1000, 'x')); }, "File too large");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handled);
  EXPECT_NE(status, Status::kOk);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  store.set("key", Bytes(1000, 'x'));
  EXPECT_EQ(store.get("key", Deadline::after(monotonic_now_ns(), 20 * kSecondNs)), Bytes(1000, 'x'));
  std::filesystem::remove_all(folder);
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
  EXPECT_EQ(first->get("large", deadline), large);
  EXPECT_EQ(first->local_host(), "127.0.0.1");
}

// What is set has no answer: over a connection that the store had closed it would be lost.
TEST(TcpStores, OneThatWasBegunAnewGetsWhatIsSetNext) {
  auto server = std::make_unique<TcpStoreServer>("127.0.0.1:0");
  const std::string endpoint = "127.0.0.1:" + std::to_string(server->port());
  const auto within = [] { return Deadline::after(monotonic_now_ns(), 5 * kSecondNs); };
  const auto store = open_tcp_store(endpoint, false, within());
  store->set("before", Bytes{1});
  EXPECT_EQ(store->get("before", within()), Bytes{1});
  server.reset();
  server = std::make_unique<TcpStoreServer>(endpoint);
  store->set("after", Bytes{2});
  EXPECT_EQ(open_tcp_store(endpoint, false, within())->get("after", within()), Bytes{2});
  EXPECT_EQ(store->get("after", within()), Bytes{2});
  server.reset();
  EXPECT_NE(code_of([&] { store->set("later", Bytes{3}); }), Status::kOk) << "nobody has it";
}

// A rank that can't tell the others why it failed says so itself, at once.
TEST(TcpStores, OnesThatAreGoneRefuseAtOnceHoweverLongTheDeadline) {
  auto server = std::make_unique<TcpStoreServer>("127.0.0.1:0");
  const std::string endpoint = "127.0.0.1:" + std::to_string(server->port());
  const auto within = [](uint64_t seconds) {
    return Deadline::after(monotonic_now_ns(), seconds * kSecondNs);
  };
  const auto store = open_tcp_store(endpoint, false, within(5));
  server.reset();
  const uint64_t began = monotonic_now_ns();
  EXPECT_NE(code_of([&] { (void)store->get("a key", within(60)); }), Status::kOk);
  EXPECT_NE(code_of([&] { (void)store->get("a key", within(60)); }), Status::kOk);
  EXPECT_NE(code_of([&] { store->set("a key", Bytes{3}); }), Status::kOk);
  EXPECT_LT(monotonic_now_ns() - began, 20 * kSecondNs);
}

TEST(TcpStores, AThreadThatWaitsForAKeyHoldsUpNoOther) {
  TcpStoreServer server("127.0.0.1:0");
  const std::string endpoint = "127.0.0.1:" + std::to_string(server.port());
  const Deadline deadline = Deadline::after(monotonic_now_ns(), 10 * kSecondNs);
  const auto store = open_tcp_store(endpoint, false, deadline);
  const auto beside = open_tcp_store(endpoint, false, deadline);
  const Bytes value(3, 7);
  beside->set("there", value);
  std::atomic<bool> asks{false};
  std::thread waits([&] {
    asks = true;
    Bytes late;
    EXPECT_EQ(code_of([&] { late = store->get("late", deadline); }), Status::kOk);
    EXPECT_EQ(late, value);
  });
  while (!asks) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(beside->get("there", deadline), value);  // it has begun to wait
  store->set("late", value);
  waits.join();
}

// Sockets of this host whose other end was at `port`, and that keep their own port for a while.
size_t ports_kept(uint16_t port) {
  std::ifstream table("/proc/net/tcp");
  std::string line;
  size_t kept = 0;
  const std::string remote = fmt::format(":{:04X} 06 ", port);  // TIME_WAIT
  while (std::getline(table, line)) kept += line.find(remote) != std::string::npos ? 1 : 0;
  return kept;
}

TEST(TcpStores, LooksThatComeTooEarlyLeaveNoPortsBehind) {
  TcpStoreServer server("127.0.0.1:0");
  const std::string endpoint = "127.0.0.1:" + std::to_string(server.port());
  const auto within = [](uint64_t ns) { return Deadline::after(monotonic_now_ns(), ns); };
  const auto store = open_tcp_store(endpoint, false, within(20 * kSecondNs));
  for (int look = 0; look < 50; ++look)
    EXPECT_EQ(code_of([&] { (void)store->get("never", within(kMillisecondNs)); }), Status::kTimedOut);
  EXPECT_LT(ports_kept(server.port()), 5u);
  store->set("now", Bytes{1});
  EXPECT_EQ(store->get("now", within(20 * kSecondNs)), Bytes{1});
}

// The key comes at about the time at which the look ends.
TEST(TcpStores, ALookThatEndsWhileItsKeyComesConfusesNoLaterOne) {
  TcpStoreServer server("127.0.0.1:0");
  const std::string endpoint = "127.0.0.1:" + std::to_string(server.port());
  const auto within = [](uint64_t ns) { return Deadline::after(monotonic_now_ns(), ns); };
  const auto store = open_tcp_store(endpoint, false, within(20 * kSecondNs));
  const auto beside = open_tcp_store(endpoint, false, within(20 * kSecondNs));
  for (uint8_t round = 0; round < 200; ++round) {
    const std::string key = "key " + std::to_string(round);
    const Bytes value(round + 1u, round);
    std::thread setter([&] { beside->set(key, value); });
    uint64_t patience = 20 * kMicrosecondNs;  // grows: an answer may always take longer on a slow machine
    for (bool found = false; !found; patience *= 2) {
      Bytes got;
      const Status status = code_of([&] { got = store->get(key, within(patience)); });
      found = status == Status::kOk;
      ASSERT_TRUE(found || status == Status::kTimedOut) << status_text(status);
      if (found) {
        ASSERT_EQ(got, value);
      }
    }
    setter.join();
  }
}

// A client that sends and receives what it likes.
class RawClient {
 public:
  explicit RawClient(uint16_t port, bool greets = true, const secure::MaybeKeys& keys = {})
      : stream_(Stream::dial({false, "127.0.0.1", port}, soon(), Stream::Patience::kNone)) {
    secure::secure(keys, stream_, secure::Side::kCaller);
    if (greets) send(text(StoreQuery::kValidate) + number(kStoreMagic));
  }
  static Deadline soon() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }
  static std::string text(StoreQuery query) { return {static_cast<char>(query)}; }
  template <class Integer>
  static std::string number(Integer value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  static std::string field(const std::string& bytes) { return number<uint64_t>(bytes.size()) + bytes; }
  static std::string set(const std::string& key, const std::string& value) {
    return text(StoreQuery::kSet) + field(key) + field(value);
  }
  static std::string get(const std::string& key) { return text(StoreQuery::kGet) + field(key); }

  Status try_send(const std::string& bytes) {
    return stream_.write_all({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, soon());
  }
  void send(const std::string& bytes) { EXPECT_EQ(try_send(bytes), Status::kOk); }
  std::string receive(size_t bytes) {
    std::string there(bytes, 0);
    EXPECT_EQ(stream_.read_all({reinterpret_cast<uint8_t*>(there.data()), bytes}, soon()), Status::kOk);
    return there;
  }
  bool gives(size_t bytes) {
    std::vector<uint8_t> there(bytes);
    return stream_.read_all(there, soon()) == Status::kOk;
  }
  // Whatever it is told before that.
  bool is_dropped() {
    uint8_t byte = 0;
    Status status = Status::kOk;
    while (status == Status::kOk) status = stream_.read_all({&byte, 1}, soon());
    return status == Status::kPeerLost;
  }

 private:
  Stream stream_;
};

uint64_t resident_bytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * 4096;
}

TEST(TcpStores, WithKeysTheySpeakToHoldersOfTheSameOnesOnly) {
  TOWLINE_NEEDS_TLS();
  const secure::testing::Folder folder;
  const auto key = [&](char letter) {
    return secure::Keys::read({folder.file("key", secure::testing::key_text(letter)), "", "", ""});
  };
  TcpStoreServer server("127.0.0.1:0", TcpStoreServer::kPatienceNs, key('k'));
  const std::string endpoint = "127.0.0.1:" + std::to_string(server.port());
  const auto store = open_tcp_store(endpoint, false, within(60'000), {}, key('k'));
  const Bytes large(3'000'001, 5);
  store->set("large", large);
  EXPECT_EQ(open_tcp_store(endpoint, false, within(60'000), {}, key('k'))->get("large", within(60'000)),
            large);
  std::thread later([&] { store->set("later", Bytes{1, 2, 3}); });
  EXPECT_EQ(store->get("later", within(60'000)), (Bytes{1, 2, 3}));
  later.join();
  try {
    (void)open_tcp_store(endpoint, false, within(60'000), {}, key('l'));
    ADD_FAILURE() << "another key was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kPermissionDenied);
    EXPECT_NE(error.message().find("other keys (secure.*)"), std::string::npos) << error.message();
  }
  RawClient torch(server.port());
  EXPECT_TRUE(torch.is_dropped());
  EXPECT_EQ(store->get("large", within(60'000)), large);
}

TEST(TcpStores, CertificatesThatDoNotFitIntoASocketAreSent) {
  const secure::testing::Folder folder;
  secure::testing::Authority authority(folder);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  TcpStoreServer server("127.0.0.1:0", TcpStoreServer::kPatienceNs,
                        secure::Keys::read(authority.sign_large("server")));
  secure::testing::shrink_listening_sockets();
  Stream client = secure::testing::connect_narrow(server.port());
  secure::secure(secure::Keys::read(authority.sign_large("client")), client, secure::Side::kCaller);
  EXPECT_EQ(secure::testing::shake_hands_late(client, [] { std::this_thread::yield(); }), Status::kOk);
}

TEST(TcpStores, AWaitForASilentServersHandshakeCanBeEnded) {
  TOWLINE_NEEDS_TLS();
  const secure::testing::Folder folder;
  const auto keys = secure::Keys::read({folder.file("key", secure::testing::key_text()), "", "", ""});
  const ListeningSocket silent({false, "127.0.0.1", 0}, {});  // the kernel connects it
  struct Ended {};
  EXPECT_THROW(open_tcp_store(
                   silent.address().text(), false, within(60'000), [] { throw Ended{}; }, keys),
               Ended);
}

TEST(TcpStores, ManyRequestsInOneRecordAreAllAnswered) {
  TOWLINE_NEEDS_TLS();
  const secure::testing::Folder folder;
  const auto keys = secure::Keys::read({folder.file("key", secure::testing::key_text()), "", "", ""});
  TcpStoreServer server("127.0.0.1:0", TcpStoreServer::kPatienceNs, keys);
  RawClient client(server.port(), true, keys);
  std::string requests = RawClient::set("a", "1");
  for (int i = 0; i < 20'000; ++i) requests += RawClient::get("a");
  client.send(requests);
  std::string answers;
  for (int i = 0; i < 20'000; ++i) answers += RawClient::field("1");
  EXPECT_EQ(client.receive(answers.size()), answers);
}

TEST(TcpStores, ManyRequestsForOneLargeValueCostItOnce) {
  TcpStoreServer server("127.0.0.1:0");
  constexpr uint64_t kLargeBytes = 40u << 20;
  RawClient owner(server.port());
  owner.send(RawClient::set("large", std::string(kLargeBytes, 'x')) + RawClient::get("small"));
  owner.receive(8);  // it has come
  const uint64_t before = resident_bytes();
  std::vector<std::unique_ptr<RawClient>> greedy;  // ask and do not read
  for (int i = 0; i < 4; ++i) {
    greedy.push_back(std::make_unique<RawClient>(server.port()));
    for (int request = 0; request < 8; ++request) greedy.back()->send(RawClient::get("large"));
  }
  RawClient late(server.port());  // is still served
  late.send(RawClient::get("large"));
  late.receive(8 + kLargeBytes);
  EXPECT_LT(resident_bytes(), before + 2 * kLargeBytes) << "its own copy in this process is one";
  // All that was asked for comes, in order, once it is read.
  for (int request = 0; request < 8; ++request) {
    EXPECT_EQ(greedy[0]->receive(8), RawClient::number(kLargeBytes));
    EXPECT_EQ(greedy[0]->receive(kLargeBytes), std::string(kLargeBytes, 'x'));
  }
}

TEST(TcpStores, AskingForWhatIsNotThereDoesNotMakeIt) {
  TcpStoreServer server("127.0.0.1:0");
  RawClient curious(server.port());
  curious.send(RawClient::get("/wanted"));
  EXPECT_EQ(curious.receive(8), RawClient::number<uint64_t>(0));
  curious.send(RawClient::text(StoreQuery::kCheck) + RawClient::number<uint64_t>(1) +
               RawClient::field("/wanted"));
  EXPECT_EQ(curious.receive(1), std::string(1, 1)) << "still not there";
  const auto store = open_tcp_store("127.0.0.1:" + std::to_string(server.port()), false, RawClient::soon());
  std::thread waiting([&] { EXPECT_EQ(store->get("wanted", RawClient::soon()), Bytes(3, 'x')); });
  curious.send(RawClient::set("/wanted", "xxx"));
  waiting.join();
}

// Parsing every byte once takes milliseconds; beginning anew with each piece would take a minute.
TEST(TcpStores, LookAtEachByteOfARequestInPiecesOnce) {
  const std::string text = RawClient::set("large", std::string(4u << 20, 'x'));
  const auto* const data = reinterpret_cast<const uint8_t*>(text.data());
  const auto processor_ns = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<uint64_t>(now.tv_sec) * kSecondNs + static_cast<uint64_t>(now.tv_nsec);
  };
  StoreRequestReader reader;
  auto result = StoreRequestReader::Result::kMore;
  const uint64_t before = processor_ns();
  for (size_t at = 0; at < text.size() && processor_ns() - before < 5 * kSecondNs; at += 16) {
    std::span<const uint8_t> piece(data + at, std::min<size_t>(16, text.size() - at));
    result = reader.take(piece);
  }
  EXPECT_EQ(result, StoreRequestReader::Result::kWhole) << "not done after 5 s of a processor";
  EXPECT_EQ(reader.request().value.size(), 4u << 20);
}

TEST(TcpStores, TakeRequestsInPiecesAndManyAtOnce) {
  TcpStoreServer server("127.0.0.1:0");
  RawClient client(server.port());
  const std::string request = RawClient::set("key", "value") + RawClient::text(StoreQuery::kAdd) +
                              RawClient::field("number") + RawClient::number<int64_t>(5) +
                              RawClient::text(StoreQuery::kWait) + RawClient::number<uint64_t>(2) +
                              RawClient::field("key") + RawClient::field("number") + RawClient::get("key");
  for (const char byte : request) client.send({byte});
  const std::string answers = RawClient::number<int64_t>(5) + std::string(1, 0) + RawClient::field("value");
  EXPECT_EQ(client.receive(answers.size()), answers);
  std::string many;
  for (int i = 0; i < 20000; ++i) many += RawClient::get("key");
  std::thread sending([&] { client.send(many); });
  std::string all;
  for (int i = 0; i < 20000; ++i) all += RawClient::field("value");
  EXPECT_EQ(client.receive(all.size()), all);
  sending.join();
  client.send(RawClient::text(StoreQuery::kPing) + RawClient::number<uint32_t>(7) +
              RawClient::text(StoreQuery::kDelete) + RawClient::field("key") +
              RawClient::text(StoreQuery::kKeys));
  EXPECT_EQ(client.receive(20),
            RawClient::number<uint32_t>(7) + RawClient::number<int64_t>(1) + RawClient::number<int64_t>(1));
}

TEST(TcpStores, DropWhoSpeaksSomethingElseOrAsksTooMuchAndServeTheRest) {
  TcpStoreServer server("127.0.0.1:0");
  const auto store = open_tcp_store("127.0.0.1:" + std::to_string(server.port()), false, RawClient::soon());
  const std::string large = RawClient::number<uint64_t>(uint64_t{1} << 40);
  const std::string bad[] = {
      "GET / HTTP/1.1\r\n\r\n",
      std::string(1, 99),
      RawClient::text(StoreQuery::kSet) + large,
      RawClient::text(StoreQuery::kSet) + RawClient::field("key") + large,
      RawClient::text(StoreQuery::kWait) + large,
      RawClient::set("text", "x") + RawClient::text(StoreQuery::kAdd) + RawClient::field("text") +
          RawClient::number<int64_t>(1),
  };
  for (const std::string& request : bad) {
    RawClient client(server.port());
    static_cast<void>(client.try_send(request));
    EXPECT_TRUE(client.is_dropped()) << request;
    RawClient stranger(server.port(), false);
    static_cast<void>(stranger.try_send(RawClient::get("key")));
    EXPECT_TRUE(stranger.is_dropped()) << "it sent no request";
  }
  store->set("key", Bytes(1, 1));
  EXPECT_EQ(store->get("key", RawClient::soon()), Bytes(1, 1));
}

TEST(TcpStores, DropWhoIsSilentInTheMiddleOfARequestAndNotWhoWaits) {
  TcpStoreServer server("127.0.0.1:0", kSecondNs);
  RawClient idle(server.port());
  RawClient waits(server.port());
  waits.send(RawClient::text(StoreQuery::kWait) + RawClient::number<uint64_t>(1) + RawClient::field("key"));
  const std::string large(16u << 20, 'x');
  RawClient unread(server.port());
  unread.send(RawClient::set("large", large) + RawClient::text(StoreQuery::kKeys));
  unread.receive(8);  // the value has arrived
  unread.send(RawClient::get("large") + RawClient::get("large"));
  RawClient stranger(server.port(), false);
  RawClient half(server.port());
  half.send(RawClient::text(StoreQuery::kSet) + RawClient::number<uint64_t>(100) + "part of it");
  EXPECT_TRUE(stranger.is_dropped());
  EXPECT_TRUE(half.is_dropped());
  EXPECT_FALSE(unread.gives(2 * (8 + large.size()))) << "it took nothing for longer than that";
  RawClient other(server.port());
  other.send(RawClient::set("key", "value"));
  EXPECT_EQ(waits.receive(1), std::string(1, 0));
  idle.send(RawClient::get("key"));
  EXPECT_EQ(idle.receive(13), RawClient::field("value"));
}

TEST(TcpStores, ClientsOfOneAddressTakeHalfOfTheDescriptors) {
  const auto within = [](uint64_t ms) { return Deadline::after(monotonic_now_ns(), ms * kMillisecondNs); };
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{200, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  auto server = std::make_unique<TcpStoreServer>("127.0.0.1:0");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);  // for the clients, which are in this process too
  const std::string endpoint = "127.0.0.1:" + std::to_string(server->port());
  const auto first = open_tcp_store(endpoint, false, within(20'000));
  first->set("here", Bytes{1});
  ASSERT_EQ(first->get("here", within(20'000)), Bytes{1});
  std::vector<Stream> crowd;
  for (int i = 0; i < 150; ++i)
    crowd.push_back(Stream::dial(parse_endpoint(endpoint), within(20'000), Stream::Patience::kNone));
  uint8_t byte = 0;
  EXPECT_EQ(crowd.back().read_all({&byte, 1}, within(20'000)), Status::kPeerLost) << "it is not refused";
  EXPECT_EQ(crowd[100].read_all({&byte, 1}, within(20'000)), Status::kPeerLost);
  EXPECT_EQ(crowd[50].read_all({&byte, 1}, within(50)), Status::kTimedOut);
  EXPECT_EQ(first->get("here", within(20'000)), Bytes{1});
}

TEST(TcpStores, HoldNoMoreThanTheyMay) {
  TcpStoreServer server("127.0.0.1:0");
  RawClient client(server.port());
  const std::string value(60u << 20, 'x');
  bool dropped = false;
  for (int i = 0; i < 20 && !dropped; ++i)
    dropped = is_error(client.try_send(RawClient::set(std::to_string(i), value)));
  EXPECT_TRUE(dropped || client.is_dropped()) << "1200 MiB were taken";
  RawClient other(server.port());
  other.send(RawClient::set("small", "x") + RawClient::get("small"));
  EXPECT_EQ(other.receive(9), RawClient::field("x"));
}

// Rank 0 listens at the address that all ranks were given.
TEST(TcpStores, ListenAtTheAddressThatWasTold) {
  const uint16_t port = support::free_port();
  const auto store = open_tcp_store("127.0.0.1:" + std::to_string(port), true, RawClient::soon());
  EXPECT_NO_THROW(Stream::dial({false, "127.0.0.1", port}, RawClient::soon(), Stream::Patience::kNone));
  EXPECT_THROW(Stream::dial({false, "127.0.0.2", port}, RawClient::soon(), Stream::Patience::kNone), Error);
}

// Ranks that ended at any moment leave keys behind, which a process of another attempt, that counts anew, finds.
TEST(Meeting, RanksDoNotFindWhatOthersLeftInTheStore) {
  auto store = std::make_shared<MemoryStore>();
  std::shared_ptr<Store> left[3];
  run_threads(3, [&](int rank) { left[rank] = meet(store, rank, 3, RawClient::soon()); });
  left[1]->set("info/1", Bytes(1, 'x'));
  EXPECT_EQ(left[2]->get("info/1", RawClient::soon()), Bytes(1, 'x'));
  for (const int last : {0, 2}) {  // also where it is rank 0 that comes last
    std::atomic<int> waiting{0};
    std::shared_ptr<Store> next[3];
    run_threads(3, [&](int rank) {
      if (rank == last)
        eventually([&] { return waiting == 2; });
      else
        ++waiting;
      next[rank] = meet(store, rank, 3, RawClient::soon());
    });
    EXPECT_EQ(code_of([&] { next[2]->get("info/1", Deadline::after(monotonic_now_ns(), kMillisecondNs)); }),
              Status::kTimedOut);
    next[0]->set("key", Bytes(1, 'y'));
    EXPECT_EQ(next[2]->get("key", RawClient::soon()), Bytes(1, 'y'));
    EXPECT_EQ(next[1]->get("key", RawClient::soon()), Bytes(1, 'y'));
  }
}

// Waits for the ranks that come, however late this machine lets them, and not for the third one.
class WithoutTheThird final : public Store {
 public:
  void set(const std::string& key, std::span<const uint8_t> value) override { kept_.set(key, value); }
  Bytes get(const std::string& key, Deadline deadline) override {
    const bool never_comes = key.ends_with("word/2") || key.ends_with("answer") || key.starts_with("sizes/");
    return kept_.get(key, never_comes ? deadline : RawClient::soon());
  }
  std::string describe() const override { return "memory"; }

 private:
  MemoryStore kept_;
};

TEST(Meeting, ARankThatDoesNotComeIsNamed) {
  auto store = std::make_shared<WithoutTheThird>();
  run_threads(2, [&](int rank) {
    const Deadline deadline = Deadline::after(monotonic_now_ns(), 300 * kMillisecondNs);
    EXPECT_EQ(code_of([&] { meet(store, rank, 3, deadline); },
                      fmt::format("rank {} of 3 timed out waiting for rank 2 to join", rank)),
              Status::kTimedOut);
  });
}

TEST(Meeting, RanksOfOtherSizesAreNamedOnBothSidesWhileTheyWait) {
  auto store = std::make_shared<MemoryStore>();
  std::atomic<int> named{0};
  set_log_sink(
      [](void* context, LogLevel, std::string_view text) {
        if (text.find(" was given ") != std::string_view::npos) ++*static_cast<std::atomic<int>*>(context);
      },
      &named);
  run_threads(2, [&](int rank) {
    const Deadline deadline = Deadline::after(monotonic_now_ns(), 3 * kSecondNs);
    EXPECT_EQ(code_of([&] { meet(store, rank, rank == 0 ? 2 : 4, deadline); },
                      rank == 0 ? "waiting for rank 1 to join: rank 1 was given 4 ranks"
                                : "waiting for rank 0 to join: rank 0 was given 2 ranks"),
              Status::kTimedOut);
  });
  EXPECT_EQ(named, 2);
  // Of that rank 0 only keys are left.
  const std::string alone = [&] {
    try {
      meet(store, 1, 3, Deadline::after(monotonic_now_ns(), kSecondNs));
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  }();
  EXPECT_NE(alone.find("waiting for rank 0"), std::string::npos) << alone;
  EXPECT_EQ(alone.find("was given"), std::string::npos) << alone;
  set_log_sink(nullptr, nullptr);
}

// As one that has no descriptor left for another connection.
class WithoutLooks final : public Store {
 public:
  void set(const std::string& key, std::span<const uint8_t> value) override { kept_.set(key, value); }
  Bytes get(const std::string& key, Deadline deadline) override {
    if (!key.starts_with("sizes/")) return kept_.get(key, deadline);
    looked = true;
    fail(Status::kPeerLost, "the store does not answer");
  }
  std::string describe() const override { return "memory"; }
  std::atomic<bool> looked{false};

 private:
  MemoryStore kept_;
};

TEST(Meeting, ALookForOtherSizesThatFailsDoesNotEndTheWait) {
  for (const int first : {0, 1}) {
    auto store = std::make_shared<WithoutLooks>();
    run_threads(2, [&](int rank) {
      if (rank != first) eventually([&] { return store->looked.load(); });
      EXPECT_EQ(code_of([&] { meet(store, rank, 2, RawClient::soon()); }), Status::kOk) << rank;
    });
  }
}

TEST(Meeting, TwoThatComeAsOneRankAreNotLeftToWaitForAnother) {
  auto store = std::make_shared<MemoryStore>();
  std::atomic<int> refused{0};
  std::atomic<int> late{0};
  run_threads(3, [&](int thread) {
    const int rank = std::min(thread, 1);
    const Deadline deadline = Deadline::after(monotonic_now_ns(), 2 * kSecondNs);
    try {
      meet(store, rank, 3, deadline);
      ADD_FAILURE() << "rank 2 never came";
    } catch (const Error& error) {
      if (error.code() == Status::kTimedOut) ++late;
      if (error.code() == Status::kAlreadyExists &&
          error.message() == "another process came as rank 1 of 3 too: give each process a rank of its own")
        ++refused;
    }
  });
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(late, 2);
}

TEST(Exchange, GivesEveryRankWhatAllHaveAndNamesOneThatDoesNotCome) {
  auto store = std::make_shared<MemoryStore>();
  run_threads(3, [&](int rank) {
    const auto all =
        exchange(*store, "ages", rank, 3, Bytes(static_cast<size_t>(rank), 'x'), RawClient::soon());
    ASSERT_EQ(all.size(), 3u);
    for (size_t other = 0; other < 3; ++other) EXPECT_EQ(all[other], Bytes(other, 'x'));
  });
  const Deadline deadline = Deadline::after(monotonic_now_ns(), kMillisecondNs);
  EXPECT_EQ(code_of([&] { exchange(*store, "names", 0, 2, Bytes(), deadline); },
                    "rank 0 of 2 timed out waiting for rank 1 to join"),
            Status::kTimedOut);
}

}  // namespace
}  // namespace towline::rendezvous
