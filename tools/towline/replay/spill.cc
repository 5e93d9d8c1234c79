#include "replay/spill.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "failure.h"
#include "storage_schemes.h"
#include "units.h"

namespace tool::replay {

namespace {

using std::chrono::steady_clock;

constexpr std::string_view kFile = "file:";

}  // namespace

void check_spill(const std::string& where) {
  const bool file = where.starts_with(kFile) && where.size() > kFile.size();
  const StorageScheme* const scheme = scheme_of(where);
  const bool objects = scheme != nullptr && scheme->objects;
  const size_t after = objects ? scheme->name.size() + 1 : 0;
  const bool named = objects && where.compare(after, 2, "//") == 0 && where.size() > after + 2;
  if (!file && !named)
    throw Failure{
        fmt::format("--spill {}: file:DIR, or objects below s3://BUCKET, s3://BUCKET/PREFIX, "
                    "az://CONTAINER or gs://BUCKET",
                    where)};
}

MissingFolders::MissingFolders(const std::string& where) {
  if (!where.starts_with(kFile)) return;
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(where.substr(kFile.size()), error);
  for (; !path.empty() && !std::filesystem::exists(path, error) && !error; path = path.parent_path()) {
    if (path.has_filename()) paths_.push_back(path);
  }
}

MissingFolders::~MissingFolders() {
  std::error_code not_empty;
  for (const std::string& path : paths_) std::filesystem::remove(path, not_empty);
}

Spill::Spill(const towline::Agent& agent, const std::string& where, const std::string& name,
             const PoolLayout& layout, std::chrono::nanoseconds timeout)
    : agent_(agent),
      layout_(layout),
      pages_(agent.block_list(layout.blocks(layout.heads))),
      timeout_(timeout) {
  check_spill(where);
  prefix_ = where + (where.ends_with('/') ? "" : "/") + "towline-spill-" + name + "/";
  if (!where.starts_with(kFile)) return;
  folder_ = prefix_.substr(kFile.size());
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) throw Failure{fmt::format("--spill {}: {}", where, error.message())};
}

Spill::~Spill() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

std::string Spill::uri_of(const BlockKey& key) const {
  return fmt::format("{}{:016x}-{}", prefix_, key.hash, key.tokens);
}

double Spill::move(bool restores, const Block& block, const towline::Region& region) const {
  std::vector<uint32_t> picks;
  layout_.append_picks(layout_.heads, 0, layout_.shape.layer_planes(), block.pages, picks);
  const towline::BlockList stored =
      agent_.block_list(region.blocks(0, layout_.page_bytes()).repeat(picks.size(), layout_.page_bytes()));
  const auto began = steady_clock::now();
  const towline::PostOptions how{.deadline = towline::Deadline{timeout_}};
  const towline::Post post = restores ? agent_.copy(stored[towline::all], pages_[picks], how)
                                      : agent_.copy(pages_[picks], stored[towline::all], how);
  const towline::Status status = post.wait(towline::kForever);
  if (status != towline::Status::kOk)
    throw Failure{fmt::format("{} block {:#x}: {}", restores ? "bringing back" : "spilling", block.key.hash,
                              towline::status_text(status))};
  return seconds_since(began);
}

void Spill::put(const Block& block) {
  auto& kept = epochs_[{block.key.hash, block.key.tokens}];
  if (!kept.empty() && kept == block.epochs) return;  // it was read from here and is still here
  const towline::Region region =
      agent_.register_storage(uri_of(block.key), {.create = true, .bytes = bytes_of(block)});
  spilled_.seconds += move(false, block, region);
  spilled_.bytes += bytes_of(block);
  ++spilled_.blocks;
  kept = block.epochs;
}

bool Spill::get(Block& block) {
  const auto found = epochs_.find({block.key.hash, block.key.tokens});
  if (found == epochs_.end()) return false;
  const auto began = steady_clock::now();
  const towline::Region region = agent_.register_storage(uri_of(block.key));
  restored_.seconds += move(true, block, region);
  restored_.bytes += bytes_of(block);
  ++restored_.blocks;
  latencies_.add(seconds_since(began));  // includes opening it
  block.epochs = found->second;
  return true;
}

}  // namespace tool::replay
