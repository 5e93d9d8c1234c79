#include "rendezvous/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/error.h"
#include "base/id.h"
#include "base/os/unique_fd.h"
#include "rendezvous/tcp_store.h"

namespace towline::rendezvous {

// ---- Memory

// Stores may take no time at all for no limit.
std::optional<Bytes> Store::peek(const std::string& key) {
  constexpr uint64_t kSoonNs = 5 * kMillisecondNs;
  try {
    return get(key, Deadline::after(monotonic_now_ns(), kSoonNs));
  } catch (const Error& error) {
    if (error.code() != Status::kTimedOut) throw;
    return std::nullopt;
  }
}

void MemoryStore::set(const std::string& key, std::span<const uint8_t> value) {
  {
    const std::lock_guard lock(mutex_);
    values_[key].assign(value.begin(), value.end());
  }
  changed_.notify_all();
}

Bytes MemoryStore::get(const std::string& key, Deadline deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (const auto found = values_.find(key); found != values_.end()) return found->second;
    const uint64_t left = deadline.remaining_ns(monotonic_now_ns());
    if (left == 0) fail(Status::kTimedOut, "no {} yet", key);
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(left, kSecondNs)));
  }
}

// ---- Files

FileStore::FileStore(std::string folder) : folder_(std::move(folder)) {
  if (folder_.empty()) fail(Status::kInvalidArgument, "file: needs a folder, \"file:/path\"");
  if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) fail_errno(errno, "cannot make {}", folder_);
  struct stat found = {};
  if (::stat(folder_.c_str(), &found) != 0 || !S_ISDIR(found.st_mode))
    fail(Status::kInvalidArgument, "{} is no folder: ranks meet in one that all of them see", folder_);
}

std::string FileStore::path(const std::string& key) const {
  std::string name;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_')
      name += c;
    else
      name += fmt::format("%{:02x}", byte);
  }
  return folder_ + "/" + name;
}

void FileStore::set(const std::string& key, std::span<const uint8_t> value) {
  const std::string to = path(key);
  const std::string draft = folder_ + "/.draft-" + Id::random().to_hex();
  UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) fail_errno(errno, "cannot write {}", draft);
  try {
    write_fully(fd.get(), value);
    // A file system over a network may say only now that there is no room.
    if (::close(fd.release()) != 0) fail_errno(errno, "cannot write {}", draft);
    if (::rename(draft.c_str(), to.c_str()) != 0) fail_errno(errno, "cannot put {}", to);
  } catch (const Error&) {
    ::unlink(draft.c_str());
    throw;
  }
}

Bytes FileStore::get(const std::string& key, Deadline deadline) {
  const std::string from = path(key);
  for (uint64_t pause = 200'000;; pause = std::min<uint64_t>(pause * 2, 20'000'000)) {
    if (const auto text = read_text_file(from, 64 << 20)) return Bytes(text->begin(), text->end());
    const uint64_t now = monotonic_now_ns();
    if (deadline.passed(now)) fail(Status::kTimedOut, "no {} yet", from);
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause, deadline.remaining_ns(now))));
  }
}

// ---- By address

std::shared_ptr<Store> open_store(const std::string& address, int rank, const Config& config,
                                  Deadline deadline, const std::function<void()>& meanwhile) {
  if (address.starts_with("file:")) return std::make_shared<FileStore>(address.substr(5));
  const auto keys = [&] { return secure::Keys::configured(config); };
  if (address.starts_with("tcp://"))
    return open_tcp_store(address.substr(6), rank == 0, deadline, meanwhile, keys());
  if (!address.empty() && address != "env")
    fail(Status::kInvalidArgument,
         "\"{}\" is not a place where ranks can meet: use tcp://host:port, file:/folder, a directory's "
         "address with an "
         "agent, or env",
         address);
  const auto host = config.environment("MASTER_ADDR");
  const auto port = config.environment("MASTER_PORT");
  if (!host || !port)
    fail(Status::kNotFound,
         "no place for ranks to meet: set MASTER_ADDR and MASTER_PORT, or give bootstrap (tcp://host:port, "
         "file:/folder) or "
         "a store");
  const bool elsewhere = config.environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  // torchrun's store knows no TLS.
  return open_tcp_store(*host + ":" + *port, rank == 0 && !elsewhere, deadline, meanwhile,
                        elsewhere ? nullptr : keys());
}

}  // namespace towline::rendezvous
