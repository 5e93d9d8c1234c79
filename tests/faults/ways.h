// The transports that tests of bad days go over.
#pragma once

#include <cstdlib>
#include <deque>
#include <ostream>
#include <string>
#include <vector>

#include "towline/towline.hpp"
#include "victim.h"

namespace towline::faults {

struct Way {
  const char* name;
  const char* backends;
  const char* config;
  bool shared_memory;
  Kind kind = Kind::kDram;
  const char* listen = "127.0.0.1:0";
  // For the other process, if it stands for another host.
  const char* there_config = nullptr;  // null: the same
  const char* there_listen = nullptr;
  const char* there_network = "";  // a network namespace's name

  [[nodiscard]] VictimOptions victim(const std::string& more_config = {}) const {
    return {.listen = there_listen != nullptr ? there_listen : listen,
            .backends = backends,
            .config = (there_config != nullptr ? there_config : config) + more_config,
            .shared_memory = shared_memory,
            .kind = kind,
            .network = there_network};
  }
};

// Of a wait for the local fence. An engine of NIXL's interface has none after a request of its own has failed, and says
// so at once (src/transports/nixl/README.md).
inline bool fenced_or_told(Status fence, const Way& way) {
  return fence == Status::kOk || (fence == Status::kUnsupported && std::string(way.name) == "nixl_net");
}

inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

inline const Way kWays[] = {
    {"shm_mapped", "shm", "[tuning.shm]\npaths = \"mapped\"\n", true},
    {"shm_process_vm", "shm", "[tuning.shm]\npaths = \"process_vm\"\n", false},
    {"shm_ring", "shm", "[tuning.shm]\npaths = \"ring\"\n", false},
    {"tcp", "tcp", "[tuning.tcp]\nsockets = 4\n", false},
#ifdef TOWLINE_TEST_KEY
    {"tcp_secured", "tcp", "[secure]\nkey_file = \"" TOWLINE_TEST_KEY "\"\n[tuning.tcp]\nsockets = 4\n",
     false},
#endif
    // By GPUs made of host memory: what is passed between the processes is the same.
    {"cuda", "cuda", "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n", true},
    {"rdma_ofi_tcp", "rdma",
     "[tuning.rdma]\nrails = \"ofi:tcp;ofi_rxm@127.0.0.1, ofi:tcp;ofi_rxm@127.0.0.1\"\n", false},
    {"rdma_ofi_shm", "rdma", "[tuning.rdma]\nrails = \"ofi:shm\"\n", false},
#ifndef __SANITIZE_THREAD__
    {"ucx_tcp", "ucx", "[tuning.ucx]\ntransports = \"tcp\"\n", false},
#endif
    // GPU memory on both sides, by staging memory: as between hosts.
    {"tcp_gpu", "tcp,cuda", "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n", true, Kind::kVram},
    // Payload on a socket of its own, received as fragments.
    {"tcpx_emulated", "tcpx",
     "plugins = [\"" TOWLINE_TCPX_PLUGIN "\"]\n[tuning.tcpx]\nsource = \"emulated\"\npool_bytes = \"1MiB\"\n",
     false},
    {"tcpx_mapped", "tcpx",
     "plugins = [\"" TOWLINE_TCPX_PLUGIN "\"]\n[tuning.tcpx]\nsource = \"mapped\"\nsockets = 4\n", false},
    {"tcpx_gpu", "tcpx,cuda",
     "plugins = [\"" TOWLINE_CUDA_FAKE "\", \"" TOWLINE_TCPX_PLUGIN
     "\"]\n[tuning.tcpx]\nsource = \"emulated\"\n",
     true, Kind::kVram},
    {"tcpx_bound_gpu", "tcpx,cuda",
     "plugins = [\"" TOWLINE_CUDA_FAKE "\", \"" TOWLINE_TCPX_PLUGIN
     "\"]\n[tuning.tcpx]\nsource = \"emulated\"\nsend = \"emulated\"\n",
     true, Kind::kVram},
    // By an engine of a plugin of NIXL's interface, which copies between processes.
    {"nixl_net", "nixl_net",
     "plugins = [\"" TOWLINE_NIXL_NET_PLUGIN "\"]\n[nixl_net]\nlibrary = \"" TOWLINE_FAKE_NIXL_NET "\"\n",
     false},
};

// Those, and what machines or guests have beside them, each between two hosts: the other is the network namespace
// <NAME>_TEST_NETWORK_THERE, and their addresses are <NAME>_TEST_HOST and <NAME>_TEST_HOST_THERE. RDMA: over the rails
// RDMA_TEST_RAILS and RDMA_TEST_RAILS_THERE. TCPX: by the source TCPX_TEST_SOURCE at the NICs TCPX_TEST_NIC and
// TCPX_TEST_NIC_THERE.
inline std::vector<Way> ways() {
  std::vector<Way> all(std::begin(kWays), std::end(kWays));
  static std::deque<std::string> texts;
  const auto keep = [](std::string text) {
    texts.push_back(std::move(text));
    return texts.back().c_str();
  };
  const auto port_of = [&](const char* variable) {
    const char* host = std::getenv(variable);
    return keep(std::string(host != nullptr ? host : "127.0.0.1") + ":0");
  };
  if (const char* source = std::getenv("TCPX_TEST_SOURCE"); source != nullptr) {
    const auto config = [&](const char* nic) {
      return keep("plugins = [\"" TOWLINE_TCPX_PLUGIN "\"]\n[tuning.tcpx]\nsource = \"" +
                  std::string(source) + "\"\nqueues = \"2,3\"\ninterface = \"" + std::getenv(nic) + "\"\n");
    };
    all.push_back({"tcpx_named", "tcpx", config("TCPX_TEST_NIC"), false, Kind::kDram,
                   port_of("TCPX_TEST_HOST"), config("TCPX_TEST_NIC_THERE"), port_of("TCPX_TEST_HOST_THERE"),
                   std::getenv("TCPX_TEST_NETWORK_THERE")});
  }
  const char* rails = std::getenv("RDMA_TEST_RAILS");
  const char* rails_there = std::getenv("RDMA_TEST_RAILS_THERE");
  if (rails == nullptr || rails_there == nullptr) return all;
  const auto config = [&](const char* names) {
    return keep("[tuning.rdma]\nrails = \"" + std::string(names) + "\"\n");
  };
  const char* network = std::getenv("RDMA_TEST_NETWORK_THERE");
  all.push_back({"rdma_named", "rdma", config(rails), false, Kind::kDram, port_of("RDMA_TEST_HOST"),
                 config(rails_there), port_of("RDMA_TEST_HOST_THERE"), network != nullptr ? network : ""});
  return all;
}

}  // namespace towline::faults
