// Storage for a prefill rank's evicted prefix blocks, from which they are read back when a request needs
// their prefix again.
//
// Each block is one file or object that contains its pages in order, layer-plane by layer-plane. Both put()
// and get() wait for the bytes: only then may the block's pages be reused or handed on.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <towline/storage.hpp>
#include <towline/towline.hpp>
#include <utility>
#include <vector>

#include "replay/model.h"
#include "replay/pool.h"
#include "samples.h"

namespace tool::replay {

// Throws Failure unless it is file:DIR, or s3://BUCKET, az:// or gs://, perhaps with a prefix.
void check_spill(const std::string& where);

// The folders that are missing on the path to which blocks are spilled. Any rank may create them. The process
// that started the ranks removes them at the end if they are empty.
class MissingFolders {
 public:
  explicit MissingFolders(const std::string& where);
  ~MissingFolders();
  MissingFolders(const MissingFolders&) = delete;
  MissingFolders& operator=(const MissingFolders&) = delete;

 private:
  std::vector<std::string> paths_;  // innermost first
};

class Spill {
 public:
  // `name` distinguishes the ranks that spill to one place. Makes a folder if blocks go to files.
  Spill(const towline::Agent& agent, const std::string& where, const std::string& name,
        const PoolLayout& layout, std::chrono::nanoseconds timeout);
  // Removes files; objects stay until the bucket's rules expire them.
  ~Spill();
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;

  // Keeps the block's bytes and epochs. Throws Failure.
  void put(const Block& block);
  // Restores the block's pages and epochs; false: it is not here. Throws Failure.
  [[nodiscard]] bool get(Block& block);

  struct Totals {
    uint64_t blocks = 0;
    uint64_t bytes = 0;
    double seconds = 0;
  };
  [[nodiscard]] const Totals& spilled() const { return spilled_; }
  [[nodiscard]] const Totals& restored() const { return restored_; }
  [[nodiscard]] const Samples& restore_latencies() const { return latencies_; }

 private:
  using Key = std::pair<uint64_t, uint32_t>;  // hash, tokens

  [[nodiscard]] std::string uri_of(const BlockKey& key) const;
  double move(bool restores, const Block& block, const towline::Region& region) const;
  [[nodiscard]] uint64_t bytes_of(const Block& block) const {
    return block.pages.size() * layout_.bytes_per_page();
  }

  const towline::Agent& agent_;
  const PoolLayout layout_;
  const towline::BlockList pages_;
  const std::chrono::nanoseconds timeout_;
  std::string prefix_;  // of URIs
  std::string folder_;  // of files; empty: objects
  std::map<Key, std::vector<uint64_t>> epochs_;
  Totals spilled_;
  Totals restored_;
  Samples latencies_;
};

}  // namespace tool::replay
