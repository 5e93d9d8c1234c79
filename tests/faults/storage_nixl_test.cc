// Processes that are killed while the engine of a NIXL plugin writes a file for them.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "storage_support.h"

namespace towline::faults {
namespace {

constexpr uint64_t kNixlBlock = 64 << 10;
constexpr uint64_t kNixlBlocks = 64;
constexpr uint64_t kNixlBytes = kNixlBlock * kNixlBlocks;
constexpr const char* kNixlConfig =
    "plugins = [\"" TOWLINE_NIXL_PLUGIN "\"]\n[nixl]\nlibrary = \"" TOWLINE_FAKE_NIXL
    "\"\n[tuning.nixl]\nbatch = 4\npiece = \"64KiB\"\n";

// An agent that writes one value into all of a file, as often as asked.
struct Writer {
  explicit Writer(const std::string& path)
      : file(agent.register_storage("nixl:" + path,
                                    {.access = Access::kAll, .create = true, .bytes = kNixlBytes})) {}

  Status write(uint8_t value) {
    std::fill(memory.begin(), memory.end(), std::byte{value});
    return run(agent.transfer(mine(), theirs()));
  }
  Status read() {
    std::fill(memory.begin(), memory.end(), std::byte{0});
    return run(agent.transfer(theirs(), mine()));
  }
  BlockList mine() {
    return agent.block_list(Blocks::at(memory.data(), kNixlBlock).repeat(kNixlBlocks, kNixlBlock));
  }
  BlockList theirs() const {
    return agent.block_list(file.blocks(0, kNixlBlock).repeat(kNixlBlocks, kNixlBlock));
  }

  Agent agent{"writer", quiet(kNixlConfig)};
  std::vector<std::byte> memory = std::vector<std::byte>(kNixlBytes);
  Region region{agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll})};
  Region file;
};

TEST(NixlStorageFaults, AKilledWriterLeavesWhatItWroteAndTheNextOneGoesOn) {
  const Folder folder;
  const std::string path = folder / "file";
  for (int round = 0; round < 8; ++round) {
    std::fflush(nullptr);
    int tells[2];
    ASSERT_EQ(::pipe(tells), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      Writer writer(path);
      for (uint8_t value = 1;; value = static_cast<uint8_t>(value % 200 + 1)) {
        if (writer.write(value) != Status::kOk || ::write(tells[1], &value, 1) != 1) ::_exit(1);
      }
    }
    ::close(tells[1]);
    uint8_t written = 0;  // as far as it has told; the next value may be under way
    for (int i = 0; i <= round; ++i) ASSERT_EQ(::read(tells[0], &written, 1), 1);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    while (::read(tells[0], &written, 1) == 1) continue;
    ::close(tells[0]);
    // Every byte is of the last value that was done, or of the one after.
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> found{std::istreambuf_iterator<char>(file), {}};
    ASSERT_EQ(found.size(), kNixlBytes);
    const auto next = static_cast<char>(written % 200 + 1);
    EXPECT_TRUE(std::all_of(found.begin(), found.end(),
                            [&](char byte) { return byte == static_cast<char>(written) || byte == next; }));
    Writer after(path);
    EXPECT_EQ(after.read(), Status::kOk) << last_error();
    EXPECT_TRUE(std::equal(found.begin(), found.end(), reinterpret_cast<const char*>(after.memory.data())));
    EXPECT_EQ(after.write(201), Status::kOk) << last_error();
    EXPECT_EQ(after.read(), Status::kOk);
    EXPECT_EQ(std::ranges::count(after.memory, std::byte{201}), static_cast<std::ptrdiff_t>(kNixlBytes));
  }
}

}  // namespace
}  // namespace towline::faults
