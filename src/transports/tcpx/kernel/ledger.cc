#include "transports/tcpx/kernel/ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/id.h"

namespace towline::tcpx {
namespace {

constexpr std::size_t kMostBytes = 1u << 20;
constexpr std::size_t kMostFiles = 4096;
constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;

UniqueFd open_locked(const std::string& path, int lock) {
  UniqueFd fd(::open(path.c_str(), kFlags, 0600));
  if (!fd.valid()) fail_errno(errno, "opening {}", path);
  while (::flock(fd.get(), lock) != 0) {
    if (errno != EINTR) fail_errno(errno, "locking {}", path);
  }
  return fd;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (end != at && end != text.size()) lines.push_back(text.substr(at, end - at));  // the last may be cut
    at = end + 1;
  }
  return lines;
}

}  // namespace

Ledger::Ledger(std::string folder, std::string interface)
    : folder_(std::move(folder)), interface_(std::move(interface)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) fail_errno(error.value(), "making the folder {}", folder_);
  turn_ = open_locked(path("turn"), LOCK_EX);
  find_the_dead();  // nobody is between making a file and locking it
  my_path_ = path(Id::random().to_hex());
  mine_ = open_locked(my_path_, LOCK_EX | LOCK_NB);
  users_ = open_locked(path("users"), LOCK_SH);
}

Ledger::~Ledger() {
  if (!my_path_.empty() && lines_.empty()) ::unlink(my_path_.c_str());
}

void Ledger::find_the_dead() {
  std::error_code error;
  std::size_t seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(interface_ + ".")) continue;
    const std::string rest = name.substr(interface_.size() + 1);
    if (!Id::from_hex(rest))
      continue;  // another interface's, whose name begins like ours, or not of a process
    if (++seen > kMostFiles) break;
    const UniqueFd fd(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!fd.valid() || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;  // it lives
    dead_.push_back(entry.path());
    for (std::string& line : lines_of(read_text_file(entry.path(), kMostBytes).value_or("")))
      left_.push_back(std::move(line));
  }
}

void Ledger::forget_the_dead() {
  for (const std::string& file : dead_) ::unlink(file.c_str());
  dead_.clear();
  left_.clear();
}

void Ledger::write_all() {
  std::string text;
  for (const std::string& line : lines_) text += line + "\n";
  if (text.size() > kMostBytes) fail(Status::kLimitExceeded, "{} would be too long", my_path_);
  // The longer of old and new stays until the new is whole: a line too many is looked for and not found.
  if (::pwrite(mine_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      ::ftruncate(mine_.get(), static_cast<off_t>(text.size())) != 0)
    fail_errno(errno, "writing {}", my_path_);
}

void Ledger::add(const std::string& line) {
  lines_.push_back(line);
  write_all();
}

void Ledger::remove(const std::string& line) {
  const auto found = std::find(lines_.begin(), lines_.end(), line);
  if (found == lines_.end()) return;
  lines_.erase(found);
  write_all();
}

std::optional<std::string> Ledger::before() const {
  auto text = read_text_file(path("before"), kMostBytes);
  if (!text || !text->ends_with('\n')) return std::nullopt;  // cut: its writer had changed nothing yet
  text->pop_back();
  return text;
}

void Ledger::set_before(const std::string& text) {
  const UniqueFd fd(::open(path("before").c_str(), kFlags | O_TRUNC, 0600));
  if (!fd.valid()) fail_errno(errno, "opening {}", path("before"));
  const std::string line = text + "\n";
  write_fully(fd.get(), {reinterpret_cast<const uint8_t*>(line.data()), line.size()});
}

void Ledger::last_one(const std::function<void(const std::string& before)>& restore) {
  if (!turn_.valid()) turn_ = open_locked(path("turn"), LOCK_EX);
  if (::flock(users_.get(), LOCK_EX | LOCK_NB) != 0) return;
  const auto text = before();
  if (!text) return;
  restore(*text);
  ::unlink(path("before").c_str());
}

}  // namespace towline::tcpx
