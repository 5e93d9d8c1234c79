#include "bench/storage.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "bench/storage_place.h"
#include "failure.h"

namespace tool::bench {
namespace {

std::string here() { return std::filesystem::current_path().string(); }

StorageOptions options_here() {
  return {.places = {here()}, .files = 2, .span_bytes = 1 << 20, .iterations = 9};
}

std::string refusal(const std::string& place) {
  try {
    (void)Place(place);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "taken";
}

TEST(StorageBench, MovesWhatItSaysAndChecksEveryByte) {
  for (const char* from : {"storage", "memory", "mixed"}) {
    SCOPED_TRACE(from);
    const StorageRow row{here(), {.from = from, .size = 4096, .batch = 8, .threads = 2}, 3};
    StorageRun run(options_here(), row);
    run.prepare();
    const auto figures = run.measure();
    EXPECT_GE(figures.at("iterations"), 2 * 9u);
    EXPECT_EQ(figures.at("bytes"), figures.at("iterations").get<uint64_t>() * 8 * 4096);
    EXPECT_EQ(figures.at("route"), "posix (page cache)");
    EXPECT_EQ(run.count_wrong(), 0u);
    EXPECT_EQ(run.checked_blocks(), 2 * 3 * 8 * (std::string(from) == "mixed" ? 2u : 1u));
  }
}

TEST(StorageBench, AFileThatLostItsBytesIsSeen) {
  const StorageRow row{here(), {.from = "memory", .size = 4096, .batch = 8}, 1};
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
  const StorageRow row{here(), {.from = "storage", .size = 4096, .batch = 8}, 1};
  StorageOptions options = options_here();
  options.sequential = true;
  options.files = 1;
  StorageRun run(options, row);
  run.prepare();
  ASSERT_EQ(::pwrite(run.file(), "x", 1, 4096), 1);
  (void)run.measure();
  EXPECT_EQ(run.count_wrong(), 1u);
}

// Over vendors' libraries, here fakes of them.
TEST(StorageBench, FilesOfOtherBackendsAreMeasuredToo) {
  ::setenv("TOWLINE_GDS_LIBRARY", TOWLINE_FAKE_CUFILE, 1);    // NOLINT: no agent lives
  ::setenv("TOWLINE_HF3FS_LIBRARY", TOWLINE_FAKE_USRBIO, 1);  // NOLINT
  const std::pair<std::string, std::string> places[] = {
      {"posix", "file:" + here()},
      {"gds", "gds:" + here()},
      {"hf3fs", "hf3fs:" + here()},
      {"nixl", "nixl:" TOWLINE_FAKE_NIXL ":" + here()},
  };
  for (const auto& [backend, place] : places) {
    SCOPED_TRACE(place);
    for (const char* from : {"storage", "memory"}) {
      StorageRun run(options_here(), {place, {.from = from, .size = 4096, .batch = 8, .threads = 2}, 2});
      run.prepare();
      const auto figures = run.measure();
      EXPECT_EQ(figures.at("storage"), place);
      EXPECT_EQ(figures.at("route").get<std::string>().substr(0, backend.size()), backend);
      EXPECT_EQ(run.count_wrong(), 0u);
    }
  }
  ::unsetenv("TOWLINE_GDS_LIBRARY");    // NOLINT
  ::unsetenv("TOWLINE_HF3FS_LIBRARY");  // NOLINT
}

TEST(StorageBench, PlacesNameTheirBackend) {
  const Place by_name("nixl:POSIX:/data");
  EXPECT_EQ(by_name.library, "POSIX");
  EXPECT_EQ(by_name.folder, "/data");
  EXPECT_EQ(by_name.config(), "plugins = \"nixl\"\n[nixl]\nlibrary = 'POSIX'\n");
  EXPECT_EQ(Place("nixl:/data").config(), "plugins = \"nixl\"\n");
  EXPECT_EQ(Place("az://container/bench").config(), "plugins = \"object\"\n");
  EXPECT_EQ(Place("file:/data").folder, "/data");
  EXPECT_EQ(Place("./a:b").folder, "./a:b");
  EXPECT_NE(refusal("ftp://host/data").find("no backend of files or objects has the scheme 'ftp'"),
            std::string::npos);
  EXPECT_NE(refusal("s3:/bucket").find("s3://BUCKET/PREFIX"), std::string::npos);
  EXPECT_NE(refusal("gds://data").find("with one slash"), std::string::npos);
}

TEST(StorageBench, WhatCanNotBeIsRefused) {
  const Row row{.from = "memory", .size = 4096, .batch = 1};
  StorageOptions options = options_here();
  EXPECT_THROW(StorageRun(options, {here(), row, 0}), Failure);
  options.sync = "often";
  EXPECT_THROW(StorageRun(options, {here(), row, 1}), Failure);
  EXPECT_THROW(StorageRun(options_here(), {here() + "/absent", row, 1}), Failure);
  options = options_here();
  options.files = 0;
  EXPECT_THROW(StorageRun(options, {here(), row, 1}), Failure);
  EXPECT_THROW(StorageRun(options_here(), {here(), {.from = "target", .size = 4096, .batch = 1}, 1}),
               Failure);
}

TEST(StorageBench, EveryRowMeetsEveryDepthAtEveryPlace) {
  const auto rows = storage_rows(
      {"/a", "/b"}, {{.from = "storage", .size = 1, .batch = 1}, {.from = "memory", .size = 2, .batch = 1}},
      {1, 8});
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_EQ(rows[1].depth, 8u);
  EXPECT_EQ(rows[3].row.from, "memory");
  EXPECT_EQ(rows[3].place, "/a");
  EXPECT_EQ(rows[4].place, "/b");
}

}  // namespace
}  // namespace tool::bench
