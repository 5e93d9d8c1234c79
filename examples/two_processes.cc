// A prefill and a decode process, each with one event queue. Prefill fills pages of its cache and says which; decode pulls
// them, in all layers at once, while further requests come. The notice that follows the last byte of a request tells
// prefill that its pages are free again.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <towline/queue.hpp>

using namespace std::chrono_literals;

namespace {

constexpr uint64_t kLayers = 8;
constexpr uint64_t kPages = 128;
constexpr uint64_t kPageBytes = 16384;
constexpr uint64_t kCacheBytes = kLayers * kPages * kPageBytes;
constexpr uint32_t kRequests = 5;
enum Tag : uint64_t { kHello = 1, kReady, kTaken };

struct Request {
  uint32_t number;
  std::array<uint32_t, 3> pages;
};

// A named region of this shape, so that the other process finds pages by their numbers.
towline::Region register_cache(const towline::Agent& agent, const towline::Memory& cache,
                               towline::Access access) {
  return agent.register_memory(
      towline::dram(cache),
      {.access = access, .name = "kv", .layout = towline::paged(kLayers, kPages, kPageBytes)});
}

std::byte* page_of(const towline::Memory& cache, uint64_t layer, uint64_t page) {
  return cache.data() + (layer * kPages + page) * kPageBytes;
}

// The content of a request's page.
std::byte mark(uint32_t request, uint64_t layer, size_t position) {
  return static_cast<std::byte>(request * 31 + layer * 3 + position + 1);
}

// Stands for the process's own loop: epoll, libuv ..
void serve(const towline::Queue& queue, const std::function<bool()>& over,
           const std::function<void(towline::Event&)>& handle) {
  while (!over()) {
    pollfd ready{queue.fd(), POLLIN, 0};
    if (::poll(&ready, 1, 30'000) != 1)
      throw towline::Error{towline::Status::kTimedOut, "nothing has happened for 30 s"};
    for (towline::Event& event : queue.ready()) handle(event);
  }
}

void announce(const towline::Memory& cache, const towline::Peer& decode) {
  for (uint32_t number = 0; number < kRequests; ++number) {
    const Request request{number, {5 + number, 40 + 2 * number, 77 + number}};
    for (uint64_t layer = 0; layer < kLayers; ++layer)
      for (size_t i = 0; i < request.pages.size(); ++i)
        std::memset(page_of(cache, layer, request.pages[i]), static_cast<int>(mark(number, layer, i)),
                    kPageBytes);
    const towline::Status sent = towline::send_tagged(decode, kReady, {&request, sizeof request});
    if (is_error(sent)) throw towline::Error{sent, std::string{towline::last_error()}};
  }
}

int prefill(int address_pipe) {
  const towline::Memory cache{kCacheBytes};
  const towline::Agent agent{"prefill"};
  const towline::Region kv = register_cache(agent, cache, towline::Access::kRead);
  const towline::Queue queue{agent};
  queue.subscribe(kHello);
  queue.subscribe(kTaken);
  const std::string address = agent.address();
  if (write(address_pipe, address.data(), address.size()) < 0) return 1;
  close(address_pipe);

  uint32_t taken = 0;
  serve(
      queue, [&] { return taken == kRequests; },
      [&](towline::Event& event) {
        if (event.tag == kHello) return announce(cache, queue.peer(event));
        ++taken;
        std::printf("prefill: '%s', its pages are free again\n", std::string{event.text()}.c_str());
      });
  return 0;
}

// A request that is pulled into three pages of this process's cache.
struct Pull {
  Request request;
  std::array<uint32_t, 3> to;
};

class Decode {
 public:
  // Connecting is an event like everything else.
  int run(const std::string& address) {
    queue_.subscribe(kReady);
    queue_.connect(address, 30s, nullptr);
    serve(
        queue_, [this] { return done_ == kRequests; }, [this](towline::Event& event) { handle(event); });
    return wrong_;
  }

 private:
  void handle(towline::Event& event) {
    if (is_error(event.outcome())) throw towline::Error{event.outcome(), std::string{event.error()}};
    switch (event.kind) {
      case TOWLINE_EVENT_CONNECTED: {
        const towline::Peer prefill = queue_.peer(event);
        theirs_ = prefill.region("kv");
        (void)towline::send_tagged(prefill, kHello, {});
        break;
      }
      case TOWLINE_EVENT_NOTICE:
        pull(event);
        break;
      case TOWLINE_EVENT_DONE:
        finish(*static_cast<Pull*>(event.user_data), event.value);
        break;
    }
  }

  void pull(const towline::Event& event) {
    Request request{};
    if (event.bytes != sizeof request) throw std::runtime_error("this is no request");
    std::memcpy(&request, event.data, sizeof request);
    const uint32_t first = 3 * request.number;
    Pull& pull = pulls_[request.number] = {request, {first, first + 1, first + 2}};
    const std::string taken = "request " + std::to_string(request.number);
    const towline::Post post =
        agent_.copy(theirs_->select(1, pull.request.pages), kv_.view().select(1, pull.to),
                    {.notice = taken, .deadline = 10s, .user_data = &pull, .tag = kTaken, .queue = queue_});
    if (!post.accepted()) throw towline::Error{post.poll(), std::string{towline::last_error()}};
  }

  void finish(const Pull& pull, uint64_t bytes) {
    for (uint64_t layer = 0; layer < kLayers; ++layer)
      for (size_t i = 0; i < pull.to.size(); ++i) {
        const std::byte* const page = page_of(cache_, layer, pull.to[i]);
        const std::byte expected = mark(pull.request.number, layer, i);
        if (page[0] != expected || page[kPageBytes - 1] != expected) wrong_ = 1;
      }
    ++done_;
    std::printf("decode: request %u, %llu bytes%s\n", pull.request.number,
                static_cast<unsigned long long>(bytes), wrong_ == 0 ? "" : ", WRONG");
  }

  const towline::Memory cache_{kCacheBytes};
  const towline::Agent agent_{"decode"};
  const towline::Region kv_ = register_cache(agent_, cache_, towline::Access::kNone);
  const towline::Queue queue_{agent_};
  std::optional<towline::View> theirs_;
  std::map<uint32_t, Pull> pulls_;
  uint32_t done_ = 0;
  int wrong_ = 0;
};

}  // namespace

int main() try {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return 1;
  const pid_t child = fork();  // before any agent exists: agents do not cross a fork
  if (child == 0) {
    close(pipe_ends[0]);
    return prefill(pipe_ends[1]);
  }
  close(pipe_ends[1]);
  std::string address(256, '\0');
  const ssize_t size = read(pipe_ends[0], address.data(), address.size());
  address.resize(size > 0 ? static_cast<size_t>(size) : 0);
  const int outcome = Decode{}.run(address);
  int status = 0;
  waitpid(child, &status, 0);
  return outcome != 0 ? outcome : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
