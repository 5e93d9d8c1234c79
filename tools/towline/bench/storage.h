// towline bench --storage: measures transfers between memory and files or objects, in this process.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <towline/storage.hpp>
#include <towline/towline.hpp>
#include <vector>

#include "bench/row.h"
#include "buffer.h"
#include "options.h"

namespace tool::bench {

struct StorageOptions {
  // Folders, in which files are made without a name, so that none is left behind; "gds:/folder", "s3://...": storage_place.h.
  std::vector<std::string> places;
  bool direct = false;
  std::string sync = "none";    // sync policy of writes: none, data or full
  std::string engine = "auto";  // tuning.posix.engine
  uint32_t files = 1;           // per thread; its blocks are spread over them
  uint64_t span_bytes = 0;      // of all files of a thread together
  uint64_t iterations = 0;      // 0: as many as fit in `seconds`, at least 3
  double seconds = 0.5;
  uint64_t warmup = 2;
  bool check = true;
  bool sequential = false;
  bool spin = false;
  uint64_t seed = 1;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StorageOptions, places, direct, sync, engine, files, span_bytes,
                                   iterations, seconds, warmup, check, sequential, spin, seed)

// As sides_of(): memory, storage, each of them for "both", or "mixed". Throws Failure.
[[nodiscard]] std::vector<std::string> storage_sides_of(const std::string& from);

struct StorageRow {
  std::string place;
  Row row;             // from: memory, storage, or mixed (alternating)
  uint32_t depth = 1;  // requests of a thread in flight at once
};

// One row, from making its files to checking them.
class StorageRun {
 public:
  // Throws Failure if the row is not possible.
  StorageRun(const StorageOptions& options, const StorageRow& row);
  ~StorageRun();
  StorageRun(const StorageRun&) = delete;
  StorageRun& operator=(const StorageRun&) = delete;

  // Stamps the data that will be read or written, and runs the warm-up.
  void prepare();
  // The row's figures.
  [[nodiscard]] nlohmann::json measure();
  // Checks every byte that was moved, in memory for reads and in the file for writes. Returns the number of
  // wrong blocks.
  [[nodiscard]] uint64_t count_wrong();
  [[nodiscard]] uint64_t checked_blocks() const;

  // For tests: the first file.
  [[nodiscard]] int file() const;

 private:
  struct Driver;

  [[nodiscard]] uint64_t requests() const;  // the number of block lists of a thread

  const StorageOptions options_;
  const StorageRow row_;
  std::unique_ptr<towline::Agent> agent_;
  std::vector<std::unique_ptr<Driver>> drivers_;  // one for each thread; destroyed before the agent
};

[[nodiscard]] std::vector<StorageRow> storage_rows(const std::vector<std::string>& places,
                                                   const std::vector<Row>& rows,
                                                   const std::vector<uint32_t>& depths);

void run_storage_bench(const StorageOptions& options, const std::vector<StorageRow>& rows,
                       const CommonOptions& common);

}  // namespace tool::bench
