// The verbs domain over a model of libibverbs: what the engine and its users see of ports, queue pairs and their errors.
#ifdef TOWLINE_HAVE_IBVERBS

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/random.h"
#include "fabric/test_support.h"
#include "fabric/verbs/fake_library.h"
#include "fabric/verbs/verbs_domain.h"

namespace towline::fabric {
namespace {

using testing::FakeDevice;
using testing::FakeGid;
using testing::FakePair;
using testing::FakeVerbs;
using testing::TestHost;

std::string refusal(const VerbsOptions& options, Status status) {
  try {
    const VerbsDomain domain{FakeVerbs::library(), options};
    ADD_FAILURE() << "it was opened";
  } catch (const core::Error& error) {
    EXPECT_EQ(error.code(), status) << error.message();
    return error.message();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Two hosts with as many devices each, and what they tell each other.
class VerbsEngines : public ::testing::Test {
 protected:
  void open(uint32_t rails, EngineOptions options = {}) {
    for (uint32_t host = 0; host < 2; ++host) {
      std::vector<std::unique_ptr<Domain>> domains;
      for (uint32_t rail = 0; rail < rails; ++rail) {
        const std::string name = "fake" + std::to_string(host) + std::to_string(rail);
        devices[host].push_back(&world.add_device(name));
        domains.push_back(std::make_unique<VerbsDomain>(FakeVerbs::library(), VerbsOptions{name, 1, -1}));
      }
      hosts[host].now_ns = &now_ns;
      hosts[host].engine = std::make_unique<Engine>(options, std::move(domains), hosts[host]);
    }
    for (uint32_t host = 0; host < 2; ++host)
      hosts[host].peers[0] = hosts[host].engine->add_peer(hosts[1 - host].engine->address());
    from.resize(kBytes);
    to.assign(kBytes, 0);
    for (std::size_t i = 0; i < kBytes; ++i) from[i] = static_cast<uint8_t>(i * 7 + i / 4096);
    mine = hosts[0].engine->register_memory({from.data(), kBytes, true, true});
    theirs = hosts[1].engine->register_memory({to.data(), kBytes, true, true});
    remote = Engine::describe(theirs);
  }
  void TearDown() override {
    for (TestHost& host : hosts)
      if (host.engine != nullptr) host.engine->close();
    if (hosts[0].engine != nullptr) hosts[0].engine->deregister_memory(mine);
    if (hosts[1].engine != nullptr) hosts[1].engine->deregister_memory(theirs);
    for (TestHost& host : hosts) host.engine.reset();
    EXPECT_TRUE(world.faults.empty()) << world.faults.front();
  }

  void step(uint64_t ns = 10'000) {
    now_ns += ns;
    for (uint32_t host = 0; host < 2; ++host) {
      hosts[host].engine->progress(now_ns);
      while (!hosts[host].letters.empty()) {
        const TestHost::Letter letter = std::move(hosts[host].letters.front());
        hosts[host].letters.pop_front();
        hosts[1 - host].engine->on_control(hosts[1 - host].peers[0], letter.bytes);
      }
    }
  }
  bool until(const std::function<bool()>& done, uint64_t limit_ns = 10 * kSecondNs) {
    const uint64_t end_ns = now_ns + limit_ns;
    while (!done() && now_ns < end_ns) step();
    return done();
  }
  static std::size_t next(void* context, towline_segment* out, std::size_t capacity) {
    auto& self = *static_cast<VerbsEngines*>(context);
    std::size_t count = 0;
    for (; count < capacity && self.given < kBytes; ++count) {
      const uint64_t length = std::min<uint64_t>(self.piece, kBytes - self.given);
      out[count] = {self.mine.address + self.given, self.theirs.address + self.given, length, 0, 0};
      self.given += length;
    }
    return count;
  }
  TransferRequest request(TransferOp op, uint64_t bytes_of_piece = 4096) {
    given = 0;
    piece = bytes_of_piece;
    TransferRequest made;
    made.peer = hosts[0].peers[0];
    made.op = op;
    made.segments = {next, this};
    made.local = &local_pointer;
    made.remote = &remote_pointer;
    made.bytes = kBytes;
    made.cookie = 1;
    return made;
  }
  Status run(const TransferRequest& wanted) {
    hosts[0].outcomes.clear();
    EXPECT_EQ(hosts[0].engine->submit(wanted), Status::kInProgress);
    EXPECT_TRUE(until([&] { return hosts[0].outcomes.contains(1); })) << hosts[0].engine->describe();
    return hosts[0].outcomes[1].result.status;
  }
  FakePair& some_pair(FakeDevice& device) { return *device.pairs.begin()->second; }

  static constexpr uint64_t kBytes = 1 << 20;
  FakeVerbs world;
  uint64_t now_ns = 1;
  std::vector<FakeDevice*> devices[2];
  TestHost hosts[2];
  std::vector<uint8_t> from;
  std::vector<uint8_t> to;
  LocalMemory mine;
  LocalMemory theirs;
  RemoteMemory remote;
  const LocalMemory* local_pointer = &mine;
  const RemoteMemory* remote_pointer = &remote;
  uint64_t given = 0;
  uint64_t piece = 0;
};

TEST_F(VerbsEngines, BytesCountsAndMessagesArrive) {
  open(2);
  TransferRequest write = request(TransferOp::kWrite);
  const std::string message = "after every byte";
  write.immediate = 5;
  write.count = 3;
  write.message = {reinterpret_cast<const uint8_t*>(message.data()), message.size()};
  write.has_message = true;
  ASSERT_EQ(run(write), Status::kOk);
  EXPECT_EQ(to, from);
  EXPECT_TRUE(until([&] { return hosts[1].messages.size() == 1; }));
  EXPECT_EQ(hosts[1].messages.front(), message);
  EXPECT_EQ(hosts[1].counts[5], 3u);
  std::fill(from.begin(), from.end(), uint8_t{0});
  ASSERT_EQ(run(request(TransferOp::kRead)), Status::kOk);
  EXPECT_EQ(from, to);
  EXPECT_TRUE(std::any_of(to.begin(), to.end(), [](uint8_t byte) { return byte != 0; }));
}

TEST_F(VerbsEngines, ALoneSmallWriteIsInlineAndCountsByItsImmediate) {
  open(1);
  TransferRequest write = request(TransferOp::kWrite, 64);
  write.bytes = 64;
  write.immediate = 9;
  write.count = 1;
  ASSERT_EQ(run(write), Status::kOk);
  EXPECT_TRUE(until([&] { return hosts[1].counts[9] == 1; }));
  EXPECT_EQ(world.inlined, 1u);
  EXPECT_EQ(world.requests, 1u) << "data and count are one request";
}

TEST_F(VerbsEngines, MostRequestsAreNotSignalled) {
  open(1);
  ASSERT_EQ(run(request(TransferOp::kWrite)), Status::kOk);
  EXPECT_EQ(world.requests, kBytes / 4096);
  EXPECT_LE(world.completions * 8, world.requests);
}

TEST_F(VerbsEngines, AKeyThatTheNicRefusesEndsItsTransferWithTheReason) {
  open(1);
  remote.keys[0].key += 1'000'000;
  EXPECT_EQ(run(request(TransferOp::kWrite)), Status::kPermissionDenied);
  EXPECT_TRUE(std::all_of(to.begin(), to.end(), [](uint8_t byte) { return byte == 0; }));
  remote = Engine::describe(theirs);
  EXPECT_EQ(run(request(TransferOp::kWrite)), Status::kOk) << "over a new queue pair";
  EXPECT_EQ(to, from);
}

TEST_F(VerbsEngines, LocalMemoryThatTheNicRefusesEndsItsTransferAndOthersGoOn) {
  open(1);
  for (const TransferOp op : {TransferOp::kWrite, TransferOp::kRead}) {
    LocalMemory wrong = mine;
    wrong.keys[0].local_key += 1'000'000;
    local_pointer = &wrong;
    EXPECT_EQ(run(request(op)), Status::kInvalidArgument);
    EXPECT_TRUE(std::all_of(to.begin(), to.end(), [](uint8_t byte) { return byte == 0; }));
    local_pointer = &mine;
  }
  EXPECT_EQ(run(request(TransferOp::kWrite)), Status::kOk) << "over a new queue pair";
  EXPECT_EQ(to, from);
  EXPECT_TRUE(hosts[0].losses.empty());
}

// A NIC moves the pages that it has pinned, whatever is mapped there now. So no one else may touch the memory: an engine
// that does ends its process here.
TEST_F(VerbsEngines, OfMemoryThatWasUnmappedThePinnedPagesMove) {
  constexpr uint64_t kHoleBytes = 64 << 10;
  constexpr uint64_t kHole[2] = {256 << 10, 512 << 10};
  open(1);
  uint8_t* memory[2];
  for (uint32_t host = 0; host < 2; ++host) {
    devices[host][0]->pins = true;
    memory[host] = static_cast<uint8_t*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory[host], MAP_FAILED);
    LocalMemory& registered = host == 0 ? mine : theirs;
    hosts[host].engine->deregister_memory(registered);
    registered = hosts[host].engine->register_memory({memory[host], kBytes, true, true});
    ASSERT_EQ(devices[host][0]->pinned.size(), 1u);
  }
  remote = Engine::describe(theirs);
  std::copy(from.begin(), from.end(), memory[0]);
  for (uint32_t host = 0; host < 2; ++host) ASSERT_EQ(munmap(memory[host] + kHole[host], kHoleBytes), 0);
  const auto same = [&](uint32_t host) {
    const uint64_t hole = kHole[host];
    return std::equal(memory[host], memory[host] + hole, from.begin()) &&
           std::equal(memory[host] + hole + kHoleBytes, memory[host] + kBytes,
                      from.begin() + static_cast<std::ptrdiff_t>(hole + kHoleBytes));
  };
  EXPECT_EQ(run(request(TransferOp::kWrite)), Status::kOk);
  EXPECT_TRUE(same(1)) << "the pages that are unmapped at the sender, too";
  std::fill(memory[0], memory[0] + kHole[0], uint8_t{0});
  std::fill(memory[0] + kHole[0] + kHoleBytes, memory[0] + kBytes, uint8_t{0});
  EXPECT_EQ(run(request(TransferOp::kRead)), Status::kOk);
  EXPECT_TRUE(same(0)) << "the pages that are unmapped at the owner, too";
  for (uint8_t* const pages : memory) munmap(pages, kBytes);
}

TEST_F(VerbsEngines, APortThatGoesDownLosesNoByteAndComesBack) {
  open(2);
  ASSERT_EQ(run(request(TransferOp::kWrite)), Status::kOk);
  std::fill(to.begin(), to.end(), uint8_t{0});
  world.run_when_polled = false;
  ASSERT_EQ(hosts[0].engine->submit(request(TransferOp::kWrite)), Status::kInProgress);
  hosts[0].outcomes.clear();
  world.run(40);
  FakeVerbs::set_port(*devices[0][0], false);
  world.run_when_polled = true;
  ASSERT_TRUE(until([&] { return hosts[0].outcomes.contains(1); })) << hosts[0].engine->describe();
  EXPECT_EQ(hosts[0].outcomes[1].result.status, Status::kOk);
  EXPECT_EQ(to, from);
  ASSERT_TRUE(until([&] { return hosts[0].engine->counters(0).down; }));
  FakeVerbs::set_port(*devices[0][0], true);
  EXPECT_TRUE(until([&] { return !hosts[0].engine->counters(0).down; }));
  const uint64_t before = hosts[0].engine->counters(0).bytes;
  ASSERT_EQ(run(request(TransferOp::kWrite)), Status::kOk);
  EXPECT_TRUE(until([&] {
    (void)run(request(TransferOp::kWrite));
    return hosts[0].engine->counters(0).bytes > before;
  })) << "the rail carries again";
}

TEST_F(VerbsEngines, AQueuePairThatBreaksIsReplaced) {
  open(1);
  ASSERT_EQ(run(request(TransferOp::kWrite)), Status::kOk);
  for (const ibv_event_type type : {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR}) {
    std::fill(to.begin(), to.end(), uint8_t{0});
    world.run_when_polled = false;
    hosts[0].outcomes.clear();
    ASSERT_EQ(hosts[0].engine->submit(request(TransferOp::kWrite)), Status::kInProgress);
    step();
    world.run(10);
    world.break_pair(some_pair(*devices[0][0]), type);
    world.run_when_polled = true;
    ASSERT_TRUE(until([&] { return hosts[0].outcomes.contains(1); })) << hosts[0].engine->describe();
    EXPECT_EQ(hosts[0].outcomes[1].result.status, Status::kOk);
    EXPECT_EQ(to, from);
  }
  EXPECT_GE(hosts[0].engine->counters(0).breaks, 2u);
  EXPECT_GT(hosts[0].engine->counters(0).retried, 0u);
}

TEST_F(VerbsEngines, RecordsThatArrivedBeforeAQueuePairEndedCountOnce) {
  open(1);
  uint64_t expected = 0;
  for (int round = 0; round < 20; ++round) {
    world.run_when_polled = false;
    hosts[0].outcomes.clear();
    TransferRequest write = request(TransferOp::kWrite);
    write.immediate = 1;
    write.count = 1;
    ASSERT_EQ(hosts[0].engine->submit(write), Status::kInProgress);
    step();
    world.run(static_cast<uint32_t>(round * 16));
    // The arrivals lie in the receiver's completion queue, not polled yet.
    if (!devices[0][0]->pairs.empty()) world.break_pair(some_pair(*devices[0][0]), IBV_EVENT_QP_FATAL);
    world.run_when_polled = true;
    ASSERT_TRUE(until([&] { return hosts[0].outcomes.contains(1); })) << hosts[0].engine->describe();
    ++expected;
    ASSERT_TRUE(until([&] { return hosts[1].counts[1] == expected; })) << "round " << round;
  }
  for (int i = 0; i < 100; ++i) step();
  EXPECT_EQ(hosts[1].counts[1], expected);
}

TEST_F(VerbsEngines, ManyPeersTakeTurnsWhereQueuePairsAreFew) {
  devices[0].clear();
  open(1);
  // More records than the shared receives of the small device hold.
  for (int i = 0; i < 2000; ++i) {
    TransferRequest signal;
    signal.peer = hosts[0].peers[0];
    signal.immediate = 2;
    signal.count = 1;
    signal.cookie = 7;
    while (hosts[0].engine->submit(signal) == Status::kAgain) step();
  }
  EXPECT_TRUE(until([&] { return hosts[1].counts[2] == 2000; }));
}

TEST_F(VerbsEngines, ItSleepsUntilSomethingHappens) {
  open(1);
  ASSERT_EQ(run(request(TransferOp::kWrite)), Status::kOk);
  for (int i = 0; i < 10; ++i) step();
  std::vector<int> fds;
  hosts[1].engine->event_fds(fds);
  ASSERT_EQ(fds.size(), 1u);
  ASSERT_TRUE(hosts[1].engine->arm());
  pollfd wanted{fds[0], POLLIN, 0};
  EXPECT_EQ(::poll(&wanted, 1, 0), 0) << "nothing has happened";
  TransferRequest signal;
  signal.peer = hosts[0].peers[0];
  signal.immediate = 3;
  signal.count = 1;
  ASSERT_EQ(hosts[0].engine->submit(signal), Status::kInProgress);
  world.run();
  EXPECT_EQ(::poll(&wanted, 1, 0), 1) << "a record came";
  ASSERT_TRUE(until([&] { return hosts[1].counts[3] == 1; }));
  ASSERT_TRUE(hosts[1].engine->arm());
  FakeVerbs::set_port(*devices[1][0], false);
  EXPECT_EQ(::poll(&wanted, 1, 0), 1) << "the port went down";
  ASSERT_TRUE(until([&] { return hosts[1].engine->counters(0).down; }));
  FakeVerbs::set_port(*devices[1][0], true);
}

class VerbsDevices : public ::testing::Test {
 protected:
  FakeVerbs world;
};

TEST_F(VerbsDevices, WhatIsMissingIsNamed) {
  world.list_error = ENOSYS;
  EXPECT_TRUE(contains(refusal({"mlx5_7", 1, -1}, Status::kNotFound), "ib_uverbs is not loaded"));
  world.list_error = 0;
  EXPECT_TRUE(contains(refusal({"mlx5_7", 1, -1}, Status::kNotFound), "this host has none"));
  FakeDevice& device = world.add_device("mlx5_0");
  EXPECT_TRUE(contains(refusal({"mlx5_7", 1, -1}, Status::kNotFound), "there are: mlx5_0"));
  EXPECT_TRUE(contains(refusal({"mlx5_0", 2, -1}, Status::kNotFound), "no port 2"));
  EXPECT_TRUE(contains(refusal({"mlx5_0", 1, 9}, Status::kNotFound), "no GID of index 9"));
  device.open_error = EACCES;
  EXPECT_TRUE(contains(refusal({"mlx5_0", 1, -1}, Status::kPermissionDenied), "/dev/infiniband/uverbs0"));
  device.open_error = 0;
  device.state = IBV_PORT_DOWN;
  EXPECT_TRUE(contains(refusal({"mlx5_0", 1, -1}, Status::kUnreachable), "is down"));
  device.state = IBV_PORT_ACTIVE;
  device.gids.clear();
  EXPECT_TRUE(contains(refusal({"mlx5_0", 1, -1}, Status::kUnreachable), "has no address"));
}

TEST_F(VerbsDevices, TheMemlockLimitIsNamedWhereItIsReached) {
  FakeDevice& device = world.add_device("mlx5_0");
  device.lock_limit = 4 << 20;
  VerbsDomain domain{FakeVerbs::library(), {"mlx5_0", 1, -1}};
  std::vector<uint8_t> memory(8 << 20);
  try {
    (void)domain.register_memory({memory.data(), memory.size()});
    FAIL();
  } catch (const core::Error& error) {
    EXPECT_EQ(error.code(), Status::kOutOfMemory);
    EXPECT_TRUE(contains(error.message(), "ulimit -l")) << error.message();
    EXPECT_TRUE(contains(error.message(), "8388608 bytes")) << error.message();
  }
}

TEST_F(VerbsDevices, RightsAndOrderingOfARegistrationAreAsked) {
  FakeDevice& device = world.add_device("mlx5_0");
  VerbsDomain domain{FakeVerbs::library(), {"mlx5_0", 1, -1}};
  std::vector<uint8_t> memory(4096);
  const Registration read = domain.register_memory({memory.data(), memory.size(), true, false});
  EXPECT_EQ(device.last_access,
            unsigned{IBV_ACCESS_LOCAL_WRITE} | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);
  domain.deregister_memory(read);
  MemoryToRegister gpu{reinterpret_cast<void*>(0x700000001208), memory.size(), true, true, 77, 8192 + 0x208};
  const Registration by_descriptor = domain.register_memory(gpu);
  EXPECT_EQ(device.dmabuf_fd, 77);
  EXPECT_EQ(device.dmabuf_offset, 8192u + 0x208);
  EXPECT_NE(by_descriptor.local_key & kDeviceMemoryKey, 0u) << "the processor must not copy from it";
  domain.deregister_memory(by_descriptor);
  device.takes_dmabuf = false;
  try {
    (void)domain.register_memory(gpu);
    FAIL();
  } catch (const core::Error& error) {
    EXPECT_EQ(error.code(), Status::kUnsupported);
    EXPECT_TRUE(contains(error.message(), "dma-buf")) << error.message();
  }
}

TEST_F(VerbsDevices, OutOfQueuePairsIsAClearError) {
  FakeDevice& device = world.add_device("mlx5_0");
  VerbsDomain domain{FakeVerbs::library(), {"mlx5_0", 1, -1}};
  device.limits.max_qp = 2;
  (void)domain.open(0, ConnectionEnd::kInitiator);
  (void)domain.open(1, ConnectionEnd::kInitiator);
  try {
    (void)domain.open(2, ConnectionEnd::kInitiator);
    FAIL();
  } catch (const core::Error& error) {
    EXPECT_EQ(error.code(), Status::kLimitExceeded);
    EXPECT_TRUE(contains(error.message(), "no queue pair")) << error.message();
  }
  domain.release(0);
  (void)domain.open(2, ConnectionEnd::kInitiator);
}

TEST_F(VerbsDevices, EndsOfAnotherSortAreRefusedAndTheSmallerMtuIsUsed) {
  FakeDevice& one = world.add_device("mlx5_0");
  FakeDevice& two = world.add_device("mlx5_1");
  one.mtu = IBV_MTU_1024;
  VerbsDomain here{FakeVerbs::library(), {"mlx5_0", 1, -1}};
  VerbsDomain there{FakeVerbs::library(), {"mlx5_1", 1, -1}};
  const auto end_here = here.open(0, ConnectionEnd::kInitiator);
  const auto end_there = there.open(0, ConnectionEnd::kResponder);
  there.connect(0, end_here);
  EXPECT_EQ(two.pairs.begin()->second->attributes.path_mtu, IBV_MTU_1024);
  auto other = *decode_verbs_endpoint(end_there);
  other.type = GidType::kRoceV1;
  try {
    here.connect(0, encode(other));
    FAIL();
  } catch (const core::Error& error) {
    EXPECT_EQ(error.code(), Status::kUnreachable);
    EXPECT_TRUE(contains(error.message(), "RoCE v1")) << error.message();
  }
}

FakeGid infiniband_gid(uint8_t subnet, uint8_t host) {
  FakeGid gid;
  gid.type = IBV_GID_TYPE_IB;
  gid.bytes[0] = 0xfe;
  gid.bytes[1] = 0x80;
  gid.bytes[7] = subnet;
  gid.bytes[15] = host;
  return gid;
}

TEST_F(VerbsDevices, PortsOfInfiniBandReachTheirOwnSubnetAlone) {
  const std::string names[] = {"mlx5_0", "mlx5_1", "mlx5_2"};
  std::vector<std::unique_ptr<VerbsDomain>> domains;
  for (uint8_t i = 0; i < 3; ++i) {
    FakeDevice& device = world.add_device(names[i]);
    device.link_layer = IBV_LINK_LAYER_INFINIBAND;
    device.gids = {infiniband_gid(i == 2 ? 1 : 0, i)};
    domains.push_back(std::make_unique<VerbsDomain>(FakeVerbs::library(), VerbsOptions{names[i], 1, -1}));
    EXPECT_EQ(domains.back()->traits().kind, "verbs:ib");
  }
  (void)domains[0]->open(0, ConnectionEnd::kInitiator);
  (void)domains[0]->open(1, ConnectionEnd::kInitiator);
  domains[0]->connect(0, domains[1]->open(0, ConnectionEnd::kResponder));
  EXPECT_EQ(world.devices[0]->pairs.begin()->second->attributes.ah_attr.is_global, 0);
  try {
    domains[0]->connect(1, domains[2]->open(0, ConnectionEnd::kResponder));
    FAIL();
  } catch (const core::Error& error) {
    EXPECT_EQ(error.code(), Status::kUnreachable);
    EXPECT_TRUE(contains(error.message(), "another subnet")) << error.message();
  }
}

TEST_F(VerbsDevices, PairsOfInfiniBandAreInAPartitionOfWhichThePortIsAFullMember) {
  FakeDevice& device = world.add_device("mlx5_0");
  device.link_layer = IBV_LINK_LAYER_INFINIBAND;
  device.gids = {infiniband_gid(0, 1)};
  const auto index_with = [&](std::vector<uint16_t> keys) {
    device.pkeys = std::move(keys);
    VerbsDomain domain{FakeVerbs::library(), {"mlx5_0", 1, -1}};
    (void)domain.open(0, ConnectionEnd::kInitiator);
    return device.pairs.begin()->second->pkey_index;
  };
  EXPECT_EQ(index_with({0xffff, 0x8005}), 0);
  EXPECT_EQ(index_with({0x7fff, 0, 0x8005}), 2) << "limited members do not reach each other";
  EXPECT_EQ(index_with({0, 0x7fff}), 1) << "there is no other";
  EXPECT_EQ(index_with({0x8009, 0x8005, 0x8007}), 1) << "the order is each port's own";
  EXPECT_EQ(index_with({0x8005, 0xffff, 0x8007}), 1) << "the default one";
  EXPECT_EQ(index_with({}), 0);
}

// A connection names its own address by a byte.
TEST_F(VerbsDevices, AddressesBeyondThe256thAreNotChosen) {
  FakeDevice& device = world.add_device("mlx5_0");
  const FakeGid routable = device.gids.front();
  FakeGid of_link;
  of_link.bytes[0] = 0xfe;
  of_link.bytes[1] = 0x80;
  device.gids.assign(300, FakeGid{});
  device.gids[3] = of_link;
  device.gids[256] = routable;
  VerbsDomain domain{FakeVerbs::library(), {"mlx5_0", 1, -1}};
  EXPECT_TRUE(contains(domain.traits().name, "GID 3 ")) << domain.traits().name;
}

TEST_F(VerbsDevices, WhatArrivedBeforeAnEndWasStoppedIsStillGiven) {
  world.add_device("mlx5_0");
  world.add_device("mlx5_1");
  VerbsDomain here{FakeVerbs::library(), {"mlx5_0", 1, -1}};
  VerbsDomain there{FakeVerbs::library(), {"mlx5_1", 1, -1}};
  const auto end_here = here.open(0, ConnectionEnd::kInitiator);
  const auto end_there = there.open(0, ConnectionEnd::kResponder);
  here.connect(0, end_there);
  there.connect(0, end_here);
  uint8_t buffer[64] = {};
  const ReceiveRequest receive{7, reinterpret_cast<uint64_t>(buffer), 0, sizeof buffer};
  ASSERT_EQ(there.post_receives(0, &receive, 1), 1u);
  uint8_t record[8] = {1, 2, 3};
  const WorkRequest send{
      1, reinterpret_cast<uint64_t>(record), 0, 0, 0, 0, sizeof record, RequestKind::kSend, true};
  ASSERT_EQ(here.post(0, &send, 1), 1u);
  world.run();
  there.stop(0);  // nobody has polled yet
  Completion got[4];
  ASSERT_EQ(there.poll(got, 4), 1u);
  EXPECT_EQ(got[0].kind, CompletionKind::kReceive);
  EXPECT_EQ(got[0].cookie, 7u);
  EXPECT_EQ(buffer[2], 3);
}

TEST_F(VerbsDevices, AReceiveThatIsFlushedWithTheLastEventIsNotLost) {
  world.add_device("mlx5_0");
  FakeDevice& two = world.add_device("mlx5_1");
  VerbsDomain here{FakeVerbs::library(), {"mlx5_0", 1, -1}};
  VerbsDomain there{FakeVerbs::library(), {"mlx5_1", 1, -1}};
  two.flushes_late = true;
  for (int round = 0; round < 3; ++round) {
    const auto end_here = here.open(0, ConnectionEnd::kInitiator);
    const auto end_there = there.open(0, ConnectionEnd::kResponder);
    here.connect(0, end_there);
    there.connect(0, end_here);
    const auto& shared = *static_cast<testing::FakeShared*>(two.pairs.begin()->second->srq);
    const std::size_t receives = shared.receives.size();
    there.stop(0);
    EXPECT_EQ(shared.receives.size(), receives);
    there.release(0);
    here.release(0);
  }
}

TEST_F(VerbsDevices, HostileEndsAreRefused) {
  world.add_device("mlx5_0");
  VerbsDomain domain{FakeVerbs::library(), {"mlx5_0", 1, -1}};
  const auto good = domain.open(0, ConnectionEnd::kInitiator);
  Random random{3};
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint8_t> bad = good;
    bad.resize(random.below(bad.size() + 4));
    for (int i = 0; i < 3 && !bad.empty(); ++i)
      bad[random.below(bad.size())] = static_cast<uint8_t>(random.next());
    const auto end = decode_verbs_endpoint(bad);
    if (end && encode(*end) != bad) ADD_FAILURE() << "what was decoded encodes to something else";
    if (!end) {
      EXPECT_THROW(domain.connect(0, bad), core::Error);
    }
  }
}

Gid gid(uint32_t index, GidType type, std::initializer_list<uint8_t> head, uint8_t last) {
  Gid made;
  made.index = index;
  made.type = type;
  std::copy(head.begin(), head.end(), made.bytes.begin());
  made.bytes[15] = last;
  return made;
}

TEST(VerbsGid, RoutableVersion2Ipv4ComesFirstAndTheReasonSaysSo) {
  const auto v4 = [](uint32_t index, GidType type, uint8_t first, uint8_t second) {
    return gid(index, type, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, first, second}, 1);
  };
  std::vector<Gid> table = {gid(0, GidType::kRoceV1, {0xfe, 0x80}, 1),
                            gid(1, GidType::kRoceV2, {0xfe, 0x80}, 1), v4(2, GidType::kRoceV1, 10, 0),
                            gid(3, GidType::kRoceV2, {0x20, 0x01}, 1)};
  EXPECT_EQ(choose_gid(table, true, -1)->gid.index, 3u);
  EXPECT_EQ(choose_gid({table[1], table[2]}, true, -1)->gid.index, 1u) << "version 2, though of the link";
  table.push_back(v4(4, GidType::kRoceV2, 10, 0));
  table.push_back(v4(5, GidType::kRoceV2, 169, 254));
  const auto chosen = choose_gid(table, true, -1);
  EXPECT_EQ(chosen->gid.index, 4u);
  EXPECT_TRUE(contains(chosen->reason, "the best of 6")) << chosen->reason;
  EXPECT_EQ(chosen->gid.text(), "GID 4 (RoCE v2, 10.0.0.1)");
  EXPECT_EQ(choose_gid(table, true, 1)->gid.index, 1u);
  EXPECT_FALSE(choose_gid(table, true, 40));
  EXPECT_FALSE(choose_gid({Gid{}}, true, -1)) << "an empty entry";
  EXPECT_EQ(choose_gid(table, false, -1)->gid.index, 0u);
}

TEST(VerbsNames, OfDevices) {
  const VerbsOptions options = parse_verbs_options("mlx5_0/2?gid=3");
  EXPECT_EQ(options.device, "mlx5_0");
  EXPECT_EQ(options.port, 2);
  EXPECT_EQ(options.gid_index, 3);
  EXPECT_EQ(parse_verbs_options("mlx5_0").port, 1);
  for (const char* bad : {"", "/1", "a/0", "a/x", "a?gid=", "a?gid=-1", "a?mtu=3"})
    EXPECT_THROW((void)parse_verbs_options(bad), core::Error) << bad;
}

}  // namespace
}  // namespace towline::fabric

#endif
