// A prefill and a decode process: the child owns a paged KV cache and says by a notice which pages are ready;
// the parent pulls them, all layers at once. The notice that goes back with the READ tells the child that it
// may reuse the pages.

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <towline/towline.hpp>
#include <vector>

using namespace std::chrono_literals;

namespace {

constexpr uint64_t kLayers = 8;
constexpr uint64_t kPages = 128;
constexpr uint64_t kPageBytes = 16384;
constexpr uint64_t kCacheBytes = kLayers * kPages * kPageBytes;

// All pages of all layers, as one entry: block layer * kPages + page.
towline::Blocks cache_blocks(uint64_t address) {
  return towline::Blocks::at(address, kPageBytes)
      .repeat(kLayers, kPages * kPageBytes)
      .repeat(kPages, kPageBytes);
}

std::vector<uint32_t> in_every_layer(const std::vector<uint32_t>& pages) {
  std::vector<uint32_t> picks;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (const uint32_t page : pages) picks.push_back(layer * kPages + page);
  }
  return picks;
}

towline::Notice next_notice(const towline::Agent& agent) {
  towline::Notice notice;
  while (agent.receive(notice) == towline::Status::kAgain) {
    if (agent.wait(30s) == towline::Status::kNotYet) {
      throw towline::Error{towline::Status::kTimedOut, "no notice came within 30 s"};
    }
  }
  return notice;
}

int prefill(int address_pipe) {
  towline::Memory cache{kCacheBytes};
  towline::Agent agent{"prefill", {.listen = "127.0.0.1:0"}};
  const auto region = agent.register_memory(towline::dram(cache), {.access = towline::Access::kRead});
  const std::string address = agent.address();
  if (write(address_pipe, address.data(), address.size()) < 0) return 1;
  close(address_pipe);

  // Decode says hello; then we fill three pages of every layer, and tell.
  const auto hello = next_notice(agent);
  const auto decode = agent.find_peer(std::string{hello.peer_incarnation()});
  for (const uint32_t pick : in_every_layer({5, 9, 77})) {
    auto* words = reinterpret_cast<uint32_t*>(cache.data() + pick * kPageBytes);
    for (uint64_t word = 0; word < kPageBytes / 4; ++word) words[word] = pick;
  }
  if (is_error(decode->send("request 17: pages 5 9 77"))) return 1;
  const auto done = next_notice(agent);
  std::printf("prefill: '%.*s', its pages are free again\n", static_cast<int>(done.text().size()),
              done.text().data());
  return 0;
}

int decode(const std::string& address) {
  std::vector<std::byte> cache(kCacheBytes);  // memory of any sort
  towline::Agent agent{"decode", {.listen = "127.0.0.1:0"}};
  const auto region = agent.register_memory(towline::dram(cache));
  const auto peer = agent.connect(address);
  if (is_error(peer.send("hello"))) return 1;
  const auto ready = next_notice(agent);
  std::printf("decode: '%.*s'\n", static_cast<int>(ready.text().size()), ready.text().data());

  const auto mine = agent.block_list(cache_blocks(reinterpret_cast<uint64_t>(cache.data())));
  const auto theirs = peer.block_list(cache_blocks(peer.regions().front().address));
  const auto to = in_every_layer({0, 1, 2});
  const auto from = in_every_layer({5, 9, 77});
  const auto move = agent.transfer(towline::Op::read, mine, to, theirs, from, {.notice = "request 17 taken"});
  towline::Status status = move.post();
  if (status == towline::Status::kInProgress) status = move.wait(30s);
  if (status != towline::Status::kOk) {
    std::fprintf(stderr, "decode: %s\n", status_text(status));
    return 1;
  }
  for (size_t at = 0; at < to.size(); ++at) {
    const auto* words = reinterpret_cast<const uint32_t*>(cache.data() + to[at] * kPageBytes);
    for (uint64_t word = 0; word < kPageBytes / 4; ++word) {
      if (words[word] != from[at]) {
        std::fprintf(stderr, "decode: page %u holds %u instead of %u\n", to[at], words[word], from[at]);
        return 1;
      }
    }
  }
  const auto result = move.result();
  std::printf("decode: %llu bytes in %.0f us\n", static_cast<unsigned long long>(result.bytes),
              static_cast<double>(result.duration().count()) / 1000);
  return 0;
}

}  // namespace

int main() {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return 1;
  const pid_t child = fork();  // before any agent exists: agents do not cross a fork
  try {
    if (child == 0) {
      close(pipe_ends[0]);
      return prefill(pipe_ends[1]);
    }
    close(pipe_ends[1]);
    std::string address(256, '\0');
    const ssize_t size = read(pipe_ends[0], address.data(), address.size());
    address.resize(size > 0 ? static_cast<size_t>(size) : 0);
    const int outcome = decode(address);
    int status = 0;
    waitpid(child, &status, 0);
    return outcome != 0 ? outcome : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  } catch (const towline::Error& error) {
    std::fprintf(stderr, "%s: %s\n", status_name(error.code()), error.what());
    return 1;
  }
}
