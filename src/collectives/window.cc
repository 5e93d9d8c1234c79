#include "collectives/window.h"

#include <cstring>

#include "base/copy/copy.h"
#include "base/error.h"

namespace towline::collectives {
namespace {

// Steps of the headers; steps within a host count from 0.
constexpr uint8_t kOffers = 16;
constexpr uint8_t kProblems = 32;
constexpr uint8_t kAllClosed = 48;

}  // namespace

Window::Window(CpuBackend& backend, void* address, uint64_t bytes, uint64_t number, Deadline deadline)
    : backend_(backend) {
  std::string problem;
  try {
    here_ = std::make_unique<ShmWindow>(backend, address, bytes, number, deadline);
  } catch (const Error& error) {
    if (backend.one_host()) throw;
    problem = error.message();
  }
  if (!backend.one_host()) reach_other_hosts(std::move(problem), number, deadline);
}

void Window::reach_other_hosts(std::string problem, uint64_t number, Deadline deadline) {
  const auto size = static_cast<size_t>(backend_.size());
  far_ = AgentWindow::open_all(
      std::move(problem),
      [&] {
        const int me = backend_.rank();
        return std::make_unique<AgentWindow>(backend_.window_agent(false), backend_.breaker(),
                                             static_cast<size_t>(me), size,
                                             AgentWindow::Memory{address(me), bytes(me)});
      },
      [&](size_t rank) { return backend_.index_here(static_cast<int>(rank)) < 0; },
      [&](int round, std::span<const uint8_t> mine) {
        std::vector<std::vector<uint8_t>> all;
        const Header header = window_header(kOpenWindowOp, number, round == 0 ? kOffers : kProblems);
        const Status status = backend_.exchange(header, mine.data(), mine.size(), all, deadline);
        if (is_error(status)) fail(status, "{}", backend_.breaker().breakage().text);
        return all;
      });
}

void Window::close(uint64_t number, Deadline deadline) {
  Status status = Status::kOk;
  if (far_ == nullptr) {
    status = here_->close(number, deadline);
  } else {
    std::vector<std::vector<uint8_t>> none;
    status = backend_.exchange(window_header(kCloseWindowOp, number, kAllClosed), nullptr, 0, none, deadline);
  }
  if (is_error(status)) fail(status, "{}", backend_.breaker().breakage().text);
  std::string why;
  if (far_ != nullptr && far_->close(deadline, why) != Status::kOk)
    fail(Status::kTimedOut, "the window's memory is still in use: {}", why);
}

void* Window::address(int rank) const noexcept {
  const int index = backend_.index_here(rank);
  return index < 0 ? nullptr : here_->address(index);
}

uint64_t Window::bytes(int rank) const noexcept {
  const int index = backend_.index_here(rank);
  return index < 0 ? far_->bytes(static_cast<size_t>(rank)) : here_->bytes(index);
}

Status Window::put(int rank, uint64_t offset, const void* from, uint64_t bytes) {
  void* const there = address(rank);
  if (backend_.index_here(rank) < 0) return far_->put(static_cast<size_t>(rank), offset, from, bytes);
  copy_bytes(static_cast<uint8_t*>(there) + offset, from, bytes);
  return Status::kOk;
}

Status Window::get(int rank, uint64_t offset, void* to, uint64_t bytes) {
  const void* const there = address(rank);
  if (backend_.index_here(rank) < 0) return far_->get(static_cast<size_t>(rank), offset, to, bytes);
  copy_bytes(to, static_cast<const uint8_t*>(there) + offset, bytes);
  return Status::kOk;
}

Status Window::signal(int rank) {
  const int index = backend_.index_here(rank);
  if (index < 0) return far_->signal(static_cast<size_t>(rank));
  here_->signal(index);
  return Status::kOk;
}

Status Window::wait_signal(int rank, Deadline deadline) noexcept {
  const int index = backend_.index_here(rank);
  return index < 0 ? far_->wait_signal(static_cast<size_t>(rank), deadline)
                   : here_->wait_signal(index, deadline);
}

}  // namespace towline::collectives
