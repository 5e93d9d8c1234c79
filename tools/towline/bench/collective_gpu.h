// A rank's side of collectives in memory of a GPU: buffers there, and communicators of the backends that use them.
#pragma once

#include <towline/collectives.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu_memory.h"

namespace tool::bench {

// A communicator, and a batch for its messages. Not made: `problem` says why.
class Contender {
 public:
  Contender(const std::string& backend, const std::string& store, uint32_t rank, uint32_t size,
            const std::string& config, uint32_t flags);
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;
  ~Contender();

  [[nodiscard]] towline_communicator_t* world() const { return world_; }
  [[nodiscard]] towline_batch_t* batch() const { return batch_; }
  [[nodiscard]] const std::string& problem() const { return problem_; }
  // "NCCL 2.28.3" of a backend that tells.
  [[nodiscard]] std::string version() const;
  // Of the backend `gpu` with nccl_from: how many operations NCCL got, and why it gets none.
  [[nodiscard]] uint64_t given_to_nccl() const;
  [[nodiscard]] std::string no_nccl() const;

 private:
  [[nodiscard]] nlohmann::json details() const;

  towline_communicator_t* world_ = nullptr;
  towline_batch_t* batch_ = nullptr;
  std::string problem_;
};

// Input and output of a rank, on the GPU whose number is the rank's modulo their count.
class GpuBuffers {
 public:
  GpuBuffers(uint32_t rank, uint64_t floats);
  [[nodiscard]] float* in() const { return reinterpret_cast<float*>(in_.address()); }
  [[nodiscard]] float* out() const { return reinterpret_cast<float*>(out_.address()); }
  [[nodiscard]] std::string config() const;  // of communicators
  void put_in(const std::vector<float>& from);
  void put_out(const std::vector<float>& from);
  void get_out(std::vector<float>& to) const;

 private:
  GpuMemory in_;
  GpuMemory out_;
};

}  // namespace tool::bench
