// One thread, one loop, many coroutines: a decode agent pulls the pages of each request that a prefill agent announces.
// Both are in this process, as they would be on two hosts.
#include <poll.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <towline/await.hpp>

using namespace std::chrono_literals;

namespace {

constexpr uint64_t kPages = 64;
constexpr uint64_t kPageBytes = 16384;
constexpr uint64_t kReady = 1;  // the tag of announcements
constexpr int kRequests = 8;

// A coroutine that starts at once and frees itself.
struct Task {
  struct promise_type {
    Task get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() { std::terminate(); }
  };
};

Task serve_request(towline::Awaits& waits, towline::Plan pull, uint64_t page, int& served) {
  const towline::Range block{page, 1, 1};
  const towline::Finished done = co_await waits.finished(pull, {.from = block, .to = block, .deadline = 10s});
  if (done.status != towline::Status::kOk)
    std::fprintf(stderr, "page %d: %s\n", static_cast<int>(page), done.error.c_str());
  ++served;
}

Task decode_worker(towline::Awaits& waits, const towline::Agent& decode, std::string address,
                   const towline::BlockList& mine, int& served) {
  const towline::Peer prefill = co_await waits.connect(std::move(address), 10s);
  const towline::Plan pull = decode.plan(prefill.region("kv").list(), mine);
  for (int request = 0; request < kRequests; ++request) {
    const towline::Event ready = co_await waits.notice();
    uint64_t page = 0;
    std::memcpy(&page, ready.data, sizeof page);
    serve_request(waits, pull, page, served);  // while the next one is waited for
  }
}

}  // namespace

int main() try {
  const towline::Agent prefill{"prefill-0"};
  const towline::Agent decode{"decode-0"};
  const towline::Memory produced{kPages * kPageBytes};
  const towline::Memory cache{kPages * kPageBytes};
  const towline::Region kv = prefill.register_memory(
      towline::dram(produced),
      {.access = towline::Access::kRead, .name = "kv", .layout = towline::paged(1, kPages, kPageBytes)});
  const towline::Region its_kv = decode.register_memory(towline::dram(cache));
  const towline::BlockList mine =
      decode.block_list(towline::Blocks::at(cache.data(), kPageBytes).repeat(kPages, kPageBytes));

  towline::Awaits waits{decode};
  waits.queue().subscribe(kReady);
  int served = 0;
  decode_worker(waits, decode, std::string(prefill.address()), mine, served);

  const towline::Peer worker = prefill.connect(decode.address());
  for (uint64_t request = 0; request < kRequests; ++request) {
    const uint64_t page = 7 * request;
    std::memset(produced.data() + page * kPageBytes, static_cast<int>(request + 1), kPageBytes);
    while (send_tagged(worker, kReady, {reinterpret_cast<const std::byte*>(&page), sizeof page}) ==
           towline::Status::kAgain)
      (void)prefill.progress();
  }
  while (served < kRequests) {  // stands for the program's own loop: epoll, libuv ..
    pollfd ready{waits.fd(), POLLIN, 0};
    if (::poll(&ready, 1, 10'000) != 1) throw std::runtime_error("nothing happens");
    (void)waits.tell();
  }
  const std::byte last = cache.data()[7 * (kRequests - 1) * kPageBytes];
  std::printf("%d requests served, the last page begins with %d\n", served, static_cast<int>(last));
  return last == std::byte{kRequests} ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
