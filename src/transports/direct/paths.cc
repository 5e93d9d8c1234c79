#include "transports/direct/paths.h"

#include <fmt/format.h>

#include "base/sync/wake_path.h"

namespace towline::direct {

TOWLINE_WAKE_PATH uint32_t Paths::run_framed(uint64_t now_ns) noexcept {
  in_framed_ = true;
  const uint32_t done = framed_->progress(now_ns);
  in_framed_ = false;
  return done;
}

int32_t Paths::prepare_framed(const towline_prepare_args& args, Prepared& prepared) {
  if (const int32_t status = framed_->prepare(args, &prepared.framed); status != TOWLINE_OK) return status;
  prepared.flags = prepared.framed->flags & ~static_cast<uint32_t>(TOWLINE_PREPARED_CONCURRENT);
  return TOWLINE_OK;
}

TOWLINE_WAKE_PATH int32_t Paths::send(bool up, const void* message, size_t bytes) noexcept {
  if (!up) return static_cast<int32_t>(framed_ == nullptr ? Status::kAgain : Status::kPeerLost);
  return framed_->send(message, bytes);
}

bool Paths::fail(Status status, const char* text) noexcept {
  jobs_.close(Status::kPeerLost);
  if (framed_ == nullptr) return false;
  framed_->fail(status, text);  // reports it
  return true;
}

void Paths::close() noexcept {
  jobs_.close(Status::kClosed);
  if (!in_framed_) close_framed();
}

std::string Paths::describe() const {
  return fmt::format(R"("queued_copies": {}, "ring": {})", jobs_.queued(),
                     framed_ == nullptr ? "{}" : framed_->describe());
}

}  // namespace towline::direct
