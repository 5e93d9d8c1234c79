#include "cp/copy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>
#include <towline/towline.hpp>
#include <vector>

#include "cp/checksum.h"
#include "cp/command.h"
#include "cp/journal.h"
#include "cp/place.h"
#include "failure.h"
#include "signals.h"

namespace {

// Called whenever a file is about to be synced, with its path.
std::function<void(const std::string&)> on_sync;

}  // namespace

// In place of the C library's, for the library as well.
extern "C" [[gnu::visibility("default")]] int fsync(int fd) {
  std::array<char, PATH_MAX> path = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  if (on_sync && ::readlink(link.c_str(), path.data(), path.size() - 1) > 0) on_sync(path.data());
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace tool::cp {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr uint64_t kBytes = 3'000'001;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "towline-cp-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error(std::strerror(errno));
    path_ = pattern;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::vector<char> contents(uint64_t bytes, uint32_t seed) {
  std::vector<char> all(bytes);
  for (uint64_t i = 0; i < bytes; ++i) all[i] = static_cast<char>((i * 2654435761u + seed) >> 13);
  return all;
}
void write_file(const std::string& path, const std::vector<char>& all) {
  std::ofstream(path, std::ios::binary).write(all.data(), static_cast<std::streamsize>(all.size()));
}
std::vector<char> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

CopySummary quiet_copy(const CopyOptions& options) {
  return copy(options, [](Phase, double, const std::string&) {});
}
std::string refusal(const CopyOptions& options) {
  try {
    (void)quiet_copy(options);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Memory of another agent.
class Served {
 public:
  explicit Served(uint64_t bytes, uint64_t more = 0)
      : agent_("served", {.listen = "127.0.0.1:0"}),
        memory_(bytes),
        region_(agent_.register_memory(towline::dram(memory_), {.access = towline::Access::kAll})) {
    if (more == 0) return;
    other_ = std::make_unique<towline::Memory>(more);
    other_region_ = std::make_unique<towline::Region>(
        agent_.register_memory(towline::dram(*other_), {.access = towline::Access::kAll, .name = "other"}));
  }
  [[nodiscard]] std::string place(const std::string& name) const {
    return "peer:" + std::string(agent_.address()) + "/" + name;
  }
  [[nodiscard]] std::string place(uint32_t region = 0) const {
    return "peer:" + std::string(agent_.address()) + "#" + std::to_string(region);
  }
  [[nodiscard]] char* data() const { return reinterpret_cast<char*>(memory_.data()); }
  [[nodiscard]] char* other() const { return reinterpret_cast<char*>(other_->data()); }

 private:
  towline::Agent agent_;
  towline::Memory memory_;
  towline::Region region_;
  std::unique_ptr<towline::Memory> other_;
  std::unique_ptr<towline::Region> other_region_;
};

TEST(CpPlace, names_files_objects_and_peers) {
  EXPECT_EQ(parse_place("file:/a/./b").uri, "file:/a/b");
  EXPECT_EQ(parse_place("/a/b").path, "/a/b");
  EXPECT_EQ(parse_place("file:///a/b").path, "/a/b");
  EXPECT_EQ(parse_place("b").path, fs::absolute("b").string());
  EXPECT_EQ(parse_place("with space:colon").path, fs::absolute("with space:colon").string());
  EXPECT_EQ(parse_place("s3://bucket/key").uri, "s3://bucket/key");
  EXPECT_TRUE(parse_place("s3://bucket/key").path.empty());
  EXPECT_EQ(parse_place("gds:/a/./b").uri, "gds:/a/b");
  EXPECT_EQ(parse_place("nixl:/a/b").path, "/a/b");
  EXPECT_THROW((void)parse_place("hf3fs:"), Failure);
  EXPECT_THROW((void)parse_place("gds://host/b"), Failure);
  EXPECT_EQ(parse_place("peer:10.0.0.7:77").address, "10.0.0.7:77");
  EXPECT_EQ(parse_place("peer:unix:/run/x#12").address, "unix:/run/x");
  EXPECT_EQ(parse_place("peer:unix:/run/x#12").region, 12u);
  EXPECT_THROW((void)parse_place("peer:"), Failure);
  EXPECT_EQ(parse_place("peer:host:1#x").name, "x");
  EXPECT_EQ(parse_place("peer:host:1/kv/2").address, "host:1");
  EXPECT_EQ(parse_place("peer:host:1/kv/2").name, "kv/2");
  EXPECT_EQ(parse_place("peer:host:1/7").name, "7");
  EXPECT_EQ(parse_place("peer:etcd://host:1/agent#kv").address, "etcd://host:1/agent");
  EXPECT_EQ(parse_place("peer:etcd://host:1/agent#kv").name, "kv");
  EXPECT_THROW((void)parse_place("peer:host:1#"), Failure);
  EXPECT_THROW((void)parse_place("peer:host:1/"), Failure);
  EXPECT_THROW((void)parse_place(""), Failure);
  EXPECT_THROW((void)parse_place("file://host/a"), Failure);
}

TEST(CpChecksum, tells_any_change_and_order_and_length) {
  std::vector<std::byte> all(1000);
  const auto sum = [&](uint64_t bytes) {
    Checksum checksum;
    checksum.add(all.data(), bytes / 32 * 32);
    checksum.add(all.data() + bytes / 32 * 32, bytes % 32);
    return checksum.value();
  };
  const uint64_t zeros = sum(1000);
  EXPECT_NE(zeros, sum(999));
  for (const size_t at : {0, 7, 31, 32, 500, 999}) {
    all[at] = std::byte{1};
    EXPECT_NE(sum(1000), zeros) << at;
    all[at] = std::byte{0};
  }
  EXPECT_EQ(sum(1000), zeros);
  all[0] = std::byte{1};
  const uint64_t first = sum(1000);
  std::swap(all[0], all[32]);
  EXPECT_NE(sum(1000), first);
}

TEST(CpJournal, counts_what_is_whole_and_of_this_copy) {
  const Folder folder;
  const std::string path = folder / "state";
  const nlohmann::json copy = {{"source", "a"}};
  {
    Journal journal(path, copy, 10);
    EXPECT_EQ(journal.done_count(), 0u);
    journal.open();
    journal.add(0);
    journal.add(7);
  }
  std::ofstream(path, std::ios::app)
      << "{\"piece\": 8\n{\"piece\": 99}\n{\"piece\": \"1\"}\n{\"piece\": -2}\n[3]\n{\"pie";
  {
    Journal journal(path, copy, 10);
    EXPECT_EQ(journal.done_count(), 2u);
    EXPECT_TRUE(journal.done(7));
    EXPECT_FALSE(journal.was_of_another());
    journal.open();
    journal.add(9);
  }
  EXPECT_EQ(Journal(path, copy, 10).done_count(), 3u);
  Journal other(path, {{"source", "b"}}, 10);
  EXPECT_TRUE(other.was_of_another());
  EXPECT_EQ(other.done_count(), 0u);
  other.open();
  other.remove();
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(fs::exists(path + ".new"));
}

// Ten tebibytes are ten million steps, and a copy may break off often.
TEST(CpJournal, has_a_line_for_the_pieces_of_a_post_and_not_for_each) {
  const Folder folder;
  const std::string path = folder / "state";
  const nlohmann::json copy = {{"source", "a"}};
  const auto lines = [&] {
    std::ifstream file(path);
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  {
    Journal journal(path, copy, 1000);
    journal.open();
    journal.add(0, 400);
    journal.add(400, 100);
    journal.add(998, 2);
  }
  EXPECT_EQ(lines(), 4);
  std::ofstream(path, std::ios::app)
      << "{\"piece\": 999, \"pieces\": 2}\n{\"pieces\": 3}\n{\"piece\": 600, "
         "\"pieces\": -1}\n{\"piece\": 600, \"pieces\": 18446744073709551615}\n";
  Journal journal(path, copy, 1000);
  EXPECT_EQ(journal.done_count(), 502u);
  EXPECT_TRUE(journal.done(499));
  EXPECT_FALSE(journal.done(500));
  EXPECT_TRUE(journal.done(999));
  journal.open();
  EXPECT_EQ(lines(), 3) << "what was done lies in two rows";
}

TEST(CpJournal, that_can_not_be_there_is_refused_and_leaves_nothing) {
  const Folder folder;
  const std::string path = folder / "state";
  fs::create_directory(path);
  const std::string text = [&] {
    try {
      Journal(path, {{"source", "a"}}, 10).open();
      return std::string();
    } catch (const Failure& failure) {
      return std::string(failure.what());
    }
  }();
  EXPECT_NE(text.find(path + ": Is a directory: --state names another file"), std::string::npos) << text;
  EXPECT_FALSE(fs::exists(path + ".new"));
}

TEST(Cp, copies_files_to_files_and_verifies) {
  const Folder folder;
  write_file(folder / "from", contents(kBytes, 1));
  write_file(folder / "to", contents(2 * kBytes, 9));  // longer: the rest is cut off
  const CopySummary summary = quiet_copy({.source = folder / "from",
                                          .destination = "file:" + (folder / "to"),
                                          .piece_bytes = 100'000,
                                          .verify = true});
  EXPECT_EQ(summary.bytes, kBytes);
  EXPECT_EQ(summary.resumed_bytes, 0u);
  EXPECT_EQ(summary.checksum.size(), 16u);
  EXPECT_TRUE(read_file(folder / "to") == contents(kBytes, 1));
  EXPECT_FALSE(fs::exists(folder / "to.towline-cp"));
}

TEST(Cp, copies_a_peers_memory_to_a_file_and_back) {
  const Folder folder;
  const Served served(kBytes, kBytes + 5);
  const std::vector<char> all = contents(kBytes, 2);
  std::memcpy(served.data(), all.data(), kBytes);
  const CopySummary saved =
      quiet_copy({.source = served.place(), .destination = folder / "saved", .verify = true});
  EXPECT_NE(saved.route.find("posix"), std::string::npos) << saved.route;
  EXPECT_TRUE(read_file(folder / "saved") == all);
  EXPECT_NE(refusal({.source = served.place("vk"), .destination = folder / "x"}).find("it has 'other'"),
            std::string::npos);
  const CopySummary loaded = quiet_copy({.source = folder / "saved",
                                         .destination = served.place("other"),
                                         .seek = 5,
                                         .piece_bytes = 1 << 20,
                                         .verify = true});
  EXPECT_EQ(loaded.checksum, saved.checksum);
  EXPECT_EQ(std::memcmp(served.other() + 5, all.data(), kBytes), 0);
}

TEST(Cp, takes_a_part_and_puts_it_where_it_is_told) {
  const Folder folder;
  const std::vector<char> all = contents(kBytes, 3);
  std::vector<char> expected = contents(kBytes, 4);
  write_file(folder / "from", all);
  write_file(folder / "to", expected);
  (void)quiet_copy(
      {.source = folder / "from", .destination = folder / "to", .skip = 1000, .seek = 77, .bytes = 5000});
  std::copy_n(all.begin() + 1000, 5000, expected.begin() + 77);
  EXPECT_TRUE(read_file(folder / "to") == expected);
}

TEST(Cp, says_what_is_wrong) {
  const Folder folder;
  write_file(folder / "from", contents(1000, 1));
  write_file(folder / "empty", {});
  const Served served(500);
  const auto expect = [&](const CopyOptions& options, const std::string& part) {
    const std::string text = refusal(options);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect({.source = folder / "absent", .destination = folder / "to"}, "no such file or object");
  expect({.source = folder / "empty", .destination = "s3://bucket/key"}, "is empty");
  expect({.source = "/proc/version", .destination = folder / "to"}, "says that it has 0 bytes");
  expect({.source = "/proc/self/mem", .destination = folder / "to"}, "can't be read");
  expect({.source = folder / "empty", .destination = folder / "to", .bytes = 1}, "--bytes");
  expect({.source = folder / "from", .destination = folder / "from"}, "onto itself");
  expect({.source = folder / "from", .destination = folder / "to", .piece_bytes = 1},
         "--piece 1: at least 4096");
  expect({.source = folder / "from", .destination = folder / "to", .skip = 1000}, "--skip");
  expect({.source = folder / "from", .destination = folder / "to", .bytes = 1001}, "--bytes");
  expect({.source = folder / "from", .destination = served.place()}, "do not fit");
  expect({.source = served.place(), .destination = served.place()}, "one of them must be storage");
  expect({.source = served.place(3), .destination = folder / "to"}, "no #3");
  expect({.source = "peer:127.0.0.1:1", .destination = folder / "to", .timeout = 20s}, "127.0.0.1:1");
  expect({.source = "nosuch://a/b", .destination = folder / "to"}, "nosuch");
  expect({.source = folder / "from", .destination = folder / "no/folder"}, "no/folder");
}

// Each of these would empty the only copy before it is read.
TEST(Cp, of_no_bytes_is_not_a_copy_of_all) {
  const Folder folder;
  write_file(folder / "from", contents(1000, 1));
  CLI::App app;
  CommonOptions common;
  add_cp_command(app, common);
  try {
    app.parse("cp --bytes 0 " + (folder / "from") + " " + (folder / "to"));
    ADD_FAILURE() << "it was copied";
  } catch (const Failure& failure) {
    EXPECT_STREQ(failure.what(), "--bytes 0: nothing would be copied; without --bytes the whole source is");
  }
  EXPECT_FALSE(fs::exists(folder / "to"));
}

// Also within a piece, which is larger here than the file.
TEST(Cp, keeps_to_its_rate_from_the_first_byte_on) {
  constexpr uint64_t kRate = 8'000'000;
  constexpr double kChunks = 3 << 20;  // staged bytes go by the chunk
  const Folder folder;
  write_file(folder / "from", contents(kRate, 1));
  const auto began = std::chrono::steady_clock::now();
  double most = 0;  // bytes beyond the rate
  const CopyOptions options{.source = folder / "from", .destination = folder / "to", .rate = kRate};
  (void)copy(options, [&](Phase, double share, const std::string&) {
    const std::chrono::duration<double> past = std::chrono::steady_clock::now() - began;
    most = std::max(most, static_cast<double>(kRate) * (share - past.count()));
  });
  EXPECT_LT(most, kChunks);
  EXPECT_TRUE(read_file(folder / "to") == contents(kRate, 1));
}

TEST(Cp, never_writes_over_what_it_reads) {
  const Folder folder;
  const std::vector<char> all = contents(kBytes, 13);
  write_file(folder / "from", all);
  fs::create_symlink(folder / "from", folder / "link");
  fs::create_hard_link(folder / "from", folder / "other");
  for (const char* name : {"link", "other", "from"}) {
    const std::string text = refusal({.source = folder / "from", .destination = folder / name});
    EXPECT_NE(text.find("onto itself"), std::string::npos) << text;
    EXPECT_NE(refusal({.source = folder / name, .destination = folder / "from", .skip = 10, .seek = 5}), "");
    EXPECT_NE(refusal({.source = folder / name, .destination = folder / "from", .skip = 10}), "");
    EXPECT_TRUE(read_file(folder / "from") == all) << name;
  }
}

TEST(Cp, copies_within_one_file_where_the_bytes_do_not_overlap) {
  const Folder folder;
  std::vector<char> all = contents(kBytes, 14);
  write_file(folder / "file", all);
  fs::create_symlink(folder / "file", folder / "link");
  (void)quiet_copy({.source = folder / "file",
                    .destination = folder / "link",
                    .skip = 5000,
                    .bytes = 5000,
                    .verify = true});
  std::copy_n(all.begin() + 5000, 5000, all.begin());
  EXPECT_TRUE(read_file(folder / "file") == all);
  (void)quiet_copy({.source = folder / "file", .destination = folder / "file", .seek = kBytes});
  all.insert(all.end(), all.begin(), all.end());
  EXPECT_TRUE(read_file(folder / "file") == all);
}

TEST(Cp, makes_an_empty_file_of_an_empty_one) {
  const Folder folder;
  const Served served(500);
  write_file(folder / "empty", {});
  write_file(folder / "to", contents(1000, 1));
  EXPECT_EQ(quiet_copy({.source = folder / "empty", .destination = folder / "to", .verify = true}).bytes, 0u);
  EXPECT_TRUE(fs::exists(folder / "to"));
  EXPECT_EQ(fs::file_size(folder / "to"), 0u);
  EXPECT_EQ(quiet_copy({.source = folder / "empty", .destination = served.place()}).bytes, 0u);
  EXPECT_NE(refusal({.source = folder / "empty", .destination = folder / "no/folder"}).find("no/folder"),
            std::string::npos);
  EXPECT_NE(refusal({.source = folder / "empty", .destination = folder / "empty"}), "");
}

TEST(Cp, tells_that_the_source_changed_while_it_was_copied) {
  const Folder folder;
  write_file(folder / "from", contents(kBytes, 15));
  const CopyOptions options{.source = folder / "from", .destination = folder / "to", .piece_bytes = 100'000};
  std::string text;
  try {
    (void)copy(options, [&](Phase, double share, const std::string&) {
      if (share < 0.5) fs::last_write_time(folder / "from", fs::file_time_type::clock::now() + 5s);
    });
  } catch (const Failure& failure) {
    text = failure.what();
  }
  EXPECT_NE(text.find("has changed while it was copied"), std::string::npos) << text;
  EXPECT_EQ(quiet_copy(options).resumed_bytes, 0u) << "what was written before counts for nothing";
  EXPECT_TRUE(read_file(folder / "to") == contents(kBytes, 15));
}

// A copy in a separate process, slow enough to be killed in the middle.
pid_t start_copy(const CopyOptions& options) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  try {
    (void)quiet_copy(options);
    ::_exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    ::_exit(1);
  }
}

void kill_in_the_middle(const CopyOptions& options, const std::function<std::string()>& state) {
  const pid_t pid = start_copy(options);
  ASSERT_GT(pid, 0);
  const auto until = std::chrono::steady_clock::now() + 60s;
  const auto pieces = [&] {
    const std::vector<char> text = read_file(state());
    return std::count(text.begin(), text.end(), '\n');
  };
  while (pieces() < 4 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  ::kill(pid, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it ended before it could be killed";
}

TEST(Cp, says_that_a_file_may_not_grow_further) {
  const Folder folder;
  write_file(folder / "from", contents(kBytes, 1));
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    write_limit_is_an_error();
    constexpr uint64_t kLimit = 64 << 20;  // for all files that it makes, including the one behind its memory
    const rlimit limit = {kLimit, kLimit};
    const bool set = ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
    const std::string text =
        refusal({.source = folder / "from", .destination = folder / "to", .seek = kLimit - 1000});
    std::fprintf(stderr, "%s\n", text.c_str());
    ::_exit(set && text.find("bytes 0 to") != std::string::npos &&
                    text.find("File too large") != std::string::npos
                ? 0
                : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(Cp, goes_on_after_a_kill) {
  const Folder folder;
  const std::vector<char> all = contents(kBytes, 5);
  write_file(folder / "from", all);
  CopyOptions options{
      .source = folder / "from", .destination = folder / "to", .piece_bytes = 50'000, .rate = 500'000};
  kill_in_the_middle(options, [&] { return folder / "to.towline-cp"; });
  options.rate = 0;
  options.verify = true;
  const CopySummary summary = quiet_copy(options);
  EXPECT_GE(summary.resumed_bytes, 150'000u);
  EXPECT_LT(summary.resumed_bytes, kBytes);
  EXPECT_TRUE(read_file(folder / "to") == all);
  EXPECT_FALSE(fs::exists(folder / "to.towline-cp"));
}

// A piece may take minutes where the way to the peer is slow.
TEST(Cp, loses_seconds_of_its_way_and_no_whole_piece) {
  const Folder folder;
  const std::vector<char> all = contents(16'000'000, 19);
  write_file(folder / "from", all);
  CopyOptions options{.source = folder / "from", .destination = folder / "to", .rate = 4'000'000};
  kill_in_the_middle(options, [&] { return folder / "to.towline-cp"; });
  options.rate = 0;
  options.piece_bytes /= 2;  // as the advice after a timeout has it
  const CopySummary summary = quiet_copy(options);
  EXPECT_GE(summary.resumed_bytes, uint64_t{3} << 20);
  EXPECT_TRUE(read_file(folder / "to") == all);
}

// A separate process that serves memory, because a process forked from here must not share its agent.
class ServingProcess {
 public:
  explicit ServingProcess(uint32_t seed = 0) {
    int pipes[2];
    if (::pipe2(pipes, O_CLOEXEC) != 0) throw std::runtime_error(std::strerror(errno));
    pid_ = ::fork();
    if (pid_ == 0) {
      const Served served(kBytes);
      const std::vector<char> all = contents(kBytes, seed);
      std::memcpy(served.data(), all.data(), kBytes);
      const std::string place = served.place() + "\n";
      if (::write(pipes[1], place.data(), place.size()) < 0) ::_exit(1);
      for (;;) ::pause();
    }
    char letter = 0;
    while (::read(pipes[0], &letter, 1) == 1 && letter != '\n') place_ += letter;
    ::close(pipes[0]);
    ::close(pipes[1]);
  }
  ~ServingProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void kill_hard() const { ::kill(pid_, SIGKILL); }
  ServingProcess(const ServingProcess&) = delete;
  ServingProcess& operator=(const ServingProcess&) = delete;
  [[nodiscard]] const std::string& place() const { return place_; }

 private:
  pid_t pid_ = -1;
  std::string place_;
};

// Otherwise the journal could survive a power failure while the bytes do not.
TEST(Cp, remembers_no_piece_before_it_is_on_the_device) {
  const Folder folder;
  write_file(folder / "from", contents(kBytes, 17));
  const CopyOptions options{
      .source = folder / "from", .destination = folder / "to", .piece_bytes = 1'000'000};
  std::vector<long> remembered;  // pieces, when the file is synced
  on_sync = [&](const std::string& path) {
    if (path != folder / "to") return;
    const std::vector<char> journal = read_file(folder / "to.towline-cp");
    remembered.push_back(std::count(journal.begin(), journal.end(), '\n') - 1);
  };
  (void)quiet_copy(options);
  on_sync = nullptr;
  EXPECT_EQ(remembered, (std::vector<long>{0, 1, 2, 3, 4}));
}

// The first of two posts is done and the second is held back by the rate.
TEST(Cp, says_why_it_broke_off_and_how_to_go_on_when_the_server_was_killed) {
  const Folder folder;
  const ServingProcess peer(18);
  std::string text;
  try {
    (void)copy({.source = peer.place(),
                .destination = folder / "to",
                .bytes = 2 << 20,
                .rate = 500'000,
                .backend = "tcp"},
               [&](Phase, double share, const std::string&) {
                 if (share > 0.4) peer.kill_hard();
               });
  } catch (const std::exception& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("run the same command again"), std::string::npos) << text;
  EXPECT_NE(text.find("peer lost in the leg over tcp ("), std::string::npos) << text;
  EXPECT_NE(text.find("ECONN"), std::string::npos) << "no reason: " << text;
}

TEST(Cp, begins_anew_in_a_file_that_was_cut_since_the_kill) {
  const Folder folder;
  const std::vector<char> all = contents(kBytes, 16);
  write_file(folder / "from", all);
  CopyOptions options{
      .source = folder / "from", .destination = folder / "to", .piece_bytes = 50'000, .rate = 500'000};
  kill_in_the_middle(options, [&] { return folder / "to.towline-cp"; });
  fs::resize_file(folder / "to", 60'000);
  options.rate = 0;
  EXPECT_EQ(quiet_copy(options).resumed_bytes, 0u);
  EXPECT_TRUE(read_file(folder / "to") == all);
}

TEST(Cp, goes_on_after_a_kill_from_a_peers_memory) {
  const Folder folder;
  const ServingProcess peer(6);
  CopyOptions options{
      .source = peer.place(), .destination = folder / "to", .piece_bytes = 50'000, .rate = 500'000};
  kill_in_the_middle(options, [&] { return folder / "to.towline-cp"; });
  options.rate = 0;
  const CopySummary summary = quiet_copy(options);
  EXPECT_GE(summary.resumed_bytes, 150'000u);
  EXPECT_TRUE(read_file(folder / "to") == contents(kBytes, 6));
}

// The journals of copies into memory, below `home`.
std::vector<std::string> journals(const std::string& home) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(home + "/towline", error)) {
    if (entry.path().extension() == ".towline-cp") found.push_back(entry.path());
  }
  return found;
}

// This copy is killed when its journal has a few pieces.
CopyOptions broken_copy(const Folder& folder, const ServingProcess& peer) {
  CopyOptions options{.source = folder / "from",
                      .destination = peer.place(),
                      .piece_bytes = 50'000,
                      .rate = 500'000,
                      .state_home = folder / "home"};
  kill_in_the_middle(options, [&] {
    const std::vector<std::string> found = journals(folder / "home");
    return found.empty() ? std::string() : found.front();
  });
  options.rate = 0;
  options.verify = true;
  return options;
}

TEST(Cp, goes_on_into_a_peers_memory_whatever_the_peer_is_called) {
  const Folder folder;
  const ServingProcess peer;
  write_file(folder / "from", contents(kBytes, 9));
  CopyOptions options = broken_copy(folder, peer);
  ASSERT_EQ(journals(folder / "home").size(), 1u);
  options.destination.replace(options.destination.find("127.0.0.1"), 9, "localhost");
  const CopySummary summary = quiet_copy(options);
  EXPECT_GE(summary.resumed_bytes, 150'000u);
  EXPECT_LT(summary.resumed_bytes, kBytes);
  EXPECT_TRUE(journals(folder / "home").empty()) << "a whole copy leaves nothing";
}

TEST(Cp, begins_anew_in_memory_that_another_copy_has_gone_to) {
  const Folder folder;
  const ServingProcess peer;
  write_file(folder / "from", contents(kBytes, 10));
  write_file(folder / "other", contents(kBytes, 11));
  const CopyOptions options = broken_copy(folder, peer);
  (void)quiet_copy({.source = folder / "other", .destination = peer.place(), .state_home = folder / "home"});
  EXPECT_EQ(quiet_copy(options).resumed_bytes, 0u);
}

TEST(Cp, begins_anew_in_memory_of_a_peer_that_was_restarted_and_where_nothing_is_remembered) {
  const Folder folder;
  write_file(folder / "from", contents(kBytes, 12));
  CopyOptions options;
  {
    const ServingProcess peer;
    options = broken_copy(folder, peer);
  }
  const ServingProcess peer;
  options.destination = peer.place();
  EXPECT_EQ(quiet_copy(options).resumed_bytes, 0u);
  options.state_home = "/proc/no/such/folder";
  EXPECT_EQ(quiet_copy(options).resumed_bytes, 0u);
}

TEST(Cp, starts_anew_when_the_source_changed_or_it_is_told_to) {
  const Folder folder;
  write_file(folder / "from", contents(kBytes, 7));
  CopyOptions options{
      .source = folder / "from", .destination = folder / "to", .piece_bytes = 50'000, .rate = 500'000};
  kill_in_the_middle(options, [&] { return folder / "to.towline-cp"; });
  options.rate = 0;
  options.restart = true;
  EXPECT_EQ(quiet_copy(options).resumed_bytes, 0u);
  options.restart = false;
  options.rate = 500'000;
  kill_in_the_middle(options, [&] { return folder / "to.towline-cp"; });
  options.rate = 0;
  write_file(folder / "from", contents(kBytes, 8));
  fs::last_write_time(folder / "from", fs::file_time_type::clock::now() + 5s);
  EXPECT_EQ(quiet_copy(options).resumed_bytes, 0u);
  EXPECT_TRUE(read_file(folder / "to") == contents(kBytes, 8));
}

}  // namespace
}  // namespace tool::cp
