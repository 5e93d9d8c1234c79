#include "transports/cuda/detour_owner.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "transports/cuda/backend.h"
#include "transports/cuda/connection.h"

namespace towline::cuda {

namespace {

constexpr uint64_t kMostPoolBytes = 1 << 30;

}  // namespace

DetourOwner::DetourOwner(Backend& backend, Connection& connection, const uint64_t incarnation[2])
    : backend_(backend),
      connection_(connection),
      incarnation_{incarnation[0], incarnation[1]},
      requests_(kDetourSlots) {}

std::shared_ptr<PieceCopier> DetourOwner::copier(std::optional<uint32_t> gpu, bool to_owner) {
  auto& mine = copiers_[{gpu ? int64_t{*gpu} : -1, to_owner}];
  if (mine == nullptr && !gpu) mine = std::make_shared<PieceCopier>(backend_.team(), to_owner);
  if (mine == nullptr)
    mine = std::make_shared<PieceCopier>(backend_.device(), *gpu, backend_.settings().after_default_stream,
                                         backend_.settings().host_blocks);
  return mine;
}

void DetourOwner::on_move(std::span<const uint8_t> message) noexcept try {
  if (down_) return;
  const auto free = std::find_if(requests_.begin(), requests_.end(),
                                 [](const Request& request) { return request.stage == Stage::kFree; });
  if (free == requests_.end()) {
    backend_.host().log(1, "a peer asks for more at once than it may; ignored");
    return;
  }
  if (!decode(message, free->move, free->stretches)) {
    backend_.host().log(1, "a peer asks for what makes no sense; ignored");
    return;
  }
  free->stage = Stage::kAsked;
} catch (const std::exception& error) {
  backend_.host().log(0, std::string("a peer's request is lost: ") + error.what());
}

Status DetourOwner::reach_pool(const PoolName& name, std::string& text) {
  if (pool_ && pool_->name != name) fail(Status::kProtocol, "cuda: the asker's host memory has changed");
  if (name.bytes == 0 || name.bytes > kMostPoolBytes)
    fail(Status::kProtocol, "cuda: the asker's host memory is {} bytes", name.bytes);
  if (!pool_) {
    pool_.emplace();
    pool_->name = name;
    pool_->request = std::make_unique<MemoryRequest>(backend_.host(), connection_.worker());
  }
  if (pool_->request == nullptr) return pool_->mapping.valid() ? Status::kOk : Status::kUnreachable;
  towline_region_ref region{};
  region.key = name.key;
  region.address = name.address;
  region.bytes = name.bytes;
  if (!pool_->started) {
    const Status status = pool_->request->start(incarnation_, name.key, text);
    if (status != Status::kOk) return status;
    pool_->started = true;
  }
  if (const Status status = pool_->request->step(region, text); status != Status::kOk) return status;
  const Shared part = std::move(pool_->request->parts().front());
  pool_->request.reset();
  if (part.sharing != Sharing::kHostFile || part.address != name.address || part.bytes != name.bytes)
    fail(Status::kProtocol, "cuda: what the asker shares is not what it named");
  require_sealed(part.fd.get(), part.file_offset + part.bytes);
  pool_->skip = part.file_offset % kHostPage;
  pool_->mapping = Mapping::map_shared(part.fd.get(), pool_->skip + part.bytes, MapAccess::kReadWrite,
                                       part.file_offset - pool_->skip);
  return Status::kOk;
}

// Neighbours in one region are pinned by one call over all they span: the span lies inside exactly when each
// of them does.
void DetourOwner::pin(Request& request) {
  const std::vector<Stretch>& all = request.stretches;
  request.pins.reserve(all.size());
  for (size_t i = 0; i < all.size();) {
    uint64_t low = all[i].address;
    uint64_t high = low + all[i].bytes;
    size_t end = i + 1;
    for (; end < all.size() && all[end].key == all[i].key; ++end) {
      low = std::min(low, all[end].address);
      high = std::max(high, all[end].address + all[end].bytes);
    }
    void* pointer = nullptr;
    void* held = nullptr;
    const int32_t status = backend_.host().pin(
        all[i].key, low, high - low, request.move.to_owner ? TOWLINE_ACCESS_WRITE : TOWLINE_ACCESS_READ,
        &pointer, &held);
    if (status != TOWLINE_OK)
      fail(status < 0 ? static_cast<Status>(status) : Status::kInternal,
           "cuda: {} bytes at {:#x} of the region with key {:#x} are not for this peer", high - low, low,
           all[i].key);
    request.pins.push_back(held);
    i = end;
  }
}

void DetourOwner::begin(Request& request, uint32_t slot) {
  if (backend_.settings().detour == DetourUse::kNever)
    fail(Status::kPermissionDenied, "cuda: through_host is \"never\" at the memory's owner");
  pin(request);
  std::optional<uint32_t> gpu;
  uint64_t last_key = 0;
  for (size_t i = 0; i < request.stretches.size(); ++i) {
    const Stretch& stretch = request.stretches[i];
    if (i != 0 && stretch.key == last_key) continue;
    last_key = stretch.key;
    const std::optional<uint32_t> on = backend_.gpu_of(stretch.key);
    if (i == 0) gpu = on;
    if (on != gpu) fail(Status::kProtocol, "cuda: a request is for memory of several GPUs");
    if (!gpu) continue;
    const Allocation found = backend_.device().look_up(stretch.address);
    if (found.where != Where::kGpu || found.gpu != *gpu)
      fail(Status::kStale, "cuda: there is no GPU memory at {:#x} any more (freed, unmapped or put to sleep)",
           stretch.address);
  }
  uint64_t pool = reinterpret_cast<uint64_t>(pool_->mapping.address());
  if (gpu && pool_->pinned == nullptr) pool_->pinned = backend_.device().pin(pool, pool_->mapping.bytes());
  if (gpu) pool += pool_->pinned->delta();
  pool += pool_->skip + request.move.offset;
  request.copier = copier(gpu, request.move.to_owner);
  request.copier->clear(slot);
  for (const Stretch& stretch : request.stretches) {
    if (request.move.to_owner)
      request.copier->add(slot, stretch.address, pool, stretch.bytes);
    else
      request.copier->add(slot, pool, stretch.address, stretch.bytes);
    pool += stretch.bytes;
  }
  if (const Code code = request.copier->start(slot); code != 0)
    return answer(request, Status::kIo, code,
                  "starting a copy at the memory's owner failed: " + backend_.device().code_text(code));
  request.stage = Stage::kMoving;
}

void DetourOwner::answer(Request& request, Status status, int32_t code, std::string_view text) noexcept {
  let_go(request);
  request.answer.number = request.move.number;
  request.answer.status = status;
  request.answer.code = code;
  try {
    request.answer.text = text;
  } catch (const std::bad_alloc&) {
    request.answer.text.clear();
  }
  request.stage = Stage::kAnswered;
}

void DetourOwner::let_go(Request& request) noexcept {
  for (void* pin : request.pins) backend_.host().unpin(pin);
  request.pins.clear();
}

uint32_t DetourOwner::advance(Request& request, uint32_t slot, uint64_t now_ns) noexcept try {
  switch (request.stage) {
    case Stage::kFree:
      return 0;
    case Stage::kAsked: {
      std::string text;
      const Status status = reach_pool(request.move.pool, text);
      if (status == Status::kAgain) return 0;
      if (status != Status::kOk)
        answer(request, status, 0, "cuda: the asker's host memory: " + text);
      else
        begin(request, slot);
      return 1;
    }
    case Stage::kMoving: {
      const Code code = request.copier->look(slot, now_ns);
      if (code == CopyQueue::kBusy) return 0;
      if (code == 0) {
        uint64_t bytes = 0;
        for (const Stretch& stretch : request.stretches) bytes += stretch.bytes;
        connection_.served(request.move.to_owner ? TOWLINE_SERVED_WRITE : TOWLINE_SERVED_READ, bytes);
        answer(request, Status::kOk, 0, {});
      } else {
        answer(request, Status::kIo, code,
               "a copy at the memory's owner failed: " + backend_.device().code_text(code));
      }
      break;
    }
    case Stage::kAnswered:
      break;
  }
  if (down_) {
    request.stage = Stage::kFree;
    return 1;
  }
  encode(request.answer, message_);
  if (connection_.send_beside(message_) == TOWLINE_AGAIN) return 0;
  request.stage = Stage::kFree;
  return 1;
} catch (const core::Error& error) {
  answer(request, error.code(), 0, error.message());
  return 1;
} catch (const std::exception& error) {
  answer(request, Status::kInternal, 0, error.what());
  return 1;
}

uint32_t DetourOwner::progress(uint64_t now_ns) noexcept {
  uint32_t done = 0;
  for (uint32_t slot = 0; slot < requests_.size(); ++slot) done += advance(requests_[slot], slot, now_ns);
  return done;
}

bool DetourOwner::busy() const noexcept {
  // Waiting for the asker's memory, a packet wakes us, but for the attempt to ask.
  const bool asked = pool_ && pool_->request != nullptr && pool_->started;
  return std::any_of(requests_.begin(), requests_.end(), [asked](const Request& request) {
    return request.stage != Stage::kFree && !(request.stage == Stage::kAsked && asked);
  });
}

DetourOwner::~DetourOwner() {
  for (auto& [which, copier] : copiers_) copier->drain();
  for (Request& request : requests_) let_go(request);
}

void DetourOwner::call_off() noexcept {
  down_ = true;
  for (Request& request : requests_)
    if (request.stage != Stage::kMoving) request.stage = Stage::kFree;
}

bool DetourOwner::settled() const noexcept {
  return std::all_of(requests_.begin(), requests_.end(),
                     [](const Request& request) { return request.stage == Stage::kFree; });
}

}  // namespace towline::cuda
