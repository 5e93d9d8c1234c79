#include "storage/gds/gds.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "gpu/driver.h"
#include "storing/calls/pool_settings.h"
#include "towline/plugin/backend.hpp"

namespace towline::gds {

namespace {

constexpr const char* kLibrary = "libcufile.so.0";
// cuFile's batches have at most 128 entries, and a list of pieces up to twice a batch.
constexpr uint32_t kMostBatch = 64;
constexpr int64_t kMostErrno = 4095;

Mode read_mode(const plugin::Host& host) {
  const std::string value = host.config("tuning.gds.mode", "auto");
  if (value == "auto") return Mode::kAuto;
  if (value == "batch") return Mode::kBatch;
  if (value == "calls") return Mode::kCalls;
  throw plugin::Failure(Status::kInvalidArgument,
                        fmt::format("tuning.gds.mode = \"{}\": expected auto, batch or calls", value));
}

Api load(const plugin::Host& host) {
  const std::string file = host.config("gds.library", kLibrary);
  // Some versions of the library look for their driver in it, and never return where it is missing.
  if (file == kLibrary && ::access("/proc/modules", R_OK) != 0)
    throw plugin::Failure(Status::kUnsupported, "gds: cuFile needs /proc/modules, which can't be read here");
  return Api::load(file);
}

std::string text_of(const Error& error) {
  return error.code == kCudaError ? fmt::format("cuFile's error {}, CUDA's error {}", error.code, error.cuda)
                                  : fmt::format("cuFile's error {}", error.code);
}

// While it lives, the GPU's context is the thread's.
class Entered {
 public:
  Entered(std::map<uint32_t, cuda::driver::Context>& known, const calls::Piece& piece) {
    if (piece.kind != TOWLINE_MEMORY_VRAM) return;
    auto found = known.find(piece.device);
    if (found == known.end()) {
      cuda::nvidia_device().start();  // this plugin's own: the backend cuda started another
      found = known.emplace(piece.device, cuda::nvidia_context(piece.device)).first;
    }
    pushed_ = cuda::nvidia_api().context_push(found->second) == 0;
  }
  ~Entered() {
    cuda::driver::Context left = nullptr;
    if (pushed_) (void)cuda::nvidia_api().context_pop(&left);
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace

Gds::Gds(const plugin::Host& host)
    : host_(host),
      pool_(calls::read_pool_settings(host, kNames.backend, kMostBatch, "32", "16MiB")),
      mode_(read_mode(host)),
      api_(load(host)) {
  // The driver stays open for good: others in the process may use it as well.
  const Error opened = api_.driver_open();
  if (opened.code != 0 && opened.code != kAlreadyOpen) {
    throw plugin::Failure(Status::kUnsupported,
                          fmt::format("gds: cuFile does not start: {}; without NVIDIA's nvidia-fs driver "
                                      "it needs allow_compat_mode in cufile.json",
                                      text_of(opened)));
  }
}

uint32_t Gds::kinds() const noexcept { return plugin::kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM); }

std::unique_ptr<calls::Caller> Gds::make_caller() {
  return std::make_unique<GdsCaller>(api_, mode_, 2 * pool_.batch);
}

void* Gds::attach(const calls::PlainFile& file) {
  Description description{.type = kDescriptor, .of = {.handle = nullptr}, .operations = nullptr};
  description.of.fd = file.fd();
  Handle handle = nullptr;
  const Error error = api_.handle_register(&handle, &description);
  if (error.code != 0)
    throw plugin::Failure(Status::kUnsupported,
                          fmt::format("gds: cuFile does not take {}: {}", file.path(), text_of(error)));
  return handle;
}

void Gds::detach(const calls::PlainFile&, void* handle) noexcept { api_.handle_deregister(handle); }

// Memory that cuFile can't register goes through buffers of its own.
bool Gds::add_memory(const towline_region_ref& region) noexcept try {
  const auto gpu = static_cast<uint32_t>(region.device);
  const calls::Piece piece{.kind = region.kind, .device = gpu};
  std::map<uint32_t, cuda::driver::Context> contexts;
  const Entered entered(contexts, piece);
  const Error error = api_.buffer_register(reinterpret_cast<const void*>(region.address), region.bytes, 0);
  if (error.code != 0)
    host_.log(2, fmt::format("gds: cuFile moves {} bytes of GPU {} through buffers of its own: {}",
                             region.bytes, gpu, text_of(error)));
  return error.code == 0;
} catch (const std::exception& error) {
  host_.log(1, std::string("gds: registering memory: ") + error.what());
  return false;
}

void Gds::remove_memory(const towline_region_ref& region) noexcept {
  (void)api_.buffer_deregister(reinterpret_cast<const void*>(region.address));
}

// ---- a thread's caller

GdsCaller::GdsCaller(const Api& api, Mode mode, uint32_t entries)
    : api_(api), mode_(mode), entries_(entries) {
  requests_.resize(entries);
  events_.resize(entries);
  if (mode == Mode::kBatch && !have_batch())
    throw plugin::Failure(Status::kUnsupported, "gds: cuFile makes no batch (tuning.gds.mode = \"batch\")");
}

GdsCaller::~GdsCaller() { drop_batch(); }

bool GdsCaller::have_batch() noexcept {
  if (batch_ != nullptr) return true;
  if (refuses_batches_) return false;
  if (api_.batch_set_up(&batch_, entries_).code == 0) return true;
  batch_ = nullptr;
  refuses_batches_ = true;
  return false;
}

void GdsCaller::drop_batch() noexcept {
  if (batch_ != nullptr) api_.batch_destroy(batch_);
  batch_ = nullptr;
}

void GdsCaller::move(bool write, std::span<calls::Piece> pieces) noexcept {
  while (!pieces.empty()) {
    const calls::Piece& first = pieces.front();
    const auto other = std::find_if(pieces.begin(), pieces.end(), [&](const calls::Piece& piece) {
      return piece.kind != first.kind || piece.device != first.device;
    });
    const auto alike = static_cast<size_t>(other - pieces.begin());
    move_alike(write, pieces.first(alike));
    pieces = pieces.subspan(alike);
  }
}

void GdsCaller::move_alike(bool write, std::span<calls::Piece> pieces) noexcept try {
  const Entered entered(contexts_, pieces.front());
  const bool batch = mode_ == Mode::kBatch || (mode_ == Mode::kAuto && pieces.size() > 1);
  while (batch && !pieces.empty() && have_batch()) {
    const auto some = pieces.first(std::min<size_t>(pieces.size(), entries_));
    if (!move_batch(write, some)) break;
    pieces = pieces.subspan(some.size());
  }
  for (calls::Piece& piece : pieces) move_alone(write, piece);
} catch (const std::exception&) {  // the GPU's context can't be had
  for (calls::Piece& piece : pieces) piece.result = -EIO;
}

void GdsCaller::move_alone(bool write, calls::Piece& piece) const noexcept {
  void* const memory = reinterpret_cast<void*>(piece.memory);
  const auto offset = static_cast<off_t>(piece.offset);
  errno = 0;
  const ssize_t moved = write ? api_.write(piece.handle, memory, piece.bytes, offset, 0)
                              : api_.read(piece.handle, memory, piece.bytes, offset, 0);
  piece.result = moved;
  if (moved >= 0) return;
  // -1 comes with an errno, other numbers are cuFile's own.
  piece.result = moved == -1 && errno != 0 ? -errno : -EIO;
  piece.code = moved < -1 ? static_cast<int32_t>(-moved) : 0;
}

bool GdsCaller::move_batch(bool write, std::span<calls::Piece> pieces) noexcept {
  for (size_t i = 0; i < pieces.size(); ++i) {
    calls::Piece& piece = pieces[i];
    piece.result = -EINPROGRESS;
    requests_[i] = {.mode = kBatchMode,
                    .of = {.base = reinterpret_cast<void*>(piece.memory),
                           .file_offset = static_cast<off_t>(piece.offset),
                           .base_offset = 0,
                           .bytes = piece.bytes},
                    .handle = piece.handle,
                    .operation = write ? kWrite : kRead,
                    .cookie = &piece};
  }
  if (api_.batch_submit(batch_, static_cast<unsigned>(pieces.size()), requests_.data(), 0).code != 0) {
    // Some versions refuse only when it comes to moving.
    drop_batch();
    refuses_batches_ = mode_ != Mode::kBatch;
    if (mode_ != Mode::kBatch) return false;
    for (calls::Piece& piece : pieces) piece.result = -EIO;
    return true;
  }
  collect(pieces);
  return true;
}

void GdsCaller::collect(std::span<calls::Piece> pieces) noexcept {
  size_t left = pieces.size();
  while (left != 0) {
    auto count = static_cast<unsigned>(left);
    if (api_.batch_status(batch_, 1, &count, events_.data(), nullptr).code != 0) {
      // Nothing of these may be touched afterwards, whatever has become of them.
      (void)api_.batch_cancel(batch_);
      drop_batch();
      break;
    }
    const size_t told = std::min<size_t>(count, left);
    for (size_t i = 0; i < told; ++i) {
      const Event& event = events_[i];
      auto* const piece = static_cast<calls::Piece*>(event.cookie);
      const bool ours = piece >= pieces.data() && piece < pieces.data() + pieces.size();
      if (!ours || piece->result != -EINPROGRESS || event.status == kPending) continue;
      const auto moved = static_cast<int64_t>(event.bytes);
      // A failure comes with cuFile's own number or with an errno; -1 is neither.
      const bool complete = event.status == kComplete && moved >= 0;
      piece->result = complete || (moved < -1 && moved >= -kMostErrno) ? moved : -EIO;
      if (event.status != kComplete && -moved > kBaseError) piece->code = static_cast<int32_t>(-moved);
      --left;
    }
  }
  for (calls::Piece& piece : pieces) {
    if (piece.result == -EINPROGRESS) piece.result = -EIO;
  }
}

}  // namespace towline::gds
