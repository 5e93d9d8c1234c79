// Bad days of files: disks that fill up, processes that are killed in the middle, kernels that forbid.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "storage_support.h"

namespace towline::faults {
namespace {

// ---- what can't be opened

TEST(StorageFaults, WhatCanNotBeOpenedIsNamed) {
  const Folder folder;
  const Agent agent("refused", quiet());
  const auto expect = [&](const std::string& uri, Status status, const std::string& part,
                          StorageOptions options = {}) {
    const auto [code, text] = refusal(agent, uri, options);
    EXPECT_EQ(code, status) << uri << ": " << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  make_file(folder / "file", 100);
  make_file(folder / "empty", 0);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect("file:" + (folder / "absent"), Status::kNotFound, folder / "absent");
  expect("file:" + folder.path(), Status::kInvalidArgument, "directory");
  expect("file:" + folder.path(), Status::kInvalidArgument, "directory", {.create = true, .bytes = 10});
  expect("file:" + (folder / "pipe"), Status::kInvalidArgument, "neither a file nor a block device");
  expect("file:" + (folder / "empty"), Status::kInvalidArgument, "options.bytes");
  expect("file:" + (folder / "file") + "/below", Status::kInvalidArgument, "ENOTDIR");
  expect("file:", Status::kInvalidArgument, "no path");
  expect("file://elsewhere/file", Status::kInvalidArgument, "host");
  expect(folder / "file", Status::kInvalidArgument, "scheme");
  expect("s3://bucket/key", Status::kUnsupported, "s3");
  EXPECT_EQ(refusal(agent, "file://" + (folder / "file")).first, Status::kOk);
  try {
    (void)agent.register_storage(987654);
    FAIL() << "a closed descriptor was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("EBADF"), std::string::npos) << error.what();
  }
  const int reading = ::open((folder / "file").c_str(), O_RDONLY);
  EXPECT_THROW((void)agent.register_storage(reading, {.access = Access::kAll}), Error);
  ::close(reading);
  const StorageInfo info = agent.query_storage("file:" + (folder / "file"));
  EXPECT_EQ(info.exists, 1u);
  EXPECT_EQ(info.bytes, 100u);
  EXPECT_GT(info.modified_ns, 0u);
  EXPECT_EQ(agent.query_storage("file:" + (folder / "absent")).exists, 0u);
}

TEST(StorageFaults, FilesAreNotForPeers) {
  const Folder folder;
  make_file(folder / "private", 4096);
  const Agent agent("owner", quiet());
  const Region file = agent.register_storage("file:" + (folder / "private"));
  const Agent other("other", quiet());
  const Peer peer = other.add_peer(agent.metadata());
  EXPECT_TRUE(peer.regions().empty());
  EXPECT_THROW((void)peer.block_list(file.blocks(0, 16)), Error);
}

// ---- children: what can't be undone in this process is done in another

// The exit code of `work` in a child; 0 when it says nothing against it.
int in_child(const std::function<std::string()>& work) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string complaint;
    try {
      complaint = work();
    } catch (const std::exception& error) {
      complaint = error.what();
    }
    if (!complaint.empty()) std::fprintf(stderr, "child: %s\n", complaint.c_str());
    ::_exit(complaint.empty() ? 0 : 1);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(StorageFaults, PermissionsAreTheFileSystems) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to make a file and then be somebody else";
  char folder[] = "/tmp/storage-permissions-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  ASSERT_EQ(::chmod(folder, 0755), 0);
  const std::string path = std::string(folder) + "/file";
  make_file(path, 100);
  EXPECT_EQ(in_child([&]() -> std::string {
              if (::setgid(65534) != 0 || ::setuid(65534) != 0) return "can't become nobody";
              const Agent agent("nobody", quiet());
              const auto [code, text] = refusal(agent, "file:" + path);
              return code == Status::kPermissionDenied ? "" : "it was opened, or: " + text;
            }),
            0);
  std::filesystem::remove_all(folder);
}

// Answers EPERM for these system calls from now on.
bool forbid(std::initializer_list<long> calls) {
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
  for (const long call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Reads and writes a file under that ban; the complaint, or empty. `engine` must be what the route names.
std::string works_without(std::initializer_list<long> calls, const std::string& path,
                          const std::string& engine, std::initializer_list<bool> ways = {false, true}) {
  if (!forbid(calls)) return "seccomp is not to be had";
  const Agent agent("confined", quiet());
  for (const bool direct : ways) {
    std::vector<std::byte> memory(1 << 20, std::byte{7});
    const Region region = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
    const Region file = agent.register_storage("file:" + path, {.access = Access::kAll, .direct = direct});
    const BlockList mine = agent.block_list(Blocks::at(memory.data(), memory.size()));
    const BlockList theirs = agent.block_list(file.blocks(0, memory.size()));
    const Transfer write = agent.transfer(mine, theirs);
    if (run(write) != Status::kOk) return "writing failed";
    std::fill(memory.begin(), memory.end(), std::byte{});
    if (run(agent.transfer(theirs, mine)) != Status::kOk) return "reading failed";
    if (memory[0] != std::byte{7} || memory.back() != std::byte{7}) return "the bytes are wrong";
    const std::string route = write.route();
    if (route.find(engine) == std::string::npos) return "not by " + engine + ": " + route;
    if (route.find("EPERM") == std::string::npos) return "the route does not say why: " + route;
  }
  return {};
}

TEST(StorageFaults, WhereIoUringIsForbiddenOthersDoIt) {
  const Folder folder;
  make_file(folder / "file", 1 << 20);
  EXPECT_EQ(in_child([&] { return works_without({SYS_io_uring_setup}, folder / "file", "\"aio\""); }), 0);
  // Direct I/O alone asks for it.
  EXPECT_EQ(in_child([&] {
              return works_without({SYS_io_setup}, folder / "file", "\"direct_queue\":null", {true});
            }),
            0);
  EXPECT_EQ(in_child([&] {
              return works_without({SYS_io_uring_setup, SYS_io_setup}, folder / "file", "\"queue\":null");
            }),
            0);
  EXPECT_EQ(in_child([&]() -> std::string {
              if (!forbid({SYS_io_uring_setup})) return "seccomp is not to be had";
              const Agent agent("forced", quiet("[tuning.posix]\nengine = \"uring\"\n"));
              std::vector<std::byte> memory(4096);
              const Region region =
                  agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
              const Region file = agent.register_storage("file:" + (folder / "file"));
              try {
                (void)agent.transfer(agent.block_list(file.blocks(0, 4096)),
                                     agent.block_list(Blocks::at(memory.data(), 4096)));
              } catch (const Error& error) {
                return std::string(error.what()).find("EPERM") != std::string::npos ? "" : error.what();
              }
              return "a forced engine that is forbidden was taken";
            }),
            0);
}

// ---- full, read-only, killed

TEST(StorageFaults, AFullDiskIsAnErrorOfThatTransferOnly) {
  Folder small;
  if (!small.mount_small("size=1m"))
    GTEST_SKIP() << "needs the right to mount a tmpfs: " << std::strerror(errno);
  const Folder roomy;
  for (const char* engine : {"auto", "uring", "threads", "pread"}) {
    SCOPED_TRACE(engine);
    const Agent agent("full", quiet("[tuning.posix]\nengine = \"" + std::string(engine) + "\"\n"));
    std::vector<std::byte> memory(4 << 20, std::byte{9});
    const Region region = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
    const Region file = agent.register_storage("file:" + (small / "file"),
                                               {.create = true, .truncate = true, .bytes = 4 << 20});
    const Region fine =
        agent.register_storage("file:" + (roomy / "file"), {.create = true, .bytes = 4 << 20});
    const BlockList mine = agent.block_list(blocks_of(memory.data(), memory.size(), 65536));
    const auto blocks = [&](const Region& of) {
      return agent.block_list(of.blocks(0, 65536).repeat(64, 65536));
    };
    const Transfer full = agent.transfer(mine, blocks(file));
    const Transfer good = agent.transfer(mine, blocks(fine));
    const Status posted = good.post();
    EXPECT_EQ(run(full), Status::kNoSpace);
    EXPECT_EQ(posted == Status::kInProgress ? good.wait(30s) : posted, Status::kOk);
    const Result result = full.result();
    ASSERT_EQ(result.failures().size(), 1u);
    EXPECT_EQ(result.failures()[0].vendor_code, ENOSPC);
    EXPECT_LE(result.failures()[0].first, 16u);
    // io_uring's threads write in whatever order.
    if (std::string(engine) != "uring") {
      EXPECT_GE(result.failures()[0].first, 1u);
    }
    EXPECT_LE(result.bytes, uint64_t{1} << 20);
  }
}

// This process ignores SIGXFSZ, as Python does.
TEST(StorageFaults, AFileAtTheProcesssLimitIsAnErrorOfThatTransferOnly) {
  const Folder folder;
  for (const bool direct : {false, true}) {
    for (const char* engine : {"auto", "uring", "aio", "threads", "pread"}) {
      if (!direct && std::string(engine) == "aio") continue;
      SCOPED_TRACE(std::string(engine) + (direct ? ", direct" : ""));
      EXPECT_EQ(
          in_child([&]() -> std::string {
            std::signal(SIGXFSZ, SIG_IGN);
            constexpr uint64_t kLimit = 1 << 20;
            const rlimit limit = {kLimit, kLimit};
            const Agent agent("limited", quiet("[tuning.posix]\nengine = \"" + std::string(engine) + "\"\n"));
            if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return "setrlimit";
            const size_t bytes = 2 * kLimit;
            std::vector<std::byte> memory(bytes);
            const Region region = agent.register_memory(dram(memory.data(), bytes), {.access = Access::kAll});
            // Its size is no matter of writing: a file as long can't be made.
            const Region file =
                agent.register_storage("file:" + (folder / "file"),
                                       {.create = true, .truncate = true, .direct = direct, .bytes = bytes});
            const auto write = [&](uint64_t from, uint64_t length) {
              return agent.transfer(agent.block_list(Blocks::at(memory.data(), length)),
                                    agent.block_list(file.blocks(from, length)));
            };
            const Transfer behind = write(kLimit, kLimit);
            if (run(behind) != Status::kOutOfRange) return "behind: " + behind.route();
            const Result result = behind.result();
            if (result.failures().size() != 1 || result.failures()[0].vendor_code != EFBIG)
              return "the errno is not told";
            return run(write(0, kLimit)) == Status::kOk ? "" : "before";
          }),
          0);
    }
  }
}

TEST(StorageFaults, AReadOnlyFileSystemIsPermissionDenied) {
  Folder small;
  if (!small.mount_small("size=1m"))
    GTEST_SKIP() << "needs the right to mount a tmpfs: " << std::strerror(errno);
  make_file(small / "file", 100);
  ASSERT_TRUE(small.make_read_only()) << std::strerror(errno);
  const Agent agent("frozen", quiet());
  EXPECT_EQ(refusal(agent, "file:" + (small / "file")).first, Status::kOk);
  EXPECT_EQ(refusal(agent, "file:" + (small / "file"), {.access = Access::kAll}).first,
            Status::kPermissionDenied);
  EXPECT_EQ(refusal(agent, "file:" + (small / "new"), {.create = true, .bytes = 10}).first,
            Status::kPermissionDenied);
  EXPECT_EQ(refusal(agent, "file:" + (small / "file"), {.replace = true, .bytes = 10}).first,
            Status::kPermissionDenied);
}

TEST(StorageFaults, AProcessKilledWhileItReplacesLeavesTheOldOrTheNew) {
  const Folder folder;
  constexpr size_t kFileBytes = 1 << 20;
  make_file(folder / "file", kFileBytes, 0);
  for (int round = 0; round < 25; ++round) {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const Agent agent("replacer", quiet());
      std::vector<std::byte> memory(kFileBytes);
      const Region region =
          agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
      const BlockList mine = agent.block_list(Blocks::at(memory.data(), kFileBytes));
      for (uint8_t version = 1;; ++version) {
        std::fill(memory.begin(), memory.end(), std::byte{version});
        const Region file =
            agent.register_storage("file:" + (folder / "file"), {.replace = true, .bytes = kFileBytes});
        (void)run(agent.transfer(mine, agent.block_list(file.blocks(0, kFileBytes))));
        file.commit();
      }
    }
    // At whatever point it has come to: each round looks a little longer.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20 + round * 4);
    size_t looks = 0;
    while (std::chrono::steady_clock::now() < until || looks == 0) {
      std::vector<char> contents(kFileBytes + 1);
      const int fd = ::open((folder / "file").c_str(), O_RDONLY);
      ASSERT_GE(fd, 0);
      ASSERT_EQ(::read(fd, contents.data(), contents.size()), static_cast<ssize_t>(kFileBytes));
      ::close(fd);
      contents.resize(kFileBytes);
      ASSERT_EQ(std::count(contents.begin(), contents.end(), contents[0]), static_cast<long>(kFileBytes));
      ++looks;
    }
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    struct stat found = {};
    ASSERT_EQ(::stat((folder / "file").c_str(), &found), 0);
    ASSERT_EQ(found.st_size, static_cast<off_t>(kFileBytes));
  }
}

}  // namespace
}  // namespace towline::faults
