// The common part of programs that compare contenders cell by cell: options, contenders, the run.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "measure.h"
#include "report.h"

namespace bench {

struct ComparisonOptions {
  bool spreads = false;
  std::string span = "1g";
  std::string json_file;
  std::string nixl_python;
  std::string nixl_script;
  std::vector<std::string> only;
  std::vector<std::string> without;
  std::vector<std::string> cells;  // "WRITE:4k:1024"
  Settings settings;
};

// `span`: what its bytes are. The values that are there are the defaults.
void add_options(CLI::App& app, ComparisonOptions& options, const char* span);
// Those that are wanted, set up. One whose setup fails is left out: a missing peer must not stop the limits.
Contenders set_up(Contenders all, const ComparisonOptions& options);
// Those that were asked for, or all.
std::vector<Cell> chosen_cells(const ComparisonOptions& options, std::vector<Cell> all);
// Measures, prints the tables, and writes the samples if asked to, with `about` in front. The exit code.
int compare(const std::vector<Cell>& cells, std::size_t span, const Contenders& contenders,
            const ComparisonOptions& options, Json about);

}  // namespace bench
