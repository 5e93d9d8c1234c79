#include "collectives/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <thread>

#include "base/error.h"
#include "base/id.h"
#include "base/os/unique_fd.h"
#include "collectives/tcp_store.h"

namespace towline::collectives {
namespace {

std::optional<int> number(const Config& config, const char* name) {
  const auto text = config.environment(name);
  if (!text || text->empty()) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size())
    fail(Status::kInvalidArgument, "{}={} in the environment is not a number", name, *text);
  return value;
}

struct Source {
  const char* method;
  const char* rank;
  const char* size;
};
constexpr Source kSources[] = {
    {"towline", "TOWLINE_RANK", "TOWLINE_SIZE"},
    {"torchcomm", "TORCHCOMM_RANK", "TORCHCOMM_SIZE"},
    {"mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"mpi", "PMI_RANK", "PMI_SIZE"},
    {"pals", "PALS_RANKID", "PALS_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS"},
};

}  // namespace

RankAndSize rank_from_environment(const Config& config, std::string_view method) {
  std::string wanted(method);
  if (wanted.empty())
    wanted = config.environment("TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD").value_or("auto");
  if (wanted != "auto" && wanted != "torchrun" && wanted != "mpi" && wanted != "pals" && wanted != "slurm")
    fail(Status::kInvalidArgument,
         "unknown way \"{}\" to find rank and size: auto, torchrun, mpi, pals or slurm", wanted);
  std::string tried;
  for (const Source& source : kSources) {
    if (wanted != "auto" && wanted != source.method) continue;
    const auto rank = number(config, source.rank);
    const auto size = number(config, source.size);
    if (rank && size) {
      if (*size < 1 || *rank < 0 || *rank >= *size)
        fail(Status::kInvalidArgument, "{}={} and {}={} in the environment make no rank of a communicator",
             source.rank, *rank, source.size, *size);
      return {*rank, *size, fmt::format("{} and {}", source.rank, source.size)};
    }
    tried += fmt::format("{}{}/{}", tried.empty() ? "" : ", ", source.rank, source.size);
  }
  fail(Status::kNotFound,
       "no rank and size in the environment (looked for {}): start under torchrun, mpirun or "
       "srun, or give rank and size",
       tried);
}

// ---- The application's store

void CallbackStore::set(const std::string& key, std::span<const uint8_t> value) {
  const std::lock_guard lock(mutex_);
  const int32_t status = callbacks_.set(callbacks_.context, key.c_str(), value.data(), value.size());
  if (status < 0)
    fail(Status{status}, "the application's store did not take \"{}\": {}", key, status_text(Status{status}));
}

Bytes CallbackStore::get(const std::string& key, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  Bytes value(4096);
  for (;;) {
    size_t bytes = 0;
    const uint64_t now = monotonic_now_ns();
    const int32_t status = callbacks_.get(callbacks_.context, key.c_str(), deadline.remaining_ns(now),
                                          value.data(), value.size(), &bytes);
    if (status < 0)
      fail(Status{status}, "the application's store did not give \"{}\": {}", key,
           status_text(Status{status}));
    if (bytes <= value.size()) {
      value.resize(bytes);
      return value;
    }
    value.resize(bytes);
  }
}

// ---- Memory

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
  write_fully(fd.get(), value);
  fd.reset();
  if (::rename(draft.c_str(), to.c_str()) != 0) {
    const int error = errno;
    ::unlink(draft.c_str());
    fail_errno(error, "cannot put {}", to);
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
                                  Deadline deadline) {
  if (address.starts_with("file:")) return std::make_shared<FileStore>(address.substr(5));
  if (address.starts_with("tcp://")) return open_tcp_store(address.substr(6), rank == 0, deadline);
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
  return open_tcp_store(*host + ":" + *port, rank == 0 && !elsewhere, deadline);
}

}  // namespace towline::collectives
