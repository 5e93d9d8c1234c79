// Joins a transport to the conformance suite: how to make two agents that reach each other over it, and only
// it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "support/stamps.h"
#include "towline/towline.hpp"

namespace towline::conformance {

using namespace std::chrono_literals;

struct Transport {
  const char* name;         // in the test's name
  const char* backends;     // the agents' only ones, the one to be tested first
  const char* config;       // TOML
  bool shared_memory;       // allocate with towline::Memory, so that peers can map it; else plain memory
  bool guards = true;       // reaches guarded regions
  Kind kind = Kind::kDram;  // what the memory is registered as: vram where GPUs are made of host memory
  bool framed = false;      // the owner's agent takes part, and counts what its peers move

  // The one that moves the bytes.
  [[nodiscard]] std::string backend() const {
    const std::string all = backends;
    return all.substr(0, all.find(','));
  }
};

inline void PrintTo(const Transport& transport, std::ostream* out) { *out << transport.name; }

// ThreadSanitizer does not see that a store through one mapping of shared memory is ordered before a load
// through another: payload that crossed the ring between two agents of one process would be reported as a
// race.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kSeesRings = false;
#else
inline constexpr bool kSeesRings = true;
#endif

#ifdef TOWLINE_CUDA_PLUGIN
// On a machine with GPUs (tests/gpu).
inline const Transport kTransports[] = {
    {"cuda_gpu", "cuda", "plugins = [\"" TOWLINE_CUDA_PLUGIN "\"]\n[cuda]\ngpu = \"0\"\n", true, false},
    {"cuda_gpu_mapped", "cuda",
     "plugins = [\"" TOWLINE_CUDA_PLUGIN "\"]\n[cuda]\ngpu = \"0\"\n[tuning.cuda]\ndirect = \"false\"\n",
     true, false},
};
#else
// Every way bytes can take today. A new transport, or a new path of one, joins here.
inline const Transport kTransports[] = {
    {"memory", "memory", "", false},
    {.name = "memory_framed",
     .backends = "memory",
     .config = "[tuning.memory]\nframed = true\n",
     .shared_memory = false,
     .framed = true},
    {"shm_mapped", "shm", "[tuning.shm]\npaths = \"mapped\"\n", true, false},
    {"shm_process_vm", "shm", "[tuning.shm]\npaths = \"process_vm\"\n", false, false},
#ifndef __SANITIZE_THREAD__
    {.name = "shm_ring",
     .backends = "shm",
     .config = "[tuning.shm]\npaths = \"ring\"\n",
     .shared_memory = false,
     .framed = true},
#endif
    {"shm", "shm", "", true},
    {.name = "tcp",
     .backends = "tcp",
     .config = "[tuning.tcp]\nsockets = 4\nframe_bytes = \"1MiB\"\n",  // as between hosts
     .shared_memory = false,
     .framed = true},
#ifdef TOWLINE_TEST_KEY
    {.name = "tcp_secured",
     .backends = "tcp",
     .config =
         "[secure]\nkey_file = \"" TOWLINE_TEST_KEY "\"\n[tuning.tcp]\nsockets = 4\nframe_bytes = \"1MiB\"\n",
     .shared_memory = false,
     .framed = true},
#endif
    // RDMA: over the network inside this process, and over libfabric.
    {.name = "rdma_loopback",
     .backends = "rdma",
     .config = "[tuning.rdma]\nrails = \"loopback:conformance, loopback:conformance\"\n"
               "background_bytes = \"1\"\n",
     .shared_memory = false,
     .guards = false},
    // GPU memory that the NICs read and write themselves.
    {.name = "rdma_gpu",
     .backends = "rdma,cuda",
     .config = "plugins = [\"" TOWLINE_CUDA_FAKE
               "\"]\n[tuning.rdma]\nrails = \"loopback:conformance, loopback:conformance\"\n",
     .shared_memory = true,
     .guards = kSeesRings,  // by cuda
     .kind = Kind::kVram},
    {.name = "rdma_ofi_tcp",
     .backends = "rdma",
     .config = "[tuning.rdma]\nrails = \"ofi:tcp;ofi_rxm@127.0.0.1\"\n",
     .shared_memory = false,
     .guards = false},
#ifndef __SANITIZE_THREAD__
    {.name = "ucx_tcp",
     .backends = "ucx",
     .config = "[tuning.ucx]\ntransports = \"tcp\"\n",
     .shared_memory = false,
     .guards = false},
#endif
// ThreadSanitizer does not see that a message over a socket orders the copy of one agent's thread before the other's reads.
#if defined(TOWLINE_NIXL_NET_PLUGIN) && !defined(__SANITIZE_THREAD__)
    // By an engine of a plugin of NIXL's interface, which copies within this process.
    {.name = "nixl_net",
     .backends = "nixl_net",
     .config =
         "plugins = [\"" TOWLINE_NIXL_NET_PLUGIN "\"]\n[nixl_net]\nlibrary = \"" TOWLINE_FAKE_NIXL_NET "\"\n",
     .shared_memory = false,
     .guards = false},
#endif
    // GPU memory on GPUs made of host memory: as it lies in this process, mapped once more by descriptor, and
    // through host memory.
    {"cuda", "cuda", "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n", false, kSeesRings, Kind::kVram},
    {"cuda_mapped", "cuda", "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n[tuning.cuda]\ndirect = \"false\"\n",
     true, kSeesRings, Kind::kVram},
#ifndef __SANITIZE_THREAD__
    {.name = "cuda_through_host",
     .backends = "cuda",
     .config = "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n[tuning.cuda]\nthrough_host = \"always\"\n",
     .shared_memory = false,
     .kind = Kind::kVram,
     .framed = true},
#endif
    // GPU memory over tcp, by staging memory of both sides: what cuda does for it, it could not reach itself.
    {.name = "tcp_gpu",
     .backends = "tcp,cuda",
     .config = "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n[tuning.tcp]\nsockets = 4\nframe_bytes = \"1MiB\"\n",
     .shared_memory = false,
     .kind = Kind::kVram,
     .framed = true},
    {.name = "tcp_gpu_one_socket_checksum",
     .backends = "tcp,cuda",
     .config = "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n[tcp]\nchecksum = true\n[tuning.tcp]\nsockets = 1\n",
     .shared_memory = false,
     .kind = Kind::kVram,
     .framed = true},
    // As tcp, with payload on a socket of its own, received as fragments.
    {.name = "tcpx_emulated",
     .backends = "tcpx",
     .config = "plugins = [\"" TOWLINE_TCPX_PLUGIN
               "\"]\n[tuning.tcpx]\nsource = \"emulated\"\npool_bytes = \"256KiB\"\n",
     .shared_memory = false,
     .framed = true},
    {.name = "tcpx_mapped",
     .backends = "tcpx",
     .config = "plugins = [\"" TOWLINE_TCPX_PLUGIN
               "\"]\n[tuning.tcpx]\nsource = \"mapped\"\nsockets = 4\nleast_bytes = \"4KiB\"\n",
     .shared_memory = false,
     .framed = true},
    {.name = "tcpx_emulated_gpu",
     .backends = "tcpx,cuda",
     .config = "plugins = [\"" TOWLINE_CUDA_FAKE "\", \"" TOWLINE_TCPX_PLUGIN
               "\"]\n[tuning.tcpx]\nsource = \"emulated\"\nsockets = 4\n",
     .shared_memory = false,
     .kind = Kind::kVram,
     .framed = true},
    // As it lies, without being gathered.
    {.name = "tcpx_bound_gpu",
     .backends = "tcpx,cuda",
     .config = "plugins = [\"" TOWLINE_CUDA_FAKE "\", \"" TOWLINE_TCPX_PLUGIN
               "\"]\n[tuning.tcpx]\nsource = \"emulated\"\nsend = \"emulated\"\nsockets = 2\n",
     .shared_memory = true,
     .kind = Kind::kVram,
     .framed = true},
    {.name = "tcpx_mapped_gpu",
     .backends = "tcpx,cuda",
     .config = "plugins = [\"" TOWLINE_CUDA_FAKE "\", \"" TOWLINE_TCPX_PLUGIN
               "\"]\n[tuning.tcpx]\nsource = \"mapped\"\n",
     .shared_memory = false,
     .kind = Kind::kVram,
     .framed = true},
    {"cuda_dram", "cuda", "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n[tuning.cuda]\ndirect = \"false\"\n", true,
     false},
    {.name = "tcp_one_socket_checksum",
     .backends = "tcp",
     .config = "[tcp]\nchecksum = true\n[tuning.tcp]\nsockets = 1\n",
     .shared_memory = false,
     .framed = true},
};
#endif

// These, and rdma over the rails that RDMA_TEST_RAILS names, on machines that have some.
inline std::vector<Transport> transports() {
  std::vector<Transport> all(std::begin(kTransports), std::end(kTransports));
#ifndef TOWLINE_CUDA_PLUGIN
  if (const char* rails = std::getenv("RDMA_TEST_RAILS"); rails != nullptr) {
    static const std::string config = "[tuning.rdma]\nrails = \"" + std::string(rails) + "\"\n";
    all.push_back({.name = "rdma_named",
                   .backends = "rdma",
                   .config = config.c_str(),
                   .shared_memory = false,
                   .guards = false});
  }
#endif
  return all;
}

// Page-aligned memory of either sort.
class Buffer {
 public:
  Buffer(uint64_t bytes, bool shared) : bytes_(bytes) {
    if (shared) {
      memory_ = std::make_unique<Memory>(bytes);
    } else {
      plain_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) & ~uint64_t{4095})));
      std::memset(plain_.get(), 0, bytes);
    }
  }
  [[nodiscard]] std::byte* data() const { return memory_ ? memory_->data() : plain_.get(); }
  [[nodiscard]] uint64_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* pointer) const { std::free(pointer); }
  };
  uint64_t bytes_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<std::byte, Free> plain_;
};

// Fills memory with what only this (seed, address offset) pair gives, so that a misplaced or stale byte
// shows.
inline void stamp(std::byte* data, uint64_t bytes, uint64_t seed) { support::stamp_bytes(data, bytes, seed); }

// Why this machine can't have the transport; empty: it can.
inline std::string unusable() {
#ifdef TOWLINE_CUDA_PLUGIN
  static const std::string why = []() -> std::string {
    try {
      const Agent agent(
          "probe",
          {.listen = "none", .backends = "cuda", .config = "plugins = [\"" TOWLINE_CUDA_PLUGIN "\"]\n"});
      const Memory memory(4096);
      (void)agent.register_memory(dram(memory), {.access = Access::kAll});
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }();
  return why;
#else
  return {};
#endif
}

class TransportTest : public ::testing::TestWithParam<Transport> {
 protected:
  static constexpr uint64_t kBlock = 4096;
  static constexpr uint64_t kBlocks = 1024;

  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    // libfabric clears 17 MB of receive buffers for each connection, which takes ThreadSanitizer seconds.
    setenv("FI_OFI_RXM_BUFFER_SIZE", "1024", 0);
#endif
    if (const std::string why = unusable(); !why.empty()) GTEST_SKIP() << why;
    start({}, {});
  }

  void start(AgentOptions left_options, AgentOptions right_options, uint64_t bytes = kBlock * kBlocks) {
    const Transport& transport = GetParam();
    peer_.reset();
    for (AgentOptions* options : {&left_options, &right_options}) {
      options->backends = transport.backends;
      options->config += transport.config;
      if (transport.kind == Kind::kVram) options->config += "[gpu]\nunordered = true\n";
      if (options->listen.empty()) options->listen = "127.0.0.1:0";
      if (options->default_timeout == 0ns) options->default_timeout = 20s;
    }
    left_memory_ = std::make_unique<Buffer>(bytes, transport.shared_memory);
    right_memory_ = std::make_unique<Buffer>(bytes, transport.shared_memory);
    left_region_.reset();
    right_region_.reset();
    left_ = std::make_unique<Agent>("left", left_options);
    right_ = std::make_unique<Agent>("right", right_options);
    left_region_ = std::make_unique<Region>(
        left_->register_memory(view(left_memory_->data(), bytes), {.access = Access::kAll}));
    right_region_ = std::make_unique<Region>(
        right_->register_memory(view(right_memory_->data(), bytes), {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(left_->add_peer(right_->metadata()));
  }

  // Memory and blocks of the kind that the transport is tested with.
  [[nodiscard]] static MemoryView view(void* address, uint64_t bytes) {
    return {.address = address, .bytes = bytes, .kind = GetParam().kind};
  }
  [[nodiscard]] static Blocks at(const void* address, uint64_t length) {
    return Blocks::at(address, length, GetParam().kind);
  }
  [[nodiscard]] static Blocks cut(const void* address, uint64_t bytes, uint64_t block) {
    return at(address, block).repeat(bytes / block, block);
  }

  void TearDown() override {
    peer_.reset();
    left_region_.reset();
    right_region_.reset();
    left_.reset();
    right_.reset();
  }

  [[nodiscard]] BlockList mine(uint64_t block = kBlock) const {
    return left_->block_list(cut(left_memory_->data(), left_memory_->size(), block));
  }
  [[nodiscard]] BlockList theirs(uint64_t block = kBlock) const {
    return peer_->block_list(cut(right_memory_->data(), right_memory_->size(), block));
  }
  [[nodiscard]] std::vector<uint32_t> shuffled(uint32_t count, uint32_t seed) const {
    std::vector<uint32_t> picks(count);
    for (uint32_t i = 0; i < count; ++i) picks[i] = i;
    std::shuffle(picks.begin(), picks.end(), std::mt19937(seed));
    return picks;
  }
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(20s) : posted;
  }
  // The next notice, or an empty one after a while.
  static Notice next_notice(const Agent& agent) {
    Notice notice;
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (agent.receive(notice) != Status::kOk && std::chrono::steady_clock::now() < until) {
      (void)agent.wait(100ms);
    }
    return notice;
  }

  std::unique_ptr<Buffer> left_memory_;
  std::unique_ptr<Buffer> right_memory_;
  std::unique_ptr<Agent> left_;
  std::unique_ptr<Agent> right_;
  std::unique_ptr<Region> left_region_;
  std::unique_ptr<Region> right_region_;
  std::unique_ptr<Peer> peer_;
};

}  // namespace towline::conformance
