#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "support/open_to_peers.h"
#include "towline/storage.h"
#include "world.h"

namespace towline::simulation {

bool command_gpus(const char* command, uint64_t a) {
  using Command = bool (*)(const char*, uint64_t, uint64_t, uint64_t);
  static void* const library = ::dlopen(TOWLINE_CUDA_FAKE, RTLD_NOW | RTLD_LOCAL);
  static const auto call =
      library == nullptr ? nullptr : reinterpret_cast<Command>(::dlsym(library, "towline_fake_gpu"));
  if (call == nullptr) {
    ADD_FAILURE() << "no fake GPUs in " << TOWLINE_CUDA_FAKE;
    return false;
  }
  return call(command, a, 0, 0);
}

// ---- the network

const CutNetwork::Life* CutNetwork::find(const uint64_t incarnation[2]) const noexcept {
  const Id id{incarnation[0], incarnation[1]};
  const auto found =
      std::find_if(lives_.begin(), lives_.end(), [&](const Life& life) { return life.incarnation == id; });
  return found == lives_.end() ? nullptr : &*found;
}

bool CutNetwork::passes(const uint64_t from[2], const uint64_t to[2]) const noexcept {
  const Life* const one = find(from);
  const Life* const other = find(to);
  if (one == nullptr || other == nullptr) return true;
  return !one->crashed && !other->crashed && !cut_[one->agent][other->agent];
}

void CutNetwork::crash(Id incarnation) {
  for (Life& life : lives_)
    if (life.incarnation == incarnation) life.crashed = true;
}

// ---- agents come and go

World::World(uint64_t seed) : random_(seed), seed_(seed) {
  command_gpus("by hand", 1);
  memory::use_network(&network_);
  for (uint32_t i = 0; i < kAgents; ++i) {
    SimulatedAgent& agent = agents_[i];
    agent.own_kind = i == 2 ? Own::kFile : i == 3 ? Own::kVram : Own::kDram;
    agent.own.assign(kBytes, 0);
    agent.shared.assign(kBytes, kPrivate);
    if (agent.own_kind == Own::kFile) {
      agent.file = ::memfd_create("simulated-file", MFD_CLOEXEC);
      EXPECT_EQ(::ftruncate(agent.file, kBytes), 0);
    }
    start(i);
  }
  for (uint32_t i = 0; i < kAgents; ++i)
    for (uint32_t j = 0; j < kAgents; ++j)
      if (i != j) introduce(i, j);
  for (uint32_t from = 0; from < kAgents; ++from)
    for (uint32_t to = 0; to < kAgents; ++to)
      for (const uint32_t op : {TOWLINE_READ, TOWLINE_WRITE})
        if (from != to) moves_.push_back({.from = from, .to = to, .op = op});
}

World::~World() {
  network_.mend_all();
  for (uint32_t i = 0; i < kAgents; ++i) stop(i, false);
  for (SimulatedAgent& agent : agents_)
    if (agent.file >= 0) ::close(agent.file);
  memory::use_network(nullptr);
  command_gpus("reset");
}

void World::start(uint32_t index) {
  SimulatedAgent& agent = agents_[index];
  AgentOptions options = testing::simulated_agent(fmt::format("agent-{}", index), &clock_);
  options.config.set("tuning.connection.wait", "0s");
  options.config.set("tuning.staging.chunk", "4KiB");
  options.config.set("tuning.staging.depth", index % 2 == 0 ? "2" : "3");
  options.config.set("tuning.staging.bytes", "24KiB");
  if (agent.own_kind == Own::kFile) {
    options.backends.emplace_back("posix");
    options.config.set("tuning.posix.engine", "pread");
  }
  if (agent.own_kind == Own::kVram) {
    options.backends.emplace_back("cuda");
    options.config.set("plugins", TOWLINE_CUDA_FAKE);
  }
  if (seed_ % 4 != 0) {
    const uint64_t faults = seed_ * 100 + registrations_;
    options.config.set("tuning.memory.faults", fmt::format("seed={},short=0.3,delay=0.01:300us,cut={}",
                                                           faults, seed_ % 2 == 0 ? "0.0001" : "0"));
  }
  agent.agent = Agent::create(std::move(options));
  agent.handle.agent = agent.agent;
  network_.enter(index, agent.agent->incarnation());

  if (agent.own_kind == Own::kFile) {
    towline_storage_options_t storage{};
    storage.struct_size = sizeof storage;
    storage.access = TOWLINE_ACCESS_ALL;
    storage.fd = agent.file;
    ASSERT_EQ(towline_storage_register(&agent.handle, nullptr, &storage, &agent.own_region), TOWLINE_OK)
        << towline_last_error();
    agent.mine = list(index, nullptr, 0, TOWLINE_MEMORY_FILE, towline_region_device(agent.own_region));
  } else {
    towline_region_options_t region{};
    region.struct_size = sizeof region;
    region.access = TOWLINE_ACCESS_ALL;
    region.kind = agent.own_kind == Own::kVram ? TOWLINE_MEMORY_VRAM : TOWLINE_MEMORY_DRAM;
    ASSERT_EQ(towline_region_register(&agent.handle, agent.own.data(), kBytes, &region, &agent.own_region),
              TOWLINE_OK)
        << towline_last_error();
    agent.mine = list(index, nullptr, reinterpret_cast<uint64_t>(agent.own.data()), region.kind, 0);
  }
  share(index);
}

void World::share(uint32_t index) {
  SimulatedAgent& agent = agents_[index];
  ASSERT_EQ(towline_region_register(&agent.handle, agent.shared.data(), kBytes, testing::open_to_peers(),
                                    &agent.shared_region),
            TOWLINE_OK)
      << towline_last_error();
  agent.registration = ++registrations_;
}

towline_block_list_t* World::list(uint32_t index, towline_peer_t* peer, uint64_t address, uint32_t kind,
                                  uint64_t device) {
  towline_blocks_t blocks = {};
  blocks.address = address;
  blocks.length = kBlock;
  blocks.kind = kind;
  blocks.device = device;
  blocks.dimensions = 1;
  blocks.count[0] = kBytes / kBlock;
  blocks.stride[0] = kBlock;
  towline_block_list_t* made = nullptr;
  EXPECT_EQ(towline_block_list_create(&agents_[index].handle, peer, &blocks, sizeof blocks, 1, &made),
            TOWLINE_OK)
      << towline_last_error();
  return made;
}

// `who` is given the current metadata of `to`.
void World::introduce(uint32_t who, uint32_t to) {
  SimulatedAgent& other = agents_[to];
  Acquaintance& known = agents_[who].others[to];
  if (known.theirs != nullptr) towline_block_list_destroy(known.theirs);
  if (known.peer != nullptr) towline_peer_release(known.peer);
  known = {};
  const std::vector<uint8_t> blob = other.agent->metadata(nullptr);
  ASSERT_EQ(towline_peer_add(&agents_[who].handle, blob.data(), blob.size(), &known.peer), TOWLINE_OK)
      << towline_last_error();
  if (other.registration == 0) return;  // it shares nothing now
  known.theirs =
      list(who, known.peer, reinterpret_cast<uint64_t>(other.shared.data()), TOWLINE_MEMORY_DRAM, 0);
  known.registration = other.registration;
}

void World::forget(Acquaintance& other) {
  if (other.theirs != nullptr) towline_block_list_destroy(other.theirs);
  if (other.peer != nullptr) towline_peer_release(other.peer);
  other = {};
}

// A crash is not noticed by anybody but by silence.
void World::stop(uint32_t index, bool crash) {
  SimulatedAgent& agent = agents_[index];
  if (agent.agent == nullptr) return;
  if (crash) network_.crash(agent.agent->incarnation());
  agent.agent->close();
  for (SimulatedMove& move : moves_) {
    if (move.from != index || move.transfer == nullptr) continue;
    EXPECT_EQ(towline_transfer_destroy(move.transfer, 0), TOWLINE_OK)
        << "agent " << index << " has closed, but its "
        << (move.op == TOWLINE_READ ? "READ from " : "WRITE to ") << move.to << " is not fenced";
    move.transfer = nullptr;
    move.state = SimulatedMove::State::kIdle;
  }
  for (Acquaintance& other : agent.others) forget(other);
  towline_block_list_destroy(agent.mine);
  for (towline_region_t* region : {agent.own_region, agent.shared_region}) {
    if (region == nullptr) continue;
    EXPECT_EQ(towline_region_deregister(region, 0), TOWLINE_OK);
  }
  agent.mine = nullptr;
  agent.own_region = agent.shared_region = nullptr;
  agent.registration = 0;
  agent.deregistering = false;
  agent.handle.agent = agent.agent = nullptr;
  std::fill(agent.shared.begin(), agent.shared.end(), kPrivate);
}

void World::restart(uint32_t index) {
  start(index);
  for (uint32_t i = 0; i < kAgents; ++i) {
    if (i == index || agents_[i].agent == nullptr) continue;
    // An agent that drives its own progress is not given up for silence: the application says that it is gone.
    if (towline_peer_t*& earlier = agents_[i].others[index].peer; earlier != nullptr) {
      EXPECT_EQ(towline_peer_remove(earlier), TOWLINE_OK) << towline_last_error();
      earlier = nullptr;
    }
    introduce(i, index);
    introduce(index, i);
  }
}

void World::begin_deregistering(uint32_t index) {
  agents_[index].deregistering = true;
  agents_[index].registration = 0;  // moves need not find their bytes any more
  ++tally_.deregistrations;
}

void World::look_after(uint32_t index) {
  SimulatedAgent& agent = agents_[index];
  if (agent.deregistering) {
    const int32_t status = towline_region_deregister(agent.shared_region, 0);
    if (status == TOWLINE_NOT_YET) return;
    ASSERT_EQ(status, TOWLINE_OK) << towline_last_error();
    agent.deregistering = false;
    agent.shared_region = nullptr;
    std::fill(agent.shared.begin(), agent.shared.end(), kPrivate);
    agent.private_until_ns = clock_.now_ns() + random_.below(100 * kMillisecondNs);
  }
  if (agent.shared_region != nullptr || clock_.now_ns() < agent.private_until_ns) return;
  check_private(index);
  if (agent.agent == nullptr) {
    restart(index);
    return;
  }
  share(index);
  for (uint32_t i = 0; i < kAgents; ++i)
    if (i != index && agents_[i].agent != nullptr) introduce(i, index);
}

// Two agents are cut off from each other, or one from all.
void World::cut_or_mend() {
  const auto a = static_cast<uint32_t>(random_.below(kAgents));
  const auto b = static_cast<uint32_t>((a + 1 + random_.below(kAgents - 1)) % kAgents);
  const bool all = random_.below(4) == 0;
  const bool cut = !network_.is_cut(a, b);
  if (cut) ++tally_.cuts;
  for (uint32_t other = 0; other < kAgents; ++other) {
    if (other == a || (other != b && !all) || network_.is_cut(a, other) == cut) continue;
    network_.cut(a, other, cut);
    cut_since_ns_[a][other] = cut_since_ns_[other][a] = clock_.now_ns();
  }
}

}  // namespace towline::simulation
