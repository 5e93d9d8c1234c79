#include "replay/spill.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "buffer.h"
#include "failure.h"
#include "replay/setup.h"
#include "replay/stamp.h"

namespace tool::replay {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "towline-spill-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = pattern;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string uri() const { return "file:" + path_; }
  [[nodiscard]] size_t entries() const {
    return static_cast<size_t>(std::distance(fs::recursive_directory_iterator(path_), {}));
  }

 private:
  std::string path_;
};

TEST(Spill, TakesOnlyPlacesThatItKnows) {
  EXPECT_NO_THROW(check_spill("file:/x"));
  for (const char* where : {"s3://bucket/prefix", "az://container", "gs://bucket/"})
    EXPECT_NO_THROW(check_spill(where)) << where;
  for (const char* where : {"file:", "/x", "s3://", "s3:/x", "az://", "gs:", "gds:/x", "http://x"})
    EXPECT_THROW(check_spill(where), Failure) << where;
}

TEST(Spill, EvictedBlocksComeBackAsTheyWere) {
  const Folder folder;
  tool::replay::Setup setup;
  setup.layers = 2;
  const CacheShape shape = shape_of(setup);
  PoolLayout layout{.shape = shape, .heads = heads_of_rank(shape, 1, 0), .pages = 64};
  Buffer buffer(BufferKind::kShared, layout.bytes());
  layout.base = reinterpret_cast<uint64_t>(buffer.data());
  const towline::Agent agent("spill", {.listen = "none"});
  const towline::Region region = agent.register_memory(towline::dram(buffer.bytes()));
  const Stamper stamper(layout, granule_heads(shape, 1, 1), Verify::kFull);
  {
    Spill spill(agent, folder.uri(), "test", layout, 60s);
    BlockPool pool(layout.pages, shape.page_tokens, 1);
    pool.on_eviction([&](const Block& block) { spill.put(block); });
    uint64_t epoch = 0;
    const auto use = [&](uint64_t hash, uint32_t tokens) {
      auto held = pool.hold(std::vector<BlockKey>{{hash, tokens}});
      ASSERT_TRUE(held);
      Block& block = *held->front().block;
      if (held->front().fresh && !spill.get(block)) {
        block.epochs.assign(1, ++epoch);
        for (uint32_t place = 0; place < block.pages.size(); ++place)
          stamper.write({.hash = hash, .epoch = epoch}, place, block.pages[place]);
      }
      for (uint32_t place = 0; place < block.pages.size(); ++place) {
        Mismatch mismatch;
        EXPECT_TRUE(stamper.check({.hash = hash, .epoch = block.epochs[0]}, place, block.pages[place],
                                  layout.heads, mismatch))
            << hash << ", page " << place;
      }
      pool.release(block);
    };
    // Two whole blocks fit. The cut one is a different block from the whole one.
    for (int round = 0; round < 3; ++round) {
      for (const uint64_t hash : {1, 2, 3, 4}) use(hash, 512);
      use(4, 100);
    }
    EXPECT_EQ(epoch, 5u);                   // each was made once
    EXPECT_EQ(spill.spilled().blocks, 5u);  // and a block that was read back is not written again
    EXPECT_GE(spill.restored().blocks, 8u);
    EXPECT_EQ(spill.restore_latencies().size(), spill.restored().blocks);
    EXPECT_GE(spill.spilled().bytes, 4 * 32 * layout.bytes_per_page());
    EXPECT_EQ(folder.entries(), 6u);
  }
  EXPECT_EQ(folder.entries(), 0u);  // nothing is left behind
}

TEST(Spill, FoldersThatWereNotThereGoAgainUnlessSomethingIsInThem) {
  const Folder folder;
  const fs::path inner = fs::path(folder.uri().substr(5)) / "made" / "for" / "it";
  for (const std::string& where : {"file:" + inner.string(), "file:" + inner.string() + "/"}) {
    {
      const MissingFolders made(where);
      fs::create_directories(inner);
    }
    EXPECT_EQ(folder.entries(), 0u) << where;
  }
  fs::create_directories(inner.parent_path());
  {
    const MissingFolders made("file:" + inner.string());
    fs::create_directories(inner / "left");
  }
  EXPECT_TRUE(fs::exists(inner / "left"));
  fs::remove_all(inner);
  {
    const MissingFolders made("file:" + inner.string());
    fs::create_directories(inner);
  }
  EXPECT_FALSE(fs::exists(inner));
  EXPECT_TRUE(fs::exists(inner.parent_path())) << "it was there before";
}

TEST(Spill, SaysWhereItCouldNotSpillTo) {
  tool::replay::Setup setup;
  const CacheShape shape = shape_of(setup);
  PoolLayout layout{.shape = shape, .heads = heads_of_rank(shape, 1, 0), .pages = 1};
  Buffer buffer(BufferKind::kPrivate, layout.bytes());
  layout.base = reinterpret_cast<uint64_t>(buffer.data());
  const towline::Agent agent("spill", {.listen = "none"});
  const towline::Region region = agent.register_memory(towline::dram(buffer.bytes()));
  try {
    const Spill spill(agent, "file:/proc/nowhere", "test", layout, 60s);
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("/proc/nowhere"), std::string::npos) << failure.what();
  }
}

}  // namespace
}  // namespace tool::replay
