#include "storage/hf3fs/hf3fs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/copy/copy.h"
#include "base/error.h"
#include "storing/calls/pool_settings.h"
#include "towline/plugin/backend.hpp"

namespace towline::hf3fs {

namespace {

constexpr const char* kLibrary = "libhf3fs_api_shared.so";
constexpr uint32_t kMostBatch = 512;
constexpr size_t kMostMountPoint = 255;

std::string read_mount_point(const plugin::Host& host) {
  std::string mount_point = host.config("hf3fs.mount_point", "/mnt/3fs");
  while (mount_point.size() > 1 && mount_point.ends_with('/')) mount_point.pop_back();
  if (mount_point.empty() || mount_point.size() > kMostMountPoint)
    throw plugin::Failure(Status::kInvalidArgument, "hf3fs.mount_point: expected a path of 1 to 255 bytes");
  return mount_point;
}

void* pointer_of(uint64_t address) noexcept { return reinterpret_cast<void*>(address); }

}  // namespace

Hf3fs::Hf3fs(const plugin::Host& host)
    : pool_(calls::read_pool_settings(host, kNames.backend, kMostBatch, "16", "1MiB")),
      mount_point_(read_mount_point(host)),
      api_(Api::load(host.config("hf3fs.library", kLibrary))) {}

uint32_t Hf3fs::kinds() const noexcept { return plugin::kinds(TOWLINE_MEMORY_DRAM); }

std::unique_ptr<calls::Caller> Hf3fs::make_caller() {
  return std::make_unique<Hf3fsCaller>(
      api_, CallerSettings{mount_point_, 2 * pool_.batch, pool_.batch * pool_.piece_bytes});
}

void* Hf3fs::attach(const calls::PlainFile& file) {
  const int result = api_.register_fd(file.fd(), 0);
  if (result > 0)
    throw plugin::Failure(
        status_from_errno(result),
        fmt::format("hf3fs: {} is not taken by the 3FS client: {}", file.path(), errno_text(result)));
  return nullptr;
}

void Hf3fs::detach(const calls::PlainFile& file, void*) noexcept { api_.deregister_fd(file.fd()); }

// ---- a thread's caller

Hf3fsCaller::Hf3fsCaller(const Api& api, CallerSettings settings)
    : api_(api), settings_(std::move(settings)) {
  completions_.resize(settings_.entries);
  const int error = open();
  if (error == 0) return;
  close();  // the destructor will not run
  throw plugin::Failure(status_from_errno(error),
                        fmt::format("hf3fs: the 3FS client at {} gives no rings: {} (hf3fs.mount_point)",
                                    settings_.mount_point, errno_text(error)));
}

Hf3fsCaller::~Hf3fsCaller() { close(); }

int Hf3fsCaller::open() noexcept {
  const char* const mount_point = settings_.mount_point.c_str();
  const auto ring = [&](std::optional<Ior>& into, bool for_read) {
    Ior made = {};
    const int result =
        api_.ior_create(&made, mount_point, static_cast<int>(settings_.entries), for_read, 0, -1);
    if (result >= 0) into = made;
    return -result;
  };
  if (!shared_) {
    Iov made = {};
    if (const int result = api_.iov_create(&made, mount_point, settings_.bytes, 0, -1); result < 0)
      return -result;
    shared_ = made;
  }
  int error = reads_ ? 0 : ring(reads_, true);
  if (error <= 0) error = writes_ ? 0 : ring(writes_, false);
  return std::max(error, 0);
}

void Hf3fsCaller::close() noexcept {
  if (reads_) api_.ior_destroy(&*reads_);
  if (writes_) api_.ior_destroy(&*writes_);
  if (shared_) api_.iov_destroy(&*shared_);
  reads_.reset();
  writes_.reset();
  shared_.reset();
}

size_t Hf3fsCaller::fits(std::span<const calls::Piece> pieces) const noexcept {
  uint64_t bytes = 0;
  size_t count = 0;
  while (count < pieces.size() && count < settings_.entries && bytes + pieces[count].bytes <= settings_.bytes)
    bytes += pieces[count++].bytes;
  return count;
}

void Hf3fsCaller::move(bool write, std::span<calls::Piece> pieces) noexcept {
  while (!pieces.empty()) {
    if (const int error = open(); error != 0) {
      for (calls::Piece& piece : pieces) piece.result = -error;
      return;
    }
    const auto some = pieces.first(std::max<size_t>(fits(pieces), 1));
    move_some(write, some);
    pieces = pieces.subspan(some.size());
  }
}

void Hf3fsCaller::move_some(bool write, std::span<calls::Piece> pieces) noexcept {
  Ior& ring = write ? *writes_ : *reads_;
  uint8_t* at = shared_->base;
  int error = 0;
  for (calls::Piece& piece : pieces) {
    piece.result = -EINPROGRESS;
    if (write) copy_bytes(at, pointer_of(piece.memory), piece.bytes);
    const int index =
        api_.prepare(&ring, &*shared_, !write, at, piece.file->fd(), piece.offset, piece.bytes, &piece);
    if (index < 0) {
      error = -index;
      break;
    }
    at += piece.bytes;
  }
  if (error == 0) error = std::max(-api_.submit(&ring), 0);
  const bool whole = error == 0 && await(ring, pieces);
  at = shared_->base;
  for (calls::Piece& piece : pieces) {
    if (!write && piece.result > 0)
      copy_bytes(pointer_of(piece.memory), at, static_cast<size_t>(piece.result));
    at += piece.bytes;
    if (piece.result == -EINPROGRESS) piece.result = error != 0 ? -error : -EIO;
  }
  // Requests may be left in it, which would end among those of later pieces.
  if (!whole) close();
}

bool Hf3fsCaller::await(const Ior& ring, std::span<calls::Piece> pieces) noexcept {
  for (size_t left = pieces.size(); left != 0;) {
    const int count = api_.wait(&ring, completions_.data(), static_cast<int>(left), 1, nullptr);
    if (count <= 0) return false;
    for (size_t i = 0; i < std::min<size_t>(static_cast<size_t>(count), left); ++i) {
      const Completion& completion = completions_[i];
      auto* const piece = static_cast<calls::Piece*>(const_cast<void*>(completion.userdata));
      const bool ours = piece >= pieces.data() && piece < pieces.data() + pieces.size();
      if (!ours || piece->result != -EINPROGRESS) return false;
      piece->result = std::min<int64_t>(completion.result, static_cast<int64_t>(piece->bytes));
    }
    left -= std::min<size_t>(static_cast<size_t>(count), left);
  }
  return true;
}

}  // namespace towline::hf3fs
