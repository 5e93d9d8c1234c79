// NIXL's views of memory on real GPUs: kernels that put, count and get pointers, within a process and into another's.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nixl.h>
#include <towline_nixl.h>
#include "gpu/cuda.h"
#include "gpu/nixl_image.h"
#include "gpu/nixl_kernels.h"

namespace towline::gpu_test {
namespace {

constexpr uint64_t kBytes = 4 << 20;
constexpr uint64_t kRoom =
    kBytes + (2 << 20);  // the counter lies after the bytes; mapped memory comes in 2 MiB
constexpr unsigned kBlocks = 8;
constexpr unsigned kThreads = 256;

std::vector<uint8_t> pattern(uint64_t seed) {
  std::vector<uint8_t> bytes(kRoom, 0);
  for (uint64_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<uint8_t>((seed + i * 2654435761u) >> 13);
  return bytes;
}

// An agent with memory on a GPU.
struct Holder {
  Holder(Cuda& cuda, const std::string& agent_name, uint32_t gpu, Sort sort)
      : name(agent_name), memory(cuda, gpu, kRoom, sort), agent(agent_name, nixlAgentConfig{}) {
    nixlBackendH* backend = nullptr;
    EXPECT_EQ(agent.createBackend("UCX", {}, backend), NIXL_SUCCESS) << nixl::last_error();
    nixl_reg_dlist_t list(VRAM_SEG);
    list.addDesc(nixlBlobDesc(memory.address(), kRoom, gpu, ""));
    EXPECT_EQ(agent.registerMem(list), NIXL_SUCCESS) << nixl::last_error();
  }
  [[nodiscard]] std::string metadata() const {
    std::string blob;
    EXPECT_EQ(agent.getLocalMD(blob), NIXL_SUCCESS);
    return blob;
  }

  const std::string name;
  GpuMemory memory;
  nixlAgent agent;
};

// A peer's memory, and the agent's own, as its kernels see them.
class Views {
 public:
  Views(Holder& here, const std::string& peer, const std::string& metadata, uint64_t address, uint64_t gpu)
      : agent_(here.agent) {
    std::string loaded;
    EXPECT_EQ(agent_.loadRemoteMD(metadata, loaded), NIXL_SUCCESS) << nixl::last_error();
    nixl_local_dlist_t own(VRAM_SEG);
    own.emplace(here.memory.address(), kBytes, uint64_t{here.memory.gpu()});
    EXPECT_EQ(agent_.prepMemView(own, mine), NIXL_SUCCESS) << nixl::last_error();
    // The first entry is nobody's, the second the bytes, the third the counter.
    nixl_remote_dlist_t list(VRAM_SEG);
    list.addDesc(nixlRemoteDesc(0, 0, 0, nixl_null_agent));
    list.addDesc(nixlRemoteDesc(address, kBytes, gpu, peer));
    list.addDesc(nixlRemoteDesc(address + kBytes, 8, gpu, peer));
    EXPECT_EQ(agent_.prepMemView(list, theirs), NIXL_SUCCESS) << nixl::last_error();
  }
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;
  ~Views() {
    for (const nixlMemViewH view : {mine, theirs})
      if (view != nullptr) agent_.releaseMemView(view);
  }

  nixlMemViewH mine = nullptr;
  nixlMemViewH theirs = nullptr;

 private:
  nixlAgent& agent_;
};

// Another process with a Holder: this program once more.
class Other {
 public:
  Other(uint32_t gpu, Sort sort) {
    int down[2];
    int up[2];
    if (pipe(down) != 0 || pipe(up) != 0) throw std::runtime_error("pipe");
    const std::string number = std::to_string(gpu);
    process_ = fork();
    if (process_ == 0) {
      dup2(down[0], 0);
      dup2(up[1], 1);
      for (const int fd : {down[0], down[1], up[0], up[1]}) close(fd);
      execl("/proc/self/exe", "gpu_nixl_test", "--other", number.c_str(),
            sort == Sort::kVmm ? "vmm" : "plain", nullptr);
      _exit(127);
    }
    close(down[0]);
    close(up[1]);
    input_ = down[1];
    output_ = fdopen(up[0], "r");
    address = std::stoull(line());
    metadata = bytes_of(line());
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  ~Other() {
    close(input_);
    std::fclose(output_);
    waitpid(process_, nullptr, 0);
  }
  [[nodiscard]] std::vector<uint8_t> get() {
    if (write(input_, "get\n", 4) != 4) throw std::runtime_error("write");
    const std::string bytes = bytes_of(line());
    return {bytes.begin(), bytes.end()};
  }

  static int serve(char** argv) {
    std::string why;
    Cuda* const cuda = Cuda::get(why);
    if (cuda == nullptr) return 1;
    const auto gpu = static_cast<uint32_t>(std::stoul(argv[2]));
    const Holder holder(*cuda, "other", gpu, std::string(argv[3]) == "vmm" ? Sort::kVmm : Sort::kPlain);
    std::cout << holder.memory.address() << '\n' << hex_of(holder.metadata()) << std::endl;
    for (std::string word; std::cin >> word;) {
      const std::vector<uint8_t> now = holder.memory.get();
      std::cout << hex_of({now.begin(), now.end()}) << std::endl;
    }
    return 0;
  }

  uint64_t address = 0;
  std::string metadata;

 private:
  static std::string hex_of(const std::string& bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    std::string text;
    for (const char byte : bytes) {
      text += kDigits[static_cast<uint8_t>(byte) >> 4];
      text += kDigits[static_cast<uint8_t>(byte) & 15];
    }
    return text;
  }
  static std::string bytes_of(const std::string& text) {
    std::string bytes;
    for (size_t i = 0; i + 1 < text.size(); i += 2)
      bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
    return bytes;
  }
  std::string line() {
    std::vector<char> text(2 * kRoom + 2);
    if (std::fgets(text.data(), static_cast<int>(text.size()), output_) == nullptr)
      throw std::runtime_error("the other process ended");
    return text.data();
  }

  pid_t process_ = -1;
  int input_ = -1;
  std::FILE* output_ = nullptr;
};

class GpuNixl : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    cuda_ = Cuda::get(why);
    if (cuda_ == nullptr) GTEST_SKIP() << "no GPU: " << why;
    ASSERT_FALSE(nixl_test_image().empty()) << "this build had no CUDA compiler";
    setenv("TOWLINE_PLUGINS", TOWLINE_CUDA_PLUGIN, 1);
    use(0);
    other_ = cuda_->gpus() - 1;
  }
  void TearDown() override {
    unsetenv("TOWLINE_PLUGINS");
    unsetenv("TOWLINE_TUNING_CUDA_DIRECT");
  }
  // Kernels are loaded where they run.
  void use(uint32_t gpu) {
    cuda_->use(gpu);
    cuda::driver::Module module = nullptr;
    const auto& api = cuda_->api();
    api.check(api.module_load(&module, nixl_test_image().data()), "cuModuleLoadData");
    for (const auto& [function, name] : {std::pair{&put_, "towline_test_nixl_put"},
                                         {&wait_, "towline_test_nixl_wait"},
                                         {&pointers_, "towline_test_nixl_pointers"}})
      api.check(api.module_get_function(function, module, name), name);
  }
  void launch(cuda::driver::Function function, unsigned blocks, unsigned threads, void** arguments,
              Stream& stream) {
    cuda_->api().check(
        cuda_->api().launch(function, blocks, 1, 1, threads, 1, 1, 0,
                            static_cast<cuda::driver::Stream>(stream.native()), arguments, nullptr),
        "cuLaunchKernel");
  }
  [[nodiscard]] uint64_t word_of(const GpuMemory& memory) const {
    const std::vector<uint8_t> bytes = memory.get();
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    return word;
  }

  // How many units of the level there are in the grid.
  static uint64_t units(nixl_gpu_level_t level) {
    return level == nixl_gpu_level_t::THREAD ? kBlocks * kThreads
           : level == nixl_gpu_level_t::WARP ? kBlocks * kThreads / 32
                                             : kBlocks;
  }

  template <class Get>
  void put_at_every_level(Holder& here, const Views& views, Get get) {
    Stream stream(*cuda_, 0);
    GpuMemory outcome(*cuda_, 0, 64, Sort::kPlain);
    uint64_t counted = 0;
    for (const auto level : {nixl_gpu_level_t::THREAD, nixl_gpu_level_t::WARP, nixl_gpu_level_t::BLOCK,
                             nixl_gpu_level_t::GRID}) {
      const std::vector<uint8_t> bytes = pattern(7 + static_cast<uint64_t>(level));
      here.memory.put(bytes);
      outcome.put(std::vector<uint8_t>(64, 0));
      ViewTry what{{views.mine, 0, 0},           {views.theirs, 1, 0}, {views.theirs, 2, 0}, kBytes,
                   static_cast<uint64_t>(level), outcome.address()};
      void* arguments[] = {&what};
      launch(put_, kBlocks, kThreads, arguments, stream);
      stream.drain();
      ASSERT_EQ(word_of(outcome), 0u) << "calls that failed";
      counted += units(level);
      const std::vector<uint8_t> now = get();
      uint64_t counter = 0;
      std::memcpy(&counter, now.data() + kBytes, sizeof counter);
      EXPECT_EQ(counter, counted) << "level " << static_cast<uint64_t>(level);
      ASSERT_TRUE(std::equal(bytes.begin(), bytes.begin() + kBytes, now.begin()))
          << "level " << static_cast<uint64_t>(level);
    }
  }

  Cuda* cuda_ = nullptr;
  uint32_t other_ = 0;
  cuda::driver::Function put_ = nullptr;
  cuda::driver::Function wait_ = nullptr;
  cuda::driver::Function pointers_ = nullptr;
};

TEST_F(GpuNixl, PutsAndCountsInOneProcess) {
  for (const Sort sort : {Sort::kPlain, Sort::kVmm}) {
    for (const bool direct : {true, false}) {
      if (!direct && sort == Sort::kPlain) continue;  // a handle is of no use to the process that made it
      setenv("TOWLINE_TUNING_CUDA_DIRECT", direct ? "true" : "false", 1);
      Holder here(*cuda_, "here", 0, sort);
      Holder there(*cuda_, "there", other_, sort);
      there.memory.put(std::vector<uint8_t>(kRoom, 0));
      cuda_->use(0);
      const Views views(here, there.name, there.metadata(), there.memory.address(), other_);
      ASSERT_NE(views.theirs, nullptr);
      put_at_every_level(here, views, [&] { return there.memory.get(); });
    }
  }
}

TEST_F(GpuNixl, PutsAndCountsInAnotherProcess) {
  for (const Sort sort : {Sort::kPlain, Sort::kVmm}) {
    Other there(other_, sort);
    Holder here(*cuda_, "here", 0, sort);
    const Views views(here, "other", there.metadata, there.address, other_);
    ASSERT_NE(views.theirs, nullptr);
    put_at_every_level(here, views, [&] { return there.get(); });
    // Pointers.
    Stream stream(*cuda_, 0);
    GpuMemory out(*cuda_, 0, 64, Sort::kPlain);
    nixlMemViewH view = views.theirs;
    uint64_t count = 4;
    uint64_t address = out.address();
    void* arguments[] = {&view, &count, &address};
    launch(pointers_, 1, 32, arguments, stream);
    stream.drain();
    uint64_t found[4];
    std::memcpy(found, out.get().data(), sizeof found);
    EXPECT_EQ(found[0], 0u) << "nobody";
    EXPECT_NE(found[1], 0u);
    EXPECT_EQ(found[2], found[1] + kBytes);
    EXPECT_EQ(found[3], 0u) << "past the end";
  }
}

// The peer's kernel sees the sum no sooner than the bytes.
TEST_F(GpuNixl, ACountComesAfterWhatWasPut) {
  Holder here(*cuda_, "here", 0, Sort::kPlain);
  Holder there(*cuda_, "there", other_, Sort::kPlain);
  cuda_->use(0);
  const Views views(here, there.name, there.metadata(), there.memory.address(), other_);
  ASSERT_NE(views.theirs, nullptr);
  const cuda::driver::Function put = put_;
  use(other_);
  const cuda::driver::Function wait = wait_;
  GpuMemory expected(*cuda_, other_, kRoom, Sort::kPlain);
  GpuMemory result(*cuda_, other_, 64, Sort::kPlain);
  Stream waiting(*cuda_, other_);
  cuda_->use(0);
  GpuMemory outcome(*cuda_, 0, 64, Sort::kPlain);
  outcome.put(std::vector<uint8_t>(64, 0));
  Stream putting(*cuda_, 0);
  for (uint64_t round = 0; round < 20; ++round) {
    const auto level = static_cast<nixl_gpu_level_t>(round % 4);
    const std::vector<uint8_t> bytes = pattern(round + 1);
    here.memory.put(bytes);
    expected.put(bytes);
    there.memory.put(std::vector<uint8_t>(kRoom, 0));
    result.put(std::vector<uint8_t>(64, 0));
    ViewWait watch{there.memory.address() + kBytes,
                   units(level),
                   kBytes,
                   there.memory.address(),
                   expected.address(),
                   result.address(),
                   10'000'000'000};
    void* watched[] = {&watch};
    cuda_->use(other_);
    launch(wait, 1, 256, watched, waiting);
    ViewTry what{{views.mine, 0, 0},           {views.theirs, 1, 0}, {views.theirs, 2, 0}, kBytes,
                 static_cast<uint64_t>(level), outcome.address()};
    void* arguments[] = {&what};
    cuda_->use(0);
    launch(put, kBlocks, kThreads, arguments, putting);
    putting.drain();
    waiting.drain();
    ASSERT_EQ(word_of(outcome), 0u);
    ASSERT_EQ(word_of(result), 0u) << "bytes that differ in round " << round;
  }
}

}  // namespace
}  // namespace towline::gpu_test

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--other") return towline::gpu_test::Other::serve(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
