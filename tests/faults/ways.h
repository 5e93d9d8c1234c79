// The transports that tests of bad days go over.
#pragma once

#include <ostream>

#include "towline/towline.hpp"

namespace towline::faults {

struct Way {
  const char* name;
  const char* backends;
  const char* config;
  bool shared_memory;
  Kind kind = Kind::kDram;
};

inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

inline const Way kWays[] = {
    {"shm_mapped", "shm", "[shm]\npaths = \"mapped\"\n", true},
    {"shm_process_vm", "shm", "[shm]\npaths = \"process_vm\"\n", false},
    {"shm_ring", "shm", "[shm]\npaths = \"ring\"\n", false},
    {"tcp", "tcp", "[tcp]\nsockets = 4\n", false},
    // By GPUs made of host memory: what is passed between the processes is the same.
    {"cuda", "cuda", "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n", true},
    {"rdma_ofi_tcp", "rdma", "[rdma]\nrails = \"ofi:tcp;ofi_rxm@127.0.0.1, ofi:tcp;ofi_rxm@127.0.0.1\"\n",
     false},
    {"rdma_ofi_shm", "rdma", "[rdma]\nrails = \"ofi:shm\"\n", false},
    // GPU memory on both sides, by staging memory: as between hosts.
    {"tcp_gpu", "tcp,cuda", "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n", true, Kind::kVram},
};

}  // namespace towline::faults
