#include "secure/keys.h"

#include <pthread.h>
#include <unistd.h>

#include <ctime>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os/socket_address.h"
#if defined(TOWLINE_HAVE_OPENSSL)
#include "secure/credentials.h"
#include "secure/key_files.h"
#include "secure/session.h"
#endif

namespace towline::secure {
namespace {

// The keys that this process uses, for the next who names the same files. A child of it makes its own: a lock of these may
// have been held when it was forked.
class InUse {
 public:
  InUse() noexcept {
    (void)::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                           [] { instance().mutex_.unlock(); });
  }
  std::shared_ptr<const Keys> find(const Keys::Files& files) {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_)
      if (entry.process == getpid() && entry.files == files)
        if (auto keys = entry.keys.lock(); keys != nullptr) return keys;
    return nullptr;
  }
  void add(const Keys::Files& files, const std::shared_ptr<const Keys>& keys) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const Entry& entry) { return entry.keys.expired(); });
    entries_.push_back({getpid(), files, keys});
  }
  static InUse& instance() {
    static auto* const made = new InUse;  // connections may live while the process exits
    return *made;
  }

 private:
  struct Entry {
    pid_t process;
    Keys::Files files;
    std::weak_ptr<const Keys> keys;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace

void Keys::secure(Stream& stream, Side side) const {
  if (SocketAddress::local_of(stream.fd()).is_unix()) return;
  stream.tune({});  // a handshake is several small writes: waiting to fill a packet would cost 40 ms
  stream.secure(begin(side));
}

std::shared_ptr<const Keys> Keys::configured(const std::function<std::string(const char* key)>& setting) {
  const std::string peers = setting(kSettings[4]);
  const Files files = {setting(kSettings[0]), setting(kSettings[1]), setting(kSettings[2]),
                       setting(kSettings[3]), split_list(peers)};
  if (files.peers.empty() && !trimmed(peers).empty())
    fail(Status::kInvalidArgument, "secure.peers = \"{}\" names nobody", peers);
  if (files.none()) return nullptr;
  std::shared_ptr<const Keys> keys = InUse::instance().find(files);
  if (keys != nullptr) {
    keys->look();
  } else {
    keys = read(files);
    InUse::instance().add(files, keys);
  }
  return keys;
}

#if defined(TOWLINE_HAVE_OPENSSL)
namespace {

class OpenSslKeys final : public Keys {
 public:
  OpenSslKeys(const Files& files, uint64_t look_every_ns)
      : files_(files),
        look_every_ns_(look_every_ns),
        seen_(FilesLook::at(files)),
        plain_(seen_.plain()),
        looks_(plain_ && !lie_where_looking_may_wait(files)),
        next_look_ns_(monotonic_now_ns() + look_every_ns),
        current_(std::make_shared<const Credentials>(files)),
        text_(current_->describe()) {
    fresh_ = seen_.fresh(wall_now_ns());
    if (!looks_)
      TOWLINE_LOG(kInfo,
                  "{}: its files can't be looked at without waiting: changes are seen by new agents only",
                  text_);
  }

  void look() const override {
    const std::lock_guard lock(look_mutex_);
    if (plain_) look_again();
  }
  const std::string& describe() const noexcept override { return text_; }

 private:
  std::unique_ptr<StreamSession> begin(Side side) const override {
    return std::make_unique<Session>(current(), side);
  }

  std::shared_ptr<const Credentials> current() const {
    if (looks_) look_in_time();
    const std::lock_guard lock(mutex_);
    return current_;
  }

  // A worker does not wait for another thread's look, which may take as long as the file system.
  void look_in_time() const {
    const std::unique_lock lock(look_mutex_, std::try_to_lock);
    if (!lock) return;
    const uint64_t now_ns = monotonic_now_ns();
    if (now_ns < next_look_ns_) return;
    next_look_ns_ = now_ns + look_every_ns_;
    try {
      look_again();
    } catch (const Error& error) {
      if (complaint_ != error.message())
        TOWLINE_LOG(kWarning, "{}: the keys from before stay in use", error.message());
      complaint_ = error.message();
    } catch (const std::exception&) {  // no memory: the next look tries again
    }
  }

  // What it sees counts once it has been read: a look that fails is made again.
  void look_again() const {
    const FilesLook found = FilesLook::at(files_);
    if (found == seen_ && !fresh_) return;
    found.check_plain(files_);
    auto read = std::make_shared<const Credentials>(files_);
    if (found != seen_) TOWLINE_LOG(kInfo, "{}: its files have changed, and were read again", text_);
    fresh_ = found.fresh(wall_now_ns());
    seen_ = found;
    complaint_.clear();
    const std::lock_guard lock(mutex_);
    current_.swap(read);
  }

  static int64_t wall_now_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return int64_t{now.tv_sec} * static_cast<int64_t>(kSecondNs) + now.tv_nsec;
  }

  const Files files_;
  const uint64_t look_every_ns_;
  // Held while files are looked at and read; look() alone waits for it.
  mutable std::mutex look_mutex_;
  mutable FilesLook seen_;  // before they were read
  const bool plain_;
  const bool looks_;            // by itself
  mutable bool fresh_ = false;  // they may have changed since, though they look the same
  mutable uint64_t next_look_ns_;
  mutable std::string complaint_;  // that was logged
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Credentials> current_;
  const std::string text_;
};

}  // namespace

std::shared_ptr<const Keys> Keys::read(const Files& files, uint64_t look_every_ns) {
  return std::make_shared<OpenSslKeys>(files, look_every_ns);
}
#else
std::shared_ptr<const Keys> Keys::read(const Files&, uint64_t) {
  fail(Status::kUnsupported, "secure.*: this Towline was built without OpenSSL's headers, so it has no TLS");
}
#endif

}  // namespace towline::secure
