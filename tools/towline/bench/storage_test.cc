#include "bench/storage.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "failure.h"

namespace tool::bench {
namespace {

StorageOptions options_here() {
  return {
      .folder = std::filesystem::current_path().string(), .files = 2, .span_bytes = 1 << 20, .iterations = 9};
}

TEST(StorageBench, MovesWhatItSaysAndChecksEveryByte) {
  for (const char* op : {"read", "write", "mixed"}) {
    SCOPED_TRACE(op);
    const StorageRow row{{.op = op, .size = 4096, .batch = 8, .threads = 2}, 3};
    StorageRun run(options_here(), row);
    run.prepare();
    const auto figures = run.measure();
    EXPECT_GE(figures.at("iterations"), 2 * 9u);
    EXPECT_EQ(figures.at("bytes"), figures.at("iterations").get<uint64_t>() * 8 * 4096);
    EXPECT_EQ(figures.at("route"), "posix (page cache)");
    EXPECT_EQ(run.count_wrong(), 0u);
    EXPECT_EQ(run.checked_blocks(), 2 * 3 * 8 * (std::string(op) == "mixed" ? 2u : 1u));
  }
}

TEST(StorageBench, AFileThatLostItsBytesIsSeen) {
  const StorageRow row{{.op = "write", .size = 4096, .batch = 8}, 1};
  StorageOptions options = options_here();
  options.sequential = true;
  options.files = 1;
  StorageRun run(options, row);
  run.prepare();
  (void)run.measure();
  ASSERT_EQ(::pwrite(run.file(), "x", 1, 3 * 4096 + 77), 1);
  EXPECT_EQ(run.count_wrong(), 1u);
  ASSERT_EQ(::ftruncate(run.file(), 5 * 4096), 0);
  EXPECT_THROW((void)run.count_wrong(), Failure) << "the file is short";
}

TEST(StorageBench, ReadsOfWrongBytesAreSeen) {
  const StorageRow row{{.op = "read", .size = 4096, .batch = 8}, 1};
  StorageOptions options = options_here();
  options.sequential = true;
  options.files = 1;
  StorageRun run(options, row);
  run.prepare();
  ASSERT_EQ(::pwrite(run.file(), "x", 1, 4096), 1);
  (void)run.measure();
  EXPECT_EQ(run.count_wrong(), 1u);
}

// Over a vendor's library, here a fake of it.
TEST(StorageBench, FilesOfAnotherBackendAreMeasuredToo) {
  ::setenv("TOWLINE_GDS_LIBRARY", TOWLINE_FAKE_CUFILE, 1);  // NOLINT: no agent lives
  StorageOptions options = options_here();
  options.folder = "gds:" + options.folder;
  for (const char* op : {"read", "write"}) {
    StorageRun run(options, {{.op = op, .size = 4096, .batch = 8, .threads = 2}, 2});
    run.prepare();
    const auto figures = run.measure();
    EXPECT_EQ(figures.at("route").get<std::string>().substr(0, 3), "gds");
    EXPECT_EQ(run.count_wrong(), 0u);
  }
  ::unsetenv("TOWLINE_GDS_LIBRARY");  // NOLINT
}

TEST(StorageBench, WhatCanNotBeIsRefused) {
  const Row row{.op = "write", .size = 4096, .batch = 1};
  StorageOptions options = options_here();
  EXPECT_THROW(StorageRun(options, {row, 0}), Failure);
  options.sync = "often";
  EXPECT_THROW(StorageRun(options, {row, 1}), Failure);
  options = options_here();
  options.folder += "/absent";
  EXPECT_THROW(StorageRun(options, {row, 1}), Failure);
  options = options_here();
  options.files = 0;
  EXPECT_THROW(StorageRun(options, {row, 1}), Failure);
  EXPECT_THROW(StorageRun(options_here(), {{.op = "erase", .size = 4096, .batch = 1}, 1}), Failure);
}

TEST(StorageBench, EveryRowMeetsEveryDepth) {
  const auto rows =
      storage_rows({{.op = "read", .size = 1, .batch = 1}, {.op = "write", .size = 2, .batch = 1}}, {1, 8});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[1].depth, 8u);
  EXPECT_EQ(rows[3].row.op, "write");
}

}  // namespace
}  // namespace tool::bench
