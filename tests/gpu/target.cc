#include "gpu/target.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <sstream>
#include <stdexcept>

#include "towline/towline.hpp"

namespace towline::gpu_test {

std::vector<uint8_t> stamped(uint64_t bytes, uint64_t seed) {
  std::vector<uint8_t> result(bytes);
  for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = (seed * 0x9e3779b97f4a7c15ULL) ^ (i * 0xbf58476d1ce4e5b9ULL);
    std::memcpy(result.data() + i, &word, 8);
  }
  return result;
}

Target::Target(uint32_t gpu, uint64_t bytes, Sort sort) : gpu_(gpu), bytes_(bytes) {
  int down[2];
  int up[2];
  if (pipe(down) != 0 || pipe(up) != 0) throw std::runtime_error("pipe");
  const std::string arguments[] = {std::to_string(gpu), std::to_string(bytes),
                                   sort == Sort::kVmm ? "vmm" : "plain"};
  process_ = fork();
  if (process_ == 0) {
    dup2(down[0], 0);
    dup2(up[1], 1);
    for (const int fd : {down[0], down[1], up[0], up[1]}) close(fd);
    execl("/proc/self/exe", "gpu_test", "--target", arguments[0].c_str(), arguments[1].c_str(),
          arguments[2].c_str(), nullptr);
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  input_ = down[1];
  output_ = fdopen(up[0], "r");
  std::istringstream words(ask(""));
  std::string blob;
  words >> address_ >> blob;
  for (size_t i = 0; i + 1 < blob.size(); i += 2)
    metadata_ += static_cast<char>(std::stoi(blob.substr(i, 2), nullptr, 16));
}

Target::~Target() {
  close(input_);
  std::fclose(output_);
  waitpid(process_, nullptr, 0);
}

std::string Target::ask(const std::string& command) {
  if (!command.empty() && write(input_, command.data(), command.size()) < 0)
    throw std::runtime_error("write");
  std::vector<char> line(1 << 20);
  if (std::fgets(line.data(), static_cast<int>(line.size()), output_) == nullptr)
    throw std::runtime_error("the target ended");
  return line.data();
}

void Target::stamp(uint64_t seed) { (void)ask("stamp " + std::to_string(seed) + "\n"); }

std::vector<uint8_t> Target::get() {
  const std::string answer = ask("get\n");
  const int fd = std::stoi(answer);
  const std::string path = "/proc/" + std::to_string(process_) + "/fd/" + std::to_string(fd);
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error(path);
  std::vector<uint8_t> bytes(bytes_);
  const size_t count = std::fread(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
  if (count != bytes.size()) throw std::runtime_error("the target's copy is short");
  return bytes;
}

void Target::kill_it() { kill(process_, SIGKILL); }

int Target::serve(int, char** argv) {
  std::string why;
  Cuda* const cuda = Cuda::get(why);
  if (cuda == nullptr) {
    std::cerr << why << '\n';
    return 1;
  }
  const auto gpu = static_cast<uint32_t>(std::stoul(argv[2]));
  const uint64_t bytes = std::stoull(argv[3]);
  GpuMemory memory(*cuda, gpu, bytes, std::string(argv[4]) == "vmm" ? Sort::kVmm : Sort::kPlain);
  const Agent agent("target", {.listen = "127.0.0.1:0",
                               .backends = "cuda,tcp",
                               .config = "plugins = [\"" TOWLINE_CUDA_PLUGIN "\"]\n"});
  const Region region =
      agent.register_memory({.address = memory.pointer(), .bytes = bytes, .kind = Kind::kVram, .device = gpu},
                            {.access = Access::kAll});
  std::cout << memory.address() << ' ';
  for (const std::byte byte : agent.metadata()) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
    std::cout << digits;
  }
  std::cout << std::endl;
  const int copy = memfd_create("copy", MFD_CLOEXEC);
  std::string word;
  while (std::cin >> word) {
    if (word == "stamp") {
      uint64_t seed = 0;
      std::cin >> seed;
      memory.put(stamped(bytes, seed));
      std::cout << "stamped" << std::endl;
    } else {
      const std::vector<uint8_t> now = memory.get();
      if (pwrite(copy, now.data(), now.size(), 0) != static_cast<ssize_t>(now.size())) return 1;
      std::cout << copy << std::endl;
    }
  }
  return 0;
}

}  // namespace towline::gpu_test
