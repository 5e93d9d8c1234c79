#include "cp/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "failure.h"

namespace tool::cp {

using nlohmann::json;

Journal::Journal(std::string path, const json& copy, uint64_t pieces)
    : path_(std::move(path)), copy_(copy), done_(pieces) {
  if (path_.empty()) return;
  std::ifstream file(path_);
  std::string line;
  if (!std::getline(file, line)) return;
  of_another_ = json::parse(line, nullptr, false) != copy_;
  while (!of_another_ && std::getline(file, line)) {
    const json entry = json::parse(line, nullptr, false);
    if (!entry.is_object()) continue;
    const uint64_t piece = entry.value("piece", pieces);
    if (piece < pieces) done_[piece] = true;
  }
}

uint64_t Journal::done_count() const {
  return static_cast<uint64_t>(std::count(done_.begin(), done_.end(), true));
}

void Journal::forget() { std::fill(done_.begin(), done_.end(), false); }

void Journal::open() {
  if (path_.empty()) return;
  // Written anew and put in the old one's place: a torn last line must not swallow the next.
  const std::string next = path_ + ".new";
  file_.reset(std::fopen(next.c_str(), "we"));
  if (file_ == nullptr)
    throw Failure{
        fmt::format("{}: {}: --state names another file, or none with ''", next, std::strerror(errno))};
  write(copy_);
  for (uint64_t piece = 0; piece < done_.size(); ++piece) {
    if (done_[piece]) write({{"piece", piece}});
  }
  std::filesystem::rename(next, path_);
}

void Journal::add(uint64_t piece) {
  done_[piece] = true;
  if (file_ != nullptr) write({{"piece", piece}});
}

void Journal::write(const json& line) {
  const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0)
    throw Failure{fmt::format("{}: {}", path_, std::strerror(errno))};
}

void Journal::remove() {
  if (path_.empty()) return;
  file_.reset();
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace tool::cp
