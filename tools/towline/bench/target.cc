#include "bench/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "bench/row.h"
#include "buffer.h"
#include "failure.h"
#include "process.h"
#include "usage.h"

namespace tool::bench {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

class Target {
 public:
  Target(const json& configuration, Channel& parent)
      : kind_(parse_buffer_kind(configuration.at("memory_kind"))),
        gpu_(-1 - configuration.at("rank").get<int>()),
        rank_(fmt::format("bench-target-{}", configuration.at("rank").get<int>()),
              {.workers = configuration.at("workers").get<uint32_t>(),
               .listen = configuration.at("listen").get<std::string>()},
              parent) {}

  void run() {
    rank_.report({{"address", rank_.agent().address()}});
    while (true) {
      towline::Notice notice;
      while (rank_.agent().receive(notice) == towline::Status::kOk) answer(notice);
      rank_.wait(milliseconds{1000});
    }
  }

 private:
  // Memory lent to one initiator. The region is destroyed before the buffer.
  struct Lent {
    Buffer buffer;
    towline::Region region;
  };

  void answer(const towline::Notice& notice) {
    const std::string sender{notice.peer_name()};
    if (auto peer = rank_.agent().find_peer(std::string{notice.peer_incarnation()}))
      peers_[sender] = std::make_unique<towline::Peer>(std::move(*peer));
    json reply;
    const json question = json::parse(notice.text(), nullptr, false);
    if (question.is_discarded() || !question.contains("ask")) return;
    try {
      reply = reply_to(sender, question);
    } catch (const std::exception& error) {
      reply = {{"failed", error.what()}};
    }
    reply["id"] = question.value("id", 0);
    rank_.send(*peers_.at(sender), reply.dump());
  }

  json reply_to(const std::string& sender, const json& question) {
    const std::string ask = question.at("ask");
    if (ask == "open") return open(sender, question.at("bytes"));
    if (ask == "usage") return {{"cpu_s", cpu_seconds()}};
    if (ask == "close") {
      lent_.erase(sender);
      return json::object();
    }
    if (ask == "fill" || ask == "check") return fill_or_check(sender, question, ask == "fill");
    throw Failure{fmt::format("a bench target cannot '{}'", ask)};
  }

  json open(const std::string& sender, uint64_t bytes) {
    lent_.erase(sender);
    Buffer buffer{kind_, bytes, gpu_};
    buffer.push(0, bytes);
    towline::Region region = rank_.agent().register_memory(buffer.view(), {.access = towline::Access::kAll});
    const uint64_t base = buffer.address();
    lent_.emplace(sender, Lent{std::move(buffer), std::move(region)});
    return {{"base", base}};
  }

  json fill_or_check(const std::string& sender, const json& question, bool fill) {
    const auto lent = lent_.find(sender);
    if (lent == lent_.end()) throw Failure{"no memory was opened"};
    const Row row = question.at("row");
    const uint64_t span = question.at("span");
    Buffer& buffer = lent->second.buffer;
    const uint64_t offset = question.at("offset");
    const Area area{.base = reinterpret_cast<uint64_t>(buffer.data()) + offset,
                    .stride = question.at("stride"),
                    .length = question.at("length"),
                    .identity = question.at("identity")};
    const Order order{.seed = question.at("seed"),
                      .initiator = question.at("initiator"),
                      .thread = question.at("thread"),
                      .remote = true,
                      .sequential = question.at("sequential")};
    const uint64_t blocks = area_blocks(row, span);
    const bool inside =
        area.length <= buffer.size() && offset <= buffer.size() - area.length &&
        (blocks - 1) <= (buffer.size() - offset - area.length) / std::max<uint64_t>(area.stride, 1);
    if (!inside) throw Failure{"the blocks lie outside the memory that was opened"};
    const auto picks = pick_blocks(row, span, order);
    const uint64_t bytes = (blocks - 1) * area.stride + area.length;
    buffer.pull(offset, bytes);
    if (fill) {
      fill_blocks(area, picks, question.at("epoch"));
      buffer.push(offset, bytes);
      return {{"wrong", 0}};
    }
    return {{"wrong", count_wrong_blocks(area, picks, question.at("epoch"))}};
  }

  BufferKind kind_;
  int gpu_;
  Rank rank_;
  std::map<std::string, std::unique_ptr<towline::Peer>> peers_;
  std::map<std::string, Lent> lent_;
};

}  // namespace

void run_target(const json& configuration, Channel& parent) {
  try {
    run_rank(Target{configuration, parent}, parent);
  } catch (const Stopped&) {
  }
}

}  // namespace tool::bench
