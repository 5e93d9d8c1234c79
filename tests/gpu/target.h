// Another process with GPU memory: this program run once more, commanded over a pipe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "gpu/cuda.h"

namespace towline::gpu_test {

std::vector<uint8_t> stamped(uint64_t bytes, uint64_t seed);

class Target {
 public:
  Target(uint32_t gpu, uint64_t bytes, Sort sort);
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  ~Target();

  [[nodiscard]] const std::string& metadata() const noexcept { return metadata_; }
  [[nodiscard]] uint64_t address() const noexcept { return address_; }
  [[nodiscard]] uint32_t gpu() const noexcept { return gpu_; }
  void stamp(uint64_t seed);                 // its memory
  [[nodiscard]] std::vector<uint8_t> get();  // its memory's bytes, as it sees them
  void kill_it();

  // In the child: runs until its input ends. The exit code.
  static int serve(int argc, char** argv);

 private:
  std::string ask(const std::string& command);

  pid_t process_ = -1;
  int input_ = -1;
  std::FILE* output_ = nullptr;
  std::string metadata_;
  uint64_t address_ = 0;
  const uint32_t gpu_;
  const uint64_t bytes_;
};

}  // namespace towline::gpu_test
