#include "cp/journal.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "failure.h"

namespace tool::cp {

using nlohmann::json;

namespace {

json line_of(uint64_t first, uint64_t pieces) { return {{"piece", first}, {"pieces", pieces}}; }

}  // namespace

JournalText parse_journal(std::istream& text, const json& copy, uint64_t pieces) {
  JournalText parsed{std::vector<bool>(pieces)};
  std::string line;
  if (!std::getline(text, line)) return parsed;
  parsed.of_another = json::parse(line, nullptr, false) != copy;
  while (!parsed.of_another && std::getline(text, line)) {
    const json entry = json::parse(line, nullptr, false);
    const auto unsigned_of = [&entry](const char* key) -> std::optional<uint64_t> {
      const auto found = entry.find(key);
      if (!entry.is_object() || found == entry.end() || !found->is_number_unsigned()) return std::nullopt;
      return found->get<uint64_t>();
    };
    const auto first = unsigned_of("piece");
    const auto count = entry.contains("pieces") ? unsigned_of("pieces") : 1;
    if (!first || !count || *first >= pieces || *count > pieces - *first) continue;
    std::fill_n(parsed.done.begin() + static_cast<std::ptrdiff_t>(*first), *count, true);
  }
  return parsed;
}

Journal::Journal(std::string path, const json& copy, uint64_t pieces)
    : path_(std::move(path)), copy_(copy), done_(pieces) {
  if (path_.empty()) return;
  std::ifstream file(path_);
  JournalText parsed = parse_journal(file, copy_, pieces);
  done_ = std::move(parsed.done);
  of_another_ = parsed.of_another;
}

uint64_t Journal::done_count() const {
  return static_cast<uint64_t>(std::count(done_.begin(), done_.end(), true));
}

void Journal::forget() { std::fill(done_.begin(), done_.end(), false); }

void Journal::open() {
  if (path_.empty()) return;
  const auto fail_at = [](const std::string& path, const std::string& why) {
    throw Failure{fmt::format("{}: {}: --state names another file, or none with ''", path, why)};
  };
  // A new file replaces the old one, so that a torn last line can't merge with the next line.
  const std::string next = path_ + ".new";
  file_.reset(std::fopen(next.c_str(), "we"));
  if (file_ == nullptr) fail_at(next, std::strerror(errno));
  std::error_code ignored;
  try {
    write(copy_);
    for (uint64_t first = 0, end = 0; first < done_.size(); first = end + 1) {
      for (end = first; end < done_.size() && done_[end];) ++end;
      if (end != first) write(line_of(first, end - first));
    }
    flush();
  } catch (const Failure&) {  // a full disk, say
    std::filesystem::remove(next, ignored);
    throw;
  }
  std::error_code error;
  std::filesystem::rename(next, path_, error);
  if (!error) return;
  std::filesystem::remove(next, ignored);
  fail_at(path_, error.message());
}

void Journal::add(uint64_t first, uint64_t pieces) {
  std::fill_n(done_.begin() + static_cast<std::ptrdiff_t>(first), pieces, true);
  if (file_ == nullptr) return;
  write(line_of(first, pieces));
  flush();
}

void Journal::write(const json& line) {
  const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size()) fail();
}

void Journal::flush() {
  if (std::fflush(file_.get()) != 0) fail();
}

void Journal::fail() const { throw Failure{fmt::format("{}: {}", path_, std::strerror(errno))}; }

void Journal::remove() {
  if (path_.empty()) return;
  file_.reset();
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

std::string journal_of_memory(const std::string& home, const std::string& memory) {
  namespace fs = std::filesystem;
  constexpr auto kKeep = std::chrono::hours{24 * 30};
  if (home.empty()) return {};
  const fs::path folder = fs::path(home) / "towline";
  std::error_code error;
  fs::create_directories(folder, error);
  if (::access(folder.c_str(), W_OK) != 0) return {};
  const auto now = fs::file_time_type::clock::now();
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto written = entry.last_write_time(error);
    if (!error && entry.path().extension() == ".towline-cp" && now - written > kKeep)
      fs::remove(entry.path(), error);
  }
  std::string name = memory;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char letter) { return std::isalnum(letter) == 0; }, '-');
  return folder / (name + ".towline-cp");
}

}  // namespace tool::cp
