// towline bench: measures transfers between processes.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/collective.h"
#include "bench/initiator.h"
#include "bench/storage.h"
#include "options.h"

namespace tool::bench {

struct BenchOptions {
  InitiatorOptions common;    // of all initiators; rows are made from the members below
  std::string from = "both";  // initiator, target; with storage memory, storage or mixed
  std::vector<uint64_t> sizes;
  std::vector<uint64_t> batches;  // one for each size, or one for all; empty: by size
  std::vector<uint32_t> threads{1};
  uint32_t targets = 1;
  std::string listen;                // only serve as targets
  std::vector<std::string> connect;  // targets that run elsewhere
  std::string faults;
  std::string source;      // of tcpx
  StorageOptions storage;  // with places: files or objects instead of peers
  std::vector<uint32_t> depths{1};
  CollectiveOptions collective;  // with operations: collectives instead of transfers
};

// The setting `plugins`, `named` by the user, with `backend` added: an agent has some only where a setting names them, and
// naming those that it has anyhow does nothing.
[[nodiscard]] std::string plugins_with(const std::string& backend, const std::string& named);

[[nodiscard]] std::vector<Row> rows_of(const BenchOptions& options);

// Joins the reports of all initiators into one row. `measured`, `checked`: one report of each initiator.
[[nodiscard]] nlohmann::json join_row(const Row& row, const std::vector<nlohmann::json>& measured,
                                      const std::vector<nlohmann::json>& checked);

void run_bench(const BenchOptions& options, const CommonOptions& common);

void add_bench_command(CLI::App& app, CommonOptions& common);

}  // namespace tool::bench
