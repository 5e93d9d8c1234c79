// Files to and from a real GPU's memory by NVIDIA's own cuFile, in whatever mode it has here.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "gpu/gpu_fixture.h"
#include "storage/gds/cufile_api.h"
#include "support/stamps.h"
#include "support/temporary_folder.h"
#include "towline/plugin/backend.hpp"
#include "towline/storage.hpp"

namespace towline::gpu_test {
namespace {

using support::first_difference;
using support::stamp_bytes;

AgentOptions over_gds() {
  return {.listen = "none", .config = "plugins = [\"gds\", \"" TOWLINE_CUDA_PLUGIN "\"]\n"};
}

class Gds : public Gpu {
 protected:
  void SetUp() override {
    Gpu::SetUp();
    if (IsSkipped()) return;
    try {
      (void)Agent("probe", over_gds()).query_storage("gds:/");
    } catch (const Error& error) {
      if (error.code() == Status::kUnsupported &&
          std::string(error.what()).find("gds") != std::string::npos &&
          std::string(error.what()).find("regular") == std::string::npos)
        GTEST_SKIP() << error.what();
    }
    if (const std::string why = refusal_of_cufile(); !why.empty()) GTEST_SKIP() << why;
  }
  // cuFile's own calls, without Towline: in some virtual machines it starts, and then moves nothing. Empty: it does.
  [[nodiscard]] std::string refusal_of_cufile() {
    cuda_->use(0);
    const gds::Api api = gds::Api::load("libcufile.so.0");
    const int fd = ::open((folder_ / "bare").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return "";
    GpuMemory memory(*cuda_, 0, kBytes, Sort::kPlain);
    gds::Description description{.type = gds::kDescriptor, .of = {.handle = nullptr}, .operations = nullptr};
    description.of.fd = fd;
    gds::Handle handle = nullptr;
    std::string why;
    if (const int code = api.handle_register(&handle, &description).code; code != 0)
      why = "cuFile itself does not take a file here: error " + std::to_string(code);
    else if (const ssize_t moved = api.write(handle, memory.pointer(), 4096, 0, 0); moved != 4096)
      why = "cuFile itself does not write to a file here: " + std::to_string(moved);
    if (handle != nullptr) api.handle_deregister(handle);
    ::close(fd);
    return why;
  }
  [[nodiscard]] std::vector<uint8_t> stamped(uint64_t seed) const {
    std::vector<uint8_t> bytes(kBytes);
    stamp_bytes(reinterpret_cast<std::byte*>(bytes.data()), kBytes, seed);
    return bytes;
  }
  const support::TemporaryFolder folder_;
};

TEST_F(Gds, FilesReachGpuMemoryInOneStep) {
  const Agent agent("gds", over_gds());
  GpuMemory memory(*cuda_, 0, kBytes, Sort::kPlain);
  const Region region = agent.register_memory(view(memory), {.access = Access::kAll});
  const Region file = agent.register_storage("gds:" + (folder_ / "file"), {.create = true, .bytes = kBytes});
  memory.put(stamped(1));
  const auto mine = agent.block_list(at(memory.address(), 4096, 0).repeat(kBytes / 4096, 4096));
  const auto theirs = agent.block_list(file.blocks(0, 4096).repeat(kBytes / 4096, 4096));
  // Backwards, so that nothing merges.
  std::vector<uint64_t> back(kBytes / 4096);
  for (uint64_t i = 0; i < back.size(); ++i) back[i] = back.size() - 1 - i;
  const Transfer write = agent.transfer(mine[back], theirs[back]);
  EXPECT_NE(write.route().find("gds"), std::string::npos) << write.route();
  EXPECT_EQ(write.route().find("staged"), std::string::npos) << write.route();
  ASSERT_EQ(run(write), Status::kOk);
  memory.put(std::vector<uint8_t>(kBytes));
  ASSERT_EQ(run(agent.transfer(theirs, mine)), Status::kOk);
  const std::vector<uint8_t> found = memory.get();
  EXPECT_EQ(first_difference(reinterpret_cast<const std::byte*>(found.data()), kBytes, 1), kBytes);
}

// Prints what the same reads take through an agent and in a loop of cuFile's calls.
TEST_F(Gds, ReadsTakeWhatCuFilesOwnCallsTake) {
  const Agent agent("gds", over_gds());
  GpuMemory memory(*cuda_, 0, kBytes, Sort::kPlain);
  const Region region = agent.register_memory(view(memory), {.access = Access::kAll});
  const std::string path = folder_ / "file";
  const Region file = agent.register_storage("gds:" + path, {.create = true, .bytes = kBytes});
  const auto mine = agent.block_list(at(memory.address(), kBytes, 0));
  const auto theirs = agent.block_list(file.blocks(0, kBytes));
  ASSERT_EQ(run(agent.transfer(mine, theirs)), Status::kOk);
  const Transfer read = agent.transfer(theirs, mine);

  cuda_->use(0);
  const gds::Api api = gds::Api::load("libcufile.so.0");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  gds::Description description{.type = gds::kDescriptor, .of = {.handle = nullptr}, .operations = nullptr};
  description.of.fd = fd;
  gds::Handle handle = nullptr;
  ASSERT_EQ(api.handle_register(&handle, &description).code, 0);
  constexpr uint64_t kPiece = uint64_t{16} << 20;
  const auto best_of = [](auto work) {
    auto best = std::chrono::steady_clock::duration::max();
    for (int i = 0; i < 20; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      work();
      best = std::min(best, std::chrono::steady_clock::now() - begin);
    }
    return std::chrono::duration<double>(best).count();
  };
  const double ours = best_of([&] { EXPECT_EQ(run(read), Status::kOk); });
  const double bare = best_of([&] {
    for (uint64_t at = 0; at < kBytes; at += kPiece)
      EXPECT_EQ(api.read(handle, memory.pointer(), kPiece, static_cast<off_t>(at), static_cast<off_t>(at)),
                static_cast<ssize_t>(kPiece));
  });
  api.handle_deregister(handle);
  ::close(fd);
  std::printf(
      "gds: 32 MiB to the GPU, best of 20: %.2f GB/s through an agent, %.2f GB/s in a bare loop, ratio "
      "%.2f\n",
      static_cast<double>(kBytes) / 1e9 / ours, static_cast<double>(kBytes) / 1e9 / bare, bare / ours);
}

}  // namespace
}  // namespace towline::gpu_test
